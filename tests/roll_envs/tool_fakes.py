"""Fakes for tests of tools: a sandbox that runs trusted code in this process, and tools that misbehave on purpose."""

from __future__ import annotations

import contextlib
import io
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program, RunResult, Sandbox, SandboxSession
from roll_envs.tools import Tool, ToolResult, ToolSpec
from roll_envs.tools.types import ToolState

NO_ISOLATION = Isolation(tier="none", layers=())


class InProcessSession(SandboxSession):
    """Runs cells with exec; a cell that is the word ``die`` is a dead worker, other limits are words as well."""

    def __init__(self, owner: InProcessSandbox) -> None:
        self._owner, self._names = owner, {}
        owner.open_sessions += 1
        self._closed = False

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        self._owner.limits.append(limits)
        if source == "die":
            raise SandboxError("the worker died")
        if source in ("timeout", "memory", "output"):
            self._names = {}
            return RunResult(status=source, exit_code=None, isolation=NO_ISOLATION)  # type: ignore[arg-type]
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(source, self._names)
        except Exception:
            said = traceback.format_exc(limit=0).encode()
            return RunResult(
                status="error", exit_code=1, stdout=out.getvalue().encode(), stderr=said, isolation=NO_ISOLATION
            )
        return RunResult(status="ok", exit_code=0, stdout=out.getvalue().encode(), isolation=NO_ISOLATION)

    def upload(self, path: str, content: bytes) -> None:
        raise NotImplementedError

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.open_sessions -= 1


class InProcessSandbox(Sandbox):
    """No sandbox at all: for trusted test code."""

    def __init__(self) -> None:
        self.open_sessions, self.closed = 0, False
        self.limits: list[Limits | None] = []
        """Of sessions and cells, in order."""

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        raise NotImplementedError

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        self.limits.append(limits)
        return InProcessSession(self)

    def close(self) -> None:
        self.closed = True


NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


class CountTool(Tool):
    """Counts its calls in an episode; ``outside`` says that the count cannot be brought back."""

    def __init__(self, *, name: str = "count", state: ToolState = "replay", drift: int = 0) -> None:
        self.spec = ToolSpec(name=name, description="Counts.", parameters=NOTHING)
        self.state, self.drift = state, drift
        self.value, self.disposed, self.opened = 0, 0, 0

    def open(self) -> None:
        self.value, self.opened = 0, self.opened + 1

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        self.value += 1
        return ToolResult(text=f"count {self.value + self.drift}")

    def dispose(self) -> None:
        self.disposed += 1


class OddTool(Tool):
    """Does what ``how`` says: raise, hang until let go, return something else, or a long text."""

    def __init__(self, *, how: str = "raise", length: int = 0) -> None:
        self.spec = ToolSpec(
            name="odd",
            description="Misbehaves.",
            parameters={
                "additionalProperties": False,
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "s": {"enum": ["a", "b"]}},
                "required": ["n"],
            },
        )
        self.how, self.length, self.grace_s = how, length, 0.05
        self.let_go = threading.Event()
        self.deadlines: list[float] = []

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        self.deadlines.append(deadline_s)
        if self.how == "raise":
            raise ValueError("broken inside")
        if self.how == "sandbox":
            raise SandboxError("the worker died")
        if self.how == "hang":
            self.let_go.wait(20)
        if self.how == "other":
            return "text"  # type: ignore[return-value]
        return ToolResult(text="<" + "x" * self.length + ">")
