"""The python tool in a real sandbox on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from roll_envs.errors import MissingExtraError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program, RunResult, Sandbox, SandboxSession, make_sandbox
from roll_envs.testing import CounterEnv
from roll_envs.tools import TOOL_FORMATS, ToolCall, ToolEnv, make_tools


@pytest.fixture(scope="module")
def _sandbox_works() -> None:
    try:
        make_sandbox("local").close()
    except (SandboxError, MissingExtraError) as error:
        pytest.skip(f"no local sandbox on this machine: {error}")


@pytest.fixture
def env(_sandbox_works: None) -> Iterator[ToolEnv]:
    made = ToolEnv(env=CounterEnv(), tools=["python"], budget={"call_seconds": 2.0, "call_chars": 300})
    yield made
    made.close()


def _say(env: ToolEnv, *codes: str) -> str:
    calls = [ToolCall(name="python", arguments={"code": code}) for code in codes]
    return env.step(TOOL_FORMATS["hermes"].render(calls))[0]


def test_variables_and_files_stay_within_an_episode(env: ToolEnv) -> None:
    env.reset(seed=1)
    shown = _say(env, "x = 20", "open('note', 'w').write('kept')", "print(open('note').read(), x * 2 + 2)")
    assert shown.endswith("<tool_response>\nkept 42\n</tool_response>")
    assert "NameError" in _say(env, "y")
    env.reset(seed=1)
    assert "NameError" in _say(env, "x")
    assert "FileNotFoundError" in _say(env, "open('note')")


def test_code_that_runs_too_long_or_says_too_much(env: ToolEnv) -> None:
    env.reset(seed=1)
    shown = _say(env, "x = 1", "while True: pass", "print('again')", "print('z' * 5000)")
    assert "ran longer than 2 s and was ended; variables are lost" in shown
    assert "<tool_response>\nagain\n</tool_response>" in shown
    assert "characters are cut" in shown
    assert shown.count("z") == 300
    assert "NameError" in _say(env, "x")
    assert "ended Python with exit code 3; variables are lost" in _say(env, "import os; os._exit(3)")


def test_a_snapshot_is_restored_by_replay(env: ToolEnv) -> None:
    env.reset(seed=1)
    _say(env, "x = [1]", "x.append(len(x) + 40)")
    taken = json.loads(json.dumps(env.snapshot()))
    _say(env, "x = None")
    env.restore(taken)
    assert "[1, 41]" in _say(env, "print(x)")


class _Lost(SandboxSession):
    """A session around whose code a part of the sandbox dies."""

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        return RunResult(status="error", exit_code=None, isolation=Isolation(tier="none", layers=()))

    def upload(self, path: str, content: bytes) -> None: ...
    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        return b""

    def close(self) -> None: ...


class _Losing(Sandbox):
    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        return _Lost().run(program.source)

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        return _Lost()

    def close(self) -> None: ...


def test_code_whose_end_nobody_can_explain_is_a_fault_and_no_answer() -> None:
    (tool,) = make_tools({"tool": "python", "sandbox": _Losing()})
    tool.open()
    with pytest.raises(SandboxError, match="died in the middle of a run"):
        tool.call({"code": "print(1)"}, deadline_s=1.0)
