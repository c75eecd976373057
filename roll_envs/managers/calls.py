"""Calls into code of others (environments, context functions, answerers): which thread makes them, and until when.

A :class:`Work` is what one thread does for one episode without a break. The driving thread does it in place, because
most calls are quick. A watchdog relieves it when a call takes longer than a short grace: another thread drives on, and
the work is handed in when it is done. Calls that mostly wait (tools, sandboxes, network) are found by measuring, and
made on worker threads. Left out: what is called, and what follows from the result (:mod:`roll_envs.managers.driver`).
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Call", "CallTimes", "Calls", "Pause", "Place", "Work"]

GRACE_S = 0.05
"""A call in place that takes longer than this costs the driving thread its place."""
_SLICE_S = 0.01
"""Work is paused after so long, so that other episodes have their turn."""
_WAIT_S = 0.005
"""Calls that wait this long, in the mean, and twice as long as they compute are made on worker threads. Below it, a
thread that waits for the interpreter's lock (5 ms at a time) looks the same."""
_WAIT_CAP_S = 0.05
_OUTSTANDING = 3
"""As long as so many calls of a kind are late, further ones of that kind are made on worker threads."""
_MAX_WORKERS = 512

T = TypeVar("T")


class Call(NamedTuple):
    """``function(*args)``, called ``doing`` in deadlines and statistics ("step of roll/Sokoban-v0")."""

    doing: str
    limit_s: float
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    detail: str = ""
    """What a deadline says beside ``doing``."""


_NO_CALL = Call("its turn", math.inf, tuple)


class Place(Enum):
    """Where work is at the moment."""

    DRIVER = "with the driving thread, or in its inbox"
    ANSWERER = "waits for a policy's future"
    QUEUED = "waits for a worker thread"
    WORKER = "on a worker thread"
    RELIEVED = "on a thread that was the driving one"


class Pause(Enum):
    """Why work stopped before its episode had to wait."""

    TIME_IS_UP = "others have their turn"
    FOR_WORKER = "the next call is one for a worker thread"


@dataclass(slots=True, eq=False)
class Work(Generic[T]):
    """What one thread does for ``episode`` without a break."""

    episode: T
    answer: Any = None
    """What the last call of the episode gave, as a pair of value and error; None where a call is due first."""
    call: Call = _NO_CALL
    """The call that is made now, or was made last."""
    since: float = math.inf
    """When that call, or the wait for its future, began; infinite while the work is queued."""
    until: float = math.inf
    """When its time is up."""
    place: Place = Place.DRIVER
    claim: list[None] = field(default_factory=lambda: [None])
    """Work on another thread is either handed in or given up: whoever pops this (that thread, or the driving thread
    when a deadline comes) decides. ``list.pop`` is atomic, so no lock is needed."""
    given_up: bool = False
    relieved_in: str = ""
    """During which kind of call the driving thread was relieved."""


@dataclass(slots=True)
class CallTimes:
    """Means of one kind of call; they decide where such calls are made."""

    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0
    late: int = 0
    """Calls that the driving thread was relieved of and that have not returned."""

    def make(self, call: Call) -> tuple[Any, BaseException | None]:
        """Value or error of a call in place, which is measured. Processor time is read (a system call) only where calls
        last so long, in the mean, that waiting could matter."""
        measured = self.wall_s >= _WAIT_S / 2
        cpu = time.thread_time() if measured else 0.0
        started = time.monotonic()
        result = _result(call)
        wall_s = time.monotonic() - started
        self.add(wall_s, time.thread_time() - cpu if measured else wall_s)
        return result

    def add(self, wall_s: float, cpu_s: float) -> None:
        """Count a call in place. It begins as if 16 calls without any waiting had been seen, and one call counts as
        ``_WAIT_CAP_S`` of waiting at most: a process that takes the core for a moment must not decide."""
        self.calls += 1
        weight = 1.0 / min(self.calls + 16, 64)
        self.wall_s += weight * (wall_s - self.wall_s)
        if self.wall_s < _WAIT_S / 2:
            return
        waited = min(max(wall_s - cpu_s, 0.0), max(_WAIT_CAP_S, 4 * cpu_s))
        self.wait_s += weight * (waited - self.wait_s)
        self.cpu_s += weight * (cpu_s - self.cpu_s)

    def on_worker(self) -> bool:
        """Whether the next call is made on a worker thread; one in 64 is made in place, to measure again."""
        if self.late >= _OUTSTANDING:
            return True
        if self.wait_s < _WAIT_S or self.wait_s < 2 * self.cpu_s:
            return False
        self.calls += 1
        return self.calls % 64 != 0


