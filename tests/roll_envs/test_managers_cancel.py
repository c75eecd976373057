"""Cancelling what is no longer needed, settings of each task, and episodes that go first."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import managed
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from managed import MORE, FaultyEnv, boom, counting, hang, settings, task

from roll_envs.managers import EpisodeDriver, EpisodeLimits, GroupStream
from roll_envs.policy import Policy
from roll_envs.testing import CounterEnv, ScriptedPolicy
from roll_envs.types import Completion, SamplingParams, Task, Trajectory


class Held(Policy):
    """Answers nothing until it is told to; ``asked`` says by a semaphore that a request came."""

    def __init__(self) -> None:
        self.futures: list[Future[Completion]] = []
        self.asked = threading.Semaphore(0)

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        self.futures.append(Future())
        self.asked.release()
        return self.futures[-1]

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=10), "the request did not come"


def plain(t: Task) -> CounterEnv:
    return CounterEnv(**t.kwargs)


def driver(make: Any = plain, **limits: Any) -> EpisodeDriver:
    return EpisodeDriver(make, EpisodeLimits(**{"max_running": 4, **limits}))


def ends(stream: GroupStream) -> list[tuple[str, str]]:
    return [(t.outcome.kind, t.outcome.reason) for group in stream.in_order() for t in group.trajectories]


def test_requests_are_withdrawn_what_waits_never_starts_and_environments_are_kept() -> None:
    made: list[int] = []

    def make(t: Task) -> CounterEnv:
        made.append(t.index)
        return plain(t)

    policy = Held()
    with driver(make, max_running=2) as two:
        stream = two.start([task(i) for i in range(3)], 2, settings(), policy)
        policy.wait(2)
        stream.cancel([0, 1, 2], "enough groups")
        groups = stream.in_order()
        assert all(future.cancelled() for future in policy.futures)
        ended = [t for g in groups for t in g.trajectories]
        assert {(t.outcome.kind, t.outcome.reason) for t in ended} == {("cancelled", "enough groups")}
        assert [t.attempts for t in ended] == [1, 1, 0, 0, 0, 0]
        assert [t.member for t in ended] == [0, 1] * 3
        again = two.collect([task(9)], 2, settings(), counting())
        assert [t.outcome.kind for t in again[0].trajectories] == ["completed"] * 2
    assert made == [0, 0], "the environments of withdrawn requests are whole"


def test_other_tasks_of_the_stream_go_on_and_those_that_ended_stay_as_they_are() -> None:
    held = Held()
    with driver() as four:
        stream = four.start([task(i) for i in range(3)], 1, settings(), held)
        held.wait(3)
        stream.cancel([1])
        held.futures[0].set_exception(ValueError("not this one"))
        held.wait(1)
        assert [f.cancelled() for f in held.futures] == [False, True, False, False]
        groups = iter(stream)
        assert next(groups).task.index == 1
        held.futures[2].set_result(Completion(ids=(), logprobs=(), finish="abort", weight_version=0))
        assert next(groups).trajectories[0].outcome.reason == "the engine aborted the request"
        stream.cancel([0, 1, 2], "late")
        (last,) = groups
        (ended,) = last.trajectories
        assert (last.task.index, ended.outcome.kind, ended.outcome.reason) == (0, "cancelled", "late")
        assert (ended.attempts, len(ended.failed_attempts)) == (2, 1)


def test_a_call_of_an_environment_is_given_up() -> None:
    managed.SLEEPERS.clear()
    stepping = threading.Event()
    closed = threading.Event()

    def step() -> None:
        stepping.set()
        hang()

    with driver(lambda t: FaultyEnv({"step": step, "close": closed.set}, **t.kwargs)) as one:
        stream = one.start([task()], 1, settings(), counting())
        assert stepping.wait(10)
        stream.cancel([0])
        (group,) = stream.in_order()
        (ended,) = group.trajectories
        assert (ended.outcome.kind, ended.attempts, ended.outcome.answer) == ("cancelled", 1, MORE)
        assert not closed.is_set(), "it is in use"
        managed.SLEEPERS.set()
        assert closed.wait(10), "it is closed by the thread that was stuck, and not used again"


def test_an_episode_that_fails_while_it_is_cancelled_is_not_tried_again() -> None:
    """Its environment hangs in its closing: what comes out is cancelled, and has the failure's traceback."""
    managed.SLEEPERS.clear()
    closing = threading.Event()

    def close() -> None:
        closing.set()
        hang()

    faults = {"step": boom, "close": close}
    with driver(lambda t: FaultyEnv(faults, **t.kwargs), env_timeout_s=0.5) as one:
        stream = one.start([task()], 1, settings(), counting())
        assert closing.wait(10)
        stream.cancel([0], "enough")
        assert ends(stream) == [("cancelled", "enough")]
        managed.SLEEPERS.set()


