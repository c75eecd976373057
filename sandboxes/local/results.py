"""Results of runs: a limit that ended the program takes precedence over its exit status."""

from __future__ import annotations

import os
import signal

from roll_envs.sandbox import Isolation, RunResult, RunStatus

from .slot import Ended

__all__ = ["cell_result", "run_result"]


def run_result(ended: Ended, isolation: Isolation) -> RunResult:
    """Result of a whole program; init has reported its wait status unless it was killed with the program."""
    code = by = None
    if ended.report is not None:
        raw = ended.report["status"]
        code, by = (None, os.WTERMSIG(raw)) if os.WIFSIGNALED(raw) else (os.WEXITSTATUS(raw), None)
    return _result(ended, isolation, code, by)


def cell_result(ended: Ended, isolation: Isolation) -> RunResult:
    """Result of a cell of a session."""
    code = by = None
    if ended.report is not None:
        code, by = ended.report["code"], ended.report["signal"]
    return _result(ended, isolation, code, by)


def _result(ended: Ended, isolation: Isolation, code: int | None, by: int | None) -> RunResult:
    status: RunStatus
    # Any out-of-memory kill counts, also of a child of a program that then went on.
    if ended.oom:
        status = "memory"
    # A program that ended by itself while the kill was on its way keeps its own status.
    elif ended.killed_for and code is None and by in (None, signal.SIGKILL):
        status = "output" if ended.killed_for == "output" else "timeout"
    # From RLIMIT_CPU, which follows from the wall limit (see inside.confine).
    elif by == signal.SIGXCPU:
        status = "timeout"
    else:
        status = "ok" if code == 0 else "error"
    # Init was killed with the program, so nobody could report its status.
    if status in ("memory", "output", "timeout") and code is None and by is None:
        by = int(signal.SIGKILL)
    return RunResult(
        status=status,
        exit_code=code,
        signal=by,
        stdout=ended.stdout,
        stderr=ended.stderr,
        stdout_dropped=ended.stdout_dropped,
        stderr_dropped=ended.stderr_dropped,
        wall_s=ended.wall_s if ended.report is None else ended.report["wall_s"],
        memory_peak_mb=None if ended.peak is None else ended.peak / (1 << 20),
        isolation=isolation,
        files=ended.files,
    )
