"""EpisodePool: many episodes at once on threads, each of which ends exactly once, whatever goes wrong.

Workers are daemon threads with one environment each. The collecting thread is the watchdog: an episode whose
environment or engine call runs past its deadline is ended as ``failed`` with the culprit named, its thread is given up,
and a new worker takes its place. A failure is retried from the start within a budget; it is never a reward.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roll_envs.env import TextEnv
from roll_envs.errors import RollError
from roll_envs.managers.episode import EpisodeSettings, Respond, Waiting, play_episode
from roll_envs.types import Group, Outcome, Task, Trajectory

__all__ = ["EpisodePool", "PoolLimits"]

MakeEnv = Callable[[Task], TextEnv]

_PARTING_S = 0.5
"""How long closing waits for the workers, so that those that can end do so before the process does."""
_WATCH_S = 0.2
"""How often the watchdog looks for episodes past a deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLimits:
    """Deadlines in seconds and budgets of a pool."""

    max_running: int = 128
    attempts: int = 3
    turn_timeout_s: float = 120.0
    env_timeout_s: float = 60.0
    episode_timeout_s: float = 600.0


@dataclass(slots=True, eq=False)
class _Job:
    task: Task
    member: int
    place: int
    attempt: int = 1
    started: float = 0.0
    waiting: Waiting = field(default_factory=Waiting)
    result: Trajectory | None = None


