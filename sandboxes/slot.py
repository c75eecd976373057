"""What a pool holds: a place for one program at a time, and how a program in it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation, Limits, RunResult, RunStatus
from sandboxes.programs import Order


class NotBegunError(SandboxError):
    """A slot failed before anything of the program was run, so that the run can be repeated on another."""


@dataclass(kw_only=True, slots=True)
class Ended:
    """The raw outcome of a run or a cell."""

    report: Mapping[str, Any] | None = None
    """``status`` as of ``wait`` (``None`` for a cell that a limit ended), and ``wall_s``; ``None`` when nobody was left
    to report."""
    killed_for: str = ""
    """The limit for which it was killed from outside: ``timeout``, ``output`` or empty."""
    oom: int = 0
    peak: int | None = None
    wall_s: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    files: dict[str, bytes] = field(default_factory=dict)

    def result(self, isolation: Isolation) -> RunResult:
        """A limit that ended the program takes precedence over its exit status."""
        report = self.report or {}
        raw = report.get("status")
        ending = None if raw is None else os.waitstatus_to_exitcode(raw)  # negative: a signal
        code = ending if ending is not None and ending >= 0 else None
        by = -ending if ending is not None and ending < 0 else None
        status: RunStatus = "ok" if code == 0 else "error"
        # Any out-of-memory kill counts, also of a child of a program that then went on.
        if self.oom:
            status = "memory"
        # A program that ended by itself while the kill was on its way keeps its own status.
        elif self.killed_for and code is None and by in (None, signal.SIGKILL):
            status = "output" if self.killed_for == "output" else "timeout"
        # From RLIMIT_CPU, which follows from the wall limit (see inside.confine).
        elif by == signal.SIGXCPU:
            status = "timeout"
        # Nobody was left to report its status, since all were killed together.
        if status in ("memory", "output", "timeout") and code is None and by is None:
            by = int(signal.SIGKILL)
        return RunResult(
            status=status,
            exit_code=code,
            signal=by,
            stdout=self.stdout,
            stderr=self.stderr,
            stdout_dropped=self.stdout_dropped,
            stderr_dropped=self.stderr_dropped,
            # By the clock that ended it, which began before the one inside did.
            wall_s=self.wall_s if self.killed_for else report.get("wall_s", self.wall_s),
            memory_peak_mb=None if self.peak is None else self.peak / (1 << 20),
            isolation=isolation,
            files=self.files,
        )


class Slot(Protocol):
    """A place for one program at a time, owned by one thread at a time.

    A :class:`SandboxError` from it means that it can be used no more; :class:`NotBegunError`, that nothing was run.
    """

    isolation: Isolation

    @property
    def shape(self) -> Hashable: ...
    @property
    def alive(self) -> bool: ...
    def run(self, order: Order, wall_s: float) -> Ended:
        """Run one program to its end; ``wall_s`` may be less than the limit of the order."""

    def open(self, head: Mapping[str, Any], limits: Limits) -> None:
        """Begin a session."""

    def cell(self, number: int, source: bytes, limits: Limits) -> Ended: ...
    def write(self, path: str, content: bytes) -> str:
        """Write a file; why that cannot be done, or an empty text."""

    def read(self, path: str, max_bytes: int) -> bytes | str:
        """A plain file, or why it cannot be read."""

    def end(self) -> None:
        """End the session; closes the slot if that fails."""

    def close(self) -> None: ...
