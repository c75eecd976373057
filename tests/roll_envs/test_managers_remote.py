"""Environments in other processes, deadlines of each kind of call, and recycling."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import managed
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from managed import MORE, FaultyEnv, Unanswered, Workers, boom, counting, hang, leave, settings, task, without_times
from test_managers_cancel import Held

from roll_envs.errors import WorkerLostError
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.testing import CounterEnv, ScriptedPolicy
from roll_envs.types import Task, Trajectory


def plain(t: Task) -> CounterEnv:
    return CounterEnv(**t.kwargs)


def lose() -> None:
    raise WorkerLostError("worker 3 died")


def never() -> None:
    raise Unanswered


@pytest.fixture
def start() -> Iterator[Callable[..., Workers]]:
    started: list[Workers] = []

    def start_workers(make: Callable[[Task], Any]) -> Workers:
        started.append(Workers(make))
        return started[-1]

    yield start_workers
    for workers in started:
        workers.close()


def play(make: Any, tasks: list[Task], answerer: Any = None, **limits: Any) -> list[Trajectory]:
    with EpisodeDriver(make, EpisodeLimits(**{"max_running": 4, "attempts": 1, **limits})) as driver:
        groups = driver.collect(tasks, 1, settings(), answerer or counting())
    return [t for g in groups for t in g.trajectories]


def test_remote_environments_are_played_kept_and_closed_like_others(start: Any) -> None:
    tasks = [task(i) for i in range(12)]
    workers = start(plain)
    remote, local = play(workers.make, tasks), play(plain, tasks)
    assert [without_times(t) for t in remote] == [without_times(t) for t in local]
    assert workers.made == 4
    assert workers.of("reset") != sorted(workers.of("reset")), "they take turns"
    workers.close()
    assert sorted(workers.of("close")) == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", [boom, leave])
def test_an_environments_error_is_told_with_its_call_and_the_environment_closed(start: Any, fault: Any) -> None:
    workers = start(lambda t: FaultyEnv({"step": fault, "close": boom}, **t.kwargs))
    (lost,) = play(workers.make, [task()], attempts=2)
    assert lost.outcome.reason.startswith(f"step of test/Counter-v0 raised {'Run' if fault is boom else 'SystemExit'}")
    assert f"in {fault.__name__}" in lost.outcome.traceback
    assert (lost.attempts, lost.outcome.answer) == (2, MORE)
    assert workers.of("close") == [0, 1]


@pytest.mark.parametrize("what", ["make", "reset", "step", "close"])
def test_a_call_that_hangs_is_given_up_at_the_deadline_of_its_kind(start: Any, what: str) -> None:
    def make(t: Task) -> Any:
        faults = {"step": boom, "close": never} if what == "close" else {what: never}
        return never() if what == "make" else FaultyEnv(faults, **t.kwargs)

    workers = start(make)
    limits = {"env_timeout_s": 30.0, f"{what}_timeout_s": 0.2}
    (lost,) = play(workers.make, [task()], **limits)
    named = {"make": "the making", "close": "the closing"}.get(what, what)
    assert lost.outcome.kind == "failed"
    assert f"gave up waiting for {named} of test/Counter-v0" in lost.outcome.reason
    assert "after 0.2 s" in lost.outcome.reason
    assert [future.cancelled() for future in workers.futures] == [False] * (len(workers.futures) - 1) + [True]
    assert workers.asked[-1] == (0, what), "who holds it is told by the cancelled future, and asked nothing more"
    assert "boom" in lost.outcome.traceback or what != "close"


def test_an_answer_in_the_moment_of_its_deadline_is_heard() -> None:
    class Late(Future[Any]):
        answer: Any

        def cancel(self) -> bool:
            self.set_result(self.answer)
            return False

    class Slow:
        def __init__(self, env: CounterEnv) -> None:
            self.env = env

        def ask(self, request: Any) -> Future[Any]:
            future = Late()
            future.answer = managed.perform(self.env, request)
            if isinstance(request, managed.ResetRequest):
                future.set_result(future.answer)
            return future

    (won,) = play(lambda t: Slow(plain(t)), [task()], step_timeout_s=0.1)
    assert won.outcome.kind == "completed"


def losing(times: int, where: str) -> tuple[Counter[str], Callable[[Task], Any]]:
    """The first ``times`` environments lose their worker."""
    counts = Counter[str]()

    def make(t: Task) -> Any:
        counts["made"] += 1
        if counts["made"] > times:
            return plain(t)
        return lose() if where == "make" else FaultyEnv({where: lose}, **t.kwargs)

    return counts, make


@pytest.mark.parametrize("where", ["make", "reset", "step"])
def test_a_lost_worker_costs_no_attempt(start: Any, where: str) -> None:
    counts, make = losing(6, where)
    workers = start(make)
    (won,) = play(workers.make, [task()])
    assert (won.outcome.kind, won.attempts, counts["made"]) == ("completed", 7, 7)
    assert all("worker 3 died" in t.outcome.reason for t in won.failed_attempts)
    workers.close()
    assert workers.of("close") == [6], "what was lost cannot be closed"


def test_losses_have_a_limit_and_failures_theirs(start: Any) -> None:
    counts, make = losing(99, "step")
    (lost,) = play(start(make).make, [task()], attempts=3)
    assert (lost.outcome.kind, lost.attempts, counts["made"]) == ("failed", 7, 7)
    assert lost.outcome.reason == "step of test/Counter-v0 raised WorkerLostError: worker 3 died"
    counts, make = losing(2, "step")
    faulty = start(lambda t: FaultyEnv({"step": boom}, **t.kwargs) if counts["made"] >= 2 else make(t))
    (lost,) = play(faulty.make, [task()], attempts=3)
    assert (lost.outcome.kind, lost.attempts) == ("failed", 5)


def test_those_that_were_lost_twice_are_played_alone_and_can_be_cancelled(start: Any) -> None:
    made, held = Counter[int](), Held()

    def make(t: Task) -> Any:
        made[t.index] += 1
        return FaultyEnv({"reset": lose} if made[t.index] <= 2 else {}, **t.kwargs)

    with EpisodeDriver(start(make).make, EpisodeLimits(max_running=4)) as driver:
        stream = driver.start([task(0), task(1)], 1, settings(), held)
        held.wait(1)
        time.sleep(0.3)
        assert len(held.futures) == 1
        before = dict(made)
        stream.cancel(range(2))
        assert [group.trajectories[0].outcome.kind for group in stream] == ["cancelled"] * 2
        time.sleep(0.3)
        assert made == before, "what was cancelled is not played any more"


def test_after_a_loss_no_kept_environment_is_tried(start: Any) -> None:
    """Twelve environments wait when their worker dies; each episode meets at most one of them."""
    dead: list[bool] = []

    def step() -> None:
        if dead:
            lose()

    def make(t: Task) -> Any:
        return plain(t) if dead else FaultyEnv({"step": step}, **t.kwargs)

    workers = start(make)
    held = Held()
    with EpisodeDriver(workers.make, EpisodeLimits(max_running=12)) as driver:
        stream = driver.start([task(i) for i in range(12)], 1, settings(), held)
        held.wait(12)
        stream.cancel(range(12))
        stream.in_order()
        dead.append(True)
        (group,) = driver.collect([task(50)], 1, settings(), counting())
    assert (group.trajectories[0].outcome.kind, group.trajectories[0].attempts) == ("completed", 2)


def test_hanging_remote_calls_are_not_late_ones_of_the_driving_thread(start: Any) -> None:
    workers = start(lambda t: FaultyEnv({"step": never} if t.index < 6 else {}, **t.kwargs))
    with EpisodeDriver(workers.make, EpisodeLimits(max_running=8, attempts=1, step_timeout_s=0.4)) as driver:
        groups = driver.collect([task(i, max_turns=6 + i) for i in range(30)], 1, settings(), counting())
        assert {kind.late for kind in driver._kinds.values()} == {0}
    assert [g.trajectories[0].outcome.kind for g in groups] == ["failed"] * 6 + ["completed"] * 24
    assert workers.threads == {"episode-driver", "episode-closer"}


def test_cancelling_while_a_remote_environment_is_in_a_call(start: Any) -> None:
    held, hanging = Held(), threading.Event()

    def reset() -> None:
        hanging.set()
        never()

    workers = start(lambda t: FaultyEnv({"reset": reset} if t.index else {}, **t.kwargs))
    with EpisodeDriver(workers.make, EpisodeLimits(max_running=2)) as driver:
        stream = driver.start([task(i, max_turns=6 + i) for i in range(2)], 1, settings(), held)
        held.wait(1)
        assert hanging.wait(10)
        stream.cancel([0, 1], "enough")
        groups = stream.in_order()
        assert [g.trajectories[0].outcome.reason for g in groups] == ["enough"] * 2
        assert [future.cancelled() for future in workers.futures].count(True) == 1
        again = driver.collect([task(0, max_turns=6)], 1, settings(), counting())
        assert again[0].trajectories[0].outcome.kind == "completed"
        assert workers.made == 2, "the one that waited for the policy is kept"
    workers.close()
    assert workers.of("close") == [0]


def test_a_teacher_that_looks_at_the_environment_needs_it_here(start: Any) -> None:
    (lost,) = play(start(plain).make, [task()], lambda env, ids, sampling: env.oracle())
    assert "which is in another process" in lost.outcome.reason


@pytest.mark.parametrize("what", ["make", "reset", "step", "close"])
def test_local_calls_have_deadlines_of_their_kind(what: str) -> None:
    managed.SLEEPERS.clear()
    faults = {"step": boom, "close": hang} if what == "close" else {what: hang}

    def make(t: Task) -> Any:
        return hang() if what == "make" else FaultyEnv(faults, **t.kwargs)

    (lost,) = play(make, [task()], env_timeout_s=30.0, **{f"{what}_timeout_s": 0.2})
    managed.SLEEPERS.set()
    assert "after 0.2 s" in lost.outcome.reason


@pytest.mark.parametrize("remote", [False, True])
def test_environments_are_made_anew_after_so_many_episodes(start: Any, remote: bool) -> None:
    did: list[str] = []

    def make(t: Task) -> Any:
        number = len([d for d in did if d.startswith("make")])
        did.append(f"make {number}")
        faults = {"reset": lambda: did.append(f"reset {number}"), "close": lambda: did.append(f"close {number}")}
        return FaultyEnv(faults, **t.kwargs)

    workers = start(make)
    play(workers.make if remote else make, [task(i) for i in range(5)], max_running=1, recycle_after=2)
    first = ["make 0", "reset 0", "reset 0", "close 0"]
    second = ["make 1", "reset 1", "reset 1", "close 1"]
    assert did[:10] == [*first, *second, "make 2", "reset 2"]


def test_an_environment_that_cannot_be_closed_for_its_age_costs_one_attempt_and_is_not_used(start: Any) -> None:
    workers = start(lambda t: FaultyEnv({"close": never}, **t.kwargs))
    played = play(
        workers.make, [task(i) for i in range(2)], max_running=1, recycle_after=1, attempts=2, close_timeout_s=0.2
    )
    assert [t.outcome.kind for t in played] == ["completed"] * 2
    assert "the closing of test/Counter-v0" in played[1].failed_attempts[0].outcome.reason
    assert workers.of("reset") == [0, 1]


PLANS = st.lists(
    st.dictionaries(st.integers(0, 4), st.sampled_from([boom, leave, never, lose]), max_size=2), max_size=8
)


@examples(max_examples=12, deadline=None)
@given(plans=PLANS, running=st.integers(1, 5), attempts=st.integers(1, 3), recycle_after=st.integers(0, 2))
def test_every_episode_ends_exactly_once(
    plans: list[dict[int, Any]], running: int, attempts: int, recycle_after: int
) -> None:
    """Promise 4 with remote environments, each of which goes wrong at the calls that its plan names."""
    made: list[int] = []

    def make(t: Task) -> Any:
        plan = plans[len(made)] if len(made) < len(plans) else {}
        made.append(t.index)
        calls: Counter[str] = Counter()

        def fault() -> Any:
            calls["all"] += 1
            return plan.get(calls["all"] - 1, lambda: None)()

        return FaultyEnv({"reset": fault, "step": fault}, **t.kwargs)

    workers, ended = Workers(make), Counter[int]()
    limits = EpisodeLimits(
        max_running=running, attempts=attempts, recycle_after=recycle_after, reset_timeout_s=0.05, step_timeout_s=0.05
    )
    with EpisodeDriver(workers.make, limits) as driver:
        tasks = [task(i) for i in range(10)]
        policy = ScriptedPolicy(lambda ids: MORE)
        groups = driver.collect(tasks, 1, settings(), policy, lambda t: ended.update([t.task.index]))
    workers.close()
    assert ended == Counter(range(10))
    for (trajectory,) in (g.trajectories for g in groups):
        lost = [t for t in trajectory.failed_attempts if "WorkerLost" in t.outcome.reason]
        assert trajectory.outcome.kind in ("completed", "failed")
        assert len(trajectory.failed_attempts) == trajectory.attempts - 1
        assert trajectory.attempts - len(lost) <= attempts
