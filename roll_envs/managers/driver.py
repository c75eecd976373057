"""EpisodeDriver: one thread drives thousands of episodes, each of which ends exactly once, whatever goes wrong.

The driving thread makes quick calls (environments, context functions) in place. A watchdog relieves it when one call
takes longer than a short grace: another thread drives on, and what the slow call returns is handed in later. Calls
that mostly wait (tools, sandboxes, network) are found by measuring, and made on worker threads. Answers of a policy
come through futures. A failure is retried from the start within a budget; it is never a reward.

All state belongs to the thread that drives; others only append to its inbox. So the calls of one environment come one
after the other, but not always from the same thread.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import Any, cast

from roll_envs.errors import DeadlineExceededError, RollError
from roll_envs.managers.episode import (
    CloseRequest,
    CompletionRequest,
    Env,
    EpisodeSettings,
    Request,
    Respond,
    StepRequest,
    perform,
)
from roll_envs.managers.episode import episode as play
from roll_envs.policy import Policy
from roll_envs.types import Completion, Group, Outcome, Task, Trajectory

__all__ = ["EpisodeDriver", "EpisodeLimits", "GroupStream"]

MakeEnv = Callable[[Task], Env]
Answerer = Policy | Respond
OnDone = Callable[[Trajectory], None]

_GRACE_S = 0.05
"""A call in place that takes longer than this costs the driving thread its place."""
_SCAN_S = 0.1
"""How often the driving thread looks for episodes past a deadline."""
_LISTEN_S = 0.2
"""How long a wait for groups may stay deaf to Ctrl-C, where a signal does not end it."""
_CLOSE_WAIT_S = 0.5
"""How long closing waits for threads, so that those that can end do so before the process does."""
_SLICE_S = 0.01
"""How long one episode is driven before the others have their turn."""
_WAIT_S = 0.005
"""Calls that wait this long, in the mean, and twice as long as they compute are made on worker threads. Below it, a
thread that waits for the interpreter's lock (5 ms at a time) looks the same."""
_WAIT_CAP_S = 0.05
_OUTSTANDING = 3
"""As long as so many calls of a kind are late, further ones of that kind are made on worker threads."""
_MAX_WORKERS = 512
_CLOSERS = 8
"""Threads that close environments at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLimits:
    """Deadlines in seconds and budgets of a driver."""

    max_running: int = 128
    attempts: int = 3
    turn_timeout_s: float = 120.0
    env_timeout_s: float = 60.0
    episode_timeout_s: float = 600.0


class _Place(Enum):
    """Where an episode is at the moment."""

    DRIVER = "with the driving thread, or in its inbox"
    ANSWERER = "waits for a policy's future"
    THREAD = "waits for a call on another thread"


class _Call(Enum):
    """A call on another thread."""

    QUEUED = 0
    RUNNING = 1


@dataclass(slots=True)
class _CallTimes:
    """Means of one kind of call (``step of roll/Sokoban-v0``); they decide where such calls are made."""

    calls: int = 0
    cpu_s: float = 0.0
    wait_s: float = 0.0
    outstanding: int = 0
    """Calls that the driving thread was relieved of and that have not returned."""

    def add(self, wall_s: float, cpu_s: float) -> None:
        """Count a call in place. It begins as if 16 calls without any waiting had been seen, and one call counts as
        ``_WAIT_CAP_S`` of waiting at most: a process that takes the core for a moment must not decide."""
        self.calls += 1
        weight = 1.0 / min(self.calls + 16, 64)
        waited = min(max(wall_s - cpu_s, 0.0), max(_WAIT_CAP_S, 4 * cpu_s))
        self.wait_s += weight * (waited - self.wait_s)
        self.cpu_s += weight * (cpu_s - self.cpu_s)

    def on_threads(self) -> bool:
        """Whether the next call is made on a worker thread; one in 64 is made in place, to measure again."""
        if self.outstanding >= _OUTSTANDING:
            return True
        if self.wait_s < _WAIT_S or self.wait_s < 2 * self.cpu_s:
            return False
        self.calls += 1
        return self.calls % 64 != 0


@dataclass(slots=True, eq=False)
class _Episode:
    """One attempt at an episode."""

    stream: GroupStream
    number: int
    """Place of its task in the stream's tasks."""
    task: Task
    member: int
    attempt: int = 1
    started: float = 0.0
    env: Env | None = None
    env_key: str = ""
    generator: Generator[Request, Any, Trajectory] | None = None
    resumed: bool = False
    """Whether the last call resumed the generator, so that its value is a request."""
    kind: str = ""
    """What it waits for, as deadlines name it; ``detail`` says more."""
    detail: str = ""
    limit_s: float = 0.0
    since: float = 0.0
    """When the call or the wait began; infinite while the call stands in the workers' queue."""
    place: _Place = _Place.DRIVER
    ticket: int = 0
    """Counts what was taken from the inbox: what comes with an older ticket is too late."""
    claim: list[_Call] = field(default_factory=list)
    """One element while a call is made on another thread: whoever pops it (that thread when the call returns, the
    driving thread when the deadline comes) decides. ``list.pop`` is atomic, so no lock is needed."""
    relieved: bool = False
    """Whether that call began in place."""
    given_up: RollError | None = None
    reason: str = ""
    """Why it failed."""

    def wait_for(self, kind: str, limit_s: float, detail: str = "") -> None:
        self.kind, self.detail, self.limit_s = kind, detail, limit_s


