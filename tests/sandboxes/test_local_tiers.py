"""Less isolation has to be asked for, is named, and still bounds what it can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from local_made import local_sandbox

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Limits, Program
from sandboxes.local import LocalSandbox
from sandboxes.local.inside.jail import mount_point


@pytest.fixture
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.local.sandbox.find_cgroup_parent", lambda: (None, "this is a test"))


@pytest.fixture
def watched(no_cgroups: None) -> Iterator[LocalSandbox]:
    with local_sandbox(
        slots=1, minimum_isolation="no-cgroup", limits=Limits(memory_mb=128, wall_s=30.0, processes=32)
    ) as made:
        yield made


def test_a_weaker_tier_is_refused_with_the_reason_and_the_way(no_cgroups: None) -> None:
    with pytest.raises(SandboxError, match=r"this is a test.*minimum_isolation='no-cgroup'"):
        LocalSandbox(slots=1)


_ON_MACOS = """
import ctypes, sys
from roll_envs import make_sandbox

class WithoutLinux(ctypes.CDLL):
    def __getattr__(self, name):
        if self._name is None and name in ("prctl", "mount", "syscall", "unshare"):
            raise AttributeError(name)
        return super().__getattr__(name)

import multiprocessing.connection, pydantic.fields, zoneinfo  # which look at the platform themselves
ctypes.CDLL, sys.platform = WithoutLinux, "darwin"
import sandboxes.docker
try:
    make_sandbox("local")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_other_systems_are_told_what_to_use() -> None:
    told = subprocess.run([sys.executable, "-c", _ON_MACOS], capture_output=True, text=True, timeout=60, check=False)
    assert told.stderr == ""
    assert told.stdout.startswith("SandboxError the local sandbox needs Linux, and this is darwin; use make_sandbox('d")


def test_the_tier_is_in_every_result(watched: LocalSandbox) -> None:
    isolation = watched.run(Program(source="")).isolation
    assert isolation.tier == "no-cgroup"
    assert "memory-watchdog" in isolation.layers
    assert isolation.missing == ("cgroup-memory", "cgroup-pids")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("x = bytearray(4 << 30)", "memory"),
        (
            "import os\nfor _ in range(6):\n    if os.fork() == 0:\n"
            "        x = b'x' * (40 << 20)\n        while True: pass\nos.wait()",
            "memory",
        ),
        (
            "x = b'x' * (50 << 20)\nimport os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
            "        time.sleep(0.3)\n        os._exit(0)\n"
            "for _ in range(6): os.wait()",
            "ok",
        ),
        ("import os, time\ntry: os.memfd_create('x'); print('MADE')\nexcept OSError: pass", "ok"),
    ],
    ids=["one", "many", "shared pages count once", "hidden memory"],
)
def test_the_watchdog(watched: LocalSandbox, source: str, status: str) -> None:
    result = watched.run(Program(source=source))
    assert (result.status, result.stdout, result.stderr) == (status, b"", b"")
    assert result.memory_peak_mb is not None
    assert result.memory_peak_mb > 1


def test_so_many_processes_that_a_look_at_them_takes_long_are_ended_in_time(watched: LocalSandbox) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    limits = Limits(memory_mb=512, wall_s=1.0, processes=250)
    result = watched.run(Program(source=bomb), limits=limits)
    assert (result.status, result.stdout, result.stderr) == ("timeout", b"", b"")
    with watched.session(limits=limits) as session:
        assert session.run(bomb).status == "timeout"


def test_a_session_under_the_watchdog(watched: LocalSandbox) -> None:
    with watched.session() as session:
        session.upload("kept", b"k")
        assert session.run("x = bytearray(4 << 30)").status == "memory"
        assert session.run("open('kept').read()").stdout == b"'k'\n"


def test_a_mount_point_is_read_as_the_kernel_writes_it() -> None:
    line = "36 35 98:0 / /tmp/jos\u00e9\\040a\\134b rw,noatime shared:1 - ext4 /dev/root rw".encode()
    assert mount_point(line) == "/tmp/jos\u00e9 a\\b"
