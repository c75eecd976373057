"""The driver of many episodes.

Promises 2 (a failure is never a reward), 3 (nothing waits for ever), 4 (every episode ends exactly once) and 6 (a task
is its identity: results do not depend on threads; a group shares its start).
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import managed
import numpy as np
import pytest
from managed import MORE, FaultyEnv, boom, counting, hang, leave, responder, settings, task, without_times

from roll_envs.env import TextEnv
from roll_envs.errors import EngineError, RollError
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.managers.episode import everything
from roll_envs.testing import CounterEnv, ScriptedPolicy
from roll_envs.types import Completion, Group, SamplingParams, Task, Trajectory

SHORT = {"turn_timeout_s": 0.3, "env_timeout_s": 0.3, "episode_timeout_s": 5.0}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Hangs last as long as the test; after it its drivers' threads end, and none was ever in the way of exit."""
    before = set(threading.enumerate())
    managed.SLEEPERS.clear()
    yield
    assert all(t.daemon for t in set(threading.enumerate()) - before)
    managed.SLEEPERS.set()
    until = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


class Driver(EpisodeDriver):
    """Collects with the settings and the answerer of this file."""

    respond: Any

    def play(
        self, tasks: Sequence[Task], size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        return self.collect(tasks, size, settings(), self.respond, on_done)


def driver(make_env: Callable[[Task], TextEnv] | None = None, respond: Any = None, **limits: Any) -> Driver:
    values = {"max_running": 4, **limits}
    made = Driver(make_env or (lambda t: CounterEnv(**t.kwargs)), EpisodeLimits(**values))
    made.respond = respond or responder(counting())
    return made


def episodes(groups: list[Group]) -> list[Trajectory]:
    return [t for g in groups for t in g.trajectories]


def identity_policy(env: Any, ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
    """More or Less or nonsense, by the sampling seed alone."""
    said = (MORE, MORE, "<answer>Less</answer>", "?")[int(sampling.seed or 0) % 4]
    return ScriptedPolicy([said]).generate(ids, sampling, timeout_s=1)


def test_results_are_in_order_and_do_not_depend_on_threads() -> None:
    tasks = [task(i) for i in range(6)]
    played = []
    for threads in (1, 3, 16):
        with driver(respond=identity_policy, max_running=threads) as several:
            groups = several.play(tasks, 4)
        assert [g.task for g in groups] == tasks
        assert [[t.member for t in g.trajectories] for g in groups] == [[0, 1, 2, 3]] * 6
        played.append([without_times(t) for t in episodes(groups)])
    assert played[0] == played[1] == played[2]


def test_a_group_shares_its_start_but_not_its_luck() -> None:
    with driver(respond=identity_policy) as several:
        groups = several.play([task(i) for i in range(8)], 6)
    for group in groups:
        assert len({t.turns[0].prompt_ids for t in group.trajectories}) == 1
    assert len({g.trajectories[0].turns[0].prompt_ids for g in groups}) > 1
    assert any(len({len(t.turns) for t in g.trajectories}) > 1 for g in groups)


def test_environments_are_kept_per_arguments_and_closed() -> None:
    made: list[CounterEnv] = []
    closed: list[CounterEnv] = []

    def make(t: Task) -> TextEnv:
        env = FaultyEnv({"close": lambda: closed.append(env)}, **t.kwargs)
        made.append(env)
        return env

    with driver(make, max_running=2) as two:
        two.play([task(i, highest=1 + i % 2) for i in range(10)], 2)
        assert not closed
    until = time.monotonic() + 5
    while len(closed) < len(made) and time.monotonic() < until:
        time.sleep(0.01)
    assert 2 <= len(made) <= 4
    assert len(closed) == len(made)


FAULTS = ("fine", "reset raises", "step raises", "make raises", "env leaves", "hangs", "policy raises", "policy hangs")


class Injected:
    """Faults drawn by (seed, task, member, attempt), so that they are the same whatever the threads do."""

    def __init__(self, seed: int, share: float, kinds: tuple[str, ...]) -> None:
        self.seed, self.share, self.kinds = seed, share, kinds
        self.attempts: Counter[tuple[int, int]] = Counter()
        self.lock = threading.Lock()
        self.drawn: dict[tuple[int, int], list[str]] = {}

    def draw(self, key: tuple[int, int]) -> str:
        with self.lock:
            self.attempts[key] += 1
            rng = np.random.default_rng([self.seed, *key, self.attempts[key]])
            kind = str(rng.choice(self.kinds)) if rng.random() < self.share else "fine"
            self.drawn.setdefault(key, []).append(kind)
            return kind

    def make(self, t: Task) -> TextEnv:
        # One member per task here, so that the task is the episode.
        kind = self.draw((t.index, 0))
        if kind == "make raises":
            raise ValueError("cannot be made")
        where = {"reset raises": ("reset", boom), "step raises": ("step", boom), "env leaves": ("step", leave)}
        if kind == "hangs":
            where["hangs"] = ("step" if t.index % 2 else "reset", hang)
        faults = dict([where[kind]]) if kind in where else {}
        env = FaultyEnv(faults, **t.kwargs)
        env.kind = kind
        return env

    def respond(self, env: Any, ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        if env.kind == "policy raises":
            raise EngineError("the engine stopped")
        if env.kind == "policy hangs":
            managed.SLEEPERS.wait(30)
        return identity_policy(env, ids, sampling)


@pytest.mark.parametrize("seed", range(6))
def test_every_episode_ends_exactly_once_whatever_goes_wrong(seed: int) -> None:
    # A key of its own for each task makes a fresh environment, and so a fault, for each attempt.
    tasks = [task(i, max_turns=6 + i) for i in range(30)]
    injected = Injected(seed, 0.4, FAULTS[1:])
    ended: list[Trajectory] = []
    limits = {"turn_timeout_s": 1.0, "env_timeout_s": 1.0, "episode_timeout_s": 20.0}
    with driver(injected.make, injected.respond, max_running=8, attempts=2, **limits) as faulty:
        groups = faulty.play(tasks, 1, ended.append)
        played = episodes(groups)
        assert [t.task for t in played] == tasks
        assert sorted(t.task.index for t in ended) == list(range(30))
        for trajectory in played:
            tries = injected.drawn[trajectory.task.index, 0]
            assert trajectory.attempts == len(tries) <= 2
            assert all(kind != "fine" for kind in tries[:-1])
            if tries[-1] == "fine":
                assert trajectory.outcome.kind in ("completed", "truncated")
            else:
                assert trajectory.outcome.kind == "failed"
                assert trajectory.outcome.reason
                assert not trajectory.scored
        managed.SLEEPERS.set()  # the given-up threads answer now, too late
        time.sleep(0.05)
        injected.share = 0.0
        again = episodes(faulty.play([task(i, max_turns=90 + i) for i in range(10)], 1))
        assert [t.outcome.kind for t in again].count("failed") == 0


def test_a_fifth_of_failures_leaves_the_others_identical() -> None:
    tasks = [task(i, max_turns=6 + i) for i in range(40)]
    kinds = ("reset raises", "step raises", "make raises", "policy raises")
    results = []
    for share in (0.0, 0.2):
        injected = Injected(1, share, kinds)
        with driver(injected.make, injected.respond, attempts=1) as one:
            results.append(episodes(one.play(tasks, 1)))
    clean, faulty = results
    failed = [i for i, t in enumerate(faulty) if t.outcome.kind == "failed"]
    assert 4 <= len(failed) <= 14
    for i, (a, b) in enumerate(zip(clean, faulty, strict=True)):
        if i not in failed:
            assert without_times(a) == without_times(b)


def test_a_retry_within_the_budget_is_the_same_episode() -> None:
    calls: Counter[int] = Counter()

    def make(t: Task) -> TextEnv:
        calls[t.index] += 1
        return FaultyEnv({"step": boom} if calls[t.index] <= 2 else {}, **t.kwargs)

    one = task(max_turns=7)
    with driver(make, identity_policy, attempts=3) as retrying:
        (again,) = episodes(retrying.play([one], 1))
    with driver(respond=identity_policy) as plain:
        (first,) = episodes(plain.play([one], 1))
    assert again.attempts == 3
    assert without_times(again) == without_times(first)
    calls.clear()
    with driver(make, attempts=2) as retrying:
        (lost,) = episodes(retrying.play([one], 1))
    assert (lost.outcome.kind, lost.attempts) == ("failed", 2)
    assert "step of test/Counter-v0 raised RuntimeError: boom" in lost.outcome.reason


@pytest.mark.parametrize("where", ["reset", "answer", "step", "context"])
def test_the_environment_of_a_failed_episode_is_closed_once_and_not_used_again(where: str) -> None:
    made: list[FaultyEnv] = []
    closed: list[int] = []

    def make(t: Task) -> TextEnv:
        number = len(made)
        faults = {"close": lambda: closed.append(number)}
        if number == 0 and where in ("reset", "step"):
            faults[where] = boom
        made.append(FaultyEnv(faults, **t.kwargs))
        return made[-1]

    def respond(env: Any, ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        return boom() if where == "answer" and env is made[0] else identity_policy(env, ids, sampling)  # type: ignore[return-value]

    def context(history: Any, renderer: Any) -> tuple[int, ...]:
        return boom() if where == "context" and len(made) == 1 else everything(history, renderer)  # type: ignore[return-value]

    with driver(make, max_running=1, attempts=2) as one:
        groups = one.collect([task(i) for i in range(3)], 1, settings(context=context), respond)
        assert [(t.outcome.kind == "failed", t.attempts) for t in episodes(groups)] == [(False, 2)] + [(False, 1)] * 2
        assert (len(made), closed) == (2, [0])
    until = time.monotonic() + 5
    while len(closed) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)
    assert closed == [0, 1]


@pytest.mark.parametrize("closing", ["hangs", "returns late"])
def test_an_environment_whose_closing_is_given_up_is_not_closed_twice(closing: str) -> None:
    calls = Counter[str]()

    def close() -> None:
        calls["close"] += 1
        managed.SLEEPERS.wait(30)

    def make(t: Task) -> TextEnv:
        return FaultyEnv({"step": boom, "close": close}, **t.kwargs)

    with driver(make, attempts=1, **SHORT) as one:
        (lost,) = episodes(one.play([task()], 1))
        assert "gave up waiting for the closing of test/Counter-v0" in lost.outcome.reason
        if closing == "returns late":
            managed.SLEEPERS.set()
            time.sleep(0.1)
    managed.SLEEPERS.set()
    time.sleep(0.1)
    assert calls["close"] == 1


def failing(what: str) -> tuple[Any, Any]:
    """(make_env, respond) of one kind of fault."""
    if what == "make":
        return (lambda t: hang()), None
    if what == "engine":
        return None, lambda env, ids, sampling: hang()
    if what == "raise":
        return None, lambda env, ids, sampling: {}["key"]
    faults = {"leave": {"step": leave}, "close": {"step": boom, "close": hang}}.get(what, {what: hang})
    return (lambda t: FaultyEnv(faults, **t.kwargs)), None


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("make", "gave up waiting for the making of test/Counter-v0 after 0.3 s"),
        ("reset", "gave up waiting for reset of test/Counter-v0 after 0.3 s"),
        ("step", "gave up waiting for step of test/Counter-v0 after 0.3 s"),
        ("engine", "gave up waiting for the engine's answer after 0.3 s"),
        (
            "close",
            "the closing of test/Counter-v0 (which had failed: step of test/Counter-v0 raised RuntimeError: boom",
        ),
        ("raise", "the engine's answer raised KeyError: 'key'"),
        ("leave", "step of test/Counter-v0 raised SystemExit: 3"),
    ],
)
def test_the_culprit_is_named(what: str, words: str) -> None:
    make, respond = failing(what)
    with driver(make, respond, attempts=1, **SHORT) as one:
        (lost,) = episodes(one.play([task()], 1))
    assert lost.outcome.kind == "failed"
    assert words in lost.outcome.reason


def test_an_episode_that_never_stops_is_ended() -> None:
    turns: list[int] = []

    def slowly(env: Any, ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        time.sleep(0.02)
        turns.append(len(ids))
        return ScriptedPolicy(["?"]).generate(ids, sampling, timeout_s=1)

    with driver(lambda t: CounterEnv(max_turns=10**6), slowly, attempts=1, episode_timeout_s=0.3) as one:
        (lost,) = episodes(one.play([task()], 1))
        assert "the episode took longer than 0.3 s" in lost.outcome.reason
        time.sleep(0.1)
        played = len(turns)
        time.sleep(0.1)
        assert len(turns) == played, "a given-up episode goes on"


def test_a_hang_stops_neither_the_others_nor_the_driver() -> None:
    def make(t: Task) -> TextEnv:
        return FaultyEnv({"step": hang} if t.index < 4 else {}, **t.kwargs)

    # Fewer workers than hangs: only replaced workers can play the others.
    with driver(make, max_running=2, attempts=1, **SHORT) as stuck:
        played = episodes(stuck.play([task(i, max_turns=6 + i) for i in range(12)], 1))
        assert [t.outcome.kind for t in played] == ["failed"] * 4 + ["completed"] * 8
        again = episodes(stuck.play([task(i) for i in range(20, 30)], 1))
        assert [t.outcome.kind for t in again] == ["completed"] * 10


def test_a_deadline_holds_while_others_end_all_the_time() -> None:
    ended: list[tuple[int, float]] = []
    started = time.monotonic()

    def make(t: Task) -> TextEnv:
        return FaultyEnv({"step": hang} if t.index == 0 else {"reset": lambda: time.sleep(0.02)}, **t.kwargs)

    with driver(make, max_running=2, attempts=1, **SHORT) as busy:
        busy.play([task(i) for i in range(100)], 1, lambda t: ended.append((t.task.index, time.monotonic() - started)))
    assert [i for i, _ in ended].index(0) < 60, "the hanging episode was given up only after the others"


def test_one_worker_answers_late_and_is_not_heard() -> None:
    """The given-up thread of the first attempt goes on when the second is over; its episode does not count."""
    first = threading.Event()
    calls = Counter[str]()

    def make(t: Task) -> TextEnv:
        calls["made"] += 1
        return FaultyEnv({"reset": lambda: first.wait(10) and None} if calls["made"] == 1 else {}, **t.kwargs)

    with driver(make, max_running=1, attempts=2, **SHORT) as one:
        (played,) = episodes(one.play([task()], 1))
        assert played.attempts == 2
        first.set()
        time.sleep(0.1)
        groups = one.play([task(i) for i in range(5)], 1)
        assert [t.task.index for t in episodes(groups)] == [0, 1, 2, 3, 4]


def test_ctrl_c_while_collecting_closes_the_driver() -> None:
    stuck = driver(lambda t: FaultyEnv({"step": hang}, **t.kwargs))
    threading.Timer(0.3, _thread.interrupt_main).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stuck.play([task(i) for i in range(8)], 2)
    assert time.monotonic() - started < 3
    with pytest.raises(RollError, match="driver is closed"):
        stuck.play([task()], 1)


def test_closing_from_another_thread_ends_the_wait() -> None:
    stuck = driver(lambda t: FaultyEnv({"step": hang}, **t.kwargs))
    closing = threading.Timer(0.2, stuck.close)
    closing.start()
    with pytest.raises(RollError, match="driver is closed"):
        stuck.play([task(i) for i in range(8)], 2)
    closing.join()


def test_an_error_in_the_callers_own_code_comes_out_and_closes() -> None:
    def wrong(_: Trajectory) -> None:
        raise ZeroDivisionError

    with driver() as one:
        with pytest.raises(ZeroDivisionError):
            one.play([task()], 1, wrong)
        with pytest.raises(RollError, match="closed"):
            one.play([task()], 1)


def test_collections_at_once_do_not_mix() -> None:
    inner: list[list[Group]] = []
    with driver(respond=identity_policy) as one:
        first = [task(i) for i in range(3)]
        second = [task(i) for i in range(3, 9)]
        outer = one.play(first, 2, lambda _: inner.append(one.play(second, 1)))
        alone = one.play(second, 1)
    assert [g.task for g in outer] == first
    assert len(inner) == 6
    for groups in inner:
        assert [without_times(t) for t in episodes(groups)] == [without_times(t) for t in episodes(alone)]


def test_nothing_to_do() -> None:
    with driver() as one:
        assert one.play([], 4) == []


class Silent(ScriptedPolicy):
    """Says nothing to its first ``count`` requests; ``stubborn`` ones cannot be withdrawn."""

    def __init__(self, count: int, *, stubborn: bool = False) -> None:
        super().__init__([MORE])
        self.count, self.stubborn = count, stubborn
        self.ignored: list[Future[Completion]] = []
        self.timeouts: list[float] = []

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        self.timeouts.append(timeout_s)
        if len(self.ignored) >= self.count:
            return super().submit(prompt_ids, sampling, timeout_s=timeout_s, session=session)
        self.ignored.append(Future())
        if self.stubborn:
            self.ignored[-1].set_running_or_notify_cancel()
        return self.ignored[-1]


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_answer_that_does_not_come_is_given_up_and_never_heard(stubborn: bool) -> None:
    policy = Silent(1, stubborn=stubborn)
    closed: list[int] = []

    def late() -> None:
        """The answer to the first attempt comes while the second is under way."""
        if policy.ignored and not policy.ignored[0].done():
            policy.ignored[0].set_result(ScriptedPolicy(["?"]).generate((1,), SamplingParams(), timeout_s=1))

    def make(t: Task) -> TextEnv:
        return FaultyEnv({"step": late, "close": lambda: closed.append(t.index)}, **t.kwargs)

    with driver(make, policy, attempts=2, **SHORT) as one:
        (played,) = episodes(one.play([task()], 1))
        assert closed == [0]
        assert (played.outcome.kind, played.attempts) == ("completed", 2)
        assert all(turn.text == MORE for turn in played.turns)
        assert policy.ignored[0].cancelled() != stubborn
        assert set(policy.timeouts) == {0.3}
        again = Silent(9)
        (lost,) = episodes(one.collect([task()], 1, settings(), again))
        assert lost.outcome.reason == "gave up waiting for the engine's answer after 0.3 s"


def test_the_turns_of_an_episode_and_no_others_are_one_session_of_the_policy() -> None:
    sessions = Counter[str | None]()

    class Counting(ScriptedPolicy):
        def submit(
            self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
        ) -> Future[Completion]:
            sessions[session] += 1
            return super().submit(prompt_ids, sampling, timeout_s=timeout_s, session=session)

    tasks = [task(0, seed=7), task(1, seed=7), task(0, seed=8)]
    with driver() as one:
        played = episodes(one.collect(tasks, 2, settings(), Counting(lambda ids: MORE)))
    assert sorted(sessions.values()) == sorted(len(episode.turns) for episode in played)


def test_no_more_episodes_run_than_may() -> None:
    made: list[TextEnv] = []

    def make(t: Task) -> TextEnv:
        made.append(CounterEnv(**t.kwargs))
        return made[-1]

    with driver(make, counting(), max_running=3) as three:
        three.play([task(i) for i in range(12)], 2)
    assert len(made) == 3


def test_environments_of_episodes_that_are_under_way_are_closed_with_the_driver() -> None:
    closed: list[int] = []
    waiting = Silent(99)
    one = driver(lambda t: FaultyEnv({"close": lambda: closed.append(t.index)}, **t.kwargs))
    one.start([task(i) for i in range(3)], 1, settings(), waiting)
    until = time.monotonic() + 5
    while len(waiting.ignored) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    one.close()
    while len(closed) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(closed) == [0, 1, 2]


def test_an_environment_that_was_given_up_is_closed_when_its_call_returns() -> None:
    closed: list[int] = []
    faults = {"step": hang, "close": lambda: closed.append(1)}
    with driver(lambda t: FaultyEnv(faults, **t.kwargs), attempts=1, **SHORT) as one:
        (lost,) = episodes(one.play([task()], 1))
        assert "gave up waiting for step" in lost.outcome.reason
        assert not closed, "it is in use"
        managed.SLEEPERS.set()
        until = time.monotonic() + 5
        while not closed and time.monotonic() < until:
            time.sleep(0.01)
    time.sleep(0.05)
    assert closed == [1]


def test_each_attempt_has_the_whole_time() -> None:
    calls = Counter[str]()

    def step() -> None:
        calls["step"] += 1
        if calls["step"] == 1:
            time.sleep(0.8)
            boom()
        time.sleep(0.4)

    tasks = [task(highest=2, seed=next(s for s in range(99) if "target 2" in CounterEnv(highest=2).reset(seed=s)[0]))]
    with driver(lambda t: FaultyEnv({"step": step}, **t.kwargs), attempts=2, episode_timeout_s=1.4) as one:
        (played,) = episodes(one.play(tasks, 1))
    assert (played.outcome.kind, played.attempts) == ("completed", 2), played.outcome.reason