_Job = tuple[_Episode, int, list[_Call], Callable[[], Any]]


class GroupStream:
    """Groups of one :meth:`EpisodeDriver.start`, in the order in which they finish. Iterate over it once."""

    def __init__(
        self,
        driver: EpisodeDriver,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings,
        answerer: Answerer,
        on_done: OnDone | None,
    ) -> None:
        self.tasks, self.settings = list(tasks), settings
        self.answerer_label = f"{settings.answerer}'s answer"
        self.submit: Callable[..., Future[Completion]] | None = getattr(answerer, "submit", None)
        self.respond = cast(Respond, answerer)
        self._driver, self._size, self._on_done = driver, group_size, on_done
        self._missing = len(self.tasks) * group_size
        self.ended: list[tuple[int, Trajectory]] = []
        """Written by the driving thread; delivered in batches."""
        self._delivered: queue.SimpleQueue[list[tuple[int, Trajectory]] | RollError] = queue.SimpleQueue()

    def deliver(self) -> bool:
        """Hand over what ended since the last time; whether that is all."""
        ended, self.ended = self.ended, []
        self._missing -= len(ended)
        self._delivered.put(ended)
        return self._missing == 0

    def fail(self, error: RollError) -> None:
        """Raise ``error`` where the groups are waited for."""
        self._delivered.put(error)

    def _receive(self) -> list[tuple[int, Trajectory]]:
        while True:
            try:
                delivered = self._delivered.get(timeout=_LISTEN_S)
            except queue.Empty:
                continue
            if isinstance(delivered, RollError):
                raise delivered
            return delivered

    def __iter__(self) -> Iterator[Group]:
        return map(itemgetter(1), self.numbered())

    def numbered(self) -> Iterator[tuple[int, Group]]:
        """Each group with its task's place in the tasks that were started. Whatever this raises closes the driver."""
        members: dict[int, dict[int, Trajectory]] = {place: {} for place in range(len(self.tasks))}
        if not self._size:
            return
        try:
            while members:
                delivered = self._receive()
                for place, trajectory in delivered:
                    members[place][trajectory.member] = trajectory
                    if self._on_done is not None:
                        self._on_done(trajectory)
                for place in {place for place, _ in delivered}:
                    if len(members[place]) == self._size:
                        whole = members.pop(place)
                        yield (
                            place,
                            Group(task=self.tasks[place], trajectories=tuple(whole[m] for m in range(self._size))),
                        )
        except GeneratorExit:
            raise
        except BaseException:
            self._driver.close()
            raise