class Calls(Generic[T]):
    """The threads that do work, and the statistics that say which of them.

    ``do`` does work until it pauses, and is called on any thread. ``hand_in`` takes work that other threads did, with
    what ``do`` returned; ``discard`` what was given up. ``drive`` is the driving thread's loop: it returns when it is
    told that it was relieved, and is then run by another thread.
    """

    def __init__(
        self,
        do: Callable[[Work[T]], Any],
        hand_in: Callable[[Work[T], Any], None],
        discard: Callable[[Work[T]], None],
        drive: Callable[[], None],
        max_workers: int,
    ) -> None:
        self._do, self._hand_in, self._discard, self._drive = do, hand_in, discard, drive
        self._max_workers = min(max_workers, _MAX_WORKERS)
        self._times: defaultdict[str, CallTimes] = defaultdict(CallTimes)
        self._in_place: list[Work[T]] = []
        """The work that is done in place; popped by the driving thread when it is done, or by the watchdog."""
        self._jobs: queue.SimpleQueue[Work[T] | None] = queue.SimpleQueue()
        self._workers = self._open_jobs = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.busy = threading.Event()
        """Whether there is anything to do; the watchdog sleeps otherwise."""

    # -- on the thread that does the work ----------------------------------------------------------------------------

    def make(self, work: Work[T], call: Call) -> tuple[Any, BaseException | None] | Pause:
        """Value or error of ``call``, or why it is not made now."""
        in_place = work.place is Place.DRIVER
        now = time.monotonic()
        if now > work.until:
            return Pause.TIME_IS_UP
        times = self._times[call.doing]
        if in_place and times.on_worker():
            return Pause.FOR_WORKER
        work.call, work.since = call, now
        return times.make(call) if in_place else _result(call)

    # -- on the driving thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let a thread drive, where none does yet."""
        if not self._threads:
            self.thread(self._drive, "episode-driver")
            self.thread(self._watch, "episode-watch")

    def do_in_place(self, work: Work[T]) -> tuple[Any] | None:
        """What came of the work; None when it took so long that another thread drives now."""
        work.since = time.monotonic()
        work.until = work.since + _SLICE_S
        self._in_place.append(work)
        done = self._do(work)
        try:
            self._in_place.pop()
        except IndexError:
            self._return(work, done)
            return None
        return (done,)

    def queue(self, work: Work[T]) -> None:
        """Let a worker thread do it."""
        work.place, work.since = Place.QUEUED, math.inf
        self._open_jobs += 1
        self._jobs.put(work)
        self._start_workers()

    def give_up(self, work: Work[T]) -> bool:
        """Give up work on another thread; False when it is being handed in at this moment."""
        try:
            work.claim.pop()
        except IndexError:
            return False
        work.given_up = True
        if work.place is Place.WORKER:
            self._workers -= 1  # that thread is lost
        self.take_back(work)
        self._start_workers()
        return True

    def take_back(self, work: Work[T]) -> None:
        """Note that work on another thread was handed in, or is waited for no longer."""
        if work.place is Place.RELIEVED:
            self._times[work.relieved_in].late -= 1
        elif work.place in (Place.QUEUED, Place.WORKER):
            self._open_jobs -= 1

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

    def _start_workers(self) -> None:
        while self._workers < min(self._open_jobs, self._max_workers):
            self._workers += 1
            self.thread(self._work, "episode-worker")

    # -- other threads -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            try:
                work.claim.pop()
            except IndexError:  # given up before it began
                self._discard(work)
                continue
            if self._closed:
                self._discard(work)
                continue
            work.place, work.since = Place.WORKER, time.monotonic()
            work.until = work.since + _SLICE_S
            work.claim.append(None)
            if not self._return(work, self._do(work)):
                return
        self._jobs.put(None)  # for the next worker

    def _return(self, work: Work[T], done: Any) -> bool:
        """Hand in work done on another thread; False when nobody wants it any more."""
        try:
            work.claim.pop()
        except IndexError:
            wanted = False
        else:
            wanted = not self._closed
        if wanted:
            self._hand_in(work, done)
        else:
            self._discard(work)
        return wanted

    def _watch(self) -> None:
        """Relieve the driving thread of calls in place that take too long."""
        while not self._closed:
            self.busy.wait()
            time.sleep(GRACE_S / 2)
            try:
                if time.monotonic() - self._in_place[0].since < GRACE_S:
                    continue
                work = self._in_place.pop()
            except IndexError:  # no work at the moment
                continue
            # The driving thread sees that it was relieved when its work is done: until the next one starts, all state
            # belongs to this thread.
            work.place, work.relieved_in = Place.RELIEVED, work.call.doing
            self._times[work.relieved_in].late += 1
            self.thread(self._drive, "episode-driver")


def _result(call: Call) -> tuple[Any, BaseException | None]:
    try:
        return call.function(*call.args), None
    except BaseException as error:  # work of others: environments (sys.exit() too), engines, context functions
        return None, error
