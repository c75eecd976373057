"""Environments that ask for little: snapshots by playing again, and ``adapt`` for those that speak no text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import roll_envs
from roll_envs import AnyText, ConfigError, EnvironmentCard, TextEnv, adapt, make_action_format
from roll_envs.adapting import AdaptedEnv
from roll_envs.testing import check_env
from roll_envs.testing.check import RULES

OPTIONAL = {"leaks", "oracle", "oracle_midway", "splits"}
"""Rules about what an environment need not have."""

# -- snapshots that nobody wrote ---------------------------------------------------------------------------------------


class Guess(TextEnv):
    """Guess a digit that changes with every wrong guess, drawn from the environment's own generator."""

    max_turns = 4

    def __init__(self) -> None:
        self.action_format = make_action_format("word", tuple("0123456789"))
        self.action_space = AnyText(tuple("0123456789"))
        self.observation_space = AnyText()
        self._turns, self._over = 0, True

    @property
    def instructions(self) -> str:
        return f"Guess the digit: {', '.join('0123456789')}. {self.action_format.instructions}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._draw = np.random.default_rng(self.episode_seed(seed))
        self._digit, self._turns, self._over = int(self._draw.integers(10)), 0, False
        self._shift = (options or {}).get("shift", 0)
        return f"{self._digit + self._shift}?", {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("call reset() first")
        read = self.action_format.parse(action)
        self._turns += 1
        solved = read.actions == (self._digit,)
        self._digit = self._digit if solved else int(self._draw.integers(10))
        truncated = not solved and self._turns >= self.max_turns
        self._over = solved or truncated
        info = {"success": solved, "action_is_valid": read.valid, "action_is_effective": read.valid}
        info |= {"format_penalty": 0.0, "reward_parts": {"guess": float(solved)}}
        return f"{self._digit + self._shift}? {self._turns}", float(solved), solved, truncated, info


class Loud(Guess):
    """A step that calls its parent's, which must not be noted twice."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        shown, *rest = super().step(action)
        return (shown.replace("?", "!"), *rest)  # type: ignore[return-value]


CARD = EnvironmentCard(
    id="test/Guess-v0", entry_point=f"{__name__}:Guess", summary="-", tests="-", turns="-", reward_range=(0.0, 1.0),
    rewards="-", success="-",
)  # fmt: skip


@pytest.mark.parametrize("cls", [Guess, Loud])
def test_an_environment_without_snapshots_of_its_own_passes_every_rule(cls: type[TextEnv]) -> None:
    report = check_env(cls, card=CARD, seeds=(0, 1, 2))
    assert report.ok, str(report)
    assert {r.rule for r in report.results if r.status == "skip"} == OPTIONAL


def test_an_episode_is_played_again_from_its_seed_its_options_or_the_generator_s_state() -> None:
    env, other = Guess(), Guess()
    assert json.loads(json.dumps(env.reset(seed=3) and env.snapshot())) == {
        "seed": 3, "options": None, "generator": None, "answers": [],
    }  # fmt: skip
    for start in ({"seed": 3, "options": {"shift": 50}}, {}):
        env.reset(**start)
        env.step("none")
        seen, *_ = env.step("Up")
        taken = json.loads(json.dumps(env.snapshot()))
        assert other.restore(taken) == seen == other.render() == env.render()
        assert other.step("1") == env.step("1")
        assert other.reset() == env.reset()
    options = {"shift": 50}
    env.reset(seed=3, options=options)
    options["shift"] = 0
    assert env.snapshot()["options"] == {"shift": 50}


def test_what_a_step_refused_is_not_played_again() -> None:
    env = Guess()
    with pytest.raises(gymnasium.error.ResetNeeded, match="nothing to take a snapshot of"):
        env.snapshot()
    env.reset(seed=1)
    for _ in range(4):
        env.step("x")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    other = Guess()
    assert other.restore(env.snapshot()) == env.render()
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step("x")


def test_one_of_the_two_alone_is_refused_where_the_class_is_written() -> None:
    with pytest.raises(TypeError, match=r"Half has the restore\(\) of TextEnv.*write both"):
        type("Half", (Guess,), {"snapshot": lambda self: {}})


# -- environments of Gymnasium -----------------------------------------------------------------------------------------


def cartpole() -> TextEnv:
    return adapt(
        gymnasium.make("CartPole-v1"),
        actions=("Left", "Right"),
        describe=lambda seen: f"The pole leans {seen[2]:+.3f} rad and turns {seen[3]:+.3f} rad/s.",
        instructions="Keep the pole upright.",
        max_turns=30,
        success=lambda reward, terminated, info: not terminated,
    )


def lake() -> TextEnv:
    env = gymnasium.make("FrozenLake-v1", is_slippery=True, render_mode="ansi")
    won = {"success": lambda reward, terminated, info: reward > 0}
    return adapt(env, actions=("Left", "Down", "Right", "Up"), format_penalty=-0.5, **won)


def blackjack() -> TextEnv:
    return adapt(gymnasium.make("Blackjack-v1"), actions=("Stick", "Hit"), max_turns=10)


def pendulum() -> TextEnv:
    return adapt(gymnasium.make("Pendulum-v1"), actions={"Left": [-2.0], "Rest": [0.0], "Right": [2.0]}, max_turns=8)


class Switches(gymnasium.Env[Any, Any]):
    """A Dict of observations, and switches of which several are set at once."""

    observation_space = spaces.Dict({"lamps": spaces.MultiBinary(2), "left": spaces.Discrete(9)})
    action_space = spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._lamps, self._left = self.np_random.integers(2, size=2), 3
        return self._seen(), {}

    def _seen(self) -> dict[str, Any]:
        return {"lamps": self._lamps.astype(np.int8), "left": self._left}

    def step(self, action: Any) -> Any:
        self._lamps, self._left = self._lamps ^ action, self._left - 1
        on = bool(self._lamps.all())
        return self._seen(), float(on), on, self._left == 0, {"is_success": on}


def switches() -> TextEnv:
    named = {"First": np.array([1, 0], np.int8), "Second": np.array([0, 1], np.int8), "Both": np.array([1, 1], np.int8)}
    return adapt(Switches(), actions=named, max_turns=3)


@pytest.mark.parametrize("make", [cartpole, lake, blackjack, pendulum, switches])
def test_adapted_environments_pass_every_rule(make: Callable[[], TextEnv]) -> None:
    card = EnvironmentCard(
        id="test/A-v0", entry_point="x:y", summary="-", tests="-", turns="-", reward_range=(-1e4, 1e4), rewards="-",
        success="-",
    )  # fmt: skip
    rules = [rule for rule in RULES if make is cartpole or rule not in ("processes", "memory")]
    report = check_env(make, card=card, seeds=(0, 1, 2), rules=rules)
    assert report.ok, str(report)
    assert {r.rule for r in report.results if r.status == "skip"} <= OPTIONAL


def test_an_episode_of_cartpole_by_hand() -> None:
    env, bare = cartpole(), gymnasium.make("CartPole-v1").unwrapped
    assert env.instructions.splitlines() == [
        "Keep the pole upright.",
        "Your actions are: Left, Right. You have 30 turns.",
        "Answer with one action, in this form: <answer>Right</answer>",
    ]
    seen = bare.reset(seed=7)[0]
    assert env.reset(seed=7)[0] == f"The pole leans {seen[2]:+.3f} rad and turns {seen[3]:+.3f} rad/s."
    seen, reward, *_ = bare.step(1)
    shown, paid, terminated, truncated, info = env.step("<answer>right</answer>")
    assert (shown[:22], paid, terminated, truncated) == (f"The pole leans {seen[2]:+.3f} "[:22], reward, False, False)
    assert (info["success"], info["action_is_valid"], info["reward_parts"]) == (True, True, {"env": 1.0, "format": 0.0})


def test_options_ends_and_closing_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    env, bare = cartpole(), gymnasium.make("CartPole-v1").unwrapped
    start: dict[str, Any] = {"seed": 7, "options": {"low": 0.2, "high": 0.21}}
    seen = bare.reset(**start)[0]
    assert env.reset(**start)[0] == f"The pole leans {seen[2]:+.3f} rad and turns {seen[3]:+.3f} rad/s."
    inner = Switches()
    longer = adapt(inner, actions={"Neither": np.zeros(2, np.int8)}, max_turns=9)
    longer.reset(seed=0)
    inner._lamps[:] = 0
    ends = [longer.step("<answer>Neither</answer>")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    closed: list[bool] = []
    monkeypatch.setattr(inner, "close", lambda: closed.append(True))
    longer.close()
    assert closed == [True]


def test_an_answer_that_names_no_action_leaves_the_environment_alone() -> None:
    env = lake()
    before, _ = env.reset(seed=0)
    shown, reward, terminated, truncated, info = env.step("jump")
    assert (shown, reward, terminated, truncated) == (before, -0.5, False, False)
    assert (info["action_is_valid"], info["format_penalty"], info["action_is_effective"]) == (False, -0.5, False)
    for _ in range(env.max_turns - 1):
        *_, terminated, truncated, _ = env.step("jump")
    assert (terminated, truncated) == (False, True)


def test_success_is_what_info_or_the_user_says_and_no_guess() -> None:
    fallen = adapt(gymnasium.make("CartPole-v1"), actions=("Left", "Right"))
    fallen.reset(seed=0)
    steps = [fallen.step("<answer>Left</answer>")]
    while not steps[-1][2]:
        steps.append(fallen.step("<answer>Left</answer>"))
    assert steps[-1][1] == 1.0  # the pole is down, and the step is paid
    assert not any(step[4]["success"] for step in steps)
    env = switches()
    env.reset(seed=1)
    ended, names = False, iter(("First", "Second", "First"))
    while not ended:
        *_, terminated, truncated, info = env.step(f"<answer>{next(names)}</answer>")
        ended = terminated or truncated
        assert info["success"] == terminated


def test_a_long_episode_keeps_its_answers_in_one_list() -> None:
    env = lake()
    env.reset(seed=0)
    before = env._answers
    for _ in range(5):
        env.step("x")
    assert env._answers is before
    assert len(env.snapshot()["answers"]) == 5
    assert env.snapshot()["answers"] is not before


def test_what_an_observation_is_called_without_words_for_it() -> None:
    env = switches()
    assert env.reset(seed=1)[0].splitlines() in ([f"lamps: [{a} {b}]", "left: 3"] for a in (0, 1) for b in (0, 1))
    named = adapt(Switches(), actions={"Both": [1, 1]}, describe=lambda seen, env: type(env).__name__, max_turns=1)
    assert named.reset(seed=0)[0] == "Switches"


@pytest.mark.parametrize(
    ("env", "given", "message"),
    [
        ("CartPole-v1", {"actions": ("Left",)}, r"actions are 1 names \(Left\), and CartPole-v1 has 2 actions"),
        (
            "CartPole-v1",
            {"actions": {"Left": 2}},
            r"actions\['Left'\] is 2, which is not in CartPole-v1's action space",
        ),
        ("Pendulum-v1", {"actions": ("Left", "Right")}, r"actions have no order; give a dict from each name"),
        ("CartPole-v1", {"actions": ("A", "B"), "max_turns": 0}, r"max_turns is 0; give a whole number of 1 or more"),
        ("Blackjack-v1", {"actions": ("A", "B")}, r"max_turns is None.*since Blackjack-v1 has no limit of its own"),
        ("CartPole-v1", {"actions": ("A", "B"), "format_penalty": 1.0}, r"format_penalty is 1\.0; give 0 or less"),
    ],
)
def test_what_does_not_fit_is_refused(env: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapt(gymnasium.make(env), **given)


def test_a_function_that_adapts_is_an_entry_point() -> None:
    card = EnvironmentCard(
        id="test/Cartpole-v0", entry_point=f"{__name__}:cartpole", summary="-", tests="-", turns="-",
        reward_range=(0.0, 30.0), rewards="-", success="-",
    )  # fmt: skip
    roll_envs.register(card)
    try:
        env = gymnasium.make(card.id)
        assert isinstance(env.unwrapped, AdaptedEnv)
        assert env.reset(seed=1)[0] == roll_envs.make(card.id).reset(seed=1)[0]
    finally:
        roll_envs.unregister(card.id)


def test_a_plain_environment_that_gymnasium_alone_knows_is_checked() -> None:
    class Plain(gymnasium.Env[str, str]):
        action_space = observation_space = spaces.Text(40)  # shared by all instances

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            self._turns = int(self.np_random.integers(1, 4))
            return "go", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            self._turns -= 1
            return "go", 0.0, self._turns <= 0, False, {}

    gymnasium.register("plain/Plain-v0", entry_point=functools.partial(Plain))
    try:
        report = check_env("os:plain/Plain-v0", rules=[rule for rule in RULES if rule != "processes"])
        assert report.ok, str(report)
    finally:
        gymnasium.registry.pop("plain/Plain-v0")
