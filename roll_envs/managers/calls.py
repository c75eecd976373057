"""Calls into code of others (environments, context functions, answerers): which thread makes them, and until when.

An :class:`Attempt` at an episode makes its calls one after the other. The driving thread makes them in place, because
most are quick. A watchdog relieves it when a call takes longer than a short grace: another thread drives on, and the
attempt is handed in when the call has returned. Calls that mostly wait (tools, sandboxes, network) are found by
measuring, and made on worker threads. :mod:`roll_envs.managers.driver` says which attempts are made and given up.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from roll_envs.errors import RollError
from roll_envs.managers.episode import (
    AttemptRequest,
    CloseRequest,
    CompletionRequest,
    Env,
    EpisodeSettings,
    MakeRequest,
    ResetRequest,
    StepRequest,
    close_quietly,
    episode,
    perform,
)
from roll_envs.types import Completion, Outcome, Task, Trajectory

GRACE_S = 0.05
"""A call in place that takes longer than this costs the driving thread its place."""
_SLICE_S = 0.01
"""An attempt pauses after so long, so that other episodes have their turn."""
_WAIT_S = 0.005
"""Calls that wait this long, in the mean, and twice as long as they compute are made on worker threads. Below it, a
thread that waits for the interpreter's lock (5 ms at a time) looks the same."""
_QUICK_S = 0.001
"""Shorter calls are counted only where the mean is longer: they could not change what follows from it."""
_WAIT_CAP_S = 0.05
_OUTSTANDING = 3
"""As long as so many calls of a kind are late, further ones of that kind are made on worker threads."""
_MAX_WORKERS = 512


