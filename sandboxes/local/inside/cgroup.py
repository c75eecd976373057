"""The cgroup of a slot, through descriptors opened before the jail hides the file system of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

_FILES = {
    "limit": ("memory.limit_in_bytes", "memory.max"),
    "usage": ("memory.usage_in_bytes", "memory.current"),
    "peak": ("memory.max_usage_in_bytes", "memory.peak"),
    "swap": ("memory.memsw.limit_in_bytes", "memory.swap.max"),
    "events": ("memory.oom_control", "memory.events"),
    "stat": ("memory.stat", "memory.stat"),
    "processes": ("pids.max", "pids.max"),
    "tasks": ("tasks", "cgroup.procs"),
}
"""What a file of a cgroup is for -> its name in version 1, and in version 2."""


def path_of(folders: Mapping[str, str], purpose: str) -> str:
    """A file of a cgroup; ``folders``: those of its controllers, or of version 2 the one, ``unified``."""
    v2 = "unified" in folders
    controller = "unified" if v2 else "pids" if purpose == "processes" else "memory"
    return f"{folders[controller]}/{_FILES[purpose][v2]}"


def paths_of_tasks(folders: Mapping[str, str]) -> list[str]:
    """The files to which a process is written that joins the cgroup."""
    return [f"{folder}/{_FILES['tasks']['unified' in folders]}" for folder in folders.values()]


def numbers(text: str) -> dict[str, int]:
    """A file of lines with a name and a number."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}


class Cgroup:
    """Limits memory and number of processes by cgroups of version 1 or 2, which are made and removed outside."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._v2 = "unified" in folders
        self._limit = os.open(path_of(folders, "limit"), os.O_RDWR)
        self._events = os.open(path_of(folders, "events"), os.O_RDONLY)
        self._peak = _open_if_there(path_of(folders, "peak"))
        # Missing where the kernel does not account for swap.
        self._swap = _open_if_there(path_of(folders, "swap"))
        self._pids = os.open(path_of(folders, "processes"), os.O_WRONLY)
        self._usage = os.open(path_of(folders, "usage"), os.O_RDONLY)
        self._tasks = [os.open(path, os.O_WRONLY) for path in paths_of_tasks(folders)]
        self._oom_before = self._residue = 0
        self._bound = _SETUP_BYTES

    def join(self) -> None:
        """Move the calling process, which must have one thread, into the cgroup."""
        for fd in self._tasks:
            os.write(fd, b"0")

    def begin(self) -> None:
        """No process of the next run is here yet: what the kernel still holds for earlier ones is not its memory."""
        self._residue = min(int(os.pread(self._usage, 32, 0)), _MOST_RESIDUE)
        self._oom_before = self._oom_total()

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set both limits and restart the counters.

        Where the programs of a session hold more than that, version 1 refuses it (``OSError`` EBUSY), and version 2
        kills for it.
        """
        self._oom_before = self._oom_total()
        self._limit_memory(memory_bytes + self._residue)
        os.pwrite(self._pids, b"%d" % processes, 0)
        if self._peak is not None:
            try:
                os.pwrite(self._peak, b"0", 0)
            except OSError:  # version 2 before Linux 6.12 cannot reset the peak, so it would be that of all runs
                self._peak = None

    def reset_memory_limit(self) -> None:
        """Between runs, allow memory for trusted processes beside files of the last run, perhaps being fetched."""
        if self._bound < _SETUP_BYTES:
            self._limit_memory(_SETUP_BYTES)

    def _limit_memory(self, memory_bytes: int) -> None:
        """No swap: a program beyond its memory is to end, not to become slow. Version 1 limits memory and swap
        together, and refuses less than the memory alone: when both are raised, that limit comes first."""
        limits = [(self._swap, 0 if self._v2 else memory_bytes), (self._limit, memory_bytes)]
        if not self._v2 and memory_bytes <= int(os.pread(self._limit, 32, 0)):
            limits.reverse()
        for fd, value in limits:
            if fd is not None:
                os.pwrite(fd, b"%d" % value, 0)
        self._bound = memory_bytes

    def peak_bytes(self) -> int | None:
        """Peak memory since :meth:`limit`, tmpfs files included; ``None`` where the kernel does not record it."""
        return None if self._peak is None else max(0, int(os.pread(self._peak, 32, 0)) - self._residue)

    def oom_kills(self) -> int:
        """Out-of-memory kills since :meth:`begin`."""
        return self._oom_total() - self._oom_before

    def _oom_total(self) -> int:
        # The line is in memory.events of version 2, and since Linux 4.13 in memory.oom_control of version 1.
        return numbers(os.pread(self._events, 4096, 0).decode()).get("oom_kill", 0)


_SETUP_BYTES = 512 << 20
_MOST_RESIDUE = 32 << 20


def _open_if_there(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDWR)
    except (FileNotFoundError, PermissionError):
        return None


def remove_folders(folders: Iterable[str], timeout_s: float = 5.0) -> list[str]:
    """Remove cgroups; returns those that are still busy after ``timeout_s``.

    For a moment after its last process has ended, on a loaded machine for seconds, the kernel reports a group busy.
    """
    deadline = time.monotonic() + timeout_s
    left = list(folders)
    while left := [folder for folder in left if not _removed(folder)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return left


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True
