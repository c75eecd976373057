"""Starting processes for programs, and ending and collecting all of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Child:
    """A started process, and the non-blocking ends of its pipes."""

    pid: int
    pidfd: int
    body: int
    out: int
    err: int
    note: int
    """Messages of the trusted set-up code in the process; in a plain run it is closed before the program starts."""

    def close(self) -> None:
        for fd in (self.pidfd, self.body, self.out, self.err, self.note):
            with contextlib.suppress(OSError):
                os.close(fd)


@dataclass
class Ends:
    """How processes ended: status and largest memory in KB by process id."""

    statuses: dict[int, int] = field(default_factory=dict)
    peak_kb: int = 0

    def add(self, pid: int, status: int, peak_kb: int) -> None:
        self.statuses[pid] = status
        self.peak_kb = max(self.peak_kb, peak_kb)


def start(enter: Callable[[int, int], None]) -> Child | None:
    """Fork; in the new process ``enter(body, note)`` is called with 0, 1, 2 in place, and ``None`` is returned."""
    body, out, err, note = (os.pipe() for _ in range(4))
    pid = os.fork()
    if pid == 0:
        os.dup2(out[1], 1)
        os.dup2(err[1], 2)
        enter(body[0], note[1])
        return None
    for fd in (body[0], out[1], err[1], note[1]):
        os.close(fd)
    for fd in (body[1], out[0], err[0], note[0]):
        # PID 1 must never wait for a program.
        os.set_blocking(fd, False)
    return Child(pid=pid, pidfd=os.pidfd_open(pid), body=body[1], out=out[0], err=err[0], note=note[0])


def end_all(ends: Ends) -> None:
    """Kill every process but this one, which is PID 1, and wait until none is left.

    One ``kill(-1)`` reaches all, a fork in progress included; the loop is for processes that enter from outside.
    """
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return
        ends.add(pid, status, usage.ru_maxrss)
        reap(ends)


def reap(ends: Ends) -> None:
    """Reap the processes that have ended; the rest live on."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            ends.add(pid, status, usage.ru_maxrss)
