"""Rules about what playing leaves behind in the process: nothing."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from typing import Any

from roll_envs.testing.trace import Rule, Subject, mixed, need, play, surroundings

_THREAD_ENDS_S = 2.0


def side_effects(subject: Subject) -> str:
    """Working directory, environment variables, files there and stdout are left alone, and ``close`` ends threads."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        _played(subject, subject.seeds[0])  # what starts once in a process, a library's pool say, is no leak
        threads = set(threading.enumerate())
        _played(subject, subject.seeds[-1])
    for what, now in surroundings().items():
        was = subject.before[what]
        need(now == was, f"playing changes the {what}: {_apart(was, now)}; leave the process as it was")
    said = printed.getvalue()
    need(not said, f"playing prints {said[:60]!r} to stdout, which is for the caller; use logging")
    deadline = time.monotonic() + _THREAD_ENDS_S
    while (left := _alive(threads)) and time.monotonic() < deadline:
        time.sleep(0.01)
    need(not left, f"close() leaves the thread {left[0].name if left else ''!r} running; end it there")
    return "directory, variables, files, stdout and threads are as before"


def _played(subject: Subject, seed: int) -> None:
    env = subject.make()
    play(env, seed, mixed(seed))
    env.close()


def _apart(was: Any, now: Any) -> str:
    if isinstance(was, str):
        return f"{now} instead of {was}"
    if isinstance(was, dict):
        return ", ".join(sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))[:3])
    return ", ".join(sorted(was ^ now)[:3])


def _alive(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


EFFECT_RULES: tuple[Rule, ...] = (side_effects,)
