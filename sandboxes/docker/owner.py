"""Owners of containers: the label that names the owner process, and how to tell that it has ended."""

from __future__ import annotations

import os
import platform
from pathlib import Path

LABEL = "roll-envs.sandbox"
OWNER = "roll-envs.owner"


def owner_label(pid: int | None = None) -> str:
    """``place pid start``: the place is the boot and PID namespace in which the pid is valid; the start time tells
    processes with a reused pid apart."""
    pid = os.getpid() if pid is None else pid
    return f"{_place()} {pid} {_started(pid)}"


def is_orphan(owner: str, *, running: bool) -> bool:
    """Whether the process that ``owner`` names has ended.

    A process of another host or PID namespace cannot be looked up from here. Its container ends with it, because PID 1
    then reads end-of-file: so a running container is left alone, and a stopped one is an orphan.
    """
    try:
        place, pid, started = owner.rsplit(" ", 2)
    except ValueError:
        return not running
    if place != _place():
        return not running
    return _started(int(pid)) != started


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node().replace(" ", "-")


def _started(pid: int) -> str:
    """Start time of a process in clock ticks (field 22 of ``/proc/PID/stat``); ``-`` if ended, ``?`` if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists() or not _exists(pid):
            return "-"
        return "?"
    # The name in parentheses may hold spaces and parentheses, so fields are counted from its end, where field 3
    # begins.
    return stat.rpartition(")")[2].split()[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
