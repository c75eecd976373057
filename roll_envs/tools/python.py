"""The tool ``python``: code in a session of a sandbox; variables and files stay until the end of the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Limits, RunResult, Sandbox, SandboxSession, explained, make_sandbox
from roll_envs.tools.types import Tool, ToolResult, ToolSpec, ToolState, object_schema

_ENDINGS = {
    "timeout": "Error: the code ran longer than {limits.wall_s:g} s and was ended; variables are lost, files are kept.",
    "memory": "Error: the code used more than {limits.memory_mb} MB and was ended; variables are lost, files are kept.",
    "output": "Error: the code printed too much and was ended; variables are lost, files are kept.",
}


class PythonTool(Tool):
    """Python as in a notebook. The sandbox is made at the first call, the session at the first call of an episode.

    State is restored by repeating the calls of an episode (``state = "replay"``): code that reads the clock or random
    numbers may then give another result, which is an error.
    """

    state: ToolState = "replay"
    grace_s = 90.0
    """A first call makes the sandbox, which has deadlines of its own."""

    def __init__(
        self,
        *,
        sandbox: str | Sandbox = "local",
        sandbox_kwargs: Mapping[str, Any] | None = None,
        memory_mb: Annotated[int, Field(ge=32)] = 512,
        name: str = "python",
    ) -> None:
        """``sandbox`` is a backend's name (made with ``sandbox_kwargs``), or a sandbox that its owner closes."""
        if isinstance(sandbox, Sandbox) and sandbox_kwargs:
            raise ConfigError("sandbox_kwargs are for a sandbox that is named; this one is made already")
        self._backend, self._backend_kwargs = sandbox, dict(sandbox_kwargs or {})
        self._memory_mb = memory_mb
        self._sandbox: Sandbox | None = sandbox if isinstance(sandbox, Sandbox) else None
        self._session: SandboxSession | None = None
        self.spec = ToolSpec(
            name=name,
            description=(
                "Runs Python code and shows what it prints, and the value of a last expression. Variables and files "
                "stay until the end of the task. There is no network."
            ),
            parameters=object_schema("code", code={"type": "string", "description": "Python source text."}),
        )

    def open(self) -> None:
        self.close()

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        code = arguments["code"]
        try:
            code.encode()
        except UnicodeEncodeError as error:
            return ToolResult(text=f"Error: the code is no valid Unicode text at character {error.start}", ok=False)
        if not code.strip():
            return ToolResult(text="Error: the code is empty", ok=False)
        # The sandbox ends the code at the deadline, so the tool itself comes back in time.
        limits = Limits(wall_s=deadline_s, memory_mb=self._memory_mb)
        if self._session is None:
            # Left to the first call: an episode that runs no code needs no session.
            if self._sandbox is None:
                assert isinstance(self._backend, str)
                self._sandbox = make_sandbox(self._backend, **self._backend_kwargs)
            self._session = self._sandbox.session(language="python", limits=limits)
        return _shown(explained(self._session.run(code, limits=limits)), limits)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def dispose(self) -> None:
        self.close()
        if self._sandbox is not None and not isinstance(self._backend, Sandbox):
            sandbox, self._sandbox = self._sandbox, None
            sandbox.close()


def _shown(result: RunResult, limits: Limits) -> ToolResult:
    parts = [_text(result.stdout, result.stdout_dropped), _text(result.stderr, result.stderr_dropped)]
    if result.status in _ENDINGS:
        parts.append(_ENDINGS[result.status].format(limits=limits))
    elif not result.ok and not parts[1]:
        ending = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        parts.append(f"Error: the code ended Python with {ending}; variables are lost, files are kept.")
    text = "\n".join(part for part in parts if part)
    return ToolResult(text=text or "(no output; print a value to see it)", ok=result.ok)


def _text(data: bytes, dropped: int) -> str:
    text = data.decode("utf-8", "replace").rstrip("\n")
    return text + (f"\n[... {dropped} more bytes were dropped ...]" if dropped else "") if text.strip() else ""
