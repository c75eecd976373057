"""What every built-in environment promises: Gymnasium's API, the same episode everywhere, no global generator."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.seeding import np_random
from gymnasium.wrappers import PassiveEnvChecker

import envs.frozenlake
import envs.sokoban
from envs.frozenlake.env import FrozenLakeEnv
from envs.sokoban.env import SokobanEnv
from roll_envs.env import EnvironmentCard, TextEnv

CARDS = [getattr(module, name) for module in (envs.sokoban, envs.frozenlake) for name in module.__all__]
CLASSES: dict[str, Any] = {"SokobanEnv": SokobanEnv, "FrozenLakeEnv": FrozenLakeEnv}


def build(card: EnvironmentCard) -> TextEnv:
    env: TextEnv = CLASSES[card.entry_point.split(":")[1]](**card.kwargs)
    return env


def episode(env: TextEnv, seed: int, foreign: bool = False) -> str:
    """A digest of one random episode."""
    choose = random.Random(seed)
    trace: list[Any] = [env.reset(seed=seed)]
    while True:
        if foreign:
            random.seed(seed)
            random.random()
            np.random.seed(seed)
            np.random.random()
        names = range(len(env.action_format.actions))
        text = env.action_format.format([choose.choice(names)]) if choose.random() < 0.9 else "?"
        trace.append(env.step(text))
        if trace[-1][2] or trace[-1][3]:
            return hashlib.sha256(json.dumps(trace).encode()).hexdigest()


def digest() -> str:
    """Episodes of all cards, for a comparison between processes."""
    return hashlib.sha256("".join(episode(build(c), s) for c in CARDS for s in range(1000, 1030)).encode()).hexdigest()


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_gymnasium_checks(card: EnvironmentCard) -> None:
    name = card.id.replace("roll/", "contract/")
    gymnasium.register(name, entry_point=card.entry_point, kwargs=dict(card.kwargs))
    try:
        check_env(gymnasium.make(name).unwrapped)
        env = PassiveEnvChecker(build(card))
        env.reset(seed=1)
        env.step(env.action_space.sample())
        env.render()
        env.close()
        env.close()
    finally:
        gymnasium.registry.pop(name)


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_total_reward_stays_in_the_range_of_the_card(card: EnvironmentCard) -> None:
    env = build(card)
    low, high = card.reward_range
    choose = random.Random(0)
    for seed in range(150):
        env.reset(seed=seed)
        total, over = 0.0, False
        answers = (env.oracle() or []) if seed % 2 else []
        while not over:
            text = answers.pop(0) if answers else env.action_format.format([choose.randrange(4)])
            _, reward, terminated, truncated, info = env.step(text)
            total += float(reward)
            over = terminated or truncated
            assert not (terminated and truncated)
            assert sum(info["reward_parts"].values()) == reward
        assert low - 1e-9 <= total <= high + 1e-9


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_global_generators_are_neither_used_nor_touched(card: EnvironmentCard) -> None:
    env = build(card)
    expected = [episode(env, s) for s in range(20)]
    random_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)
    env.reset()
    assert [episode(env, s) for s in range(20)] == expected
    assert random.getstate() == random_state
    assert repr(np.random.get_state(legacy=False)) == repr(numpy_state)
    assert [episode(env, s, foreign=True) for s in range(20)] == expected


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_environments_do_not_disturb_each_other(card: EnvironmentCard) -> None:
    env, other = build(card), build(card)
    alone = [episode(env, s) for s in range(10)]
    together = []
    for seed in range(10):
        other.reset(seed=seed + 500)
        other.step(other.action_format.format([0]))
        together.append(episode(env, seed))
    assert together == alone


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_the_own_generator_is_that_of_the_last_seed(card: EnvironmentCard) -> None:
    env = build(card)
    assert env.np_random is env.np_random, "before any seed"
    for seed in (5, 7):
        env.reset(seed=seed)
        assert env.np_random_seed == seed
        assert env.np_random.random() == np_random(seed)[0].random()
        assert env.np_random.random() != np_random(seed)[0].random(), "it goes on"
    env.np_random = np_random(9)[0]
    assert env.np_random.random() == np_random(9)[0].random()
    assert env.np_random_seed == -1


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.id)
def test_unseeded_resets_follow_from_the_last_seed(card: EnvironmentCard) -> None:
    first, second = build(card), build(card)
    series = []
    for env in (first, second):
        env.reset(seed=5)
        series.append([env.reset()[0] for _ in range(5)])
    assert series[0] == series[1]
    assert len(set(series[0])) > 1


def test_same_episodes_in_other_processes() -> None:
    """Seeds 1000 to 1029 include rooms that the originals draw by hash()."""
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(here))
    code = "import test_env_contract; print(test_env_contract.digest())"
    for hash_seed in ("0", "4242"):
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join((root, here))}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.strip() == digest()


def test_cards_are_light() -> None:
    """Listing environments must not load them."""
    code = (
        "import sys, envs.sokoban, envs.frozenlake;"
        "heavy = ('torch', 'transformers', 'ray');"
        "print([m for m in sys.modules if m.startswith('envs.') and m.count('.') > 1 or m in heavy])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
