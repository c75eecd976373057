"""All processes of a run: those of its PID namespace where it has one, else the descendants of the calling process."""

from __future__ import annotations

import contextlib
import os
import signal


def kill_all() -> None:
    """Kill and reap every other process of the PID namespace, or, outside of one, every descendant.

    In the second case the caller must be a subreaper, so that no process escapes when its parent ends. Processes are
    stopped before they are killed: a stopped process cannot fork, so the set of descendants becomes complete.
    """
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait4(-1, 0)
        return
    while living := descendants():
        stopped: set[int] = set()
        # A fork that was in progress may add a process after the list was read, so it is read until nothing is new.
        while new := living - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
            living = descendants()
        _signal(stopped, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            for _ in stopped:
                os.wait4(-1, 0)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants() -> set[int]:
    """Ids of children, their children, and so on, zombies included."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        for child in _children(todo.pop()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def tasks_of(user: int) -> int:
    """Number of threads of all processes of a user; what ``RLIMIT_NPROC`` counts."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            file = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
            try:
                while part := os.read(file, 1 << 16):
                    children += map(int, part.split())
            finally:
                os.close(file)
    return children