def test_a_number_of_no_task_is_an_error() -> None:
    with driver() as one:
        stream = one.start([task()], 1, settings(), counting())
        with pytest.raises(ValueError, match=r"no tasks \[1\] to cancel: the stream has 1"):
            stream.cancel([0, 1])
        stream.in_order()


FAULTS = st.sampled_from(["", "", "reset", "step", "make", "slow"])


@examples(max_examples=15, deadline=None)
@given(
    plans=st.lists(FAULTS, min_size=1, max_size=10),
    orders=st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 9), max_size=4)), max_size=4),
    running=st.integers(1, 6),
    attempts=st.integers(1, 2),
)
def test_every_episode_ends_exactly_once_whatever_is_cancelled(
    plans: list[str], orders: list[tuple[int, set[int]]], running: int, attempts: int
) -> None:
    """Promise 4, with cancellations after so many answers of the policy, from the thread of its answers too."""
    pause = threading.Event()

    def make(t: Task) -> FaultyEnv:
        fault = plans[t.index]
        if fault == "make":
            boom()
        waits = {"step": lambda: pause.wait(0.08) and None}
        return FaultyEnv(waits if fault == "slow" else {fault: boom}, **t.kwargs)

    ended: list[tuple[int, int]] = []
    ordered = Counter[int]()
    ready = threading.Event()

    def script(ids: tuple[int, ...]) -> str:
        assert ready.wait(10)
        for after, numbers in orders:
            if len(policy.prompts) == after + 1:
                wanted = {n for n in numbers if n < len(plans)}
                ordered.update(wanted)
                stream.cancel(wanted)
        return MORE

    def done(trajectory: Trajectory) -> None:
        ended.append((trajectory.task.index, trajectory.member))

    policy = ScriptedPolicy(script, delay_s=0.001)
    tasks = [task(i, max_turns=6 + i) for i in range(len(plans))]
    with EpisodeDriver(make, EpisodeLimits(max_running=running, attempts=attempts)) as one:
        stream = one.start(tasks, 2, settings(), policy, done)
        ready.set()
        groups = stream.in_order()
    assert sorted(ended) == [(i, m) for i in range(len(plans)) for m in range(2)]
    assert [g.task for g in groups] == tasks
    for group in groups:
        kinds = {t.outcome.kind for t in group.trajectories}
        assert ("cancelled" in kinds) <= (ordered[group.task.index] > 0)
        assert all(len(t.failed_attempts) <= t.attempts <= attempts for t in group.trajectories)


def test_each_task_has_its_settings() -> None:
    policy = ScriptedPolicy(lambda ids: MORE)
    with driver() as one:
        stream = one.start([task(0), task(1)], 1, lambda t: settings(system_prompt=f"task {t.index}"), policy)
        groups = stream.in_order()
    for index, group in enumerate(groups):
        shown = managed.RENDERER.decode(group.trajectories[0].turns[0].prompt_ids)
        assert shown.startswith(f"task {index}")


def test_episodes_put_in_front_begin_before_those_that_wait() -> None:
    begun: list[int] = []

    def make(t: Task) -> CounterEnv:
        begun.append(t.index)
        return plain(t)

    policy = Held()
    with driver(make, max_running=1) as one:
        # Arguments of their own for each task, so that each makes an environment.
        first = one.start([task(i, max_turns=6 + i) for i in range(3)], 1, settings(), policy)
        policy.wait(1)
        second = one.start([task(i, max_turns=6 + i) for i in (7, 8)], 1, settings(), policy, front=True)
        for number in range(5):
            policy.futures[number].set_result(Completion(ids=(), logprobs=(), finish="abort", weight_version=0))
            if number < 4:
                policy.wait(1)
        assert len(ends(first)) == 3
        assert len(ends(second)) == 2
    assert begun == [0, 7, 8, 1, 2]
