"""How far sampler and learner are apart, by token, turn and row; how old rows are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from episode_builders import row
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.metrics import mismatch_metrics, row_mismatch_metrics, staleness_metrics
from trainer.data.sequences import TokenSequence


def two_turns(*diffs: float) -> tuple[TokenSequence, np.ndarray]:
    """A row whose first turn has two sampled ids and whose second has one; sampler minus learner is ``diffs``."""
    made = replace(row((5, 1, 2, 6, 3), (0, 1, 1, 0, 1)), turns=(-1, 0, 0, -1, 1))
    sampler = np.array(made.logprobs)
    sampler[[1, 2, 4]] = -1.0
    learner = sampler.copy()
    learner[[1, 2, 4]] -= diffs
    return replace(made, logprobs=tuple(sampler)), learner


def test_turns_and_rows_by_hand() -> None:
    one, learner = two_turns(0.3, 0.0, 0.3)
    metrics = row_mismatch_metrics([one], [learner])
    k3 = math.exp(-0.3) - 1 + 0.3
    assert {name: value for name, value in metrics.items() if "/turn_" in name or "/row_" in name} == pytest.approx(
        {
            "mismatch/turn_kl": k3,
            "mismatch/turn_ratio_min": math.exp(-0.3),
            "mismatch/turn_ratio_max": math.exp(-0.15),
            "mismatch/turn_ratio_p01": math.exp(-0.3) + 0.01 * (math.exp(-0.15) - math.exp(-0.3)),
            "mismatch/turn_ratio_p50": (math.exp(-0.3) + math.exp(-0.15)) / 2,
            "mismatch/turn_ratio_p99": math.exp(-0.15) - 0.01 * (math.exp(-0.15) - math.exp(-0.3)),
            "mismatch/turn_effective_sample_share": 1.0,
            "mismatch/row_kl": 2 * k3,
            "mismatch/row_ratio_min": math.exp(-0.2),
            "mismatch/row_ratio_max": math.exp(-0.2),
            "mismatch/row_ratio_p01": math.exp(-0.2),
            "mismatch/row_ratio_p50": math.exp(-0.2),
            "mismatch/row_ratio_p99": math.exp(-0.2),
            "mismatch/row_effective_sample_share": 1.0,
        }
    )


def test_the_share_of_samples_is_of_products() -> None:
    near, far = two_turns(0.0, 0.0, 0.0), two_turns(-0.5, -0.2, 0.0)
    metrics = row_mismatch_metrics([near[0], far[0]], [near[1], far[1]])
    w = math.exp(0.7)
    assert metrics["mismatch/row_effective_sample_share"] == pytest.approx((1 + w) ** 2 / (2 * (1 + w * w)))
    assert metrics["mismatch/turn_effective_sample_share"] == pytest.approx((3 + w) ** 2 / (4 * (3 + w * w)))


def test_turns_of_the_same_number_in_two_rows_are_two() -> None:
    near, far = two_turns(0.0, 0.0, 0.0), two_turns(0.4, 0.0, 0.0)
    metrics = row_mismatch_metrics([near[0], far[0]], [near[1], far[1]])
    assert metrics["mismatch/turn_ratio_min"] == pytest.approx(math.exp(-0.2))
    assert metrics["mismatch/turn_ratio_max"] == 1.0
    assert metrics["mismatch/turn_kl"] == pytest.approx((math.exp(-0.4) - 0.6) / 4)


def test_products_of_long_rows_stay_finite() -> None:
    for diff in (3.0, -3.0):
        made = row(range(1002), (0, *[1] * 1001))
        learner = np.array(made.logprobs) - diff
        metrics = row_mismatch_metrics([made, made], [learner, np.array(made.logprobs)])
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["mismatch/row_effective_sample_share"] == pytest.approx(0.5)


def test_nothing_sampled_gives_no_number() -> None:
    assert row_mismatch_metrics([row((1, 2), (1, 0))], [np.zeros(2)]) == {}
    assert row_mismatch_metrics([], []) == {}


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_tokens_are_as_before(diffs: list[float]) -> None:
    one, learner = two_turns(*diffs)
    metrics = row_mismatch_metrics([one], [learner])
    plain = mismatch_metrics(np.full(3, -1.0), -1.0 - np.array(diffs))
    assert {name: metrics[name] for name in plain} == pytest.approx(plain)
    assert metrics["mismatch/row_kl"] == pytest.approx(3 * metrics["mismatch/kl"], abs=1e-12)
    assert metrics["mismatch/turn_kl"] == pytest.approx(1.5 * metrics["mismatch/kl"], abs=1e-12)


def test_staleness_of_rows_by_hand() -> None:
    mixed = replace(row((1, 2, 3, 4), (0, 1, 1, 1)), versions=(-1, 2, 4, 4))
    metrics = staleness_metrics([mixed, row((1, 2), (0, 1), version=5)], version=5)
    assert metrics == pytest.approx(
        {
            "staleness/lag_mean": 5 / 4,
            "staleness/lag_max": 3.0,
            "staleness/row_lag_mean": 1.5,
            "staleness/mixed_rows": 0.5,
            "staleness/row_span_max": 2.0,
        }
    )
