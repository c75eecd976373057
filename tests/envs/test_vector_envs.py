"""Vector environments of Sokoban and FrozenLake: to the letter what single environments do."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roll_envs

SOKOBAN, LARGER, LAKE, SLIPPERY = (
    f"roll/{name}-v0" for name in ("SimpleSokoban", "LargerSokoban", "FrozenLake", "FrozenLakeSlippery")
)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    (SOKOBAN, {"search_depth": 30}),
    (
        SOKOBAN,
        {"search_depth": 10, "max_actions_per_turn": 3, "action_format": "think-answer", "format_penalty": -0.15},
    ),
    (SOKOBAN, {"search_depth": 10, "invalid_counts": False, "max_turns": 4, "observation_style": "verl-agent"}),
    (SOKOBAN, {"search_depth": 10, "symbols": ["wall", " ", "\x00", "\ud800", "é", "P", "\U0001f600"]}),
    (LARGER, {"max_turns": 30}),
    ("roll/SokobanDifferentGridVocab-v0", {"size": (5, 7)}),
    (LAKE, {}),
    (LAKE, {"size": 7, "max_actions_per_turn": 4, "format_penalty": -0.5, "symbols": ["P", "__", "O", "G", "X", "!"]}),
    (SLIPPERY, {"max_turns": 70, "p": 0.98}),
    (SLIPPERY, {"max_actions_per_turn": 25, "p": 0.99, "size": 6, "action_format": "word"}),
]


def same(one: Any, other: Any, where: str = "") -> None:
    """Both are equal in values, types of arrays, and keys."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert sorted(one) == sorted(other), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, tuple):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{i}]")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            same(a, b, where)
    else:
        assert one == other, where


def answers_of(env: roll_envs.TextEnv, choose: random.Random, count: int) -> list[str]:
    """Mostly moves; also several in one answer, texts that cannot be read, and long ones."""
    form = env.action_format
    found = []
    for _ in range(count):
        moves = [choose.randrange(4) for _ in range(choose.randint(1, form.max_actions))]
        text = form.format(moves, thought="x" * choose.choice((0, 300)))
        found.append(choose.choice(("", "Up", "\ud800", text[:-1])) if choose.random() < 0.1 else text)
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize(("id", "kwargs"), VARIANTS, ids=[f"{id[5:-3]}-{i}" for i, (id, _) in enumerate(VARIANTS)])
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10_000), num_envs=st.integers(1, 6))
def test_equals_single_environments(id: str, kwargs: dict[str, Any], mode: str, seed: int, num_envs: int) -> None:
    make = {"num_envs": num_envs, **kwargs}
    batch = gymnasium.make_vec(id, vectorization_mode="vector_entry_point", autoreset_mode=mode, **make)
    singly = gymnasium.make_vec(id, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **make)
    choose = random.Random(seed)
    same(batch.reset(seed=seed), singly.reset(seed=seed))
    for turn in range(40):
        answers = answers_of(singly.envs[0].unwrapped, choose, num_envs)
        found = batch.step(answers)
        same(found, singly.step(answers), f"turn {turn}")
        same(batch.render(), tuple(env.unwrapped.render() for env in singly.envs))
        if mode == "Disabled" and (over := found[2] | found[3]).any():
            # The generators of unseeded resets go on as those of single environments.
            same(batch.reset(options={"reset_mask": over}), singly.reset(options={"reset_mask": over.copy()}))
    seeds = [None if choose.random() < 0.5 else choose.randrange(1000) for _ in range(num_envs)]
    same(batch.reset(seed=seeds), singly.reset(seed=seeds))


def _plan(env: Any, seed: int) -> list[str]:
    env.reset(seed=seed)
    plan: list[str] = env.oracle()
    return plan


@pytest.mark.parametrize("id", [SOKOBAN, LAKE])
def test_solutions_end_as_in_single_environments(id: str) -> None:
    """Rewards, ends and next episodes of players that know the solution, against one environment after the other."""
    num_envs = 5
    batch = gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode="vector_entry_point")
    singles = [roll_envs.make(id) for _ in range(num_envs)]
    batch.reset(seed=40)
    plans = [_plan(env, 40 + i) for i, env in enumerate(singles)]
    totals = np.zeros(num_envs)
    for turn in range(max(map(len, plans))):
        shown, rewards, terminated, _, info = batch.step([plan[turn] if turn < len(plan) else "" for plan in plans])
        for i, plan in enumerate(plans):
            if turn < len(plan):
                text, reward, ended, _, single_info = singles[i].step(plan[turn])
                assert (text, reward, ended) == (shown[i], rewards[i], terminated[i])
                assert info["success"][i] == single_info["success"] == (turn == len(plan) - 1)
                assert {k: v[i] for k, v in info["reward_parts"].items() if k[0] != "_"} == single_info["reward_parts"]
                totals[i] += reward
    assert (totals > 0.9).all()


def test_is_what_make_vec_takes_by_default_and_others_stay_single() -> None:
    assert type(gymnasium.make_vec(SOKOBAN, num_envs=2).unwrapped).__name__ == "SokobanVectorEnv"
    assert isinstance(gymnasium.make_vec("roll/Dataset-v0", num_envs=2), gymnasium.vector.SyncVectorEnv)
    with pytest.raises(gymnasium.error.Error, match="vector entry point"):
        gymnasium.make_vec("roll/Dataset-v0", vectorization_mode="vector_entry_point")


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'max_turns'"):
        gymnasium.make_vec(SOKOBAN, num_envs=2, max_turn=3)
    with pytest.raises(roll_envs.ConfigError, match="autoreset_mode must be one of 'NextStep'"):
        gymnasium.make_vec(SOKOBAN, num_envs=2, autoreset_mode="never")
    with pytest.raises(roll_envs.ConfigError, match="num_envs must be a whole number of 1 or more"):
        gymnasium.make_vec(LAKE, num_envs=0)
    envs = gymnasium.make_vec(LAKE, num_envs=2, autoreset_mode="Disabled", max_turns=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(["", ""])
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.render()
    with pytest.raises(ValueError, match="one for each of 2 environments"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(gymnasium.error.ResetNeeded, match="first reset must be of all"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="3 actions were given to 2 environments"):
        envs.step(["", "", ""])
    with pytest.raises(TypeError, match="an answer is a text"):
        envs.step(["", 7])
    envs.step(["", ""])
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0, 1\] are over"):
        envs.step(["", ""])
    for mask in ([True, False], np.array([1, 0])):
        with pytest.raises(TypeError, match="array of booleans"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="a True in it"):
        envs.reset(options={"reset_mask": np.array([False, False])})