class EpisodeDriver:
    """Plays tasks with up to ``limits.max_running`` episodes at a time.

    A :class:`~roll_envs.policy.Policy` is given requests by ``submit``; any other answerer is called with the
    environment, the prompt's ids and the sampling, and measured and relieved like an environment. Environments are made
    when they are needed, kept for each (id, kwargs), and replaced after a failure. Use it as a context manager, or call
    :meth:`close`.
    """

    def __init__(self, make_env: MakeEnv, limits: EpisodeLimits) -> None:
        self._make_env, self._limits = make_env, limits
        self._inbox: deque[tuple[_Episode, int, Any, BaseException | None]] = deque()
        self._wake = threading.Event()
        self._busy = threading.Event()
        """Whether anything runs, for the watchdog."""
        self._pending: deque[_Episode] = deque()
        self._running: set[_Episode] = set()
        self._streams: set[GroupStream] = set()
        self._envs: dict[str, list[Env]] = {}
        """Environments that wait for their next episode."""
        self._times: dict[str, _CallTimes] = {}
        self._next_scan = 0.0
        self._call: tuple[list[_Call], list[_Call], _Episode] | None = None
        """The last call in place: the first claim is popped by the driving thread when the call returns or by the
        watchdog, the second is the episode's claim in the latter case."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers = self._open_jobs = 0
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._closed = self._ended = False

    def __enter__(self) -> EpisodeDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the caller ----------------------------------------------------------------------------------------------

    def start(
        self,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings,
        answerer: Answerer,
        on_done: OnDone | None = None,
    ) -> GroupStream:
        """Begin to play every task ``group_size`` times; returns the stream of their groups at once.

        ``on_done`` is called once for each ended episode, in the thread that iterates over the stream.
        """
        stream = GroupStream(self, tasks, group_size, settings, answerer, on_done)
        with self._starting:
            if self._closed:
                raise _closed_error()
            if not tasks or not group_size:
                return stream
            self._streams.add(stream)
            self._pending.extend(
                _Episode(stream, place, task, member)
                for place, task in enumerate(tasks)
                for member in range(group_size)
            )
            if not self._threads:
                self._thread(self._drive, "episode-driver")
                self._thread(self._watch, "episode-watch")
        self._wake.set()
        return stream

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings,
        answerer: Answerer,
        on_done: OnDone | None = None,
    ) -> list[Group]:
        """Play every task ``group_size`` times; one group per task, in the order of ``tasks``, members in order.

        Whatever this raises closes the driver.
        """
        stream = self.start(tasks, group_size, settings, answerer, on_done)
        return [group for _, group in sorted(stream.numbered(), key=itemgetter(0))]

    def close(self) -> None:
        """End every episode and let the threads end; one that is stuck in a call is a daemon and ends with the process.

        Who waits for a stream is told by a :class:`RollError`.
        """
        with self._starting:
            self._closed = True
            threads = list(self._threads)
        for stream in list(self._streams):
            stream.fail(_closed_error())
        self._wake.set()
        self._busy.set()
        self._jobs.put(None)
        until = time.monotonic() + _CLOSE_WAIT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, until - time.monotonic()))

    # -- the driving thread ------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Take what was handed in, until closed or relieved."""
        try:
            while not self._closed:
                if time.monotonic() >= self._next_scan:
                    self._scan()
                if not self._inbox:
                    self._rest()
                    continue
                episode, ticket, value, error = self._inbox.popleft()
                if ticket == episode.ticket and not self._advance(episode, value, error):
                    return
            self._end()
        except BaseException as error:  # a mistake of this file: nobody may wait for ever
            self._closed = self._ended = True
            for stream in list(self._streams):
                stream.fail(RollError(f"the episode driver broke ({type(error).__name__}: {error}); please report it"))
            raise

    def _rest(self) -> None:
        """Deliver what ended, begin what may begin, and wait for something to do."""
        self._deliver()
        self._admit()
        if self._inbox:
            return
        if not self._running:
            self._busy.clear()
        if self._wake.wait(_SCAN_S if self._running else None):
            self._wake.clear()

    def _deliver(self) -> None:
        for stream in [s for s in list(self._streams) if s.ended]:
            if stream.deliver():
                self._streams.discard(stream)

    def _admit(self) -> None:
        while self._pending and len(self._running) < self._limits.max_running:
            episode = self._pending.popleft()
            episode.started = time.monotonic()
            self._running.add(episode)
            self._inbox.append((episode, episode.ticket, None, None))
            self._busy.set()

    def _advance(self, episode: _Episode, value: Any, error: BaseException | None) -> bool:
        """Drive one episode until it waits or ends, or for a while; False when this thread was relieved."""
        episode.ticket += 1
        self._back_from_thread(episode)
        until = time.monotonic() + _SLICE_S
        while (call := self._next_call(episode, value, error)) is not None:
            times = self._times.get(episode.kind)
            if times is None:
                times = self._times[episode.kind] = _CallTimes()
            if times.on_threads():
                self._call_on_worker(episode, call)
                return True
            result = self._call_in_place(episode, times, call)
            if result is None:
                return False
            value, error = result
            if episode.since > until:
                self._hand_in(episode, episode.ticket, value, error)
                return True
        return True

    def _next_call(self, episode: _Episode, value: Any, error: BaseException | None) -> Callable[[], Any] | None:
        """What is called next, after the last call gave ``value`` or ``error``; None when it waits or is over."""
        if episode.generator is None:
            if error is not None:
                self._fail(episode, error)
                return None
            if value is None and (value := self._kept_env(episode)) is None:
                episode.wait_for(f"the making of {episode.task.env_id}", self._limits.env_timeout_s)
                return partial(self._make_env, episode.task)
            episode.env, value = value, None
            episode.generator = play(episode.task, episode.member, episode.stream.settings)
        elif episode.resumed:
            episode.resumed = False
            if error is not None:
                self._fail(episode, error)
                return None
            if isinstance(value, Trajectory):
                self._finish(episode, value)
                return None
            return self._call_for(episode, value)
        elif isinstance(value, Future):
            if not value.done():
                episode.place, episode.since = _Place.ANSWERER, time.monotonic()
                value.add_done_callback(partial(self._hand_in, episode, episode.ticket))
                return None
            value, error = _result(value.result)
        if episode.given_up is not None:
            error = episode.given_up
        episode.resumed = True
        if error is None:
            episode.wait_for("the context function", self._limits.env_timeout_s)
        return partial(_resume, episode.generator, value, error)

    def _call_for(self, episode: _Episode, request: Request) -> Callable[[], Any]:
        """The call that answers what the episode wants."""
        limits, env, env_id = self._limits, episode.env, episode.task.env_id
        assert env is not None
        if isinstance(request, CompletionRequest):
            stream = episode.stream
            episode.wait_for(stream.answerer_label, limits.turn_timeout_s)
            if stream.submit is not None:
                return partial(stream.submit, request.prompt_ids, request.sampling, timeout_s=limits.turn_timeout_s)
            return partial(stream.respond, env, request.prompt_ids, request.sampling)
        if isinstance(request, CloseRequest):
            episode.reason = episode.reason or _describe(request.error, episode.kind)
            episode.env = None
            episode.wait_for(f"the closing of {env_id}", limits.env_timeout_s, f" (which had failed: {episode.reason})")
            return partial(_close_quietly, env)
        episode.wait_for(f"{'step' if isinstance(request, StepRequest) else 'reset'} of {env_id}", limits.env_timeout_s)
        return partial(perform, env, request)

    def _kept_env(self, episode: _Episode) -> Env | None:
        task = episode.task
        episode.env_key = f"{task.env_id}|{sorted(task.kwargs.items())!r}"
        kept = self._envs.get(episode.env_key)
        return kept.pop() if kept else None

    def _fail(self, episode: _Episode, error: BaseException) -> None:
        outcome = Outcome(kind="failed", reason=episode.reason or _describe(error, episode.kind))
        self._finish(episode, Trajectory(task=episode.task, member=episode.member, turns=(), outcome=outcome))

    def _finish(self, episode: _Episode, trajectory: Trajectory) -> None:
        """End an attempt: the episode is over, or tried again."""
        self._running.remove(episode)
        failed, stream = trajectory.outcome.kind == "failed", episode.stream
        if episode.env is not None and not failed:
            self._envs.setdefault(episode.env_key, []).append(episode.env)
        episode.env = episode.generator = None
        if failed and episode.attempt < self._limits.attempts:
            again = _Episode(stream, episode.number, episode.task, episode.member, attempt=episode.attempt + 1)
            self._pending.append(again)
        else:
            done = trajectory if episode.attempt == 1 else replace(trajectory, attempts=episode.attempt)
            stream.ended.append((episode.number, done))
        self._admit()

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Look for episodes past a deadline; also delivers, so that others that go on all the time hold up nothing."""
        self._deliver()
        self._admit()
        now, limits = time.monotonic(), self._limits
        for episode in list(self._running):
            if episode.place is not _Place.DRIVER and now - episode.since > episode.limit_s:
                self._give_up(episode, DeadlineExceededError(episode.kind + episode.detail, episode.limit_s))
            elif now - episode.started > limits.episode_timeout_s:
                self._give_up(
                    episode,
                    RollError(
                        f"the episode took longer than {limits.episode_timeout_s:g} s "
                        f"(waiting for {episode.kind}{episode.detail})"
                    ),
                )
        self._next_scan = time.monotonic() + _SCAN_S

    def _give_up(self, episode: _Episode, error: RollError) -> None:
        if episode.place is _Place.DRIVER:  # heard when its turn comes
            episode.given_up, episode.reason = error, str(error)
        elif episode.place is _Place.ANSWERER:
            self._hand_in(episode, episode.ticket, None, error)
        else:
            try:
                state = episode.claim.pop()
            except IndexError:  # it returned at this moment, which is in time; unless the whole episode is late
                if not isinstance(error, DeadlineExceededError):
                    episode.given_up, episode.reason = error, str(error)
                return
            if state is _Call.RUNNING and not episode.relieved:
                self._workers -= 1  # that thread is lost
            self._back_from_thread(episode)
            episode.ticket += 1
            episode.env = None  # in use by that thread, which closes it if it ever returns
            episode.reason = str(error)
            self._fail(episode, error)
            self._start_workers()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call_in_place(
        self, episode: _Episode, times: _CallTimes, call: Callable[[], Any]
    ) -> tuple[Any, BaseException | None] | None:
        """Value or error of ``call``; None when it took so long that another thread drives now."""
        claim, late, ticket = [_Call.RUNNING], [_Call.RUNNING], episode.ticket
        episode.since = started = time.monotonic()
        cpu = time.thread_time()
        self._call = (claim, late, episode)
        result = _result(call)
        times.add(time.monotonic() - started, time.thread_time() - cpu)
        try:
            claim.pop()
        except IndexError:
            self._return_late(episode, late, ticket, result)
            return None
        return result

    def _call_on_worker(self, episode: _Episode, call: Callable[[], Any]) -> None:
        claim = [_Call.QUEUED]
        episode.place, episode.since, episode.claim = _Place.THREAD, math.inf, claim
        self._jobs.put((episode, episode.ticket, claim, call))
        self._open_jobs += 1
        self._start_workers()

    def _start_workers(self) -> None:
        most = min(self._limits.max_running, _MAX_WORKERS)
        while self._workers < min(self._open_jobs, most):
            self._workers += 1
            self._thread(self._work, "episode-worker")

    def _back_from_thread(self, episode: _Episode) -> None:
        """Note that a call on another thread is over, or waited for no longer."""
        if episode.place is _Place.THREAD:
            if episode.relieved:
                self._times[episode.kind].outstanding -= 1
            else:
                self._open_jobs -= 1
        episode.place, episode.relieved = _Place.DRIVER, False

    # -- other threads -----------------------------------------------------------------------------------------------

    def _hand_in(self, episode: _Episode, ticket: int, value: Any, error: BaseException | None = None) -> None:
        """Give the driving thread the result of a call; wakes it once for many."""
        self._inbox.append((episode, ticket, value, error))
        if not self._wake.is_set():
            self._wake.set()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            episode, ticket, claim, call = job
            try:
                claim.pop()
            except IndexError:  # given up before it began
                continue
            episode.since = time.monotonic()
            claim.append(_Call.RUNNING)
            if not self._return_late(episode, claim, ticket, _result(call)):
                return
        self._jobs.put(None)  # for the next worker

    def _return_late(
        self, episode: _Episode, claim: list[_Call], ticket: int, result: tuple[Any, BaseException | None]
    ) -> bool:
        """Hand in what a call on this thread returned; False when nobody wants it any more."""
        env = episode.env if episode.generator is not None else result[0]
        try:
            claim.pop()
        except IndexError:
            wanted = False
        else:
            wanted = not self._ended
        if wanted:
            self._hand_in(episode, ticket, *result)
        elif env is not None:
            _close_quietly(env)
        return wanted

    def _watch(self) -> None:
        """Relieve the driving thread of calls in place that take too long."""
        while not self._ended:
            self._busy.wait()
            time.sleep(_GRACE_S / 2)
            if self._call is None:
                continue
            claim, late, episode = self._call
            if time.monotonic() - episode.since < _GRACE_S:
                continue
            try:
                claim.pop()
            except IndexError:  # no call at the moment
                continue
            # The driving thread cannot go on before its call returns, and then it will see that it was relieved: until
            # the next one starts, everything belongs to this thread.
            episode.claim, episode.place, episode.relieved = late, _Place.THREAD, True
            self._times[episode.kind].outstanding += 1
            self._thread(self._drive, "episode-driver")

    def _thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def _end(self) -> None:
        """Close every environment that is in no call, on several threads: one that hangs must not keep the others."""
        self._ended = True
        idle = [e for e in self._running if e.place is not _Place.THREAD and e.env is not None]
        envs = deque([*(env for kept in self._envs.values() for env in kept), *(e.env for e in idle)])
        for _ in range(min(len(envs), _CLOSERS)):
            self._thread(partial(_close_all, envs), "episode-closer")


def _closed_error() -> RollError:
    return RollError("this episode driver is closed; make a new one")


def _resume(
    generator: Generator[Request, Any, Trajectory], value: Any, error: BaseException | None
) -> Request | Trajectory:
    """What the episode wants next, or the episode when it is over."""
    try:
        return generator.send(value) if error is None else generator.throw(error)
    except StopIteration as end:
        ended: Trajectory = end.value
        return ended


def _result(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # work of others: environments (sys.exit() too), engines, context functions
        return None, error


def _describe(error: BaseException, during: str) -> str:
    try:
        return str(error) if isinstance(error, RollError) else f"{during} raised {type(error).__name__}: {error}"
    except Exception:  # an exception of others whose own text fails
        return f"{during} raised {type(error).__name__}"


def _close_all(envs: deque[Any]) -> None:
    while envs:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            _close_quietly(envs.popleft())


def _close_quietly(env: Any) -> None:
    with contextlib.suppress(BaseException):  # it may have failed before, and fail again; that is recorded already
        env.close()
