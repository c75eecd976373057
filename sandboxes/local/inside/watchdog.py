"""Bounds the memory of a run where there is no cgroup: looks at all its processes every few milliseconds."""

from __future__ import annotations

import contextlib
import os

from .root import BOX

__all__ = ["Watchdog"]


class Watchdog:
    """Adds up what the processes of a run hold for themselves, and their files in memory."""

    interval_ms = 10

    def __init__(self, run: int, limit_bytes: int) -> None:
        self._run = run
        self._limit = limit_bytes
        self.peak = 0
        self.fired = False

    def exceeded(self) -> bool:
        """Look once. Cheap numbers first; where they say "too much", the exact ones (shared pages divided) decide."""
        pids = self._pids()
        if self.used(pids, exact=False) > self._limit:
            self.fired = self.fired or self.used(pids, exact=True) > self._limit
        return self.fired

    def used(self, pids: list[int], *, exact: bool) -> int:
        total = self._files()
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += _proportional(pid) if exact else _private(pid)
        if exact or total <= self._limit:
            self.peak = max(self.peak, total)
        return total

    def _pids(self) -> list[int]:
        """All of the run, its init left out: whoever is not the zygote and not init."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, self._run)]

    def _files(self) -> int:
        try:
            state = os.statvfs(f"/proc/{self._run}/root{BOX}")
        except OSError:
            return 0
        return (state.f_blocks - state.f_bfree) * state.f_frsize


def _private(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        _, resident, shared, *_ = (int(number) for number in file.read().split())
    return (resident - shared) * 4096


def _proportional(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        for line in file:
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0
