"""Bounds what a run holds where the kernel does not: looks at all its processes every few milliseconds."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Any

from .family import descendants
from .ground import Ground
from .root import BOX, inodes

__all__ = ["Watchdog"]

_PAGE = resource.getpagesize()
_FILES_EVERY = 10
"""Looks at memory between two at files on the ground, which take longer."""


class Watchdog:
    """Adds up what the processes of a run hold for themselves, and their files. Lives in init.

    ``ground``: also bound how many processes there are, and their files, for which no kernel cares there.
    ``memory``: bound that, too; the files of a run that has its own file system count as memory.
    """

    interval_ms = 10

    def __init__(self, limits: Mapping[str, Any], ground: Ground | None, *, memory: bool) -> None:
        self._memory = limits["memory_mb"] << 20 if memory else None
        self._processes: int = limits["processes"]
        self._files: int = limits["files_mb"] << 20
        self._inodes = inodes(limits["files_mb"])
        self._ground = ground
        self._looks = 0
        self.peak = 0
        self.fired = False
        """Whether it was too much memory."""

    def exceeded(self) -> bool:
        """Look once. Cheap numbers first; where they say "too much", the exact ones (shared pages divided) decide."""
        if self._ground is None:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        else:
            pids = sorted(descendants())
        if self._memory is not None:
            used = self._sum(pids, exact=False)
            if used > self._memory:
                used = self._sum(pids, exact=True)
                self.fired = self.fired or used > self._memory
            self.peak = max(self.peak, used)
        return self.fired or (self._ground is not None and self._too_many(pids, self._ground))

    def _too_many(self, pids: list[int], ground: Ground) -> bool:
        self._looks += 1
        if len(pids) > self._processes:
            return True
        return self._looks % _FILES_EVERY == 0 and ground.holds_more_than(self._files, self._inodes)

    def _sum(self, pids: list[int], *, exact: bool) -> int:
        total = 0
        if self._ground is None:
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
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            for line in file:
                if line.startswith("Pss_Anon:"):
                    return int(line.split()[1]) << 10
    except PermissionError:  # another user's, and we have no right to look into it
        return _private(pid)
    return 0
