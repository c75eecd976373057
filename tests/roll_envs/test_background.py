"""The event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from roll_envs.background import EventLoopThread


def test_where_no_thread_can_be_had_the_next_try_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    background, start, refused = EventLoopThread("tried"), threading.Thread.start, []

    def once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", once)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        background.submit(asyncio.sleep(0))
    assert background.submit(asyncio.sleep(0, "done")).result(10) == "done"
    background.stop()
    assert "tried" not in {thread.name for thread in threading.enumerate()}
