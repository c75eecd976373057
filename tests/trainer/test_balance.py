"""Sequences dealt over ranks: nothing is lost, and nobody waits for long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.errors import ConfigError
from trainer.data.batches import balance, cost


def imbalance(lengths: list[int], shares: list[list[int]], *, quadratic: float | None = None) -> float:
    """Load of the busiest rank over the mean load: 1 is even, 1.25 makes every rank wait a fifth of the time."""
    given = {} if quadratic is None else {"quadratic": quadratic}
    loads = [sum(cost(lengths[i], **given) for i in share) for share in shares]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


def test_by_hand() -> None:
    assert balance([8, 7, 6, 5, 4], 2, quadratic=0) == [[0, 2], [1, 3, 4]]  # 14 and 16; largest first: 17 and 13
    assert balance([8, 7, 6, 5, 4], 3, quadratic=0) == [[0], [1, 4], [2, 3]]  # 8, 11, 11
    assert balance([10, 1, 1], 2, quadratic=0) == [[0], [1, 2]]
    assert balance([5], 3, quadratic=0) == [[0], [], []]
    assert balance([], 2) == [[], []]
    assert balance([3, 9, 1], 1) == [[0, 1, 2]]


def test_long_sequences_cost_more_than_their_tokens() -> None:
    """100 costs 100 + 100 with 0.01, as much as two of 50 (75 each) and more: it is left alone."""
    assert cost(100, 0.01) == pytest.approx(200.0)
    assert cost(50, 0.01) == pytest.approx(75.0)
    assert balance([100, 50, 50, 50], 2, quadratic=0.01) == [[0], [1, 2, 3]]
    assert balance([100, 50, 50, 50], 2, quadratic=0) == [[0, 2], [1, 3]]


def test_imbalance_by_hand() -> None:
    assert imbalance([8, 7, 6, 5, 4], [[0, 2], [1, 3, 4]], quadratic=0) == pytest.approx(16 / 15)
    assert imbalance([4], [[0], []], quadratic=0) == 2.0
    assert imbalance([], [[], []]) == 1.0


@given(st.lists(st.integers(1, 2000), max_size=60), st.integers(1, 9), st.sampled_from([0.0, 1e-4, 1e-2]))
def test_every_sequence_once_and_loads_within_one_sequence(lengths: list[int], ranks: int, quadratic: float) -> None:
    parts = balance(lengths, ranks, quadratic=quadratic)
    assert len(parts) == ranks
    assert sorted(i for sequences in parts for i in sequences) == list(range(len(lengths)))
    assert all(sequences == sorted(sequences) for sequences in parts)
    costs = [cost(n, quadratic) for n in lengths]
    loads = [sum(costs[i] for i in sequences) for sequences in parts]
    assert max(loads) - min(loads) <= max(costs, default=0.0) * (1 + 1e-9)
    assert parts == balance(lengths, ranks, quadratic=quadratic)


def test_episodes_on_sixteen_ranks_are_within_a_thousandth() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 1024).clip(20, 1500).astype(int).tolist()
    assert imbalance(lengths, balance(lengths, 16)) < 1.001
    in_order = [list(range(i, 1024, 16)) for i in range(16)]
    assert imbalance(lengths, in_order) > 1.1


def test_no_ranks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="0 ranks; allowed: 1 or more"):
        balance([1], 0)
