"""EpisodeDriver: one thread drives thousands of episodes, each of which ends exactly once, whatever goes wrong.

:mod:`roll_envs.managers.calls` says which calls an attempt at an episode makes, and on which thread; here attempts are
begun, parked while a policy answers, given up at their deadlines, and ended or tried again. A failure is retried from
the start within a budget; it is never a reward.

All state belongs to the thread that drives; others only append to its inbox. So the calls of one environment come one
after the other, but not always from the same thread.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from roll_envs.errors import DeadlineExceededError, RollError
from roll_envs.managers.attempt import (
    Attempt,
    CallKind,
    Done,
    EpisodeLimits,
    MakeEnv,
    Pause,
    Place,
    call_kinds,
    result_of,
)
from roll_envs.managers.calls import Calls
from roll_envs.managers.episode import CompletionRequest, Env, EpisodeSettings, RemoteEnv, Respond, close_quietly
from roll_envs.managers.stream import Cancellation, GroupStream, OnDone
from roll_envs.policy import Policy
from roll_envs.types import Completion, Group, Task, Trajectory

_SCAN_S = 0.1
"""How often the driving thread looks for episodes past a deadline."""
_CLOSE_WAIT_S = 0.5
"""How long closing waits for threads, so that those that can end do so before the process does."""
_CLOSERS = 8
"""Threads that close environments at the end."""
_MAX_LOSSES = 6
"""How often an episode is tried again because a worker was lost, beside its attempts."""


@dataclass(slots=True, eq=False)
class _Episode:
    """An episode that somebody waits for, through all its attempts."""

    stream: GroupStream
    number: int
    """Place of its task in the stream's tasks."""
    env_key: str
    new_attempt: Callable[[], Attempt]
    attempts: int = 0
    started: float = 0.0
    """When this attempt began."""
    cancelled: str | None = None
    """Why it is to end."""
    losses: int = 0
    """How many attempts ended because a worker was lost."""
    failed: list[Trajectory] = field(default_factory=list)
    """Attempts before this one."""


_Item = Future[Any] | Attempt | Cancellation
SettingsOf = Callable[[Task], EpisodeSettings]


