"""Work in the background: an event loop in a thread of its own, and what must start over in a forked process.

By the loop, callers in any thread or loop share one set of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Forgets(Protocol):
    """Holds locks, threads or processes, which a child made by ``os.fork`` does not have."""

    def forget(self) -> None:
        """Begin with new locks and without what the parent holds."""


_told: weakref.WeakSet[Forgets] = weakref.WeakSet()


def forget_in_children(owner: Forgets) -> None:
    """Have :meth:`Forgets.forget` called in each child of this process, as long as ``owner`` lives."""
    _told.add(owner)


def _forget_all() -> None:
    for each in list(_told):
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class EventLoopThread:
    """The loop starts at its first use, again after :meth:`stop`, and in a forked process, which has no such thread.

    ``at_end`` is awaited on the loop when it stops, after all that ran there has been cancelled.
    """

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self._name, self._at_end = name, at_end
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        # In a child, a thread that is not there may have held the lock.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` on the loop. Cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
                try:
                    thread.start()
                except BaseException:  # no thread can be had: the next try begins anew
                    loop.close()
                    work.close()
                    raise
                self._loop, self._thread = loop, thread
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """:meth:`submit`, and wait. Raises ``TimeoutError`` after ``timeout_s``, ``CancelledError`` (of
        ``concurrent.futures``) after :meth:`stop`, and what ``work`` raises; it does not go on without its caller."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:  # also Ctrl-C
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what runs on the loop and end the thread. Calling it again does nothing."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=10)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            # Work in progress may clean up; what was submitted meanwhile becomes tasks while others end.
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            if self._at_end is not None:
                with contextlib.suppress(Exception):  # connections of others may be broken
                    loop.run_until_complete(self._at_end())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