class EpisodePool:
    """Plays tasks with up to ``limits.max_running`` episodes at a time.

    ``respond`` is called from many threads at once. ``make_env`` is called in the worker that uses the environment.
    Use it as a context manager, or call :meth:`close`.
    """

    def __init__(self, make_env: MakeEnv, respond: Respond, settings: EpisodeSettings, limits: PoolLimits) -> None:
        self._make_env, self._respond, self._settings, self._limits = make_env, respond, settings, limits
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[threading.Thread, _Job] = {}
        self._workers: set[threading.Thread] = set()
        self._closed = False
        self._collecting = threading.Lock()
        self._next_watch = 0.0

    def __enter__(self) -> EpisodePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play every task ``group_size`` times; one group per task, in the order of ``tasks``, members in order.

        ``on_done`` is called in this thread once for each ended episode. Whatever this raises closes the pool.
        """
        if not self._collecting.acquire(blocking=False):
            raise RollError("this episode pool is collecting already; one collect() at a time")
        try:
            return self._collect(tasks, group_size, on_done)
        except BaseException:
            self.close()
            raise
        finally:
            self._collecting.release()

    def _collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None
    ) -> list[Group]:
        self._raise_if_closed()
        jobs = [
            _Job(task=task, member=member, place=i * group_size + member)
            for i, task in enumerate(tasks)
            for member in range(group_size)
        ]
        results: list[Trajectory | None] = [None] * len(jobs)
        for job in jobs:
            self._jobs.put(job)
        self._ensure_workers(min(len(jobs), self._limits.max_running))
        open_places = {job.place for job in jobs}
        while open_places:
            ended = self._next_done()
            self._raise_if_closed()
            if ended is None or ended.place not in open_places or ended.result is None:
                continue
            if ended.result.outcome.kind == "failed" and ended.attempt < self._limits.attempts:
                self._jobs.put(_Job(task=ended.task, member=ended.member, place=ended.place, attempt=ended.attempt + 1))
                continue
            result = replace(ended.result, attempts=ended.attempt)
            results[ended.place] = result
            open_places.remove(ended.place)
            if on_done is not None:
                on_done(result)
        whole = [r for r in results if r is not None]
        return [
            Group(task=task, trajectories=tuple(whole[i * group_size : (i + 1) * group_size]))
            for i, task in enumerate(tasks)
        ]

    def close(self) -> None:
        """Let workers end, at once or at the next turn of what they play; one that is stuck in foreign code is a daemon
        thread and ends with the process."""
        self._closed = True
        with self._lock:
            for job in self._running.values():
                job.waiting.given_up = True
        workers = list(self._workers)
        for _ in workers:
            self._jobs.put(None)
        until = time.monotonic() + _PARTING_S
        for worker in workers:
            if worker is not threading.current_thread():
                worker.join(timeout=max(0.0, until - time.monotonic()))

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise RollError("this episode pool is closed; make a new one")

    def _next_done(self) -> _Job | None:
        """The next ended episode; ``None`` when there is none for a while. Looks for overdue ones now and then, also
        while others end all the time."""
        now = time.monotonic()
        if now >= self._next_watch:
            overdue = self._overdue()
            if overdue is not None:
                return overdue
            self._next_watch = now + _WATCH_S
        try:
            return self._done.get(timeout=_WATCH_S)
        except queue.Empty:
            return None

    def _overdue(self) -> _Job | None:
        """Give up one episode that ran past a deadline, and replace its worker."""
        limits, now = self._limits, time.monotonic()
        with self._lock:
            for thread, job in self._running.items():
                # What is read first is overwritten last: a wait that begins while this looks is never overdue.
                what, answer, since = job.waiting.what, job.waiting.answer, job.waiting.since
                limit = limits.turn_timeout_s if answer else limits.env_timeout_s
                if now - since > limit:
                    reason = f"gave up waiting for {what} after {limit:g} s"
                elif now - job.started > limits.episode_timeout_s:
                    reason = f"the episode took longer than {limits.episode_timeout_s:g} s (waiting for {what})"
                else:
                    continue
                del self._running[thread]
                self._workers.discard(thread)
                job.waiting.given_up = True
                job.result = _failed(job, reason)
                break
            else:
                return None
        self._ensure_workers(1 + len(self._workers))
        return job

    def _ensure_workers(self, count: int) -> None:
        while len(self._workers) < min(count, self._limits.max_running):
            thread = threading.Thread(target=self._work, name="episode", daemon=True)
            self._workers.add(thread)
            thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        envs: dict[str, TextEnv] = {}
        while True:
            job = self._jobs.get()
            if job is None or self._closed:
                break
            job.started = time.monotonic()
            job.waiting.on(f"the making of {job.task.env_id}")
            with self._lock:
                self._running[me] = job
            result = self._play(job, envs)
            with self._lock:
                # The watchdog may have ended this episode: then its thread is no longer known, and stops here.
                given_up = self._running.pop(me, None) is not job
                if not given_up:
                    job.result = result
            if given_up:
                break
            self._done.put(job)
        for env in envs.values():
            _close_quietly(env)

    def _play(self, job: _Job, envs: dict[str, TextEnv]) -> Trajectory:
        key = f"{job.task.env_id}|{sorted(job.task.kwargs.items())!r}"
        try:
            env = envs.get(key)
            if env is None:
                env = envs[key] = self._make_env(job.task)
            return play_episode(env, job.task, job.member, self._respond, self._settings, job.waiting)
        except BaseException as error:  # work of others: environments (sys.exit() too), engines, context functions
            reason = _describe(error, job.waiting.what)
            broken = envs.pop(key, None)
            if broken is not None:
                job.waiting.on(f"the closing of {job.task.env_id} (which had failed: {reason})")
                _close_quietly(broken)
            return _failed(job, reason)


def _failed(job: _Job, reason: str) -> Trajectory:
    return Trajectory(
        task=job.task, member=job.member, turns=(), outcome=Outcome(kind="failed", reason=reason), attempts=job.attempt
    )


def _describe(error: BaseException, during: str) -> str:
    try:
        return str(error) if isinstance(error, RollError) else f"{during} raised {type(error).__name__}: {error}"
    except Exception:  # an exception of others whose own text fails
        return f"{during} raised {type(error).__name__}"


def _close_quietly(env: Any) -> None:
    try:
        env.close()
    except BaseException:  # an environment that failed may fail again while closing; the episode is already recorded
        return