class EpisodeDriver(contextlib.AbstractContextManager["EpisodeDriver"]):
    """Plays tasks with up to ``limits.max_running`` episodes at a time.

    A :class:`~roll_envs.policy.Policy` is given requests by ``submit``; any other answerer is called with the
    environment, the prompt's ids and the sampling, and measured and relieved like an environment. Environments are made
    when they are needed, kept for each (id, kwargs), and replaced after a failure. Use it as a context manager, or call
    :meth:`close`.
    """

    def __init__(self, make_env: MakeEnv, limits: EpisodeLimits) -> None:
        self._make_env, self._limits = make_env, limits
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        """Answers of policies and remote environments, attempts with what came of their calls, and cancellations; None
        only wakes."""
        self._answers: dict[Future[Any], Attempt] = {}
        """Who waits for which future. One that was given up is in here no longer, so that its answer is not heard."""
        self._pending: deque[_Episode] = deque()
        self._lost: list[_Episode] = []
        """Those to try again because a worker was lost."""
        self._running: dict[Attempt, _Episode] = {}
        self._streams: set[GroupStream] = set()
        self._envs: defaultdict[str, list[tuple[Env | RemoteEnv, int]]] = defaultdict(list)
        """Environments that wait for their next episode, and how many they have played."""
        self._kinds: dict[str, CallKind] = {}
        self._calls = Calls(self._drive, self._hand_in, limits.max_running)
        self._next_scan = 0.0
        self._starting = threading.Lock()
        """Held while streams begin, grow or end."""
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the caller ----------------------------------------------------------------------------------------------

    def start(
        self,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings | SettingsOf,
        answerer: Policy | Respond,
        on_done: OnDone | None = None,
        *,
        front: bool = False,
        into: GroupStream | None = None,
    ) -> GroupStream:
        """Begin to play every task ``group_size`` times; returns the stream of their groups at once: ``into``, an
        earlier one of the same ``group_size``, where it is given.

        ``settings`` are those of all tasks, or a function that gives those of one. ``front`` puts the episodes before
        all that wait to begin. ``on_done`` is called once for each ended episode, in the thread that iterates over the
        stream.
        """
        limits = self._limits
        stream = GroupStream(group_size, on_done, self.close, self._inbox.put) if into is None else into
        ask = _submit_to(answerer, limits.turn_timeout_s) if isinstance(answerer, Policy) else _call(answerer)
        episodes: list[_Episode] = []
        with self._starting:
            if self._closed:
                raise _closed_error()
            for number, task in zip(stream.extend(tasks), tasks, strict=True):
                key = f"{task.env_id}|{sorted(task.kwargs.items())!r}"
                chosen = settings if isinstance(settings, EpisodeSettings) else settings(task)
                found = call_kinds(task.env_id, chosen.answerer, limits)
                # What was measured of a kind of call holds for every stream of this driver.
                kinds = {request: self._kinds.setdefault(kind.doing, kind) for request, kind in found.items()}
                for member in range(group_size):
                    new = partial(Attempt, task, member, chosen, self._make_env, ask, kinds)
                    episodes.append(_Episode(stream, number, key, new))
            if not episodes:
                return stream
            self._streams.add(stream)
            if front:
                self._pending.extendleft(reversed(episodes))
            else:
                self._pending.extend(episodes)
            self._calls.start()
        self._inbox.put(None)
        return stream

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings | SettingsOf,
        answerer: Policy | Respond,
        on_done: OnDone | None = None,
    ) -> list[Group]:
        """Play every task ``group_size`` times; one group per task, in the order of ``tasks``, members in order.

        Whatever this raises closes the driver.
        """
        return self.start(tasks, group_size, settings, answerer, on_done).in_order()

    def close(self) -> None:
        """End every episode and let the threads end; one that is stuck in a call is a daemon and ends with the process.

        Who waits for a stream is told by a :class:`RollError`.
        """
        with self._starting:
            self._closed = True
            threads = self._calls.close()
        for stream in list(self._streams):
            stream.fail(_closed_error())
        self._inbox.put(None)
        until = time.monotonic() + _CLOSE_WAIT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, until - time.monotonic()))

    def _hand_in(self, attempt: Attempt, done: Done) -> None:
        """Give the driving thread what came of an attempt's calls; an answer is handed in by who completes it."""
        attempt.done = done
        if isinstance(done, Future):
            # Known as a waiting one before the callback, which may run at once, and before a scan can see it wait.
            self._answers[done] = attempt
            attempt.since, attempt.place = time.monotonic(), Place.PARKED
            done.add_done_callback(self._inbox.put)
        else:
            attempt.place = Place.DRIVER
            self._inbox.put(attempt)

    # -- the driving thread ------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Take what was handed in, until closed or relieved."""
        try:
            while not self._closed:
                if time.monotonic() >= self._next_scan:
                    self._scan()
                item = self._next()
                if item is not None and not self._take(item):
                    return
            self._close_envs()
        except BaseException as error:  # a mistake of this file: nobody may wait for ever
            self._closed = True
            self._calls.close()
            for stream in list(self._streams):
                stream.fail(RollError(f"the episode driver broke ({type(error).__name__}: {error}); please report it"))
            raise

    def _next(self) -> _Item | None:
        """What was handed in next. Where there is nothing, deliver what ended, begin what may begin, and wait."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            self._deliver()
            self._admit()
        idle = not self._running
        if idle:  # nothing can be late: the watchdog need not wake while a learner computes
            self._calls.busy.clear()
        try:
            return self._inbox.get(timeout=None if idle else _SCAN_S)
        except queue.Empty:
            return None
        finally:
            if idle:
                self._calls.busy.set()

    def _deliver(self) -> None:
        for stream in [s for s in list(self._streams) if s.ended]:
            with self._starting:  # nobody extends it between the two
                if stream.deliver():
                    self._streams.discard(stream)

    def _admit(self) -> None:
        while len(self._running) < self._limits.max_running and (episode := self._next_episode()) is not None:
            episode.attempts, episode.started = episode.attempts + 1, time.monotonic()
            # After a loss a new one: others may have been lost with the same worker.
            kept = self._envs[episode.env_key] if not episode.losses else None
            attempt = episode.new_attempt()
            attempt.begin(kept.pop() if kept else None, self._limits.recycle_after)
            self._running[attempt] = episode
            self._inbox.put(attempt)

    def _next_episode(self) -> _Episode | None:
        """The next one to begin, if there is one.

        One of those that were lost with their workers may be the reason. From the second loss on a quarter as many of
        them run at a time with each loss, so that it is soon alone and takes no others with it.
        """
        if self._lost:
            first = min(self._lost, key=lambda episode: episode.losses)
            suspects = sum(episode.losses > 1 for episode in self._running.values())
            if suspects < max(1, self._limits.max_running >> 2 * (first.losses - 1)):
                self._lost.remove(first)
                return first
        return self._pending.popleft() if self._pending else None

    def _take(self, item: _Item) -> bool:
        """Go on with an attempt; False when this thread was relieved."""
        if isinstance(item, Future):
            attempt = self._answers.pop(item, None)
            if attempt is None:  # given up, so nobody listens
                return True
            attempt.hear(*result_of(item.result))
        elif isinstance(item, Cancellation):
            self._cancel_all(item)
            return True
        else:
            attempt = item
            if attempt not in self._running:  # it was cancelled in here
                return True
            if isinstance(attempt.done, Trajectory):
                self._finish(attempt, attempt.done)
                return True
        return self._calls.make_in_place(attempt)

    def _finish(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """End an attempt: the episode is over, or tried again."""
        episode, failed = self._running.pop(attempt), trajectory.outcome.kind == "failed"
        if attempt.env is not None and not failed and attempt.place is not Place.GIVEN_UP:
            self._envs[episode.env_key].append((attempt.env, attempt.env_episodes + 1))
        episode.losses += attempt.lost
        again = episode.losses <= _MAX_LOSSES and episode.attempts - episode.losses < self._limits.attempts
        if failed and episode.cancelled is None and again:
            episode.failed.append(replace(trajectory, attempts=episode.attempts))
            (self._lost if attempt.lost else self._pending).append(episode)
        else:
            self._end(episode, trajectory)
        self._admit()

    def _end(self, episode: _Episode, trajectory: Trajectory) -> None:
        """What comes of an episode after all its attempts."""
        if episode.cancelled is not None and trajectory.outcome.kind == "failed":
            outcome = replace(trajectory.outcome, kind="cancelled", reason=episode.cancelled)
            trajectory = replace(trajectory, outcome=outcome)
        if episode.attempts != 1 or episode.failed:
            trajectory = replace(trajectory, attempts=episode.attempts, failed_attempts=tuple(episode.failed))
        episode.stream.ended.append((episode.number, trajectory))

    # -- cancellation ------------------------------------------------------------------------------------------------

    def _cancel_all(self, order: Cancellation) -> None:
        def concerned(episode: _Episode) -> bool:
            return episode.stream is order.stream and episode.number in order.numbers

        with self._starting:  # no others begin to wait meanwhile
            waiting = [episode for episode in chain(self._pending, self._lost) if concerned(episode)]
            for waits in (self._pending, self._lost):
                kept = [episode for episode in waits if not concerned(episode)]
                waits.clear()
                waits.extend(kept)
        for episode in waiting:
            self._end(episode, episode.new_attempt().ended("cancelled", order.reason))
        for attempt, episode in list(self._running.items()):
            if concerned(episode) and episode.cancelled is None:
                episode.cancelled = order.reason
                self._cancel(attempt, order.reason)

    def _cancel(self, attempt: Attempt, reason: str) -> None:
        """End an attempt, unless it is ending. Its environment is kept where it is in no call."""
        if attempt.reason or attempt.answer[1] is not None or isinstance(attempt.done, Trajectory):
            return
        taken = self._withdraw if attempt.place in (Place.DRIVER, Place.PARKED) else self._calls.give_up
        if taken(attempt):  # else it was handed in at this moment, and the next scan finds it
            self._finish(attempt, attempt.ended("cancelled", reason))

    def _withdraw(self, attempt: Attempt) -> bool:
        """Listen no longer to the answer that an attempt waits for, if it does. A remote environment that is in a call
        goes with it; False where that call has just returned."""
        answer = attempt.done
        if isinstance(answer, Future) and answer in self._answers:
            cancelled = answer.cancel()
            if attempt.asks_env:
                if answer.done() and not cancelled:
                    return False
                attempt.env = None  # who holds it has been told by the cancelled future
            del self._answers[answer]
        return True

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Look for episodes past a deadline; also delivers, so that others that go on all the time hold up nothing."""
        self._deliver()
        self._admit()
        now, most_s = time.monotonic(), self._limits.episode_timeout_s
        for attempt, episode in list(self._running.items()):
            kind = attempt.kind
            if attempt.place is not Place.DRIVER and now - attempt.since > kind.limit_s:
                self._give_up(attempt, DeadlineExceededError(_waits_for(attempt), kind.limit_s))
            elif now - episode.started > most_s and not attempt.reason:
                error = f"the episode took longer than {most_s:g} s (waiting for {_waits_for(attempt)})"
                self._give_up(attempt, RollError(error))
            elif episode.cancelled is not None:
                self._cancel(attempt, episode.cancelled)
        self._next_scan = time.monotonic() + _SCAN_S

    def _give_up(self, attempt: Attempt, error: RollError) -> None:
        """End an attempt that is stuck in a call; any other is told instead of its answer, and ends itself."""
        done = attempt.done
        if attempt.asks_env:
            if self._withdraw(attempt):
                self._finish(attempt, attempt.ended("failed", str(error), attempt.traceback))
            return
        if attempt.place is Place.PARKED:
            self._withdraw(attempt)
            self._hand_in(attempt, Pause.TIME_IS_UP)
        elif attempt.place is not Place.DRIVER:
            stack = attempt.stack() if attempt.place is not Place.QUEUED else ""
            if self._calls.give_up(attempt):
                self._finish(attempt, attempt.ended("failed", str(error), attempt.traceback or stack))
            return
        elif isinstance(done, Trajectory):
            return
        # It lies in the inbox, so that no thread makes calls for it: its next turn begins with the error.
        attempt.reason, attempt.request, attempt.answer = str(error), None, (None, error)

    def _close_envs(self) -> None:
        """Close every environment that is in no call, on several threads: one that hangs must not keep the others."""
        for attempt in self._running:
            if attempt.asks_env:
                self._withdraw(attempt)
        idle = [attempt.env for attempt in self._running if attempt.place in (Place.DRIVER, Place.PARKED)]
        kept = (env for env, _ in chain(*self._envs.values()))
        envs = [env for env in chain(idle, kept) if env is not None]
        shared = iter(envs)  # a list's iterator gives each element to one thread
        for _ in envs[:_CLOSERS]:
            self._calls.thread(partial(_close_all, shared), "episode-closer")


