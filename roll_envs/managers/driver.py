"""EpisodeDriver: one thread drives thousands of episodes, each of which ends exactly once, whatever goes wrong.

:mod:`roll_envs.managers.attempt` says which calls play an episode, :mod:`roll_envs.managers.calls` which thread makes
them; here episodes are begun, parked while a policy answers, given up at their deadlines, and ended or tried again. A
failure is retried from the start within a budget; it is never a reward.

All state belongs to the thread that drives; others only append to its inbox. So the calls of one environment come one
after the other, but not always from the same thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from roll_envs.errors import DeadlineExceededError, RollError
from roll_envs.managers.attempt import Attempt, Collection, EpisodeLimits, calls_of, close_quietly, failed
from roll_envs.managers.calls import Calls, Pause, Place, Work
from roll_envs.managers.episode import Env, EpisodeSettings, Respond
from roll_envs.managers.stream import GroupStream, OnDone
from roll_envs.policy import Policy
from roll_envs.types import Group, Task, Trajectory

__all__ = ["EpisodeDriver", "EpisodeLimits"]

_SCAN_S = 0.1
"""How often the driving thread looks for episodes past a deadline."""
_CLOSE_WAIT_S = 0.5
"""How long closing waits for threads, so that those that can end do so before the process does."""
_CLOSERS = 8
"""Threads that close environments at the end."""


_Inbox = deque[tuple[Work[Attempt], Any]]


class EpisodeDriver:
    """Plays tasks with up to ``limits.max_running`` episodes at a time.

    A :class:`~roll_envs.policy.Policy` is given requests by ``submit``; any other answerer is called with the
    environment, the prompt's ids and the sampling, and measured and relieved like an environment. Environments are made
    when they are needed, kept for each (id, kwargs), and replaced after a failure. Use it as a context manager, or call
    :meth:`close`.
    """

    def __init__(self, make_env: Callable[[Task], Env], limits: EpisodeLimits) -> None:
        self._make_env, self._limits = make_env, limits
        self._inbox: _Inbox = deque()
        """Work that was done, with what came of it."""
        self._wake = threading.Event()
        self._pending: deque[Attempt] = deque()
        self._running: set[Attempt] = set()
        self._streams: set[GroupStream] = set()
        self._envs: dict[str, list[Env]] = {}
        """Environments that wait for their next episode."""
        self._calls = Calls(self._do, self._hand_in, _discard, self._drive, limits.max_running)
        self._next_scan = 0.0
        self._starting = threading.Lock()
        self._closed = False

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
        answerer: Policy | Respond,
        on_done: OnDone | None = None,
    ) -> GroupStream:
        """Begin to play every task ``group_size`` times; returns the stream of their groups at once.

        ``on_done`` is called once for each ended episode, in the thread that iterates over the stream.
        """
        stream = GroupStream(tasks, group_size, on_done, self.close)
        collection = Collection(stream, settings, answerer)
        with self._starting:
            if self._closed:
                raise _closed_error()
            if not tasks or not group_size:
                return stream
            self._streams.add(stream)
            self._pending.extend(
                Attempt(collection, place, task, member)
                for place, task in enumerate(tasks)
                for member in range(group_size)
            )
            self._calls.start()
        self._wake.set()
        return stream

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        settings: EpisodeSettings,
        answerer: Policy | Respond,
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
            threads = self._calls.close()
        for stream in list(self._streams):
            stream.fail(_closed_error())
        self._wake.set()
        until = time.monotonic() + _CLOSE_WAIT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, until - time.monotonic()))

    def _do(self, work: Work[Attempt]) -> Future[Any] | Trajectory | Pause | None:
        """Make calls until the episode waits for a future, is over, is given up (None) or pauses."""
        episode, answer = work.episode, work.answer
        assert episode.calls is not None
        while True:
            if answer is not None:
                try:
                    episode.next_call = episode.calls.send(answer)
                except StopIteration as end:
                    ended: Trajectory = end.value
                    return ended
            assert episode.next_call is not None
            made = self._calls.make(work, episode.next_call)
            if isinstance(made, Pause):
                return made
            episode.next_call = None
            if work.given_up:
                return None
            if isinstance(made[0], Future):
                return made[0]
            answer = made

    def _hand_in(self, work: Work[Attempt], done: Any) -> None:
        """Give the driving thread what came of work; wakes it once for many."""
        self._inbox.append((work, done))
        if not self._wake.is_set():
            self._wake.set()

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
                work, done = self._inbox.popleft()
                if work is work.episode.work and not self._take(work, done):
                    return
            self._close_envs()
        except BaseException as error:  # a mistake of this file: nobody may wait for ever
            self._closed = True
            self._calls.close()
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
            self._calls.busy.clear()
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
            kept = self._envs.get(_env_key(episode.task))
            episode.env = kept.pop() if kept else None
            episode.calls = calls_of(episode, self._limits, self._make_env)
            episode.next_call = next(episode.calls)
            self._running.add(episode)
            episode.work = Work(episode)
            self._inbox.append((episode.work, Pause.TIME_IS_UP))
            self._calls.busy.set()

    def _take(self, work: Work[Attempt], done: Any) -> bool:
        """Go on with an episode whose work was handed in; False when this thread was relieved."""
        episode, answer = work.episode, None
        self._calls.take_back(work)
        if work.place is Place.ANSWERER:
            answer = done
        elif isinstance(done, Pause):
            if done is Pause.FOR_WORKER and episode.given_up is None:
                episode.work = Work(episode)
                self._calls.queue(episode.work)
                return True
        else:
            self._settle(work, done)
            return True
        if episode.given_up is not None:
            answer, episode.given_up, episode.next_call = (None, episode.given_up), None, None
        episode.work = Work(episode, answer)
        result = self._calls.do_in_place(episode.work)
        if result is None:
            return False
        if isinstance(result[0], Pause):
            self._inbox.append((episode.work, result[0]))
        else:
            self._settle(episode.work, result[0])
        return True

    def _settle(self, work: Work[Attempt], done: Future[Any] | Trajectory) -> None:
        """Wait for the future in which an episode's work ended, or end it."""
        if isinstance(done, Trajectory):
            self._finish(work.episode, done)
            return
        work.place, work.answer, work.since = Place.ANSWERER, done, time.monotonic()
        done.add_done_callback(partial(self._hand_in_future, work))

    def _hand_in_future(self, work: Work[Attempt], future: Future[Any]) -> None:
        try:
            self._hand_in(work, (future.result(), None))
        except BaseException as error:  # of an engine, or of somebody who cancelled it
            self._hand_in(work, (None, error))

    def _finish(self, episode: Attempt, trajectory: Trajectory) -> None:
        """End an attempt: the episode is over, or tried again."""
        self._running.remove(episode)
        failed, stream = trajectory.outcome.kind == "failed", episode.collection.stream
        if episode.env is not None and not failed:
            self._envs.setdefault(_env_key(episode.task), []).append(episode.env)
        episode.work = None
        if failed and episode.attempt < self._limits.attempts:
            again = Attempt(episode.collection, episode.number, episode.task, episode.member, episode.attempt + 1)
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
        now, most_s = time.monotonic(), self._limits.episode_timeout_s
        for episode in list(self._running):
            work = episode.work
            assert work is not None
            waits_for = work.call.doing + work.call.detail
            if work.place is not Place.DRIVER and now - work.since > work.call.limit_s:
                self._give_up(episode, work, DeadlineExceededError(waits_for, work.call.limit_s))
            elif now - episode.started > most_s:
                error = RollError(f"the episode took longer than {most_s:g} s (waiting for {waits_for})")
                self._give_up(episode, work, error)
        self._next_scan = time.monotonic() + _SCAN_S

    def _give_up(self, episode: Attempt, work: Work[Attempt], error: RollError) -> None:
        if work.place is Place.ANSWERER:
            self._hand_in(work, (None, error))
            work.answer.cancel()
        elif work.place is not Place.DRIVER and self._calls.give_up(work):
            # The environment is in use by that thread, which closes it if it ever returns.
            episode.reason = str(error)
            self._finish(episode, failed(episode, episode.reason))
        elif not episode.reason and (work.place is Place.DRIVER or not isinstance(error, DeadlineExceededError)):
            # It is told at its next turn. Work that is handed in at this moment is in time for its own deadline.
            episode.given_up, episode.reason = error, str(error)

    def _close_envs(self) -> None:
        """Close every environment that is in no call, on several threads: one that hangs must not keep the others."""
        idle = [e.env for e in self._running if e.work and e.work.place in (Place.DRIVER, Place.ANSWERER)]
        kept = [env for envs in self._envs.values() for env in envs]
        envs = deque(env for env in (*kept, *idle) if env is not None)
        for _ in range(min(len(envs), _CLOSERS)):
            self._calls.thread(partial(_close_all, envs), "episode-closer")


def _closed_error() -> RollError:
    return RollError("this episode driver is closed; make a new one")


def _env_key(task: Task) -> str:
    return f"{task.env_id}|{sorted(task.kwargs.items())!r}"


def _close_all(envs: deque[Any]) -> None:
    while envs:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            close_quietly(envs.popleft())


def _discard(work: Work[Attempt]) -> None:
    """Close what work on another thread left, which nobody waits for."""
    if work.episode.env is not None:
        close_quietly(work.episode.env)
