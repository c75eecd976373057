"""Peak memory and out-of-memory kills from the container's cgroup, of version 1 or 2; zero where it has no such
file."""

from __future__ import annotations

import functools
import os

__all__ = ["memory_peak", "oom_kills"]

_ROOT = "/sys/fs/cgroup"
_PEAKS = (f"{_ROOT}/memory.peak", f"{_ROOT}/memory/memory.max_usage_in_bytes")
_EVENTS = (f"{_ROOT}/memory.events", f"{_ROOT}/memory/memory.oom_control")


def memory_peak() -> float:
    """Peak memory of the container since it started, in MB."""
    return float(_first(_PEAKS) or 0) / (1 << 20)


def oom_kills() -> int:
    """Out-of-memory kills since the container started."""
    for line in _first(_EVENTS).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


@functools.cache
def _open(paths: tuple[str, ...]) -> int | None:
    """Descriptor of the first path that exists, opened once; programs do not inherit it."""
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            continue
    return None


def _first(paths: tuple[str, ...]) -> str:
    fd = _open(paths)
    return "" if fd is None else os.pread(fd, 4096, 0).decode("ascii")