def _submit_to(policy: Policy, timeout_s: float) -> Callable[[Attempt, CompletionRequest], Future[Completion]]:
    def submit(attempt: Attempt, request: CompletionRequest) -> Future[Completion]:
        task = attempt.task
        session = f"{task.env_id}/{task.split}/{task.index}/{task.seed}/{attempt.member}"
        return policy.submit(request.prompt_ids, request.sampling, timeout_s=timeout_s, session=session)

    return submit


def _call(respond: Respond) -> Callable[[Attempt, CompletionRequest], Completion]:
    def answer(attempt: Attempt, request: CompletionRequest) -> Completion:
        if attempt.ask is not None:
            raise RollError(
                f"{attempt.settings.answerer} answers by looking at the environment, which is in another process here; "
                "play these episodes with environments of this process"
            )
        return respond(attempt.env, request.prompt_ids, request.sampling)

    return answer


def _waits_for(attempt: Attempt) -> str:
    if attempt.place in (Place.DRIVER, Place.QUEUED):
        return "its turn"
    return attempt.kind.doing + (f" (which had failed: {attempt.reason})" if attempt.reason else "")


def _closed_error() -> RollError:
    return RollError("this episode driver is closed; make a new one")


def _close_all(envs: Iterator[Env | RemoteEnv]) -> None:
    for env in envs:
        close_quietly(env)
