"""Filters of groups, with hand-worked numbers; failures decide nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from episode_builders import group, groups, trajectories, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.types import Group
from trainer.algorithms.shaping import keep_groups
from trainer.config import FilterConfig


def played(*returns: float, solved: int = 0, lost: int = 0) -> Group:
    """A group with these returns, the first ``solved`` of which are successes, and ``lost`` failures beside them."""
    members = [trajectory(turn(reward=r, info={"success": i < solved}), member=i) for i, r in enumerate(returns)]
    failures = [
        trajectory(turn(reward=99.0, info={"success": True}), member=len(members) + i, kind="failed")
        for i in range(lost)
    ]
    return group(*members, *failures)


def kept(groups: list[Group], **config: Any) -> list[int]:
    """Indices of the groups that pass."""
    found, _ = keep_groups(FilterConfig(**config), groups)
    assert [g for g in groups if any(g is f for f in found)] == found
    return [i for i, g in enumerate(groups) if any(g is f for f in found)]


def test_without_a_filter_all_pass_and_nothing_is_counted() -> None:
    step = [played(1, 1), played(), played(0, lost=1)]
    assert keep_groups(FilterConfig(), step) == (step, {})


def test_groups_of_equal_returns_and_of_less_than_two_episodes_are_left_out() -> None:
    step = [
        played(1, 0),
        played(1, 1),
        played(0.1 + 0.2, 0.3),
        played(1, lost=3),
        played(),
        played(lost=2),
        played(2, 3),
    ]
    assert kept(step, zero_variance=True) == [0, 6]
    assert keep_groups(FilterConfig(zero_variance=True), step)[1] == {
        "filter/groups": 7.0,
        "filter/zero_variance": 5.0,
        "filter/kept": 2.0,
    }


def test_episodes_that_ended_before_their_first_turn_are_no_episodes() -> None:
    step = [group(trajectory(turn(reward=1.0), member=0), trajectory(member=1))]
    assert kept(step, zero_variance=True) == []


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, [0, 1, 2, 3, 4]), (0.25, 1.0, [1, 2, 3]), (0.0, 0.75, [0, 1, 2]), (0.3, 0.6, [2]), (0.5, 0.5, [2])],
)
def test_the_window_of_successes_includes_its_ends(low: float, high: float, expected: list[int]) -> None:
    four = (0.0,) * 4
    step = [*(played(*four, solved=n, lost=1) for n in (0, 1, 2, 4)), played(lost=1)]
    assert kept(step, success_low=low, success_high=high) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.1, [2]), (0.25, [2]), (0.5, [1, 2]), (0.74, [1, 2]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])],
)
def test_the_top_share_is_that_with_the_most_spread(share: float, expected: list[int]) -> None:
    step = [played(1, 1), played(0, 0, 0, 1), played(1, 0), played(0, 1, 0, 0)]  # deviations 0, 0.5, 0.707, 0.5
    assert kept(step, top_share=share) == expected


def test_a_share_that_is_a_whole_number_but_for_rounding_is_that_number() -> None:
    step = [played(0, i) for i in range(100)]
    assert len(kept(step, top_share=0.29)) == 29  # 0.29 * 100 is 28.999999999999996


def test_the_top_share_is_taken_of_what_the_others_left() -> None:
    step = [played(1, 1), played(3, 0, solved=1), played(9, 0), played(2, 0, solved=1), played(1, 0, solved=1)]
    config = FilterConfig(zero_variance=True, success_low=0.5, top_share=0.7)
    found, metrics = keep_groups(config, step)
    assert found == [step[1], step[3]]
    assert metrics == {
        "filter/groups": 5.0,
        "filter/zero_variance": 1.0,
        "filter/success_window": 1.0,
        "filter/top_share": 1.0,
        "filter/kept": 2.0,
    }


def test_nothing_of_nothing() -> None:
    for config in ({"zero_variance": True}, {"top_share": 0.5}, {"success_low": 0.5}):
        assert kept([], **config) == []


def test_returns_that_are_not_finite_are_not_filtered_away_unseen() -> None:
    step = [played(0, 5), played(0, float("nan"))]
    assert kept(step, top_share=0.5) == [1]
    assert kept(step, zero_variance=True) == [0, 1]


CONFIGS: list[dict[str, Any]] = [{"zero_variance": True}, {"success_low": 0.2, "success_high": 0.8}, {"top_share": 0.5}]


@given(st.lists(groups(), max_size=5), st.data())
def test_failed_episodes_decide_nothing(step: list[Group], data: st.DataObject) -> None:
    with_failures = [
        replace(g, trajectories=(*g.trajectories, data.draw(trajectories(kind="failed", member=50)))) for g in step
    ]
    for config in CONFIGS:
        assert kept(with_failures, **config) == kept(step, **config)


@given(st.lists(groups(), max_size=5), st.data())
def test_each_group_stands_for_itself(step: list[Group], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(step))))
    for config in CONFIGS[:2]:
        passed = set(kept(step, **config))
        assert [order[i] for i in kept([step[i] for i in order], **config)] == [i for i in order if i in passed]
