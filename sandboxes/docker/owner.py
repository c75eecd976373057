"""Whose container is it? The label that names our process, and the judgement that this process has ended."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["LABEL", "OWNER", "is_orphan", "owner_label"]

LABEL = "roll-envs.sandbox"
OWNER = "roll-envs.owner"


def owner_label(pid: int | None = None) -> str:
    """``place process start``: process ids mean something only at one place, and are used again there."""
    pid = os.getpid() if pid is None else pid
    return f"{_place()} {pid} {_started(pid)}"


def is_orphan(owner: str, *, running: bool) -> bool:
    """Whether the process that ``owner`` names has ended.

    That of another host, or another process namespace, cannot be seen from here; its container ends with it, since
    PID 1 reads end-of-file, so that one that still runs is left alone and one that has ended is taken for an orphan.
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
    """Tells a process from a later one of the same number; ``-`` where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists() or not _exists(pid):
            return "-"
        return "?"
    return stat.rpartition(")")[2].split()[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
