"""FrozenLakeEnv against recorded episodes of ROLL and RAGEN: to the letter, named bugs of theirs apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from golden_data import load

from envs.frozenlake.env import FrozenLakeEnv
from envs.frozenlake.lake import LETTERS, draw_map
from roll_envs.env import TextEnv

Episode = dict[str, Any]


def played(max_turns: int, source: str = "") -> Iterator[tuple[FrozenLakeEnv, Episode]]:
    """Every recorded episode (of one source) with an environment at its start."""
    for recording in load("frozenlake.json"):
        env = FrozenLakeEnv(
            size=recording["size"],
            p=recording.get("p", 0.8),
            is_slippery=recording["is_slippery"],
            max_turns=max_turns,
            format_penalty=recording.get("format_penalty", 0.0),
        )
        for episode in recording["episodes"] if recording["source"].startswith(source) else ():
            observation, _ = env.reset(seed=episode["seed"])
            assert observation == episode["initial_obs"]
            yield env, episode


def answer(env: TextEnv, action: int | str) -> str:
    """ROLL records the text, RAGEN 1..4 in the order of ours."""
    return action if isinstance(action, str) else env.action_format.format([action - 1])


def test_observations_rewards_and_metrics() -> None:
    count = 0
    for env, episode in played(max_turns=1000):
        for i, step in enumerate(episode["steps"]):
            observation, reward, terminated, _, info = env.step(answer(env, step["action"]))
            assert (observation, reward) == (step["obs"], step["reward"])
            recorded = step["info"].get("metrics", step["info"])
            for name in ("action_is_effective", "action_is_valid", "success"):
                assert info[name] == recorded[name]
            count += 1
            if terminated:
                assert i == len(episode["steps"]) - 1
                assert step["done"] if "done" in step else step["terminated"]
    assert count > 300


def test_maps() -> None:
    for env, episode in played(max_turns=1000):
        cells, start = draw_map(env.size, env.p, episode["seed"])
        letters = list("".join(LETTERS[c] for c in cells))
        letters[start] = "S"
        assert "".join(letters) == "".join(episode["desc"])


def test_dry_oracle_is_as_long_as_recorded() -> None:
    for env, episode in played(max_turns=1000):
        if not env.is_slippery and "shortest_path" in episode:
            oracle = env.oracle()
            assert oracle is not None
            assert len(oracle) == len(episode["shortest_path"])


def test_invalid_answers_count_towards_the_limit() -> None:
    """In ROLL an answer that cannot be read never brings the limit nearer, so that an agent that never answers plays
    for ever. Ours ends after max_turns answers of any kind."""
    longer = [e for _, e in played(max_turns=10, source="ROLL") if len(e["steps"]) > 10]
    assert longer, "the bug is in the recording: episodes of more than 10 turns under a limit of 10"
    for env, episode in played(max_turns=10, source="ROLL"):
        for i, step in enumerate(episode["steps"][:10]):
            _, _, terminated, truncated, _ = env.step(answer(env, step["action"]))
            assert truncated == (i == 9 and not terminated)


def test_a_hole_terminates_and_never_truncates() -> None:
    """ROLL sets both flags for a hole that is entered past the limit. The rules ended the game: terminated only."""
    count = 0
    for env, episode in played(max_turns=1000, source="ROLL"):
        for step in episode["steps"]:
            _, _, terminated, truncated, _ = env.step(answer(env, step["action"]))
            if step["truncated"]:
                assert step["terminated"], "the bug is in the recording"
                assert (terminated, truncated) == (True, False)
                count += 1
    assert count > 0


def test_format_penalty_is_what_this_answer_was_charged() -> None:
    """ROLL reports the configured penalty at every step, also where the reward holds none of it; a mean of that says
    nothing about the agent. Ours is the part of this reward."""
    for env, episode in played(max_turns=1000, source="ROLL"):
        for step in episode["steps"]:
            _, reward, _, _, info = env.step(answer(env, step["action"]))
            assert step["info"]["metrics"]["format_penalty"] == -0.01
            assert info["format_penalty"] == (0.0 if info["action_is_valid"] else -0.01)
            assert sum(info["reward_parts"].values()) == reward


@pytest.mark.parametrize(("size", "p"), [(2, 0.5), (4, 0.8), (5, 0.3), (8, 0.8), (13, 0.9), (4, 1.0), (7, 1 / 3)])
def test_maps_are_numpy_choices(size: int, p: float) -> None:
    """The draws as the originals write them, for sizes and shares that were not recorded."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        cells, start = draw_map(size, p, seed)
        drawn = "".join(LETTERS[c] for c in cells)
        for _ in range(2000):
            board = rng.choice(["F", "H"], (size, size), p=[p, 1 - p])
            first, goal = tuple(rng.integers(size, size=2)), tuple(rng.integers(size, size=2))
            board[first], board[goal] = "F", "G"
            if "".join(board.ravel()) == drawn:
                break
        else:
            pytest.fail(f"the map of seed {seed} is not among the draws")
        assert start == first[0] * size + first[1]
