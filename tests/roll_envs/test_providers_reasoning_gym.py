"""reasoning-gym's tasks, where it is installed."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import roll_envs
from roll_envs import ConfigError, EnvironmentFaultError, MissingExtraError, TextEnv
from roll_envs.providers import reasoning_gym
from roll_envs.providers.reasoning_gym import ReasoningGymEnv
from roll_envs.testing import check_env


def needs_reasoning_gym(test: Callable[..., None]) -> Any:
    """Slow, since ``make test-slow`` installs it."""
    absent = importlib.util.find_spec("reasoning_gym") is None
    return pytest.mark.slow(pytest.mark.skipif(absent, reason="needs reasoning-gym: make .venv/providers.stamp")(test))


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert reasoning_gym.ids() == []
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        ReasoningGymEnv(task="chain_sum")


@needs_reasoning_gym
def test_every_task_of_the_package_has_an_id() -> None:
    import reasoning_gym as package
    from reasoning_gym.factory import DATASETS

    assert package.__name__
    assert {id.split("/")[1].removesuffix("-v0") for id in reasoning_gym.ids()} == set(DATASETS) - {"composite"}
    assert len(reasoning_gym.ids()) > 100


@needs_reasoning_gym
def test_an_episode_by_hand() -> None:
    env = roll_envs.make("reasoning_gym/chain_sum-v0", config={"min_terms": 2, "max_terms": 2}, max_attempts=2)
    assert isinstance(env, TextEnv)
    question, _ = env.reset(seed=5)
    assert question == env.reset(seed=5)[0] != env.reset(seed=6)[0]
    env.reset(seed=5)
    (right,) = env.oracle() or ()
    shown, reward, terminated, truncated, info = env.step("no tag")
    assert (shown, reward, terminated, truncated) == (question, 0.0, False, False)
    assert info["action_is_valid"] is False
    _, reward, terminated, truncated, info = env.step(right)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert env.oracle() is None
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(right)


@needs_reasoning_gym
def test_gymnasium_makes_a_task_too() -> None:
    env = gymnasium.make("roll_envs.everything:reasoning_gym/chain_sum-v0")
    assert env.reset(seed=5)[0] == roll_envs.make("reasoning_gym/chain_sum-v0").reset(seed=5)[0]


@needs_reasoning_gym
@pytest.mark.parametrize(
    ("name", "said"),
    [("advanced_geometry", "nothing at all"), ("gsm_symbolic", "{0!r} of them"), ("largest_island", "0123456789" * 9)],
)
def test_what_any_answer_or_any_number_gets_is_not_paid(name: str, said: str) -> None:
    env = roll_envs.make(f"reasoning_gym/{name}-v0")
    assert isinstance(env, ReasoningGymEnv)
    env.reset(seed=0)
    assert 0.0 < env._score(said) < 0.02
    assert env.step(f"<answer>{said}</answer>")[1] == 0.0


@needs_reasoning_gym
def test_a_scorer_that_fails_is_no_score_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    env = roll_envs.make("reasoning_gym/chain_sum-v0")
    assert isinstance(env, ReasoningGymEnv)
    env.reset(seed=0)
    right = env._entry["answer"]

    def choosy(answer: str, entry: Any) -> float:
        if answer != right:
            raise ValueError("no number")
        return 1.0

    monkeypatch.setattr(env._dataset, "score_answer", choosy)
    _, reward, *_, info = env.step("<answer>many</answer>")
    assert (reward, info["scorer_error"]) == (0.0, "ValueError('no number')")
    env.reset(seed=0)
    monkeypatch.setattr(env._dataset, "score_answer", lambda answer, entry: 1 / 0)
    with pytest.raises(EnvironmentFaultError, match="the scorer of reasoning-gym's chain_sum: ZeroDivisionError"):
        env.step("<answer>many</answer>")


@needs_reasoning_gym
def test_a_config_that_the_task_refuses_is_an_error_at_once() -> None:
    for config in ({"no_such": 1}, {"min_terms": 5, "max_terms": 2}):
        with pytest.raises(ConfigError, match="task 'chain_sum' refuses the config"):
            roll_envs.make("reasoning_gym/chain_sum-v0", config=config)
    with pytest.raises(ConfigError, match="max_attempts is 0"):
        roll_envs.make("reasoning_gym/chain_sum-v0", max_attempts=0)


@needs_reasoning_gym
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # packages that it uses leave files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_task_asks_by_its_seed_and_its_own_answer_is_right() -> None:
    before = random.getstate(), np.random.get_state(legacy=False)
    unsolved = set()
    for id in reasoning_gym.ids():
        env, other = roll_envs.make(id), roll_envs.make(id)
        assert isinstance(env, TextEnv)
        questions = [env.reset(seed=seed)[0] for seed in range(4)]
        assert questions == [other.reset(seed=seed)[0] for seed in range(4)], id
        assert len(set(questions)) > 1, id
        plan = env.oracle()
        if plan is None:
            unsolved.add(id)
        else:
            assert env.step(plan[0])[4]["success"], id
        env.reset(seed=1)
        assert 0.0 <= float(env.step("<answer>0</answer>")[1]) <= 1.0, id
    # Their data have no answer, or for some seeds one that their own scorer does not take for right.
    known = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
    assert unsolved <= {f"reasoning_gym/{name}-v0" for name in known}
    assert random.getstate() == before[0]
    assert str(np.random.get_state(legacy=False)) == str(before[1])


@needs_reasoning_gym
@pytest.mark.parametrize("name", ["chain_sum", "sudoku", "word_sorting"])
def test_tasks_pass_the_check(name: str) -> None:
    report = check_env(f"reasoning_gym/{name}-v0", seeds=(0, 1, 2))
    assert report.ok, str(report)


@needs_reasoning_gym
@pytest.mark.parametrize("name", ["ransom_note", "isomorphic_strings"])
def test_what_a_task_draws_from_a_set_of_letters_does_not_depend_on_the_process(name: str) -> None:
    report = check_env(f"reasoning_gym/{name}-v0", rules=["processes"])
    assert report.ok, str(report)
