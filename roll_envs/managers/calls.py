"""The threads that make calls into code of others (environments, context functions, answerers).

The driving thread makes the calls of an :class:`~roll_envs.managers.attempt.Attempt` in place, because most are quick.
A watchdog relieves it when a call takes longer than a short grace: another thread drives on, and the attempt is handed
in when the call has returned. Calls that mostly wait (tools, sandboxes, network) are found by measuring, and made on
worker threads. :mod:`roll_envs.managers.driver` says which attempts are made and given up.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable

from roll_envs.managers.attempt import Attempt, Done, Pause, Place, discard

GRACE_S = 0.05
"""A call in place that takes longer than this costs the driving thread its place."""
_MAX_WORKERS = 512


class Calls:
    """The threads that make calls.

    ``hand_in`` is given each attempt with what came of its calls, by the thread that made them. ``drive`` is the
    driving thread's loop: it returns when :meth:`make_in_place` tells it that it was relieved, and is then run by
    another thread.
    """

    def __init__(
        self,
        drive: Callable[[], None],
        hand_in: Callable[[Attempt, Done], None],
        max_workers: int,
    ) -> None:
        self._drive, self._hand_in = drive, hand_in
        self._max_workers = min(max_workers, _MAX_WORKERS)
        self._lock = threading.Lock()
        """Held where an attempt changes hands, so that it has one owner, and for the counts that follow from it."""
        self._in_place: Attempt | None = None
        self._jobs: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._workers = self._open_jobs = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.busy = threading.Event()
        """Whether there may be anything to do; the watchdog sleeps otherwise."""
        self.busy.set()

    # -- on the driving thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let a thread drive, where none does yet."""
        if not self._threads:
            self.thread(self._drive, "episode-driver")
            self.thread(self._watch, "episode-watch")

    def make_in_place(self, attempt: Attempt) -> bool:
        """Make the attempt's calls; False when they took so long that another thread drives now."""
        attempt.place, attempt.since = Place.DRIVER, time.monotonic()  # before the watchdog may look at it
        self._in_place = attempt
        done = attempt.run()
        with self._lock:
            driving = self._in_place is attempt
            if driving:
                self._in_place = None
        if not driving:
            self._return(attempt, done)
        elif done is Pause.FOR_WORKER:
            self._queue(attempt)
        else:
            self._hand_in(attempt, done)
        return driving

    def _queue(self, attempt: Attempt) -> None:
        """Let a worker thread make the attempt's calls."""
        with self._lock:
            attempt.place, attempt.since = Place.QUEUED, math.inf
            self._open_jobs += 1
            self._start_workers()
        self._jobs.put(attempt)

    def give_up(self, attempt: Attempt) -> bool:
        """Give up an attempt on another thread; False when it is on none, or was handed in at this moment.

        Its environment is in use by that thread, which closes it if it ever returns.
        """
        with self._lock:
            if attempt.place not in (Place.QUEUED, Place.WORKER, Place.RELIEVED):
                return False
            self._workers -= attempt.place is Place.WORKER  # that thread is lost
            self._take_back(attempt)
            attempt.place = Place.GIVEN_UP
            self._start_workers()
        return True

    def close(self) -> list[threading.Thread]:
        """Let the threads end; returns them."""
        self._closed = True
        self.busy.set()
        self._jobs.put(None)
        return list(self._threads)

    def thread(self, target: Callable[[], None], name: str) -> None:
        """Start a daemon thread: one that is stuck in a call ends with the process."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def _take_back(self, attempt: Attempt) -> None:
        """Note that an attempt leaves another thread, or is waited for no longer. The lock is held."""
        if attempt.relieved_in is not None:
            attempt.relieved_in.late -= 1
            attempt.relieved_in = None
        else:
            self._open_jobs -= 1

    def _start_workers(self) -> None:
        while self._workers < min(self._open_jobs, self._max_workers):
            self._workers += 1
            self.thread(self._work, "episode-worker")

    # -- on other threads --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (attempt := self._jobs.get()) is not None:
            with self._lock:
                wanted = attempt.place is Place.QUEUED and not self._closed
                if wanted:
                    attempt.place, attempt.since = Place.WORKER, time.monotonic()
            if not wanted:
                discard(attempt)
            elif not self._return(attempt, attempt.run()):
                return
        self._jobs.put(None)  # for the next worker

    def _return(self, attempt: Attempt, done: Done) -> bool:
        """Hand in an attempt from another thread; False when nobody wants it any more."""
        with self._lock:
            wanted = attempt.place is not Place.GIVEN_UP and not self._closed
            if wanted:  # within the lock: a deadline that comes now finds it either here or in the inbox
                self._take_back(attempt)
                self._hand_in(attempt, done)
        if not wanted:
            discard(attempt, done)
        return wanted

    def _watch(self) -> None:
        """Relieve the driving thread of calls in place that take too long."""
        while not self._closed:
            self.busy.wait()
            time.sleep(GRACE_S / 2)
            with self._lock:
                attempt = self._in_place
                if attempt is None or time.monotonic() - attempt.since < GRACE_S:
                    continue
                # The driving thread sees that it was relieved when its call returns. All else is the new one's.
                self._in_place = None
                attempt.place, attempt.relieved_in = Place.RELIEVED, attempt.kind
                attempt.kind.late += 1
                self.thread(self._drive, "episode-driver")
