"""Vector environments of Sokoban and FrozenLake: to the letter what single environments do."""

from __future__ import annotations

import importlib
import pkgutil
import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roll_envs
from envs.batch import one_by_one
from envs.frozenlake import lake
from envs.sokoban import generator

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
    (SOKOBAN, {"min_solution": 4, "max_solution": 9}),
    (LARGER, {"max_turns": 30}),
    ("roll/SokobanDifferentGridVocab-v0", {"size": (5, 7)}),
    (LAKE, {}),
    (LAKE, {"size": 7, "max_actions_per_turn": 4, "format_penalty": -0.5, "symbols": ["P", "__", "O", "G", "X", "!"]}),
    (SLIPPERY, {"max_turns": 70, "p": 0.98}),
    (SLIPPERY, {"max_actions_per_turn": 25, "p": 0.99, "size": 6, "action_format": "word"}),
]


COMPILED = pytest.mark.skipif(not generator.COMPILED, reason="batches are not compiled (no C compiler)")


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
    seeds = [choose.choice((None, choose.randrange(1000), 2 ** choose.randrange(30, 300))) for _ in range(num_envs)]
    same(batch.reset(seed=seeds), singly.reset(seed=seeds))
    for _ in range(40):  # more than the seeds that are drawn at once
        same(batch.reset(), singly.reset())


@pytest.mark.parametrize("invalid_counts", [True, False])
def test_answers_that_cannot_be_read_end_an_episode_at_its_limit(invalid_counts: bool) -> None:
    kwargs: dict[str, Any] = {"num_envs": 1, "max_turns": 3, "invalid_counts": invalid_counts, "search_depth": 10}
    batch = gymnasium.make_vec(SOKOBAN, **kwargs)
    batch.reset(seed=1)
    assert [bool(batch.step([""])[3][0]) for _ in range(6)].index(True) == (2 if invalid_counts else 5)


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


@COMPILED
def test_is_what_make_vec_takes_by_default_and_others_stay_single() -> None:
    assert type(gymnasium.make_vec(SOKOBAN, num_envs=2).unwrapped).__name__ == "SokobanVectorEnv"
    assert isinstance(gymnasium.make_vec("roll/Dataset-v0", num_envs=2), gymnasium.vector.SyncVectorEnv)
    with pytest.raises(gymnasium.error.Error, match="vector entry point"):
        gymnasium.make_vec("roll/Dataset-v0", vectorization_mode="vector_entry_point")


@COMPILED
def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'max_turns'"):
        gymnasium.make_vec(SOKOBAN, num_envs=2, max_turn=3)
    with pytest.raises(roll_envs.ConfigError, match="autoreset_mode must be one of 'NextStep'"):
        gymnasium.make_vec(SOKOBAN, num_envs=2, autoreset_mode="never")
    with pytest.raises(roll_envs.ConfigError, match="num_envs must be a whole number of 1 or more"):
        gymnasium.make_vec(LAKE, num_envs=0)
    envs: Any = gymnasium.make_vec(LAKE, num_envs=2, autoreset_mode="Disabled", max_turns=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(["", ""])
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.render()
    for seed, error, named in (
        ([1, 2, 3], ValueError, r"a list of 2 of these, one for each environment, not 3 of them: \[1, 2, 3\]"),
        ("12", TypeError, "not '12'"),
        (-1, TypeError, "not -1"),
        (1.5, TypeError, r"not 1\.5"),
        (np.array(3), TypeError, r"not array\(3\)"),
        (True, TypeError, "not True"),
        ([1, "7"], TypeError, "the one of environment 1 is '7'"),
        ([-3, 1], TypeError, "the one of environment 0 is -3"),
    ):
        with pytest.raises(error, match=f"seed must be None, a whole number of 0 or more.*{named}"):
            envs.reset(seed=seed)
    assert envs.reset(seed=np.arange(2))[0] == envs.reset(seed=[0, 1])[0] == envs.reset(seed=np.int64(0))[0]
    envs = gymnasium.make_vec(LAKE, num_envs=2, autoreset_mode="Disabled", max_turns=1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="first reset must be of all"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="3 actions were given to 2 environments"):
        envs.step(["", "", ""])
    for actions, named in (
        (["", 7], "the one for environment 1 is 7"),
        ([None, ""], "such as '<answer>Left</answer>'; the one for environment 0 is None"),
        ([["Up"], ""], r"the one for environment 0 is \['Up'\]"),
        (None, "actions must be a list of 2 texts, one for each environment, not None"),
        ("Up", "one for each environment, not 'Up'"),
        ({"0": "Up", "1": "Up"}, "one for each environment, not {'0': 'Up', '1': 'Up'}"),
        (dict.fromkeys("ab").keys(), "one for each environment, not dict_keys"),
    ):
        with pytest.raises(TypeError, match=named):
            envs.step(actions)
    envs.step(["", ""])
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0, 1\] are over"):
        envs.step(["", ""])
    for mask in ([True, False], np.array([1, 0])):
        with pytest.raises(TypeError, match="array of booleans"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="a True in it"):
        envs.reset(options={"reset_mask": np.array([False, False])})


