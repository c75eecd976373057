"""FrozenLakeEnv: rules, limits, slips, snapshots, errors."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import pytest

from envs.frozenlake.env import ACTIONS, FrozenLakeEnv
from envs.frozenlake.lake import draw_map, slip_of
from roll_envs.errors import ConfigError

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]


def at(**kwargs: Any) -> FrozenLakeEnv:
    env = FrozenLakeEnv(**kwargs)
    env.restore({"map": LAKE})
    return env


def say(env: FrozenLakeEnv, *names: str) -> str:
    return env.action_format.format([ACTIONS.index(n) for n in names])


def test_the_way_to_the_goal_and_into_a_hole() -> None:
    env = at(format_penalty=-0.5)
    assert env.render() == "P___\n_O_O\n___O\nO__G"
    walk = ["Left", "?", "Down", "Down", "Right", "Right", "Down", "Right"]
    found = [env.step(say(env, w) if w in ACTIONS else w) for w in walk]
    assert [f[1] for f in found] == [0, -0.5, 0, 0, 0, 0, 0, 1]
    assert [f[2] for f in found] == [False] * 7 + [True]
    assert [f[4]["action_is_effective"] for f in found] == [False, False] + [True] * 6
    assert found[-1][0] == "____\n_O_O\n___O\nO__√"
    assert found[-1][4]["success"]
    assert found[-1][4]["reward_parts"] == {"goal": 1.0, "format": 0.0}
    env = at()
    env.step(say(env, "Right"))
    observation, reward, terminated, truncated, info = env.step(say(env, "Down"))
    assert observation == "____\n_X_O\n___O\nO__G"
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)


@pytest.mark.parametrize(
    "kwargs", [{}, {"size": 8}, {"size": 12, "p": 0.7, "max_turns": 60}, {"max_actions_per_turn": 3}]
)
def test_dry_oracle_wins(kwargs: dict[str, Any]) -> None:
    env = FrozenLakeEnv(**kwargs)
    for seed in range(100):
        env.reset(seed=seed)
        answers = env.oracle()
        assert answers is not None
        found = [env.step(a) for a in answers]
        assert [f[2] for f in found] == [False] * (len(found) - 1) + [True]
        assert found[-1][1] == 1
        assert env.oracle() is None


def test_slippery_oracle_foresees_the_slips() -> None:
    env = FrozenLakeEnv(is_slippery=True, max_turns=25)
    won = 0
    for seed in range(100):
        env.reset(seed=seed)
        answers = env.oracle()
        if answers is not None:
            found = [env.step(a) for a in answers]
            assert found[-1][1] == 1
            won += 1
    assert won > 90


def test_one_move_in_three_goes_where_it_was_meant_to() -> None:
    counts = {-1: 0, 0: 0, 1: 0}
    for i in range(3000):
        counts[slip_of(i / 3000)] += 1
    assert all(abs(c - 1000) <= 1 for c in counts.values())
    assert slip_of(1.0) == -1, "gymnasium falls back to the first outcome where rounding leaves a gap"


def test_every_map_has_a_way() -> None:
    for size, p in ((2, 0.5), (3, 0.4), (20, 0.75)):
        for seed in range(20):
            cells, start = draw_map(size, p, seed)
            env = FrozenLakeEnv(size=size, p=p, max_turns=size * size)
            env.reset(seed=seed)
            assert cells[start] == 0
            assert env.oracle()


def test_limit() -> None:
    assert [FrozenLakeEnv(size=n).max_turns for n in (2, 4, 8, 20)] == [10, 10, 20, 50]
    env = at(max_turns=2)
    assert [env.step("?")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    env = at(max_turns=1)
    assert env.oracle() is None, "too far for the turns left"
    env = at(max_turns=6, max_actions_per_turn=2)
    assert env.oracle() == [say(env, *pair) for pair in (("Right", "Right"), ("Down", "Down"), ("Down", "Right"))]


def test_instructions_speak_of_ice_only_where_it_is_slippery() -> None:
    assert "slippery" in FrozenLakeEnv(is_slippery=True).instructions
    assert "slippery" not in FrozenLakeEnv().instructions
    assert "P: player, _: empty, O: hole, G: goal, X: player in hole, √: player on goal" in FrozenLakeEnv().instructions


@pytest.mark.parametrize(
    "kwargs", [{}, {"is_slippery": True}, {"is_slippery": True, "size": 9, "max_actions_per_turn": 3}]
)
def test_snapshot_and_restore(kwargs: dict[str, Any]) -> None:
    env, other = (FrozenLakeEnv(max_turns=200, p=1.0, **kwargs) for _ in range(2))
    env.reset(seed=3)
    answers = [say(env, n) for n in ("Up", "Left", "Up", "Left")] + ["?"]
    env.step(answers[0])
    env.step(answers[4])
    snapshot = json.loads(json.dumps(env.snapshot()))
    here = env.render()
    walk = [answers[i % 5] for i in range(60)]

    def play(target: FrozenLakeEnv) -> list[Any]:
        found = []
        for a in walk:
            found.append(target.step(a))
            if found[-1][2]:
                break
        return found

    after = play(env)
    next_episode = env.reset()
    for target in (other, env):
        assert target.restore(snapshot) == here
        assert target.snapshot() == snapshot
        assert play(target) == after
        assert target.reset() == next_episode


def test_wrong_snapshots_are_refused() -> None:
    env = FrozenLakeEnv()
    for wrong in ({}, {"map": ["FFFF"] * 3}, {"map": ["FFFX"] * 4}, {"map": 4}):
        with pytest.raises(ConfigError, match="4 strings of 4 letters F, H, G"):
            env.restore(wrong)
    with pytest.raises(ConfigError, match="below 16, not 16"):
        env.restore({"map": LAKE, "player": 16})
    with pytest.raises(ConfigError, match="slips_used must be a whole number"):
        env.restore({"map": LAKE, "slips_used": -1})


def test_order_of_calls() -> None:
    env = FrozenLakeEnv()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step("<answer>Up</answer>")
    with pytest.raises(gymnasium.error.ResetNeeded, match="before reset"):
        env.snapshot()
    with pytest.raises(gymnasium.error.Error, match="before reset"):
        env.render()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1}, "size must be a whole number of 2 or more, not 1"),
        ({"size": 101}, "100 or less, not 101"),
        ({"size": "4"}, "size must be a whole number"),
        ({"p": 0}, "above 0 and at most 1, not 0"),
        ({"p": 1.5}, "above 0 and at most 1"),
        ({"max_turns": 0}, "max_turns must be a whole number of 1 or more"),
        ({"max_turns": 2**31}, "max_turns must be 2147483647 or less"),
        ({"symbols": "P_OG"}, "symbols must be 6 different ones"),
        ({"format_penalty": 1}, "0 or less, not 1"),
        ({"render_mode": "rgb_array"}, "None, 'ansi', not 'rgb_array'"),
    ],
)
def test_wrong_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FrozenLakeEnv(**kwargs)


def test_hopeless_lakes_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.frozenlake.lake.MAX_ATTEMPTS", 20)
    with pytest.raises(ConfigError, match=r"no 50x50 lake with p=0.01 .* from seed 7; use a larger p"):
        FrozenLakeEnv(size=50, p=0.01).reset(seed=7)
