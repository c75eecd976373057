"""A sandbox whose results are looked at: one that explains no death is a fault of ours, not a verdict."""

from __future__ import annotations

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Language, Limits, Program, RunResult, Sandbox, SandboxSession

__all__ = ["Checked"]


class Checked(Sandbox):
    """As ``sandbox``, but raises :class:`SandboxError` where a program is said to have died, and neither by which exit
    code nor by which signal: then a part of the sandbox died around it, and nothing is known about the program."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        return _looked_at(self._sandbox.run(program, limits=limits, timeout_s=timeout_s))

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        return _CheckedSession(self._sandbox.session(language=language, limits=limits))

    def close(self) -> None:
        self._sandbox.close()


class _CheckedSession(SandboxSession):
    def __init__(self, session: SandboxSession) -> None:
        self._session = session

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        return _looked_at(self._session.run(source, limits=limits))

    def upload(self, path: str, content: bytes) -> None:
        self._session.upload(path, content)

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        return self._session.download(path, max_bytes=max_bytes)

    def close(self) -> None:
        self._session.close()


def _looked_at(result: RunResult) -> RunResult:
    not_compiled = result.compile is not None and not result.compile.ok
    if result.status == "error" and result.exit_code is None and result.signal is None and not not_compiled:
        raise SandboxError("a part of the sandbox died in the middle of a run")
    return result
