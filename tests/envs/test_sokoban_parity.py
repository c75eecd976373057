"""SokobanEnv against recorded episodes of ROLL, RAGEN and verl-agent: to the letter, named bugs of theirs apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from golden_data import load, standard_rows

from envs.sokoban.arguments import SYMBOLS
from envs.sokoban.env import SokobanEnv

Episode = dict[str, Any]


def played(name: str, **kwargs: Any) -> Iterator[tuple[SokobanEnv, Episode]]:
    """Every recorded episode with an environment at its start."""
    for recording in load(name):
        config = recording["config"]
        symbols = "".join(config["grid_lookup"].values()) if "grid_lookup" in config else SYMBOLS
        env = SokobanEnv(
            size=config["dim_room"],
            num_boxes=config["num_boxes"],
            search_depth=config["search_depth"],
            max_turns=config["max_steps"],
            format_penalty=recording.get("format_penalty", 0.0),
            symbols=symbols,
            **kwargs,
        )
        for episode in recording["episodes"]:
            if episode["hash_fallback"]:
                # The original's room depends on PYTHONHASHSEED: only its steps can be compared.
                start = env.restore({"room": standard_rows(episode["initial_obs"], symbols)})
            else:
                start, _ = env.reset(seed=episode["seed"])
            assert start == episode["initial_obs"], (config["name"], episode["seed"])
            yield env, episode


def answer(env: SokobanEnv, action: int | str) -> str:
    """A recorded action (text, or 1..4 in the order of ours, 0 invalid) as text."""
    if isinstance(action, str):
        return action
    return env.action_format.format([action - 1]) if action else "an answer without an action"


def test_roll_observations_rewards_and_metrics() -> None:
    count = 0
    for env, episode in played("sokoban_roll.json.gz"):
        for step in episode["steps"]:
            observation, reward, terminated, truncated, info = env.step(answer(env, step["action"]))
            recorded = step["info"]["metrics"]
            assert observation == step["obs"]
            assert reward == step["reward"]
            assert {k: info[k] for k in recorded} == recorded
            assert (terminated or truncated) == (step["terminated"] or step["truncated"])
            if not step["truncated"]:
                assert (terminated, truncated) == (step["terminated"], False)
            count += 1
    assert count > 500


def test_roll_terminates_at_the_limit_and_we_truncate() -> None:
    """ROLL sets both flags when the turns run out. The rules did not end the game there, so the value of what could
    have followed must be bootstrapped: truncated only."""
    count = 0
    for env, episode in played("sokoban_roll.json.gz"):
        for step in episode["steps"]:
            _, _, terminated, truncated, info = env.step(answer(env, step["action"]))
            if step["truncated"] and not info["success"]:
                assert step["terminated"], "the bug is in the recording"
                assert (terminated, truncated) == (False, True)
                count += 1
    assert count > 10


def test_roll_instructions_use_the_same_words() -> None:
    for env, episode in played("sokoban_roll.json.gz"):
        rules, symbols, actions = (
            episode["env_instruction"].split("\n", 1)[0],
            *episode["env_instruction"].split("\n")[2::2],
        )
        assert env.instructions.startswith(rules.split(" The answer must be")[0])
        assert f"\n{symbols}\n" in env.instructions
        assert f"\n{actions}\n" in env.instructions


def test_ragen_steps() -> None:
    count = 0
    for env, episode in played("sokoban_ragen.json", action_format="think-answer"):
        for step in episode["steps"]:
            observation, reward, terminated, truncated, info = env.step(answer(env, step["action"]))
            assert (observation, reward, terminated or truncated) == (step["obs"], step["reward"], step["done"])
            assert {k: info[k] for k in step["info"]} == step["info"]
            count += 1
    assert count > 500


def test_verl_agent_steps() -> None:
    """Its grid, its answer form, and its invalid actions: 0.1 each, and they do not advance."""
    options = {"action_format": "action", "observation_style": "verl-agent", "invalid_counts": False}
    count = 0
    for env, episode in played("sokoban_verl_agent.json", **options):
        for step in episode["steps"]:
            observation, reward, terminated, truncated, info = env.step(answer(env, step["action"]))
            assert (observation, reward, terminated or truncated) == (step["obs"], step["reward"], step["done"])
            assert info["success"] == step["info"]["won"] == terminated
            assert info["action_is_effective"] == step["info"]["action_is_effective"]
            count += 1
    assert count > 80


@pytest.mark.parametrize("name", ["sokoban_roll.json.gz", "sokoban_ragen.json", "sokoban_verl_agent.json"])
def test_shortest_solutions_are_as_long_as_recorded(name: str) -> None:
    style = "verl-agent" if "verl" in name else "plain"
    for env, episode in played(name, observation_style=style):
        if episode["shortest_solution"] is None:  # not known to the recording
            continue
        oracle = env.oracle()
        length = len(episode["shortest_solution"])
        assert length <= env.max_turns
        assert oracle is not None
        assert len(oracle) == length
