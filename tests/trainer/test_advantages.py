"""Estimators reproduce hand-worked numbers, and failures are in no statistic (promise 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from episode_builders import group, group_of_returns, groups, on_ids, on_tokens, trajectories, trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from view_builders import EpisodeView, estimated, view

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.types import Group, Trajectory
from trainer.algorithms.estimators import Estimate, accumulate_back, make_estimator
from trainer.algorithms.estimators.group_relative import PASS_AT_K, grpo
from trainer.config import AdvantageConfig
from trainer.config.parts import ESTIMATORS
from trainer.data.table import StepTable, make_table, sequences_of

MEAN = AdvantageConfig(normalize="mean")
MEAN_STD = AdvantageConfig(normalize="mean_std")

A = view(0.0, 0.0, 1.0, anchors=("s0", "s1", "s2"))
B = view(0.0, 0.0, 0.0, anchors=("s0", "s1", "s1"))


def run(name: str, episodes: list[EpisodeView], **settings: Any) -> list[float]:
    return estimated(name, episodes, **settings).advantages.tolist()  # type: ignore[no-any-return]


def tabled(step: Sequence[Group]) -> StepTable:
    """As in a training step, with values and a greedy return that depend on what is in the groups alone."""
    sequences = sequences_of(step)
    table = make_table(step, sequences, greedy=[0.25] * len(step))
    values = [np.cos(np.array(s.ids) + np.arange(len(s.ids))) for s in sequences]
    return table.with_tokens(value=on_tokens(sequences, values))


def estimate(config: AdvantageConfig, step: Sequence[Group]) -> list[list[float]]:
    """The advantages of every id of the step's sequences."""
    column = make_estimator(config)(tabled(step))[0].tokens.advantage
    assert column is not None
    return [a.tolist() for a in on_ids(sequences_of(step), column)]


def of_returns(*returns: float, group: int = 0) -> list[EpisodeView]:
    return [view(r, group=group) for r in returns]


def test_discounted_returns_by_hand() -> None:
    def discounted(*rewards: float, factor: float) -> list[float]:
        return accumulate_back(np.array(rewards), np.zeros(len(rewards), dtype=np.int64), factor).tolist()

    assert discounted(0.0, 0.0, 1.0, factor=0.95) == pytest.approx([0.9025, 0.95, 1.0])
    assert discounted(1.0, -2.0, 4.0, factor=0.5) == pytest.approx([1.0, 0.0, 4.0])
    assert discounted(1.0, -2.0, 4.0, factor=0.0) == pytest.approx([1.0, -2.0, 4.0])
    cut = accumulate_back(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 3, 3, 1]), 0.5)
    assert cut.tolist() == [1.0, 4.0, 4.0, 8.0]
    assert discounted(factor=0.5) == []


@pytest.mark.parametrize(("normalize", "size"), [("mean", 0.5), ("mean_std", 0.866024)])
def test_grpo_golden(normalize: str, size: float) -> None:
    result = run("grpo", of_returns(1, 0, 0, 1), normalize=normalize)
    assert result == pytest.approx([size, -size, -size, size], abs=1e-6)


def test_grpo_uses_the_undiscounted_return_on_every_turn() -> None:
    assert run("grpo", [A, B], normalize="mean") == pytest.approx([0.5] * 3 + [-0.5] * 3)


def test_grpo_groups_do_not_mix() -> None:
    episodes = [*of_returns(1, 0), *of_returns(30, 10, group=1)]
    interleaved = [episodes[i] for i in (0, 2, 1, 3)]
    assert run("grpo", interleaved, normalize="mean") == pytest.approx([0.5, 10, -0.5, -10])


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
@pytest.mark.parametrize("returns", [(5.0,), (0.1 + 0.2, 0.3, 0.3)], ids=["singleton", "equal but for rounding"])
def test_groups_without_spread_get_exactly_zero(name: str, returns: tuple[float, ...]) -> None:
    assert run(name, of_returns(*returns)) == [0.0] * len(returns)


def test_reinforce_golden() -> None:
    assert run("reinforce", [A, B], gamma=0.95) == pytest.approx([0.9025, 0.95, 1.0, 0.0, 0.0, 0.0])


STEP_MEAN = [0.45125, 0.633333, 0.0, -0.45125, -0.316667, -0.316667]
STEP_STD = [0.707106, 1.154698, 0.0, -0.707106, -0.577349, -0.577349]
SIGNS = np.array([1, 1, 1, -1, -1, -1])