@pytest.mark.parametrize(
    ("id", "make"), [(SOKOBAN, "sokoban.env:SokobanEnv"), (SLIPPERY, "frozenlake.env:FrozenLakeEnv")]
)
def test_without_compiled_code_single_environments_stand_in(id: str, make: str) -> None:
    """The batch that an installation without a C compiler has, against the compiled one."""
    kwargs = dict(roll_envs.card(id).kwargs)
    one_after_other: Any = one_by_one(pkgutil.resolve_name(f"envs.{make}"))
    plain = one_after_other(num_envs=3, autoreset_mode="SameStep", **kwargs)
    batch = gymnasium.make_vec(id, num_envs=3, autoreset_mode="SameStep")
    same(batch.reset(seed=3), plain.reset(seed=3))
    for turn in range(30):
        answers = answers_of(plain.envs[0], random.Random(turn), 3)
        same(batch.step(answers), plain.step(answers))
    with pytest.raises(roll_envs.ConfigError, match="autoreset_mode must be one of 'NextStep'"):
        one_after_other(num_envs=2, autoreset_mode="never")


def test_an_impossible_start_is_the_error_of_a_single_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for id, kwargs in ((SOKOBAN, {"num_boxes": 20}), (LAKE, {"p": 0.001, "size": 50})):
        monkeypatch.setattr(lake, "MAX_ATTEMPTS", 20)
        found = []
        for env in (roll_envs.make(id, **kwargs), gymnasium.make_vec(id, num_envs=1, **kwargs)):
            with pytest.raises(roll_envs.ConfigError, match="from seed 5; use a larger") as error:
                env.reset(seed=5)
            found.append(str(error.value))
        assert found[0] == found[1]


@COMPILED
@pytest.mark.parametrize("name", ["envs.sokoban._rooms", "envs.frozenlake._lakes"])
def test_compiled_batches_refuse_arrays_that_do_not_fit(name: str) -> None:
    compiled = importlib.import_module(name)
    id = SOKOBAN if "rooms" in name else LAKE
    envs: Any = gymnasium.make_vec(id, num_envs=2).unwrapped
    attempts = () if "rooms" in name else (0.5, 10)
    begin, seeds = compiled.begin, bytes(8)
    with pytest.raises(ValueError, match="arrays are needed, not 1"):
        begin(envs._arrays[:1], envs._shape, *attempts, np.arange(2), seeds)
    for at, array in enumerate(envs._arrays):
        cut = (*envs._arrays[:at], array.reshape(-1)[:-1].copy(), *envs._arrays[at + 1 :])
        with pytest.raises(ValueError, match=f"array {at} has"):
            begin(cut, envs._shape, *attempts, np.arange(2), seeds)
    for rows in (np.array([0, 2]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="rows must be 0 to 1"):
            begin(envs._arrays, envs._shape, *attempts, rows, seeds)
    with pytest.raises(ValueError, match="a seed must be below"):
        begin(envs._arrays, envs._shape, *attempts, np.arange(2), bytes(4))
