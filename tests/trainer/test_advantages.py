"""Estimators reproduce hand-worked numbers, and failures are in no statistic (promise 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from episode_builders import group, group_of_returns, groups, trajectories, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from trainer.algorithms.advantages import Advantages, view_episodes
from trainer.algorithms.advantages import estimate as estimate_views

from roll_envs.errors import UnknownNameError
from roll_envs.types import Group, Trajectory
from trainer.algorithms.estimators import (
    ESTIMATORS,
    EpisodeView,
    Estimate,
    EstimatorSpec,
    discounted,
    gigpo,
    grpo,
    pass_at_k,
    register_estimator,
    reinforce,
)
from trainer.config import AdvantageConfig
from trainer.data.sequences import TokenSequence, rows_of

MEAN = AdvantageConfig(normalize="mean")
MEAN_STD = AdvantageConfig(normalize="mean_std")


def view(*rewards: float, anchors: Sequence[str | None], group: int = 0) -> EpisodeView:
    """An episode with one token per turn."""
    return EpisodeView(group=group, rewards=np.array(rewards), lengths=(1,) * len(rewards), anchors=tuple(anchors))


A = view(0.0, 0.0, 1.0, anchors=("s0", "s1", "s2"))
B = view(0.0, 0.0, 0.0, anchors=("s0", "s1", "s1"))


def estimate(config: AdvantageConfig, step: Sequence[Group], rows: Sequence[TokenSequence]) -> Advantages:
    """As in a training step, with values and a greedy return that depend on what is in the rows and groups alone."""
    episodes = view_episodes(step, rows)
    values = episodes.gather(rows, [np.cos(np.array(row.ids) + np.arange(len(row.ids))) for row in rows])
    views = [replace(e, values=v, greedy_return=0.25) for e, v in zip(episodes.views, values, strict=True)]
    return estimate_views(config, episodes.with_views(views), rows)


def of_returns(*returns: float, group: int = 0) -> list[EpisodeView]:
    return [view(r, anchors=("s",), group=group) for r in returns]


def flat(advantages: list[np.ndarray]) -> list[float]:
    return np.concatenate(advantages).tolist()


def test_discounted_returns_by_hand() -> None:
    assert discounted((0.0, 0.0, 1.0), 0.95) == pytest.approx([0.9025, 0.95, 1.0])
    assert discounted((1.0, -2.0, 4.0), 0.5) == pytest.approx([1.0, 0.0, 4.0])
    assert discounted((1.0, -2.0, 4.0), 0.0) == pytest.approx([1.0, -2.0, 4.0])


@pytest.mark.parametrize(("config", "size"), [(MEAN, 0.5), (MEAN_STD, 0.866024)])
def test_grpo_golden(config: AdvantageConfig, size: float) -> None:
    result = flat(grpo(of_returns(1, 0, 0, 1), config).advantages)
    assert result == pytest.approx([size, -size, -size, size], abs=1e-6)


def test_grpo_uses_the_undiscounted_return_on_every_turn() -> None:
    config = AdvantageConfig(name="gigpo", normalize="mean", gamma=0.5)  # whose gamma grpo does not read
    assert flat(grpo([A, B], config).advantages) == pytest.approx([0.5] * 3 + [-0.5] * 3)


def test_grpo_groups_do_not_mix() -> None:
    episodes = [*of_returns(1, 0), *of_returns(30, 10, group=1)]
    interleaved = [episodes[i] for i in (0, 2, 1, 3)]
    assert flat(grpo(interleaved, MEAN).advantages) == pytest.approx([0.5, 10, -0.5, -10])


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
@pytest.mark.parametrize("returns", [(5.0,), (0.1 + 0.2, 0.3, 0.3)], ids=["singleton", "equal but for rounding"])
def test_groups_without_spread_get_exactly_zero(name: str, returns: tuple[float, ...]) -> None:
    assert flat(ESTIMATORS[name].estimate(of_returns(*returns), MEAN_STD).advantages) == [0.0] * len(returns)


def test_reinforce_golden() -> None:
    result = reinforce([A, B], AdvantageConfig(name="reinforce", gamma=0.95)).advantages
    assert flat(result) == pytest.approx([0.9025, 0.95, 1.0, 0.0, 0.0, 0.0])


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
    config = AdvantageConfig(
        name="gigpo",
        gamma=0.95,
        normalize=normalize,
        step_weight=weight,
        across_steps=across_steps,  # type: ignore[arg-type]
    )
    result = flat(gigpo([A, B], config).advantages)
    assert result == pytest.approx((episode * SIGNS + weight * np.array(step)).tolist(), abs=2e-6)


def test_gigpo_joint_golden() -> None:
    result = flat(gigpo([A, B], AdvantageConfig(name="gigpo", gamma=0.95, normalize="mean")).advantages)
    assert result == pytest.approx([0.95125, 1.133333, 0.5, -0.95125, -0.816667, -0.816667], abs=1e-6)


def test_gigpo_across_steps_weighs_long_episodes_more() -> None:
    long = view(0.0, 0.0, 1.0, anchors=(None,) * 3)
    short = view(0.0, anchors=(None,))
    assert flat(gigpo([long, short], MEAN).advantages) == pytest.approx([0.5, 0.5, 0.5, -0.5])
    across = gigpo([long, short], AdvantageConfig(name="gigpo", normalize="mean", across_steps=True)).advantages
    assert flat(across) == pytest.approx([0.25, 0.25, 0.25, -0.75])


def test_gigpo_anchors_belong_to_their_group() -> None:
    other = replace(B, group=1)
    result = gigpo([A, other], AdvantageConfig(name="gigpo", gamma=0.95, normalize="mean"))
    assert flat(result.advantages) == [0.0] * 6  # s0 and s1 of A stand alone, s1 of B twice with equal returns
    assert result.metrics == {
        "advantage/anchor_groups": 5.0,
        "advantage/anchor_size_mean": 6 / 5,
        "advantage/anchor_size_max": 2.0,
        "advantage/anchor_singleton_turns": 4 / 6,
    }


def test_gigpo_leaves_turns_without_a_sample_out_of_the_anchor_groups() -> None:
    aborted = view(9.0, 0.0, anchors=(None, "s0"))
    alone = gigpo([replace(aborted, anchors=("s0", "s0"))], MEAN).metrics["advantage/anchor_size_max"]
    assert alone == 2
    assert gigpo([aborted], MEAN).metrics["advantage/anchor_size_max"] == 1


def test_estimate_spreads_over_sampled_ids_only() -> None:
    episode = trajectory(turn((1,), (2, 3), reward=1.0), turn((1, 2, 3, 4), (5,), reward=2.0), turn((8,), (9,)))
    step = [group(episode)]
    result = estimate(AdvantageConfig(name="reinforce", gamma=0.5), step, rows_of(step))
    assert [a.tolist() for a in result.per_row] == [[0, 2, 2, 0, 2], [0, 0]]
    assert all(a.dtype == np.float64 for a in result.per_row)


def test_estimate_clips() -> None:
    step = [group_of_returns(10, -10, 0)]
    config = AdvantageConfig(normalize="mean", clip=2.5)
    result = estimate(config, step, rows_of(step))
    assert [a[1] for a in result.per_row] == [2.5, -2.5, 0]


def test_estimate_counts_by_hand() -> None:
    failed = trajectory(turn(reward=50.0), member=1, kind="failed")
    step = [
        group_of_returns(1, 0),
        group_of_returns(2, 2),
        group(trajectory(turn(reward=3.0), member=0), failed),
        group(trajectory(member=0, kind="cancelled")),
    ]
    assert estimate(MEAN, step, rows_of(step)).metrics == {
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
    rows = rows_of(step)
    episodes = view_episodes(step, rows)
    assert estimate_views(MEAN, episodes, rows).metrics["advantage/zero_variance_groups"] == 1.0
    taxed = [replace(v, token_rewards=np.array([-0.1 * i])) for i, v in enumerate(episodes.views)]
    found = estimate_views(MEAN, episodes.with_views(taxed), rows)
    assert found.metrics["advantage/zero_variance_groups"] == 0.0
    assert [a[1] for a in found.per_row] == pytest.approx([0.05, -0.05])


def test_estimate_of_nothing() -> None:
    assert estimate(MEAN, [], []).per_row == []


@given(st.lists(groups(), min_size=1, max_size=3), st.data())
def test_failed_episodes_change_no_advantage(step: list[Group], data: st.DataObject) -> None:
    injected = []
    for g in step:
        lost: list[Trajectory] = [
            data.draw(trajectories(kind=kind, member=100 + i)) for i, kind in enumerate(("failed", "cancelled"))
        ]
        order = data.draw(st.permutations([*g.trajectories, *lost]))
        injected.append(replace(g, trajectories=tuple(order)))
    for name in ESTIMATORS:
        config = AdvantageConfig(name=name, **{"gamma": 0.9} if "gamma" in (ESTIMATORS[name].keys or ()) else {})
        before = {(r.group, r.member): [] for r in rows_of(step)}
        after = {key: [] for key in before}
        for result, source in ((before, step), (after, injected)):
            rows = rows_of(source)
            for r, a in zip(rows, estimate(config, source, rows).per_row, strict=True):
                result[r.group, r.member].append(a)
        assert before.keys() == after.keys()
        for key, expected in before.items():
            for a, b in zip(expected, after[key], strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9, err_msg=name)


@given(st.lists(groups(), min_size=1, max_size=3))
def test_group_advantages_are_zero_outside_the_mask_and_centred_inside_a_group(step: list[Group]) -> None:
    rows = rows_of(step)
    for r, a in zip(rows, estimate(MEAN_STD, step, rows).per_row, strict=True):
        assert len(a) == len(r.ids)
        assert not a[~np.array(r.mask)].any()
    episodes = [view(t.total_reward, anchors=("s",), group=g) for g, grp in enumerate(step) for t in grp.trajectories]
    sums: dict[int, float] = {}
    for e, a in zip(episodes, grpo(episodes, MEAN_STD).advantages, strict=True):
        sums[e.group] = sums.get(e.group, 0.0) + float(a[0])
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-6)


def test_rewards_that_are_not_finite_are_refused() -> None:
    step = [group(trajectory(turn(reward=float("nan"))))]
    with pytest.raises(ValueError, match=r"roll/Test-v0 .*not finite"):
        estimate(MEAN, step, rows_of(step))


def test_two_episodes_in_one_place_are_refused() -> None:
    step = [group(trajectory(turn()), trajectory(turn()))]
    with pytest.raises(ValueError, match="same `member`"):
        estimate(MEAN, step, rows_of(step))


def test_unknown_estimator_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'grpo'"):
        estimate(AdvantageConfig(name="grppo"), [], [])


def test_registered_estimators_are_found_and_names_are_not_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.algorithms.estimators.ESTIMATORS", dict(ESTIMATORS))
    register_estimator("best", pass_at_k, needs_group=True)
    register_estimator("best", pass_at_k, needs_group=True)
    step = [group_of_returns(1, 0)]
    assert estimate(AdvantageConfig(name="best"), step, rows_of(step)).per_row[0][1] > 0
    with pytest.raises(ValueError, match="already registered"):
        register_estimator("best", grpo)


def test_an_estimator_that_returns_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "short", EstimatorSpec(estimate=lambda episodes, config: Estimate([], {})))
    step = [group_of_returns(1, 0)]
    with pytest.raises(ValueError, match="'short' must give each episode one advantage per sampled token"):
        estimate(AdvantageConfig(name="short"), step, rows_of(step))