@pytest.mark.parametrize(
    ("normalize", "across_steps", "episode", "step"),
    [
        ("mean", True, 0.5, STEP_MEAN),
        ("mean", False, 0.5, STEP_MEAN),
        ("mean_std", True, 0.912869, STEP_STD),
        ("mean_std", False, 0.707106, STEP_STD),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 1.0, 0.5])
def test_gigpo_golden(normalize: str, across_steps: bool, episode: float, step: list[float], weight: float) -> None:
    config = {"normalize": normalize, "step_weight": weight, "across_steps": across_steps}
    result = run("gigpo", [A, B], gamma=0.95, **config)
    assert result == pytest.approx((episode * SIGNS + weight * np.array(step)).tolist(), abs=2e-6)


def test_gigpo_steps_alone_golden() -> None:
    result = run("gigpo", [A, B], gamma=0.95, normalize="mean", episode_weight=0.0)
    assert result == pytest.approx((np.array(STEP_MEAN)).tolist(), abs=1e-6)
    half = run("gigpo", [A, B], gamma=0.95, normalize="mean", episode_weight=0.5)
    assert half == pytest.approx((0.25 * SIGNS + np.array(STEP_MEAN)).tolist(), abs=1e-6)


def test_gigpo_joint_golden() -> None:
    result = run("gigpo", [A, B], gamma=0.95, normalize="mean")
    assert result == pytest.approx([0.95125, 1.133333, 0.5, -0.95125, -0.816667, -0.816667], abs=1e-6)


def test_gigpo_across_steps_weighs_long_episodes_more() -> None:
    long = view(0.0, 0.0, 1.0, anchors=(None,) * 3)
    short = view(0.0, anchors=(None,))
    assert run("gigpo", [long, short], normalize="mean") == pytest.approx([0.5, 0.5, 0.5, -0.5])
    assert run("gigpo", [long, short], normalize="mean", across_steps=True) == pytest.approx([0.25, 0.25, 0.25, -0.75])


def test_gigpo_anchors_belong_to_their_group() -> None:
    other = replace(B, group=1)
    result = estimated("gigpo", [A, other], gamma=0.95, normalize="mean")
    assert result.advantages.tolist() == [0.0] * 6  # s0 and s1 of A stand alone, s1 of B twice with equal returns
    assert result.metrics == {
        "advantage/anchor_groups": 5.0,
        "advantage/anchor_size_mean": 6 / 5,
        "advantage/anchor_size_max": 2.0,
        "advantage/anchor_singleton_turns": 4 / 6,
    }


def test_gigpo_leaves_turns_without_a_sample_out_of_the_anchor_groups() -> None:
    aborted = view(9.0, 0.0, anchors=(None, "s0"))
    alone = estimated("gigpo", [replace(aborted, anchors=("s0", "s0"))]).metrics["advantage/anchor_size_max"]
    assert alone == 2
    assert estimated("gigpo", [aborted]).metrics["advantage/anchor_size_max"] == 1


def test_estimate_spreads_over_sampled_ids_only() -> None:
    episode = trajectory(turn((1,), (2, 3), reward=1.0), turn((1, 2, 3, 4), (5,), reward=2.0), turn((8,), (9,)))
    step = [group(episode)]
    config = AdvantageConfig(name="reinforce", gamma=0.5)
    assert estimate(config, step) == [[0, 2, 2, 0, 2], [0, 0]]
    column = make_estimator(config)(tabled(step))[0].tokens.advantage
    assert column is not None
    assert (column.shape, column.dtype) == ((4,), np.float64)


def test_estimate_clips() -> None:
    step = [group_of_returns(10, -10, 0)]
    assert [a[1] for a in estimate(AdvantageConfig(normalize="mean", clip=2.5), step)] == [2.5, -2.5, 0]


def test_estimate_counts_by_hand() -> None:
    failed = trajectory(turn(reward=50.0), member=1, kind="failed")
    step = [
        group_of_returns(1, 0),
        group_of_returns(2, 2),
        group(trajectory(turn(reward=3.0), member=0), failed),
        group(trajectory(member=0, kind="cancelled")),
    ]
    assert make_estimator(MEAN)(tabled(step))[1] == {
        "advantage/groups": 3.0,
        "advantage/groups_without_episodes": 1.0,
        "advantage/episodes_left_out": 2.0,
        "advantage/singleton_groups": 1 / 3,
        "advantage/zero_variance_groups": 1 / 3,
        "advantage/mean": 0.0,
        "advantage/abs_mean": 0.2,
        "advantage/max": 0.5,
        "advantage/min": -0.5,
    }


