"""SokobanEnv: rewards, limits, variants as arguments, snapshots, errors."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sokoban.env import ACTIONS, SokobanEnv
from roll_envs.errors import ConfigError, UnknownNameError

ROOM = ["######", "#P___#", "#_X_O#", "#____#", "######", "######"]


def at(rows: list[str], **kwargs: Any) -> SokobanEnv:
    env = SokobanEnv(num_boxes=sum(r.count("X") + r.count("√") for r in rows), **kwargs)
    env.restore({"room": rows})
    return env


def say(env: SokobanEnv, *names: str) -> str:
    return env.action_format.format([ACTIONS.index(n) for n in names])


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"size": (8, 8), "num_boxes": 2, "search_depth": 10, "max_turns": 20},
        {"size": (10, 10), "num_boxes": 4, "search_depth": 30, "max_turns": 60, "max_actions_per_turn": 5},
    ],
)
def test_oracle_wins_with_the_highest_reward(kwargs: dict[str, Any]) -> None:
    env = SokobanEnv(**kwargs)
    for seed in range(40):
        env.reset(seed=seed)
        answers = env.oracle()
        if answers is None:
            # A few of ROLL's 6x6 rooms take more than its 10 moves.
            assert kwargs == {}
            continue
        total, moves = 0.0, 0
        for i, answer in enumerate(answers):
            _, reward, terminated, truncated, info = env.step(answer)
            total += reward
            moves += len(env.action_format.parse(answer).actions)
            assert terminated == (i == len(answers) - 1)
            assert not truncated
        assert info["success"]
        assert total == pytest.approx(10 + env.num_boxes - 0.1 * moves)
        assert env.oracle() is None


def test_rewards_name_their_parts() -> None:
    env = at(ROOM, format_penalty=-0.25)
    walk = ["Down", "garbage", "Left", "Right", "Right"]
    found = [env.step(say(env, w) if w in ACTIONS else w) for w in walk]
    assert [f[1] for f in found] == [-0.1, -0.35, -0.1, -0.1, 10.9]
    assert [f[4]["action_is_valid"] for f in found] == [True, False, True, True, True]
    assert [f[4]["action_is_effective"] for f in found] == [True, False, False, True, True]
    assert [f[4]["format_penalty"] for f in found] == [0.0, -0.25, 0.0, 0.0, 0.0]
    assert [f[4]["success"] for f in found] == [False] * 4 + [True]
    assert found[-1][4]["reward_parts"] == {"step": -0.1, "box": 1.0, "solved": 10.0, "format": 0.0}
    for _, reward, _, _, info in found:
        assert sum(info["reward_parts"].values()) == reward == math.fsum(info["reward_parts"].values())


def test_leaving_a_target_costs_what_reaching_it_paid() -> None:
    env = at(["######", "#P√__#", "#_X_O#", "#____#", "######", "######"])
    _, reward, _, _, info = env.step(say(env, "Right"))
    assert reward == -1.1
    assert info["reward_parts"] == {"step": -0.1, "box": -1.0, "solved": 0.0, "format": 0.0}
    assert env.render().split("\n")[1] == "#_SX_#"


def test_nothing_is_pushed_through_walls_or_boxes() -> None:
    env = at(["######", "#PXX_#", "#_XO_#", "#OO__#", "######", "######"], max_turns=20)
    before = env.render()
    for name in ("Up", "Left", "Right"):
        observation, _, _, _, info = env.step(say(env, name))
        assert observation == before
        assert not info["action_is_effective"]


def test_limit_truncates_and_a_solved_room_at_the_limit_terminates() -> None:
    env = SokobanEnv(max_turns=3)
    env.reset(seed=0)
    flags = [env.step("?")[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    env = at(ROOM, max_turns=3)
    flags = [env.step(say(env, name))[2:4] for name in ("Down", "Right", "Right")]
    assert flags == [(False, False), (False, False), (True, False)]


def test_several_moves_in_one_answer() -> None:
    env = at(ROOM, action_format="think-answer", max_actions_per_turn=5)
    _, reward, terminated, _, info = env.step("<think>easy</think><answer>Down || Right || right || Up</answer>")
    assert terminated, "the moves after the solving one are not played"
    assert reward == pytest.approx(-0.3 + 1 + 10)
    assert info["reward_parts"]["step"] == pytest.approx(-0.3)
    assert sum(info["reward_parts"].values()) == reward


def test_forgiven_answers_do_not_advance_but_cannot_go_on_for_ever() -> None:
    env = SokobanEnv(invalid_counts=False, max_turns=3)
    env.reset(seed=0)
    assert [env.step("?")[3] for _ in range(6)] == [False] * 5 + [True]
    env.reset(seed=0)
    env.step("?")
    assert [env.step(say(env, "Up"))[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "text", ["", " ", "<answer>", "</answer><answer>", "<answer>" * 30_000, "Up" * 100_000, "\x00", "上"]
)
def test_no_answer_breaks_it(text: str) -> None:
    env = SokobanEnv()
    before, _ = env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(text)
    assert (observation, reward, terminated, truncated) == (before, -0.1, False, False)
    assert not info["action_is_valid"]


def test_difficulty_by_shortest_solution() -> None:
    env = SokobanEnv(min_solution=5, max_solution=6)
    lengths = []
    for seed in range(20):
        env.reset(seed=seed)
        oracle = env.oracle()
        assert oracle is not None
        lengths.append(len(oracle))
    assert set(lengths) == {5, 6}
    plain = SokobanEnv()
    for seed in range(20):
        observation, _ = plain.reset(seed=seed)
        oracle = plain.oracle()
        if oracle and 5 <= len(oracle) <= 6:
            assert env.reset(seed=seed)[0] == observation, "a room that fits is not drawn again"
    with pytest.raises(ConfigError, match=r"shortest solution of 60 to any number of moves; widen min_solution"):
        SokobanEnv(size=(5, 5), search_depth=5, min_solution=60).reset(seed=0)


@pytest.mark.parametrize(
    "kwargs", [{}, {"max_actions_per_turn": 3, "symbols": "W.GCBA@", "observation_style": "verl-agent"}]
)
def test_snapshot_and_restore(kwargs: dict[str, Any]) -> None:
    env, other = SokobanEnv(max_turns=30, **kwargs), SokobanEnv(max_turns=30, **kwargs)
    env.reset(seed=9)
    answers = [say(env, n) for n in ("Up", "Left", "Down", "Right", "Down", "Right", "Up")] + ["?"]
    for answer in answers:
        env.step(answer)
    snapshot = json.loads(json.dumps(env.snapshot()))
    here = env.render()
    after = [env.step(a) for a in answers]
    next_episode = env.reset()
    for target in (other, env):
        assert target.restore(snapshot) == here
        assert target.snapshot() == snapshot
        assert [target.step(a) for a in answers] == after
        assert target.reset() == next_episode


def test_an_ended_episode_stays_ended() -> None:
    for room, turns in ((["######", "#P√_##", "#___##", "######", "######", "######"], 0), (ROOM, 10)):
        env = SokobanEnv()
        env.restore({"room": room, "turns": turns})
        assert env.oracle() is None
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(say(env, "Up"))


@given(st.integers(0, 2**40), st.lists(st.sampled_from(["Up", "Down", "Left", "Right", "?"]), max_size=40))
@settings(max_examples=60)
def test_drawn_move_by_move_as_drawn_anew(seed: int, walk: list[str]) -> None:
    env = SokobanEnv(size=(7, 9), num_boxes=2, search_depth=20, max_turns=100)
    env.reset(seed=seed)
    walls = [c == "#" for c in env.render()]
    for name in walk:
        observation, reward, terminated, _, info = env.step(say(env, name) if name in ACTIONS else name)
        twin = SokobanEnv(size=(7, 9), num_boxes=2, max_turns=100)
        assert twin.restore(env.snapshot()) == observation == env.render()
        assert [c == "#" for c in observation] == walls
        count = {c: observation.count(c) for c in "XO√PS"}
        assert count["X"] + count["√"] == 2 == count["O"] + count["√"] + count["S"]
        assert count["P"] + count["S"] == 1
        assert terminated == (count["√"] == 2) == info["success"]
        assert sum(info["reward_parts"].values()) == reward
        if terminated:
            break


def test_wrong_snapshots_are_refused() -> None:
    env = SokobanEnv()
    with pytest.raises(ConfigError, match="6 strings of 6 symbols"):
        env.restore({})
    with pytest.raises(ConfigError, match="6 strings of 6 symbols"):
        env.restore({"room": ["#####"] * 6})
    with pytest.raises(ConfigError, match="one player, 1 boxes"):
        env.restore({"room": ["######"] * 6})
    with pytest.raises(ConfigError, match="walls all around"):
        env.restore({"room": ["###_##", *ROOM[1:]]})
    with pytest.raises(ConfigError, match="turns must be a whole number of 0 or more"):
        env.restore({"room": ROOM, "turns": -1})


def test_order_of_calls() -> None:
    env = SokobanEnv()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step("<answer>Up</answer>")
    with pytest.raises(gymnasium.error.ResetNeeded, match="before reset"):
        env.snapshot()
    with pytest.raises(gymnasium.error.Error, match="before reset"):
        env.render()
    env = at(ROOM, max_turns=1)
    env.step("?")
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step("?")
    with pytest.raises(TypeError, match="an answer is a text"):
        SokobanEnv.step(at(ROOM), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 6}, r"size must be two whole numbers \(rows, columns\).*not 6"),
        ({"size": (3, 6)}, "from 4 to 100"),
        ({"size": (4, 4)}, "one of them 5 or more"),
        ({"num_boxes": 0}, "num_boxes must be a whole number of 1 or more, not 0"),
        ({"num_boxes": 1.5}, "num_boxes"),
        ({"num_boxes": 2**31 - 1}, "num_boxes must be 36 or less, not 2147483647"),
        ({"search_depth": 2**31}, "search_depth must be 2147483647 or less"),
        ({"max_turns": 2**31}, "max_turns must be 2147483647 or less"),
        ({"search_depth": 2}, "search_depth must be a whole number of 3 or more"),
        ({"max_turns": True}, "max_turns"),
        ({"symbols": "#_O"}, "symbols must be 7 different ones"),
        ({"symbols": "#_OO√PS"}, "symbols must be 7 different ones"),
        ({"format_penalty": 0.1}, "0 or less, not 0.1"),
        ({"format_penalty": float("nan")}, "0 or less, not nan"),
        ({"observation_style": "image"}, "'plain', 'verl-agent', not 'image'"),
        ({"render_mode": "human"}, "render_mode must be one of None, 'ansi'"),
        ({"min_solution": 5, "max_solution": 4}, "5 is above 4"),
        ({"max_actions_per_turn": 0}, "max_actions_per_turn"),
    ],
)
def test_wrong_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SokobanEnv(**kwargs)


def test_wrong_action_format_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'answer'"):
        SokobanEnv(action_format="anwser")


def test_pickled_in_the_middle_of_an_episode() -> None:
    env = SokobanEnv()
    env.reset(seed=4)
    env.step(say(env, "Up"))
    twin = pickle.loads(pickle.dumps(env))
    for name in ACTIONS:
        assert twin.step(say(env, name)) == env.step(say(env, name))