def result_of(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Value and error of a call; one of them is None."""
    try:
        return function(*args), None
    except BaseException as error:  # work of others: environments (sys.exit() too), engines, context functions
        return None, error


@dataclass(slots=True)
class CallKind:
    """What calls of one kind have in common; means of those made in place decide where the next one is made."""

    doing: str
    """What deadlines and errors call it ("step of roll/Sokoban-v0")."""
    limit_s: float
    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0
    late: int = 0
    """Calls that the driving thread was relieved of and that have not returned."""

    def make(self, function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
        """Value and error of a call in place, which is measured. Processor time is read (a system call) only where
        calls last so long, in the mean, that waiting could matter."""
        measured = self.wall_s >= _WAIT_S / 2
        cpu = time.thread_time() if measured else 0.0
        started = time.monotonic()
        result = result_of(function, *args)
        wall_s = time.monotonic() - started
        if wall_s > _QUICK_S or self.wall_s > _QUICK_S:
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


class Place(Enum):
    """Where an attempt is at the moment."""

    DRIVER = "with the driving thread, or in its inbox"
    ANSWERER = "waits for a policy's future"
    QUEUED = "waits for a worker thread"
    WORKER = "on a worker thread"
    RELIEVED = "on a thread that was the driving one"
    GIVEN_UP = "in a call that nobody waits for any more"


class Pause(Enum):
    """Why an attempt's calls stopped before it had to wait."""

    TIME_IS_UP = "others have their turn"
    FOR_WORKER = "the next call is one for a worker thread"


def call_kinds(env_id: str, answerer: str, env_timeout_s: float, turn_timeout_s: float) -> dict[type, CallKind]:
    """Kind of the call that each type of request leads to; that of None goes on with the episode, where the context
    function is called."""
    named: dict[type, str] = {
        MakeRequest: f"the making of {env_id}",
        ResetRequest: f"reset of {env_id}",
        type(None): "the context function",
        StepRequest: f"step of {env_id}",
        CloseRequest: f"the closing of {env_id}",
    }
    kinds = {request: CallKind(doing, env_timeout_s) for request, doing in named.items()}
    return {**kinds, CompletionRequest: CallKind(f"{answerer}'s answer", turn_timeout_s)}


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at an episode. It belongs to the thread that makes its calls, else to the driving thread."""

    task: Task
    member: int
    settings: EpisodeSettings
    make_env: Callable[[Task], Env]
    answerer: Callable[[Attempt, CompletionRequest], Future[Completion] | Completion]
    kinds: Mapping[type, CallKind]
    """Those of :func:`call_kinds`."""
    env: Env | None = None
    requests: Generator[AttemptRequest, Any, Trajectory] | None = None
    request: AttemptRequest | None = None
    """What it asks for; None where it is to go on with ``answer``."""
    answer: tuple[Any, BaseException | None] = (None, None)
    """Value and error of its last request."""
    kind: CallKind = field(init=False)
    """Kind of the call that is made now, or was made last."""
    since: float = 0.0
    """When that call, or the wait for its answer, began."""
    place: Place = Place.DRIVER
    relieved_in: CallKind | None = None
    """During which kind of call the driving thread was relieved."""
    done: Future[Completion] | Trajectory | Pause = Pause.TIME_IS_UP
    """What came of its calls."""
    reason: str = ""
    """Why it failed."""

    def begin(self, env: Env | None) -> None:
        """Note its first request; ``env`` is an environment kept from another episode."""
        self.env = env
        self.kind = self.kinds[type(None)]
        self.requests = self._play()
        self.request = next(self.requests)

    def _play(self) -> Generator[AttemptRequest, Any, Trajectory]:
        """What it asks for, in order; an environment that took part in a failure is closed."""
        try:
            if self.env is None:
                yield MakeRequest()
            return (yield from episode(self.task, self.member, self.settings))
        except GeneratorExit:
            raise
        except BaseException as error:
            self.reason = self.reason or _describe(error, self.kind.doing)
        # Whoever gives this attempt up closes its environment, which must not happen twice.
        env, self.env = self.env, None
        if env is not None:
            yield CloseRequest(env)
        return self.failed(self.reason)

    def failed(self, reason: str) -> Trajectory:
        outcome = Outcome(kind="failed", reason=reason)
        return Trajectory(task=self.task, member=self.member, turns=(), outcome=outcome)

    def run(self) -> Future[Completion] | Trajectory | Pause:
        """Make calls until it waits for a future, is over or pauses."""
        until = time.monotonic() + _SLICE_S
        while True:
            request, now = self.request, time.monotonic()
            if now > until:
                return Pause.TIME_IS_UP
            kind = self.kinds[type(request)]
            in_place = self.place is Place.DRIVER
            if in_place and kind.on_worker():
                return Pause.FOR_WORKER  # the request stays, and is done there
            self.since = now
            if self.answer[1] is None:  # an error is named after the call that raised it
                self.kind = kind
            made = kind.make(self._do, request) if in_place else result_of(self._do, request)
            value, error = made
            if request is not None:
                self.request, self.answer = None, made
                if isinstance(value, Future):
                    return value
            elif isinstance(value, Trajectory):
                return value  # the episode is over
            elif error is not None:  # GeneratorExit of somebody's code: the generator took it for its own end
                _discard(self)
                return self.failed(_describe(error, self.kind.doing))
            else:
                self.request, self.answer = value, (None, None)

    def _do(self, request: AttemptRequest | None) -> Any:
        """Do what it asks for, or go on with what came of that: its next request, or the episode that is over."""
        if request is None:
            assert self.requests is not None
            value, error = self.answer
            try:
                return self.requests.send(value) if error is None else self.requests.throw(error)
            except StopIteration as end:
                return end.value
        if isinstance(request, CompletionRequest):
            return self.answerer(self, request)
        if isinstance(request, MakeRequest):
            self.env = self.make_env(self.task)
        elif isinstance(request, CloseRequest):
            close_quietly(request.env)
        else:
            assert self.env is not None
            return perform(self.env, request)
        return None


class Calls:
    """The threads that make calls.

    ``hand_in`` is given each attempt with what came of its calls, by the thread that made them. ``drive`` is the
    driving thread's loop: it returns when :meth:`make_in_place` tells it that it was relieved, and is then run by
    another thread.
    """

    def __init__(
        self,
        drive: Callable[[], None],
        hand_in: Callable[[Attempt, Future[Completion] | Trajectory | Pause], None],
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
                _discard(attempt)
            elif not self._return(attempt, attempt.run()):
                return
        self._jobs.put(None)  # for the next worker

    def _return(self, attempt: Attempt, done: Future[Completion] | Trajectory | Pause) -> bool:
        """Hand in an attempt from another thread; False when nobody wants it any more."""
        with self._lock:
            wanted = attempt.place is not Place.GIVEN_UP and not self._closed
            if wanted:  # within the lock: a deadline that comes now finds it either here or in the inbox
                self._take_back(attempt)
                self._hand_in(attempt, done)
        if not wanted:
            _discard(attempt, done)
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


def _discard(attempt: Attempt, done: Future[Completion] | Trajectory | Pause | None = None) -> None:
    """Give back what an attempt holds that nobody waits for any more."""
    if isinstance(done, Future):
        done.cancel()
    env, attempt.env = attempt.env, None
    if env is not None:
        close_quietly(env)


def _describe(error: BaseException, during: str) -> str:
    try:
        return str(error) if isinstance(error, RollError) else f"{during} raised {type(error).__name__}: {error}"
    except Exception:  # an exception of others whose own text fails
        return f"{during} raised {type(error).__name__}"
