"""All processes of a run: of its namespace where it has one, else the descendants of the process that looks."""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["descendants", "kill_all", "signal_all", "tasks_of"]


def kill_all() -> None:
    """End and reap every other process of the namespace, or, outside of one, every descendant.

    There we must be a subreaper, so that none gets away by losing its parent. They are stopped first: what does not run
    cannot fork any more either.
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
        while new := living - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
            living = descendants()
        _signal(stopped, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            for _ in stopped:
                os.wait4(-1, 0)


def signal_all(number: int) -> None:
    """Without waiting for anything; not for processes that may fork meanwhile, unless one comes back to them."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
    else:
        _signal(descendants(), number)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants() -> set[int]:
    """Children, their children, and so on; those that have ended and wait to be reaped included."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        for child in _children(todo.pop()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def tasks_of(user: int) -> int:
    """Threads of all processes of a user."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _children(pid: int) -> list[int]:
    """Of all its threads."""
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
