"""Step-wise estimators: anchor states by identity and likeness, histories, by hand. (GiGPO's own numbers are in
``test_advantages``.)"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_builders import EpisodeView, estimated, table_of, view

from trainer.algorithms.estimators.group_relative import alike, anchor_states

A = view(0.0, 0.0, 1.0, anchors=("s0", "s1", "s2"))
B = view(0.0, 0.0, 0.0, anchors=("s0", "s1", "s1"))


def of_histories(episodes: list[EpisodeView], **config: Any) -> list[float]:
    settings = {"gamma": 0.95, "history": 1, "normalize": "mean", **config}
    return estimated("hgpo", episodes, **settings).advantages.tolist()  # type: ignore[no-any-return]


# -- HGPO --------------------------------------------------------------------------------------------------------------


def test_hgpo_golden() -> None:
    assert of_histories([A, B]) == pytest.approx([0.45125, 0.538333, 0.0, -0.45125, -0.411667, -0.316667], abs=1e-6)


def test_hgpo_divides_by_the_deviation_of_the_whole_cluster() -> None:
    # s1: returns 0.95, 0, 0 with mean 0.316667 and deviation (ddof=0) 0.447834; two others are +-1
    second = (2 * 1.414214 + 3 * 1.0) / 5
    expected = [1.0, second, 0.0, -1.0, (-2 * 0.707107 - 3) / 5, -0.707107]
    assert of_histories([A, B], normalize="mean_std") == pytest.approx(expected, abs=1e-5)


def test_hgpo_weighs_histories_by_a_power_of_their_length() -> None:
    even = of_histories([A, B], history_power=0.0)
    assert even[1] == pytest.approx((0.633333 + 0.475) / 2, abs=1e-6)
    steep = of_histories([A, B], history_power=2.0)
    assert steep[1] == pytest.approx((4 * 0.633333 + 9 * 0.475) / 13, abs=1e-6)


def test_hgpo_with_the_episode_as_the_widest_group() -> None:
    expected = [
        (0.5 + 2 * 0.45125) / 3,
        (0.5 + 2 * 0.633333 + 3 * 0.475) / 6,
        0.5,
        (-0.5 - 2 * 0.45125) / 3,
        (-0.5 - 2 * 0.316667 - 3 * 0.475) / 6,
        (-0.5 - 2 * 0.316667) / 3,
    ]
    assert of_histories([A, B], base_weight=1.0) == pytest.approx(expected, abs=1e-6)


def test_hgpo_looks_back_as_far_as_it_is_told() -> None:
    first = view(0.0, 0.0, 4.0, anchors=("a", "b", "c"))
    second = view(0.0, 0.0, 2.0, anchors=("a", "b", "c"))
    third = view(0.0, 0.0, 0.0, anchors=("z", "b", "c"))
    # k = 1: c has 4, 2, 0; k = 2: (b, c) the same; k = 3: (a, b, c) has 4, 2
    last = {1: 2.0, 2: (2 * 2 + 3 * 2 + 4 * 1) / 9}
    for history, expected in last.items():
        assert of_histories([first, second, third], gamma=1.0, history=history)[2] == pytest.approx(expected)


def test_hgpo_a_turn_in_the_middle_of_its_cluster_counts_as_it_is() -> None:
    first, second = (view(0.0, r, anchors=("p", "s")) for r in (1.0, 0.0))
    third = view(0.0, 2.0, anchors=("q", "s"))
    # s: returns 1, 0, 2, so that the first is at the mean; (p, s): 1, 0
    assert of_histories([first, second, third], gamma=1.0)[1] == pytest.approx((2 * 0.0 + 3 * 0.5) / 5)


def test_hgpo_clusters_belong_to_their_group_and_skip_turns_without_a_sample() -> None:
    other = view(0.0, 0.0, 0.0, anchors=("s0", "s1", "s1"), group=1)
    assert of_histories([A, other]) == [0.0] * 6
    gap = view(0.0, 0.0, 1.0, anchors=("s0", None, "s1"), lengths=(1, 0, 1))
    whole = view(0.0, 0.0, anchors=("s0", "s1"))
    assert of_histories([gap, whole], gamma=1.0) == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_hgpo_counts_states() -> None:
    assert estimated("hgpo", [A, B]).metrics == estimated("gigpo", [A, B]).metrics


# -- states ------------------------------------------------------------------------------------------------------------


def sizes(episodes: list[EpisodeView], similarity: float = 1.0) -> list[int]:
    states = anchor_states(table_of(episodes), similarity)
    return sorted(np.bincount(states[states >= 0]).tolist())


def test_states_by_likeness() -> None:
    twenty = view(0.0, 0.0, 0.0, anchors=("x" * 19 + "a", "x" * 19 + "b", "y" * 20))
    assert sizes([twenty]) == [1, 1, 1]
    assert sizes([twenty], 0.95) == [1, 2]
    assert sizes([twenty], 0.96) == [1, 1, 1]


def test_states_of_two_groups_are_never_one() -> None:
    episodes = [view(0.0, anchors=("state",), group=g) for g in (0, 1)]
    assert sizes(episodes) == [1, 1]
    assert sizes(episodes, 0.1) == [1, 1]


def test_alike_states_are_compared() -> None:
    episodes = [view(r, anchors=("x" * 19 + c,)) for r, c in ((1.0, "a"), (0.0, "b"))]
    config: dict[str, Any] = {"normalize": "mean", "step_weight": 10.0}
    assert estimated("gigpo", episodes, **config).advantages.tolist() == [0.5, -0.5]
    near = estimated("gigpo", episodes, similarity=0.9, **config)
    assert near.advantages.tolist() == [5.5, -5.5]
    assert near.metrics["advantage/anchor_size_max"] == 2.0


def test_the_most_frequent_state_leads() -> None:
    left, middle, right = "aaaa" + "x" * 16, "aaab" + "x" * 16, "aabb" + "x" * 16  # neighbours 0.95, the ends 0.9
    episodes = [view(0.0, anchors=(s,)) for s in (left, middle, middle, right)]
    assert sizes(episodes, 0.95) == [4]
    episodes = [view(0.0, anchors=(s,)) for s in (left, left, middle, right)]
    assert sizes(episodes, 0.95) == [1, 3]


def test_a_grid_that_differs_in_one_symbol_is_alike() -> None:
    grid = "#_#P__X_" * 40
    near = grid[:100] + "O" + grid[101:]
    assert SequenceMatcher(None, grid, near, autojunk=False).ratio() < 0.9  # its longest block is a shifted one
    assert alike(grid, near, 319 / 320)
    assert not alike(grid, near, 1.0)
    assert not alike(grid, "#" * 320, 0.5)


TEXTS = st.text("ab#", max_size=12)


def _common(first: str, second: str) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    lengths = [0] * (len(second) + 1)
    for a in first:
        corner = 0
        for k, b in enumerate(second, 1):
            corner, lengths[k] = lengths[k], corner + 1 if a == b else max(lengths[k], lengths[k - 1])
    return lengths[-1]


@given(TEXTS, TEXTS, st.integers(1, 20))
def test_likeness_is_the_share_that_is_common_in_order(first: str, second: str, twentieths: int) -> None:
    both = len(first) + len(second)
    expected = 40 * _common(first, second) >= twentieths * both
    assert alike(first, second, twentieths / 20) == alike(second, first, twentieths / 20) == expected
    if SequenceMatcher(None, first, second, autojunk=False).ratio() >= twentieths / 20 + 1e-9:
        assert expected


@given(st.lists(st.lists(TEXTS | st.none(), min_size=1, max_size=4), max_size=5), st.data())
def test_every_sampled_turn_is_in_one_state_whatever_the_order(
    drawn: list[list[str | None]], data: st.DataObject
) -> None:
    episodes = [view(*[0.0] * len(anchors), anchors=anchors) for anchors in drawn]
    order = data.draw(st.permutations(range(len(episodes))))
    for similarity in (1.0, 0.8):
        straight, mixed = (_places(some, similarity) for some in (episodes, [episodes[i] for i in order]))
        assert sorted(place for state in straight for place in state) == [
            (i, t) for i, e in enumerate(episodes) for t, a in enumerate(e.anchors) if a is not None
        ]
        assert {frozenset((order[i], t) for i, t in state) for state in mixed} == {frozenset(s) for s in straight}


def _places(episodes: list[EpisodeView], similarity: float) -> list[list[tuple[int, int]]]:
    """Episode and turn of the members of each state."""
    found: dict[int, list[tuple[int, int]]] = {}
    turns = [(i, t) for i, e in enumerate(episodes) for t in range(len(e.lengths))]
    for place, state in zip(turns, anchor_states(table_of(episodes), similarity).tolist(), strict=True):
        if state >= 0:
            found.setdefault(state, []).append(place)
    return list(found.values())
