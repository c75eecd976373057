"""Limits memory, processes and files of a run by polling ``/proc``, where no cgroup or file system does."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Any

from .process_tree import descendants
from .root import RUN_FILESYSTEM, inodes
from .workspace import Workspace

_PAGE = resource.getpagesize()
_FILES_EVERY = 10
"""Polls of memory for each scan of the files, which takes longer."""


class Watchdog:
    """Sums the memory that the processes of a run do not share, and the size of their files. Polled by init.

    ``workspace``: the run has no file system of its own, so the number of its processes and its files are limited too.
    ``memory``: limit memory; the files of a run that has its own file system (tmpfs) count as memory.
    """

    interval_ms = 10

    def __init__(self, limits: Mapping[str, Any], workspace: Workspace | None, *, memory: bool) -> None:
        self._memory = limits["memory_mb"] << 20 if memory else None
        self._processes: int = limits["processes"]
        self._files: int = limits["files_mb"] << 20
        self._inodes = inodes(limits["files_mb"])
        self._workspace = workspace
        self._looks = 0
        self.peak = 0
        self.fired = False
        """Whether the memory limit was exceeded."""

    def exceeded(self) -> bool:
        """Poll once.

        ``statm`` is cheap but ignores pages shared after a fork; only above the limit is the exact PSS read.
        """
        if self._workspace is None:
            # 1 is init, which is trusted and whose memory does not count.
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        else:
            pids = sorted(descendants())
        if self._memory is not None:
            used = self._sum(pids, exact=False)
            if used > self._memory:
                used = self._sum(pids, exact=True)
                self.fired = self.fired or used > self._memory
            self.peak = max(self.peak, used)
        return self.fired or (self._workspace is not None and self._too_many(pids, self._workspace))

    def _too_many(self, pids: list[int], workspace: Workspace) -> bool:
        self._looks += 1
        if len(pids) > self._processes:
            return True
        return self._looks % _FILES_EVERY == 0 and workspace.holds_more_than(self._files, self._inodes)

    def _sum(self, pids: list[int], *, exact: bool) -> int:
        total = 0
        if self._workspace is None:
            state = os.statvfs(RUN_FILESYSTEM)
            total = (state.f_blocks - state.f_bfree) * state.f_frsize
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended meanwhile
                total += _proportional(pid) if exact else _private(pid)
        return total


def _private(pid: int) -> int:
    """Resident pages that are not shared with files or shared memory, in bytes."""
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        _, resident, shared, *_ = (int(number) for number in file.read().split())
    return (resident - shared) * _PAGE


def _proportional(pid: int) -> int:
    """Proportional set size of anonymous pages, in bytes: pages shared by n processes count 1/n for each."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            for line in file:
                if line.startswith("Pss_Anon:"):
                    return int(line.split()[1]) << 10
    except PermissionError:  # another user's, and we have no right to look into it
        return _private(pid)
    return 0
