"""What is kept of an episode that failed: its turns, the answer being played, the traceback, earlier attempts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import managed
import pytest
from managed import MORE, FaultyEnv, hang, settings, task

from roll_envs.errors import EngineError
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.testing import CounterEnv, ScriptedPolicy
from roll_envs.types import Outcome, Trajectory

LONG = next(s for s in range(99) if "target 4" in CounterEnv().reset(seed=s)[0])
"""A seed whose counter needs four turns."""


def play(make: Any, answerer: Any = None, **limits: Any) -> Trajectory:
    values = {"attempts": 1, "env_timeout_s": 0.3, "turn_timeout_s": 0.3, **limits}
    with EpisodeDriver(make, EpisodeLimits(**values)) as driver:
        (group,) = driver.collect([task(seed=LONG)], 1, settings(), answerer or ScriptedPolicy([MORE]))
        managed.SLEEPERS.set()
    return group.trajectories[0]


@pytest.fixture(autouse=True)
def hangs_end() -> None:
    managed.SLEEPERS.clear()


def faulty_at(turn: int, fault: Any) -> Any:
    """Makes environments whose step number ``turn`` (from 1) does ``fault``."""

    def make(t: Any) -> FaultyEnv:
        calls = Counter[str]()

        def step() -> None:
            calls["step"] += 1
            if calls["step"] == turn:
                fault()

        return FaultyEnv({"step": step}, **t.kwargs)

    return make


def break_the_shelf() -> None:
    try:
        {}["shelf"]
    except KeyError as error:
        raise ValueError("no such shelf") from error


def test_a_failed_episode_keeps_its_turns_its_answer_and_the_environments_traceback() -> None:
    lost = play(faulty_at(3, break_the_shelf))
    assert lost.outcome.kind == "failed"
    assert [t.observation for t in lost.turns] == ["counter 1, target 4", "counter 2, target 4"]
    assert lost.outcome.answer == MORE
    shown = lost.outcome.traceback
    assert shown.index("in break_the_shelf") < shown.index("KeyError: 'shelf'") < shown.index("ValueError: no such")
    assert "EnvironmentFaultError" not in shown, "the environment's own error, not the one that names its call"


def test_an_engines_error_has_its_traceback_and_no_answer() -> None:
    lost = play(faulty_at(0, None), ScriptedPolicy([MORE], failures={2: EngineError("it died")}))
    assert (lost.outcome.reason, lost.outcome.answer, len(lost.turns)) == ("it died", None, 2)
    assert "in _completion" in lost.outcome.traceback


def test_an_attempt_stuck_in_a_call_shows_where() -> None:
    lost = play(faulty_at(2, hang))
    assert "gave up waiting for step" in lost.outcome.reason
    assert (len(lost.turns), lost.outcome.answer) == (1, MORE)
    assert "SLEEPERS.wait(30)" in lost.outcome.traceback


def test_a_deadline_of_the_policy_has_no_traceback() -> None:
    lost = play(faulty_at(0, None), ScriptedPolicy([MORE], delay_s=lambda number: 9.0 if number == 2 else 0.0))
    assert "gave up waiting" in lost.outcome.reason
    assert (len(lost.turns), lost.outcome.answer) == (2, None)


def test_a_long_traceback_is_cut_in_the_middle() -> None:
    def fail() -> None:
        raise ValueError("begins" + "x" * 50_000 + "ends")

    shown = play(faulty_at(1, fail)).outcome.traceback
    assert len(shown) == 8000
    assert shown.startswith("Traceback")
    assert shown.endswith("ends\n")


def test_an_error_that_cannot_be_shown_is_a_failure_like_any_other() -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail() -> None:
        raise Shy

    lost = play(faulty_at(1, fail))
    assert lost.outcome.kind == "failed"
    assert "Shy" in lost.outcome.traceback


def test_earlier_attempts_are_kept_with_the_one_that_counts() -> None:
    made: list[Any] = []

    def make(t: Any) -> FaultyEnv:
        made.append(faulty_at(len(made) + 1, break_the_shelf)(t) if len(made) < 2 else CounterEnv(**t.kwargs))
        return made[-1]

    won = play(make, attempts=3)
    assert (won.outcome, won.attempts) == (Outcome(kind="completed"), 3)
    assert [(t.attempts, len(t.turns), t.outcome.kind) for t in won.failed_attempts] == [
        (1, 0, "failed"),
        (2, 1, "failed"),
    ]
    assert all("no such shelf" in t.outcome.traceback for t in won.failed_attempts)
