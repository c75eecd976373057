"""A sandbox of plain subprocesses, with no isolation at all: for tests of what stands on the contract."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program, RunResult, Sandbox, SandboxSession

NONE = Isolation(tier="none", layers=())

LOOP = """
import json, os, sys, traceback
replies = os.fdopen(os.dup(1), "w")
space = {"__name__": "__main__"}
for line in os.fdopen(os.dup(0)):
    order = json.loads(line)
    out = os.open(order["path"], os.O_WRONLY)
    os.dup2(out, 1)
    os.close(out)
    code = 0
    try: exec(compile(order["source"], "<cell>", "exec"), space)
    except SystemExit: pass
    except BaseException: code = 1
    try: sys.stdout.flush()
    except Exception: pass
    replies.write(str(code) + "\\n")
    replies.flush()
"""


class PlainSession(SandboxSession):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        import json

        limits = limits or self._limits
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process, started = self._process, time.perf_counter()
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.NamedTemporaryFile() as file:
            process.stdin.write(json.dumps({"path": file.name, "source": source}) + "\n")
            process.stdin.flush()
            ready = select.select([process.stdout], [], [], limits.wall_s)[0]
            reply = process.stdout.readline() if ready else ""
            stdout = Path(file.name).read_bytes()
        if not reply:
            self.close()
        # A process that ended by itself was not killed by close().
        code = int(reply) if reply.strip() else process.returncode if ready else None
        status = "timeout" if not ready else "ok" if code == 0 else "error"
        return RunResult(
            status=status,  # type: ignore[arg-type]
            exit_code=code,
            stdout=stdout[: limits.output_bytes],
            stdout_dropped=max(0, len(stdout) - limits.output_bytes),
            wall_s=time.perf_counter() - started,
            isolation=NONE,
        )

    def upload(self, path: str, content: bytes) -> None:
        raise NotImplementedError

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None


class PlainSandbox(Sandbox):
    """``fails_after``: every use after so many raises :class:`SandboxError`. Keeps what programs were given."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.uses, self.fails_after, self.open_sessions = 0, fails_after, 0
        self.sent: list[str] = []

    def _use(self) -> None:
        self.uses += 1
        if self.fails_after is not None and self.uses > self.fails_after:
            raise SandboxError("the host is out of order")

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        self._use()
        self.sent.append(program.source)
        limits = limits or Limits()
        started = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program.source],
                input=program.stdin,
                capture_output=True,
                timeout=limits.wall_s,
                check=False,
                env={"PATH": os.environ.get("PATH", "")},
            )
        except subprocess.TimeoutExpired:
            return RunResult(status="timeout", exit_code=None, wall_s=limits.wall_s, isolation=NONE)
        return RunResult(
            status="ok" if done.returncode == 0 else "error",
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            wall_s=time.perf_counter() - started,
            isolation=NONE,
        )

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        self._use()
        outer = self

        class Counted(PlainSession):
            def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
                outer._use()
                outer.sent.append(source)
                return super().run(source, limits=limits)

            def close(self) -> None:
                super().close()
                outer.open_sessions -= self in outer_sessions
                outer_sessions.discard(self)

        made = Counted(limits or Limits())
        outer_sessions = {made}
        self.open_sessions += 1
        return made

    def close(self) -> None:
        return
