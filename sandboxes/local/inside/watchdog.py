"""Bounds the memory of a run where there is no cgroup: looks at all its processes every few milliseconds."""

from __future__ import annotations

import contextlib
import os
import resource

from .root import BOX

__all__ = ["Watchdog"]

_PAGE = resource.getpagesize()


class Watchdog:
    """Adds up what the processes of a run hold for themselves, and their files in memory. Lives in init."""

    interval_ms = 10

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.peak = 0
        self.fired = False

    def exceeded(self) -> bool:
        """Look once. Cheap numbers first; where they say "too much", the exact ones (shared pages divided) decide."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        used = self._sum(pids, exact=False)
        if used > self._limit:
            used = self._sum(pids, exact=True)
            self.fired = self.fired or used > self._limit
        self.peak = max(self.peak, used)
        return self.fired

    def _sum(self, pids: list[int], *, exact: bool) -> int:
        state = os.statvfs(BOX)
        total = (state.f_blocks - state.f_bfree) * state.f_frsize
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended meanwhile
                total += _proportional(pid) if exact else _private(pid)
        return total


def _private(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        _, resident, shared, *_ = (int(number) for number in file.read().split())
    return (resident - shared) * _PAGE


def _proportional(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0
