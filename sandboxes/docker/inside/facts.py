"""What the kernel reports inside the container: its isolation, its memory cgroup, and which languages the image has."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from typing import Any

TOOLS = ("bash", "g++", "node", "javac", "go", "rustc", "tsc")
_NOT_OF_THE_IMAGE = ("HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "_")
# Paths of cgroup version 2, then of version 1.
_ROOT = "/sys/fs/cgroup"
_PEAKS = (f"{_ROOT}/memory.peak", f"{_ROOT}/memory/memory.max_usage_in_bytes")
_STAT = (f"{_ROOT}/memory.stat", f"{_ROOT}/memory/memory.stat")
_EVENTS = (f"{_ROOT}/memory.events", f"{_ROOT}/memory/memory.oom_control")


def gather() -> dict[str, Any]:
    """Facts as the kernel reports them; the host decides in ``isolation`` what they mean."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/net/dev", encoding="ascii") as file:
        networks = [line.split(":")[0].strip() for line in file if ":" in line]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "uid": os.getuid(),
        "pid": os.getpid(),
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": status.get("NoNewPrivs") == "1",
        # Counted since Linux 5.9; earlier kernels tell only whether there is one (mode 2).
        "seccomp_filters": int(status.get("Seccomp_filters", "1" if status.get("Seccomp") == "2" else "0")),
        "networks": networks,
        "read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "environ": {k: v for k, v in os.environ.items() if k not in _NOT_OF_THE_IMAGE},
        "tools": {name: path for name in TOOLS if (path := shutil.which(name))},
    }


def memory_peak() -> int:
    """Peak memory of the container since it started, in bytes."""
    return int(_first(_PEAKS) or 0)


def oom_kills() -> int:
    """Out-of-memory kills since the container started."""
    return _numbers(_EVENTS).get("oom_kill", 0)


def memory_held() -> int:
    """Bytes of processes and of files in memory; without what the kernel can drop."""
    numbers = _numbers(_STAT)
    # Version 2, then version 1, whose "rss" is without shared memory.
    return numbers.get("anon", numbers.get("rss", 0)) + numbers.get("shmem", 0)


def _numbers(paths: tuple[str, ...]) -> dict[str, int]:
    """A file of lines with a name and a number."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in _first(paths).splitlines())}


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
    return "" if fd is None else os.pread(fd, 1 << 14, 0).decode("ascii")
