"""What one program could tell another, or do to it, by ways beside those that isolation is made of."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_made import local_sandbox

from roll_envs.sandbox import Limits, Program
from sandboxes.local import LocalSandbox
from sandboxes.local.cgroups import PREFIX, find_cgroup_parent, remove_later
from sandboxes.local.inside.cgroup import Cgroup
from sandboxes.local.slot import LocalSlot

LIMITS = Limits(wall_s=20.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    preload = ("numpy.random",) if importlib.util.find_spec("numpy") else ()
    with local_sandbox(slots=1, preload=preload, limits=LIMITS) as made:
        yield made


def said(sandbox: LocalSandbox, source: str) -> str:
    result = sandbox.run(Program(source=source))
    assert result.stderr == b""
    return result.stdout.decode().strip()


COUNTERS = "print(open('/proc/self/net/dev').read().split('lo:')[1].split()[0])"


def test_network_counters_start_anew(sandbox: LocalSandbox) -> None:
    talk = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\nclient.send(b'x' * 1000)\n"
        "assert len(server.accept()[0].recv(2000)) == 1000\n"
    )
    assert int(said(sandbox, talk + COUNTERS)) > 1000
    assert said(sandbox, COUNTERS) == "0"
    with sandbox.session() as session:
        assert int(session.run(talk + COUNTERS).stdout) > 1000
    with sandbox.session() as session:
        assert session.run(COUNTERS).stdout == b"0\n"


def test_files_of_the_host_cannot_be_watched(sandbox: LocalSandbox) -> None:
    source = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for make in (libc.inotify_init, lambda: libc.inotify_init1(0), lambda: libc.fanotify_init(0, 0)):\n"
        "    print(make(), ctypes.get_errno() in (errno.EPERM, errno.ENOSYS))"
    )
    assert said(sandbox, source).splitlines() == ["-1 True"] * 3


def test_folders_of_the_host_cannot_be_watched(sandbox: LocalSandbox) -> None:
    """Neither by signals when files in them are read, nor by leases, for which others who open a file wait."""
    source = (
        "import fcntl, os, signal\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "watched = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\nmine = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "for watch in ((watched, fcntl.F_NOTIFY, fcntl.DN_ACCESS), (mine, fcntl.F_SETLEASE, fcntl.F_WRLCK)):\n"
        "    try:\n        fcntl.fcntl(*watch)\n    except PermissionError:\n        print('refused')"
    )
    assert said(sandbox, source) == "refused\nrefused"


def test_preloaded_generators_draw_other_numbers_in_each_run(sandbox: LocalSandbox) -> None:
    pytest.importorskip("numpy")
    source = "import numpy, random; print(numpy.random.random(), random.random())"
    drawn = [said(sandbox, source).split() for _ in range(3)]
    for _ in range(2):
        with sandbox.session() as session:
            drawn.append(session.run(source).stdout.decode().split())
    assert len({number for pair in drawn for number in pair}) == 10


def test_memory_that_the_kernel_still_holds_is_not_the_next_runs(sandbox: LocalSandbox) -> None:
    limits = Limits(memory_mb=200, files_mb=150, wall_s=20.0)
    fill = "import os\nfor n in range(2000): open(f'f{n}', 'wb').write(bytes(70_000))"
    for _ in range(2):
        assert sandbox.run(Program(source=fill), limits=limits).ok
        honest = sandbox.run(Program(source="x = b'x' * (170 << 20)"), limits=limits)
        assert honest.ok, honest
        assert honest.memory_peak_mb is not None
        assert 165 < honest.memory_peak_mb < 200


def test_a_cell_whose_limit_is_below_what_the_session_holds(sandbox: LocalSandbox) -> None:
    with sandbox.session(limits=Limits(memory_mb=256)) as session:
        assert session.run("held = b'x' * (100 << 20)").ok
        low = session.run("print(len(held))", limits=Limits(memory_mb=32))
        assert (low.status, low.exit_code, low.stdout) == ("memory", None, b"")
        assert session.run("'held' in globals()").stdout == b"False\n"


def shares() -> list[str]:
    """Share of the processor of each slot of this process."""
    names = ("cpu.shares", "cpu.weight")
    for _ in range(100):  # one of another sandbox may be removed while it is looked at
        with contextlib.suppress(FileNotFoundError):
            folders = Path("/sys/fs/cgroup").glob(f"**/{PREFIX}{os.getpid()}-*")
            return [(f / name).read_text("ascii").strip() for f in folders for name in names if (f / name).exists()]
    raise AssertionError("folders of sandboxes go away each time they are looked at")


def test_what_a_session_leaves_running_takes_only_time_that_nobody_wants(sandbox: LocalSandbox) -> None:
    if sandbox.isolation.tier != "full" or not shares():
        pytest.skip("the processor is not shared out by cgroups here")
    others = shares().count("2")  # of other sandboxes of this process
    with sandbox.session() as session:
        session.run("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass'])")
        assert shares().count("2") == others + 1
        waiting = threading.Thread(target=session.run, args=("import time; time.sleep(5)",))
        waiting.start()
        until = time.monotonic() + 5
        while shares().count("2") > others and time.monotonic() < until:
            time.sleep(0.05)
        assert waiting.is_alive()
        assert shares().count("2") == others
        waiting.join()
        assert shares().count("2") == others + 1
    assert sandbox.run(Program(source="")).ok
    assert shares().count("2") == others
    # Where its first process is gone too, as after a lack of memory, there is nobody to tell that it is over.
    (slot,) = sandbox._pool._idle
    assert isinstance(slot, LocalSlot)
    for noticed in (False, True):
        with sandbox.session():
            first = slot._supervisor.pid
            for _ in range(2):
                first = int(Path(f"/proc/{first}/task/{first}/children").read_text("ascii"))
            os.kill(first, signal.SIGKILL)
            if noticed:
                assert slot._answer()[0]["event"] == "gone"
        assert sandbox.run(Program(source="")).ok
        assert shares().count("2") == others
    assert sandbox._pool._idle == [slot], "it was not replaced"


def test_a_sigkill_from_outside_is_no_verdict(sandbox: LocalSandbox) -> None:
    """Only a program that ends like this twice has done it itself."""
    before = set(named("sbx-victim"))
    source = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'sbx-victim', 0, 0, 0)\ntime.sleep(1.5)\nprint('whole')"

    def kill_once() -> None:
        deadline = time.monotonic() + 10
        while not (found := set(named("sbx-victim")) - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(found.pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    result = sandbox.run(Program(source=source))
    killer.join()
    assert (result.status, result.stdout) == ("ok", b"whole\n")
    own = sandbox.run(Program(source="import os; os.kill(os.getpid(), 9)"))
    assert (own.status, own.signal) == ("error", signal.SIGKILL)


def named(name: str) -> list[int]:
    """Processes of this machine with that name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text("ascii").strip() == name:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_is_held_before_a_run_is_added_to_its_limit() -> None:
    place, reason = find_cgroup_parent()
    if place is None or not os.path.isdir("/dev/shm"):
        pytest.skip(f"no cgroup can be made here: {reason}")
    folders = place.make()
    tasks = " ".join(f"{folder}/cgroup.procs" for folder in folders.values())
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as left:
        command = f"for f in {tasks}; do echo 0 > $f; done; head -c 20000000 /dev/zero > {left.name}"
        subprocess.run(["/bin/sh", "-c", command], check=True, timeout=20)
        group = Cgroup(folders)
        group.begin()
        group.limit(64 << 20, 8)
        told = int(os.pread(group._limit, 32, 0))
        assert 18 << 20 < told - (64 << 20) <= 32 << 20
        peak = group.peak_bytes()
        assert peak is None or peak < 4 << 20
        held = (group._limit, group._events, group._peak, group._swap, group._pids, group._usage, *group._tasks)
        for fd in filter(None, held):
            os.close(fd)
    remove_later(folders.values())
