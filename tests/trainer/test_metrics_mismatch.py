"""How far sampler and learner are apart, by token, turn and sequence; how old sequences are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from episode_builders import on_tokens, row
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.metrics import mismatch_metrics, staleness_metrics, token_mismatch_metrics
from trainer.data.table import TokenSequence, tokens_of


def mismatch(sequences: Sequence[TokenSequence], learner: Sequence[np.ndarray]) -> dict[str, float]:
    """Of the predicted tokens; the learner's numbers as one array per sequence, aligned with its ids."""
    tokens = tokens_of(sequences)
    return token_mismatch_metrics(tokens, on_tokens(sequences, learner), tokens.learnt)


def two_turns(*diffs: float) -> tuple[TokenSequence, np.ndarray]:
    """A sequence whose first turn has two sampled ids and whose second has one; sampler minus learner is ``diffs``."""
    made = replace(row((5, 1, 2, 6, 3), (0, 1, 1, 0, 1)), turns=(-1, 0, 0, -1, 1))
    sampler = np.array(made.logprobs)
    sampler[[1, 2, 4]] = -1.0
    learner = sampler.copy()
    learner[[1, 2, 4]] -= diffs
    return replace(made, logprobs=tuple(sampler)), learner


def test_turns_and_sequences_by_hand() -> None:
    one, learner = two_turns(0.3, 0.0, 0.3)
    metrics = mismatch([one], [learner])
    k3 = math.exp(-0.3) - 1 + 0.3
    assert {
        name: value for name, value in metrics.items() if "/turn_" in name or "/sequence_" in name
    } == pytest.approx(
        {
            "mismatch/turn_kl": k3,
            "mismatch/turn_ratio_min": math.exp(-0.3),
            "mismatch/turn_ratio_max": math.exp(-0.15),
            "mismatch/turn_ratio_p01": math.exp(-0.3) + 0.01 * (math.exp(-0.15) - math.exp(-0.3)),
            "mismatch/turn_ratio_p50": (math.exp(-0.3) + math.exp(-0.15)) / 2,
            "mismatch/turn_ratio_p99": math.exp(-0.15) - 0.01 * (math.exp(-0.15) - math.exp(-0.3)),
            "mismatch/turn_effective_sample_share": 1.0,
            "mismatch/sequence_kl": 2 * k3,
            "mismatch/sequence_ratio_min": math.exp(-0.2),
            "mismatch/sequence_ratio_max": math.exp(-0.2),
            "mismatch/sequence_ratio_p01": math.exp(-0.2),
            "mismatch/sequence_ratio_p50": math.exp(-0.2),
            "mismatch/sequence_ratio_p99": math.exp(-0.2),
            "mismatch/sequence_effective_sample_share": 1.0,
        }
    )


def test_the_share_of_samples_is_of_products() -> None:
    near, far = two_turns(0.0, 0.0, 0.0), two_turns(-0.5, -0.2, 0.0)
    metrics = mismatch([near[0], far[0]], [near[1], far[1]])
    w = math.exp(0.7)
    assert metrics["mismatch/sequence_effective_sample_share"] == pytest.approx((1 + w) ** 2 / (2 * (1 + w * w)))
    assert metrics["mismatch/turn_effective_sample_share"] == pytest.approx((3 + w) ** 2 / (4 * (3 + w * w)))


def test_turns_of_the_same_number_in_two_sequences_are_two() -> None:
    near, far = two_turns(0.0, 0.0, 0.0), two_turns(0.4, 0.0, 0.0)
    metrics = mismatch([near[0], far[0]], [near[1], far[1]])
    assert metrics["mismatch/turn_ratio_min"] == pytest.approx(math.exp(-0.2))
    assert metrics["mismatch/turn_ratio_max"] == 1.0
    assert metrics["mismatch/turn_kl"] == pytest.approx((math.exp(-0.4) - 0.6) / 4)


def test_products_of_long_sequences_stay_finite() -> None:
    for diff in (3.0, -3.0):
        made = row(range(1002), (0, *[1] * 1001))
        learner = np.array(made.logprobs) - diff
        metrics = mismatch([made, made], [learner, np.array(made.logprobs)])
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["mismatch/sequence_effective_sample_share"] == pytest.approx(0.5)


def test_nothing_sampled_gives_no_number() -> None:
    assert mismatch([row((1, 2), (1, 0))], [np.zeros(2)]) == {}
    assert mismatch([], []) == {}


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_tokens_are_as_before(diffs: list[float]) -> None:
    one, learner = two_turns(*diffs)
    metrics = mismatch([one], [learner])
    plain = mismatch_metrics(np.full(3, -1.0), -1.0 - np.array(diffs))
    assert {name: metrics[name] for name in plain} == pytest.approx(plain)
    assert metrics["mismatch/sequence_kl"] == pytest.approx(3 * metrics["mismatch/kl"], abs=1e-12)
    assert metrics["mismatch/turn_kl"] == pytest.approx(1.5 * metrics["mismatch/kl"], abs=1e-12)


def test_staleness_of_sequences_by_hand() -> None:
    mixed = replace(row((1, 2, 3, 4), (0, 1, 1, 1)), versions=(-1, 2, 4, 4))
    metrics = staleness_metrics(tokens_of([mixed, row((1, 2), (0, 1), version=5)]), version=5)
    assert metrics == pytest.approx(
        {
            "staleness/lag_mean": 5 / 4,
            "staleness/lag_max": 3.0,
            "staleness/sequence_lag_mean": 1.5,
            "staleness/mixed_sequences": 0.5,
            "staleness/sequence_span_max": 2.0,
        }
    )
