"""Hostile programs of the shared collection, each with what its manifest says must happen."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack_host import SECRET, Host, hostile_host
from local_made import local_sandbox

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.local import LocalSandbox

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "attacks"
ATTACKS: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text("utf-8")) if FOLDER.is_dir() else []
RUNS = [attack for attack in ATTACKS if attack["mode"] == "run"]
CHEATS = [attack for attack in ATTACKS if attack["mode"] == "assert"]
LIMITS = Limits(wall_s=2.0, memory_mb=256, processes=32, files_mb=32)
ENDLESS = ("sleep_past", "regex_catastrophe", "catch_all_exceptions", "fork_bomb")
"""Attacks whose status is a timeout, whatever else there is."""

pytestmark = pytest.mark.skipif(not ATTACKS, reason="the collection of attacks is not here (shared/attacks)")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    try:
        with hostile_host(port=18999) as made:
            yield made
    except OSError as error:
        pytest.skip(f"the addresses that the attacks look for are taken: {error}")


@pytest.fixture(scope="module")
def sandbox(host: Host) -> Iterator[LocalSandbox]:
    with local_sandbox(slots=1, limits=LIMITS) as made:
        yield made


def source_of(attack: dict[str, Any]) -> str:
    if attack["name"] == "source_10mb":
        return "# a comment of forty characters in all..\n" * 250_000 + "print('EXPECTED_OK')\n"
    return (FOLDER / attack["file"]).read_text("utf-8")


@pytest.mark.parametrize("attack", RUNS, ids=lambda a: a["name"])
def test_contained(attack: dict[str, Any], sandbox: LocalSandbox, host: Host) -> None:
    before_mb, visits = host.memory_mb(), len(host.visits)
    started = time.monotonic()
    # What would run for ever is stopped by the wall clock after one second; what crashes may take long to do so.
    limits = LIMITS
    if attack["category"] == "time" or attack["name"] in ENDLESS:
        limits = replace(LIMITS, wall_s=1.0)
    elif attack["category"] == "crash":
        limits = replace(LIMITS, wall_s=20.0)
    result = sandbox.run(Program(source=source_of(attack)), limits=limits)
    assert time.monotonic() - started < limits.wall_s + 6
    check(attack, result)
    assert len(host.visits) == visits
    assert host.processes("sbxatk") == []
    assert host.memory_mb() - before_mb < attack.get("maxrss", 300)
    after = sandbox.run(Program(source="import os; print(sorted(os.listdir('.')), len(os.listdir('/tmp')))"))
    assert (after.status, after.stdout) == ("ok", b"['main.py'] 0\n")


def check(attack: dict[str, Any], result: RunResult) -> None:
    shown = result.stdout + result.stderr
    for leak in [*attack.get("leak", ()), SECRET]:
        assert leak.encode() not in shown
    if "expect_stdout" in attack:
        assert result.stdout.strip() != attack["expect_stdout"].encode()
    if attack.get("benign_rc"):
        assert result.status == "ok"
    if attack.get("must_fail") or attack["category"] == "crash":
        assert result.status in ("error", "memory")  # Python 3.11 recurses on the heap
        assert result.exit_code != 0
    if attack["category"] == "time":
        assert result.status in ("timeout", "memory")
    if attack["name"] in ENDLESS:
        assert result.status == "timeout"
    if "maxmem" in attack:
        assert result.memory_peak_mb is not None
        assert result.memory_peak_mb <= LIMITS.memory_mb + 32


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("memory_one_alloc", "memory"),
        ("memory_tmpfs", "ok"),
        ("stderr_flood", "output"),
        ("daemon_holds_pipe", "ok"),
    ],
)
def test_the_status_names_the_limit(name: str, status: str, sandbox: LocalSandbox) -> None:
    limits = replace(LIMITS, wall_s=20.0)
    assert sandbox.run(Program(source=(FOLDER / f"{name}.py").read_text("utf-8")), limits=limits).status == status


@pytest.mark.parametrize("attack", CHEATS, ids=lambda a: a["name"])
def test_an_answer_cannot_be_faked(attack: dict[str, Any], sandbox: LocalSandbox) -> None:
    """Calls are made in the jail, answers compared outside: only the right function is right."""
    nonce = secrets.token_hex(8)
    right = []
    with sandbox.session() as session:
        try:
            session.run((FOLDER / attack["file"]).read_text("utf-8"))
            for a, b in ((2, 3), (-7, 19), (1000, 1)):
                said = session.run(f"print({nonce!r}, repr(add({a}, {b})))").stdout.decode()
                right.append(said == f"{nonce} {a + b}\n")
        except SandboxError:
            right.append(False)
    assert all(right) is (attack["name"] == "cheat_honest")