def test_groups_that_differ_in_token_rewards_alone_are_not_equal() -> None:
    step = [group_of_returns(1, 1)]
    table = tabled(step)
    assert make_estimator(MEAN)(table)[1]["advantage/zero_variance_groups"] == 1.0
    taxed, metrics = make_estimator(MEAN)(table.with_tokens(reward=np.array([0.0, -0.1])))
    assert metrics["advantage/zero_variance_groups"] == 0.0
    assert taxed.tokens.advantage == pytest.approx([0.05, -0.05])


def test_estimate_of_nothing() -> None:
    for name in ESTIMATORS.built_in():
        assert estimate(AdvantageConfig(name=name), []) == []


@settings(max_examples=20)  # each goes through every estimator
@given(st.lists(groups(), min_size=1, max_size=3), st.data())
def test_failed_episodes_change_no_advantage(step: list[Group], data: st.DataObject) -> None:
    injected = []
    for g in step:
        lost: list[Trajectory] = [
            data.draw(trajectories(kind=kind, member=100 + i)) for i, kind in enumerate(("failed", "cancelled"))
        ]
        order = data.draw(st.permutations([*g.trajectories, *lost]))
        injected.append(replace(g, trajectories=tuple(order)))
    for name in ESTIMATORS.built_in():
        settings = {"gamma": 0.9} if "gamma" in ESTIMATORS.find(name).settings.model_fields else {}
        config = AdvantageConfig(name=name, **settings)
        before: dict[tuple[int, int], list[list[float]]] = {(s.group, s.member): [] for s in sequences_of(step)}
        after: dict[tuple[int, int], list[list[float]]] = {key: [] for key in before}
        for result, source in ((before, step), (after, injected)):
            for s, a in zip(sequences_of(source), estimate(config, source), strict=True):
                result[s.group, s.member].append(a)
        assert before.keys() == after.keys()
        for key, expected in before.items():
            for a, b in zip(expected, after[key], strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9, err_msg=name)


@given(st.lists(groups(), min_size=1, max_size=3))
def test_group_advantages_are_zero_outside_the_mask_and_centred_inside_a_group(step: list[Group]) -> None:
    for s, a in zip(sequences_of(step), estimate(MEAN_STD, step), strict=True):
        assert len(a) == len(s.ids)
        assert not np.array(a)[~np.array(s.mask)].any()
    episodes = [view(t.total_reward, group=g) for g, grp in enumerate(step) for t in grp.trajectories]
    sums: dict[int, float] = {}
    for e, a in zip(episodes, run("grpo", episodes), strict=True):
        sums[e.group] = sums.get(e.group, 0.0) + a
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-6)


def test_rewards_that_are_not_finite_are_refused() -> None:
    step = [group(trajectory(turn(reward=float("nan"))))]
    with pytest.raises(ValueError, match=r"roll/Test-v0 .*not finite"):
        estimate(MEAN, step)


def test_two_episodes_in_one_place_are_refused() -> None:
    step = [group(trajectory(turn()), trajectory(turn()))]
    with pytest.raises(ValueError, match="same `member`"):
        estimate(MEAN, step)


def test_unknown_estimator_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'grpo'"):
        estimate(AdvantageConfig(name="grppo"), [])


def test_registered_estimators_are_found_and_names_are_not_taken_twice() -> None:
    ESTIMATORS.register("best", PASS_AT_K)
    try:
        ESTIMATORS.register("best", PASS_AT_K)
        assert estimate(AdvantageConfig(name="best"), [group_of_returns(1, 0)])[0][1] > 0
        with pytest.raises(ConfigError, match="'best' exists already"):
            ESTIMATORS.register("best", grpo)
    finally:
        ESTIMATORS.unregister("best")


@pytest.mark.parametrize("returned", [np.zeros(1), np.zeros((2, 1)), 0.0])
def test_an_estimator_that_returns_another_shape_is_refused(returned: Any) -> None:
    ESTIMATORS.register("short", lambda table, settings: Estimate(returned, {}))
    try:
        with pytest.raises(ValueError, match=r"'short' gave advantages of shape .* each of the 2 sampled tokens"):
            estimate(AdvantageConfig(name="short"), [group_of_returns(1, 0)])
    finally:
        ESTIMATORS.unregister("short")
