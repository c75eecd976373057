"""Which thread makes a call: in place, on a worker thread, or on one that was relieved; who hands work in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from managed import MORE, FaultyEnv, boom, counting, leave, responder, task
from managed import settings as episode_settings

from roll_envs.errors import EngineError
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.managers.attempt import CallKind
from roll_envs.testing import CounterEnv, ScriptedPolicy
from roll_envs.types import Trajectory


def choices(count: int, wall_s: float, cpu_s: float) -> list[bool]:
    """Whether each of ``count`` calls that last so long goes to a worker thread."""
    times, chosen = CallKind("step", 1.0), []
    for _ in range(count):
        chosen.append(times.on_worker())
        if not chosen[-1]:
            times.add(wall_s, cpu_s)
    return chosen


def test_quick_calls_and_those_that_compute_stay_in_place() -> None:
    assert not any(choices(500, 0.0001, 0.0001))
    assert not any(choices(500, 0.004, 0.0)), "below the time for which the interpreter's lock is held"
    assert not any(choices(500, 0.080, 0.079))


def test_calls_that_wait_go_to_worker_threads_and_are_measured_again() -> None:
    chosen = choices(500, 0.100, 0.001)
    assert chosen.index(True) < 6
    assert 4 <= chosen[6:].count(False) <= 10, "one in 64 is made in place"


def test_one_long_wait_decides_nothing() -> None:
    times = CallKind("step", 1.0)
    for _ in range(50):
        times.add(0.0001, 0.0001)
    times.add(30.0, 0.0)
    assert not times.on_worker()


def test_late_calls_send_others_of_their_kind_to_worker_threads() -> None:
    times = CallKind("step", 1.0, late=2)
    assert not times.on_worker()
    times.late = 3
    assert times.on_worker()


def test_a_call_is_measured_and_its_error_is_its_result() -> None:
    times = CallKind("step", 1.0)
    now = time.monotonic()
    result, ended = times.make(lambda a: a + 3, 2, now)
    assert result == (5, None)
    assert now <= ended <= time.monotonic()
    assert times.calls == 0, "a quick call decides nothing"
    for function in (time.sleep, lambda s: (time.sleep(s), leave())):
        (value, error), _ = times.make(function, 0.01, time.monotonic())
        assert value is None
    assert isinstance(error, SystemExit)
    assert times.calls == 2
    assert times.wall_s > 0.001
    times.make(int, 0, time.monotonic())
    assert times.calls == 3, "quick calls count where the mean is longer"


def played(make: Callable[[Any], Any], respond: Any, count: int, **limits: Any) -> list[Trajectory]:
    with EpisodeDriver(make, EpisodeLimits(**{"max_running": 8, "attempts": 1, **limits})) as driver:
        groups = driver.collect([task(i) for i in range(count)], 1, episode_settings(), respond)
    return [g.trajectories[0] for g in groups]


def test_quick_environments_are_stepped_by_one_thread() -> None:
    threads: set[str] = set()
    note = {"step": lambda: threads.add(threading.current_thread().name)}
    assert len(played(lambda t: FaultyEnv(note, **t.kwargs), counting(), 20)) == 20
    assert threads == {"episode-driver"}


def test_environments_that_wait_are_stepped_by_worker_threads() -> None:
    threads: list[str] = []

    def wait() -> None:
        threads.append(threading.current_thread().name)
        threading.Event().wait(0.03)

    played(lambda t: FaultyEnv({"step": wait}, **t.kwargs), counting(), 24)
    assert threads[0] == "episode-driver"
    assert threads.count("episode-worker") > len(threads) / 2


@pytest.mark.parametrize("where", ["reset", "step", "answer"])
def test_others_go_on_while_one_call_hangs(where: str) -> None:
    """The hanging call is let go only when every other episode has ended: it costs no more than the grace."""
    free, ended = threading.Event(), []

    def hang() -> None:
        assert free.wait(20), "the others waited for this call"

    def respond(env: Any, ids: Any, sampling: Any) -> Any:
        if where == "answer" and env.first:
            hang()
        return responder(ScriptedPolicy([MORE]))(env, ids, sampling)

    def make(t: Any) -> Any:
        env = FaultyEnv({where: hang} if t.index == 0 else {}, **t.kwargs)
        env.first = t.index == 0
        return env

    def done(trajectory: Trajectory) -> None:
        ended.append(trajectory.task.index)
        if len(ended) == 11:
            free.set()

    with EpisodeDriver(make, EpisodeLimits(max_running=12)) as driver:
        groups = driver.collect([task(i) for i in range(12)], 1, episode_settings(), respond, done)
    assert ended[-1] == 0
    assert all(g.trajectories[0].outcome.kind == "completed" for g in groups), "it was slow, and it was in time"


class _Flaky(CounterEnv):
    """Goes wrong at the calls (numbers from 0, reset the first) that ``faults`` names."""

    def __init__(self, faults: dict[int, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.faults, self.count = faults, 0

    def _maybe(self) -> None:
        fault = self.faults.get(self.count)
        self.count += 1
        if fault == "raises":
            boom()
        if fault == "leaves":
            leave()
        if fault == "hangs":
            threading.Event().wait(0.12)

    def reset(self, **options: Any) -> Any:
        self._maybe()
        return super().reset(**options)

    def step(self, action: str) -> Any:
        self._maybe()
        return super().step(action)


FAULTS = st.dictionaries(st.integers(0, 4), st.sampled_from(["raises", "leaves", "hangs"]), max_size=2)
ENGINE = st.dictionaries(st.integers(0, 40), st.just(EngineError("stopped")), max_size=3)


@settings(max_examples=15, deadline=None)
@given(
    plans=st.lists(FAULTS, min_size=1, max_size=12),
    failures=ENGINE,
    aborted=st.sets(st.integers(0, 40), max_size=2),
    running=st.integers(1, 6),
    attempts=st.integers(1, 3),
)
def test_every_episode_ends_exactly_once(
    plans: list[dict[int, str]], failures: dict[int, Exception], aborted: set[int], running: int, attempts: int
) -> None:
    """Promise 4, under random faults of environments and the policy; a hang lasts longer than its deadline."""
    ended: list[int] = []
    made: list[_Flaky] = []

    def make(t: Any) -> Any:
        made.append(_Flaky(plans[t.index] if len(made) < 2 * len(plans) else {}, **t.kwargs))
        return made[-1]

    limits = EpisodeLimits(max_running=running, attempts=attempts, env_timeout_s=0.08, turn_timeout_s=1.0)
    policy = ScriptedPolicy(lambda ids: MORE, failures=failures, abort=aborted)
    tasks = [task(i, max_turns=6 + i) for i in range(len(plans))]
    with EpisodeDriver(make, limits) as driver:
        groups = driver.collect(tasks, 1, episode_settings(), policy, lambda t: ended.append(t.task.index))
    assert sorted(ended) == list(range(len(plans)))
    assert [g.task for g in groups] == tasks
    for group in groups:
        (trajectory,) = group.trajectories
        failed = trajectory.outcome.kind == "failed"
        assert trajectory.attempts <= attempts
        assert bool(trajectory.outcome.reason) == (trajectory.outcome.kind != "completed")
        assert not (failed and any(turn.terminated or turn.truncated for turn in trajectory.turns))
        assert [(t.attempts, t.outcome.kind) for t in trajectory.failed_attempts] == [
            (number, "failed") for number in range(1, trajectory.attempts)
        ]


def test_calls_that_were_late_and_have_returned_keep_nobody_off_the_driving_thread() -> None:
    threads: list[str] = []

    def step() -> None:
        threads.append(threading.current_thread().name)
        if len(threads) <= 4:
            threading.Event().wait(0.2)

    with EpisodeDriver(lambda t: FaultyEnv({"step": step}, **t.kwargs), EpisodeLimits(max_running=8)) as driver:
        driver.collect([task(i) for i in range(8)], 1, episode_settings(), counting())
        threads[:] = [""] * 4
        driver.collect([task(i) for i in range(8)], 1, episode_settings(), counting())
        assert {kind.late for kind in driver._kinds.values()} == {0}
    assert set(threads[4:]) == {"episode-driver"}


def test_lost_worker_threads_are_replaced() -> None:
    """Two workers at most, four calls on them that hang: the others are played by new ones."""
    free = threading.Event()

    def make(t: Any) -> Any:
        hangs = t.index in range(20, 24)
        return FaultyEnv(
            {"step": (lambda: free.wait(30) and None) if hangs else (lambda: time.sleep(0.03))}, **t.kwargs
        )

    limits = EpisodeLimits(max_running=2, attempts=1, env_timeout_s=0.5, episode_timeout_s=20.0)
    with EpisodeDriver(make, limits) as driver:
        tasks = [task(i, max_turns=6 + i) for i in range(30)]
        groups = driver.collect(tasks, 1, episode_settings(), counting())
        free.set()
    kinds = [g.trajectories[0].outcome.kind for g in groups]
    assert kinds == ["completed"] * 20 + ["failed"] * 4 + ["completed"] * 6
