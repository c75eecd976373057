"""Numbers of a step against hand-worked values."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from episode_builders import group, on_tokens, row, trajectories, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.types import Trajectory
from trainer.data.metrics import (
    mismatch_metrics,
    rollout_metrics,
    sequence_metrics,
    staleness_metrics,
    token_mismatch_metrics,
    wilson_interval,
)
from trainer.data.table import make_table, sequences_of, tokens_of


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.490162, 0.943318), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_interval_by_hand(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_holds_the_rate(case: tuple[int, int]) -> None:
    successes, n = case
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_wilson_interval_refuses_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)


def info(*, valid: bool, effective: bool, success: bool = False, penalty: float = 0.0) -> dict[str, object]:
    return {
        "success": success,
        "action_is_valid": valid,
        "action_is_effective": effective,
        "format_penalty": penalty,
        "reward_parts": {"step": -0.1, "format": penalty},
    }


def test_rollout_metrics_by_hand() -> None:
    won = trajectory(
        turn((1,), (2, 3), reward=-0.3, info=info(valid=False, effective=False, penalty=-0.2)),
        turn((1, 2, 3), (4,), reward=1.0, info=info(valid=True, effective=True, success=True)),
        attempts=3,
    )
    lost = trajectory(turn(reward=-0.1, info=info(valid=True, effective=False)), member=1, kind="truncated")
    failed = trajectory(
        turn(reward=-99.0, info=info(valid=False, effective=False, penalty=-99.0)), member=2, kind="failed"
    )
    assert rollout_metrics([group(won, lost), group(failed)]) == pytest.approx(
        {
            "rollout/episodes": 3,
            "rollout/outcome/completed": 1,
            "rollout/outcome/truncated": 1,
            "rollout/outcome/failed": 1,
            "rollout/outcome/cancelled": 0,
            "rollout/attempts_mean": 5 / 3,
            "rollout/success_rate": 0.5,
            "rollout/return_mean": 0.3,
            "rollout/return_std": 0.4,
            "rollout/turns_mean": 1.5,
            "rollout/format_penalty_mean": -0.1,
            "rollout/reward_part/step": -0.15,
            "rollout/reward_part/format": -0.1,
            "rollout/completion_tokens": 4,
            "rollout/completion_tokens_per_turn": 4 / 3,
            "rollout/length_finish_rate": 0,
            "rollout/valid_action_rate": 2 / 3,
            "rollout/effective_action_rate": 1 / 3,
        }
    )


def test_what_was_not_measured_is_left_out() -> None:
    only_failed = rollout_metrics([group(trajectory(turn(), kind="failed"))])
    assert not {"rollout/success_rate", "rollout/return_mean", "rollout/valid_action_rate"} & only_failed.keys()
    assert only_failed["rollout/outcome/failed"] == 1
    assert "rollout/valid_action_rate" not in rollout_metrics([group(trajectory(turn()))])
    assert rollout_metrics([])["rollout/episodes"] == 0
    assert mismatch_metrics(np.empty(0), np.empty(0)) == {}
    assert staleness_metrics(tokens_of([row((1,), (0,))]), version=3) == {}


def test_mismatch_by_hand() -> None:
    metrics = mismatch_metrics(np.array([-0.7]), np.array([-1.0]))
    assert metrics["mismatch/kl"] == pytest.approx(0.040818, abs=1e-6)
    learner = np.log([0.25, 0.5, 0.5])
    sampler = np.log([0.5, 0.5, 0.25])
    assert mismatch_metrics(sampler, learner) == pytest.approx(
        {
            "mismatch/kl": (0.5 - 1 + np.log(2) + 0 + 2 - 1 - np.log(2)) / 3,
            "mismatch/logprob_diff_max": np.log(2),
            "mismatch/logprob_diff_mean": 2 * np.log(2) / 3,
            "mismatch/ratio_min": 0.5,
            "mismatch/ratio_max": 2.0,
            "mismatch/ratio_p01": 0.51,
            "mismatch/ratio_p50": 1.0,
            "mismatch/ratio_p99": 1.98,
            "mismatch/effective_sample_share": 3.5**2 / (3 * 5.25),
        }
    )


def test_mismatch_of_sequences_looks_at_predicted_sampled_ids_only() -> None:
    sequences = [row((5, 1, 2), (1, 0, 1)), row((3, 4), (0, 1))]
    learner = [np.array([9.0, 9.0, -0.02]), np.array([9.0, -0.54])]
    tokens = tokens_of(sequences)
    metrics = token_mismatch_metrics(tokens, on_tokens(sequences, learner), tokens.learnt)
    assert metrics["mismatch/logprob_diff_max"] == pytest.approx(0.5)
    assert metrics["mismatch/logprob_diff_mean"] == pytest.approx(0.25)


def test_staleness_by_hand() -> None:
    mixed = replace(row((1, 2, 3, 4), (0, 1, 1, 1)), versions=(-1, 3, 4, 4))
    metrics = staleness_metrics(tokens_of([mixed, row((1, 2), (0, 1), version=5)]), version=5)
    assert metrics == {
        "staleness/lag_mean": 1.0,
        "staleness/lag_max": 2.0,
        "staleness/sequence_lag_mean": 1.0,
        "staleness/mixed_sequences": 0.5,
        "staleness/sequence_span_max": 1.0,
    }


def test_sequences_and_rewrites_by_hand() -> None:
    continued = trajectory(turn((1, 2), (3,)), turn((1, 2, 3, 4), (5,)), member=0)
    # Three turns: the second joins the first, the third shows the conversation differently.
    rewritten = trajectory(turn((1, 2), (3,)), turn((1, 2, 3, 4), (5,)), turn((1, 2, 9), (6,)), member=1)
    aborted = trajectory(turn((1,), ()), member=2)
    failed = trajectory(turn((1,), (2,)), turn((7,), (8,)), member=3, kind="failed")
    groups = [group(continued), group(rewritten, aborted, failed)]
    sequences = sequences_of(groups)
    assert [len(r) for r in sequences] == [5, 5, 4]
    assert sequence_metrics(make_table(groups, sequences)) == {
        "rollout/sequences_per_episode": 1.5,
        "rollout/history_rewrites": 1.0,
    }
    assert sequence_metrics(make_table([group(aborted)], [])) == {}


@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_every_rewrite_is_counted(episodes: list[Trajectory]) -> None:
    groups = [group(episode) for episode in episodes]
    metrics = sequence_metrics(make_table(groups, sequences_of(groups)))
    starts = 0
    for episode in episodes:
        sampled = [t for t in episode.turns if t.completion.ids] if episode.scored else []
        for before, after in pairwise(sampled):
            whole = before.prompt_ids + before.completion.ids
            starts += after.prompt_ids[: len(whole)] != whole
    assert metrics.get("rollout/history_rewrites", 0.0) == starts
