"""The cgroup of a slot, through descriptors opened before the jail hides the file system of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping


class Cgroup:
    """Limits memory and number of processes by cgroups of version 1 or 2, which are made and removed outside."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._v2 = "unified" in folders
        memory = folders["unified" if self._v2 else "memory"]
        pids = folders["unified" if self._v2 else "pids"]
        names = ("memory.max", "memory.events", "memory.peak") if self._v2 else _MEMORY_V1
        self._limit = os.open(f"{memory}/{names[0]}", os.O_RDWR)
        self._events = os.open(f"{memory}/{names[1]}", os.O_RDONLY)
        self._peak = _open_if_there(f"{memory}/{names[2]}")
        # Missing where the kernel does not account for swap.
        self._swap = _open_if_there(f"{memory}/{'memory.swap.max' if self._v2 else 'memory.memsw.limit_in_bytes'}")
        self._pids = os.open(f"{pids}/pids.max", os.O_WRONLY)
        self._usage = os.open(f"{memory}/{'memory.current' if self._v2 else 'memory.usage_in_bytes'}", os.O_RDONLY)
        tasks = "cgroup.procs" if self._v2 else "tasks"
        # In version 2 all are the same folder.
        self._tasks = [os.open(f"{folder}/{tasks}", os.O_WRONLY) for folder in dict.fromkeys(folders.values())]
        self._oom_before = self._residue = 0
        self._bound = _SETUP_BYTES
        fds = {self._limit, self._events, self._peak, self._swap, self._pids, self._usage, *self._tasks}
        self.descriptors = {fd for fd in fds if fd is not None}

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
        if self._v2:
            # No swap: a program beyond its memory is to end, not to become slow.
            if self._swap is not None:
                os.pwrite(self._swap, b"0", 0)
            os.pwrite(self._limit, b"%d" % memory_bytes, 0)
        else:
            self._limit_v1(b"%d" % memory_bytes)
        self._bound = memory_bytes

    def _limit_v1(self, value: bytes) -> None:
        """The kernel refuses memory+swap below memory, so when raising the limits memory+swap is written first."""
        fds = [fd for fd in (self._limit, self._swap) if fd is not None]
        if int(value) > int(os.pread(self._limit, 32, 0)):
            fds.reverse()
        for fd in fds:
            os.pwrite(fd, value, 0)

    def peak_bytes(self) -> int | None:
        """Peak memory since :meth:`limit`, tmpfs files included; ``None`` where the kernel does not record it."""
        return None if self._peak is None else max(0, int(os.pread(self._peak, 32, 0)) - self._residue)

    def oom_kills(self) -> int:
        """Out-of-memory kills since :meth:`begin`."""
        return self._oom_total() - self._oom_before

    def _oom_total(self) -> int:
        # The line is in memory.events of version 2, and since Linux 4.13 in memory.oom_control of version 1.
        for line in os.pread(self._events, 4096, 0).splitlines():
            name, value = line.split()
            if name == b"oom_kill":
                return int(value)
        return 0


_SETUP_BYTES = 512 << 20
_MOST_RESIDUE = 32 << 20
_MEMORY_V1 = ("memory.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes")


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
