"""Hostile programs against the Docker sandbox: they achieve nothing, and the next run is as good as new."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from docker_place import open_sandbox

from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.docker import DockerSandbox

pytestmark = pytest.mark.docker

WALL_S = 4.0
CANARY = "canary-env-7f3a"
EXPECTED_OK = "EXPECTED_OK"
STATUS_BY_CATEGORY = {"time": {"timeout"}, "crash": {"error", "memory"}}


def _manifest() -> list[dict[str, Any]]:
    file = Path(__file__).resolve().parents[3] / "shared" / "attacks" / "manifest.json"
    return json.loads(file.read_text()) if file.is_file() else []


ATTACKS = {entry["name"]: entry for entry in _manifest()}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerSandbox]:
    os.environ["HOST_SECRET"] = CANARY
    try:
        with open_sandbox(limits=Limits(wall_s=WALL_S, memory_mb=256)) as made:
            yield made
    finally:
        del os.environ["HOST_SECRET"]


@dataclass
class Listeners:
    """What on this machine a program must not reach."""

    heard: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def listeners() -> Iterator[Listeners]:
    found = Listeners()
    with contextlib.ExitStack() as stack:
        for family, address in ((socket.AF_INET, ("127.0.0.1", 18999)), (socket.AF_UNIX, "\0sbx_canary")):
            server = stack.enter_context(socket.socket(family))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen()
            threading.Thread(target=_listen, args=(server, found.heard), daemon=True).start()
            stack.callback(server.shutdown, socket.SHUT_RDWR)
        yield found


def _listen(server: socket.socket, heard: list[str]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            heard.append(str(server.family))
            connection.close()


def _source(shared_dir: Path, entry: dict[str, Any]) -> str:
    if entry["name"] == "source_10mb":
        return "# a line of comment\n" * (10 * 1024 * 1024 // 20) + "print(1)\n"
    return (shared_dir / "attacks" / entry["file"]).read_text()


def _named_processes() -> list[str]:
    """Processes on this machine that an attack has left; they name themselves."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == "sbxatk":
                found.append(comm.parent.name)
    return found


@pytest.mark.parametrize("name", [name for name, entry in ATTACKS.items() if entry["mode"] == "run"] or ["none"])
def test_an_attack_is_contained(sandbox: DockerSandbox, listeners: Listeners, shared_dir: Path, name: str) -> None:
    entry = ATTACKS[name]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    result = sandbox.run(Program(source=_source(shared_dir, entry)))
    assert time.monotonic() - started < WALL_S + 5
    said = (result.stdout + result.stderr).decode("utf-8", "replace")
    assert [leak for leak in entry.get("leak", []) if leak in said] == []
    assert CANARY not in said
    assert "HOST_SECRET" not in said
    assert listeners.heard == []
    if "expect_stdout" in entry:
        assert EXPECTED_OK not in said
    if entry.get("must_fail"):
        assert result.status == "error"
    if entry.get("benign_rc"):
        assert (result.status, result.exit_code) == ("ok", 0)
    if entry["category"] in STATUS_BY_CATEGORY:
        assert result.status in STATUS_BY_CATEGORY[entry["category"]]
    if "maxmem" in entry:
        assert result.memory_peak_mb is None or result.memory_peak_mb < 300
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) / 1024 < entry.get("maxrss", 300)
    _check_outcome(name, result)
    assert _named_processes() == []
    after = sandbox.run(Program(source=AFTER))
    assert after.stdout == b"['main.py'] ['work'] [] 2\n", after


AFTER = """
import os
processes = [name for name in os.listdir("/proc") if name.isdigit()]
print(os.listdir("."), os.listdir("/tmp"), os.listdir("/dev/shm"), len(processes))
"""


def _check_outcome(name: str, result: RunResult) -> None:
    """What is known of certain attacks beyond what the manifest says."""
    out = result.stdout
    if name == "binary_output":
        assert out == b"\xff\xfe\x00\x80 EXPECTED\n" + bytes(range(256))
    elif name == "unicode_surrogates":
        assert EXPECTED_OK.encode() in out
    elif name == "source_10mb":
        assert out == b"1\n"
    elif name == "daemon_holds_pipe":
        assert (result.status, out) == ("ok", b"parent done\n")
        assert result.wall_s < 2
    elif name == "kill_all":
        assert out.endswith(b"alive\n")
    elif name == "stderr_flood":
        assert len(result.stderr) == 1 << 20
        assert result.stderr_dropped > 0
    elif name == "memory_one_alloc":
        assert b"ALLOCATED" not in out
    elif name in ("many_fds", "many_inodes"):
        assert b"bounded" in out


CHEATS = [name for name, entry in ATTACKS.items() if entry["mode"] == "assert"]


@pytest.mark.parametrize("name", CHEATS or ["none"])
def test_a_cheat_does_not_pass_where_the_expected_value_stays_outside(
    sandbox: DockerSandbox, shared_dir: Path, name: str
) -> None:
    entry = ATTACKS[name]
    cases = {(2, 3): b"5\n", (-1, 1): b"0\n", (10, 20): b"30\n"}
    passed = []
    with sandbox.session() as session:
        session.run(_source(shared_dir, entry))
        for (a, b), expected in cases.items():
            result = session.run(f"add({a}, {b})")
            passed.append(result.status == "ok" and result.stdout == expected)
    assert all(passed) == (name == "cheat_honest"), passed
