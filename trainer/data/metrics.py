"""Numbers of a training step: what the episodes were like, how far sampler and learner disagree, how stale tokens are.

Only scored episodes enter means and rates; failed and cancelled ones are counted. A number that nothing was measured
for is left out, never reported as 0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from roll_envs.types import Group, Metrics, OutcomeKind, Trajectory, Turn
from trainer.data.table import BoolArray, FloatArray, IntArray, StepTable, Tokens

RATIO_QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927); 8 of 10 gives (0.4902, 0.9433), nothing of nothing (0, 1).

    Raises:
        ValueError: ``successes`` is not between 0 and ``n``.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: expected 0 <= successes <= n")
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def rollout_metrics(groups: Sequence[Group], prefix: str = "rollout/") -> Metrics:
    """What the episodes of ``groups`` were like. Per-turn rates are over all turns of scored episodes together.

    Keys after ``prefix``: ``episodes``, ``outcome/<kind>`` (counts), ``attempts_mean`` over all; over scored episodes
    ``success_rate``, ``return_mean``, ``return_std`` (ddof=0), ``turns_mean``, ``format_penalty_mean`` and
    ``reward_part/<name>`` (sums of an episode), ``completion_tokens_per_turn``, ``completion_tokens``
    (total), ``length_finish_rate``; per turn ``valid_action_rate``, ``effective_action_rate``.
    """
    everyone = [t for g in groups for t in g.trajectories]
    scored = [t for t in everyone if t.scored]
    kinds = Counter(t.outcome.kind for t in everyone)
    metrics: Metrics = {
        "episodes": float(len(everyone)),
        **{f"outcome/{kind}": float(kinds[kind]) for kind in get_args(OutcomeKind)},
        **_means(attempts_mean=[t.attempts for t in everyone]),
        **_episode_metrics(scored),
        **_turn_metrics([turn for t in scored for turn in t.turns]),
    }
    return {prefix + name: value for name, value in metrics.items()}


def _means(**values: Sequence[float]) -> Metrics:
    """The mean of each, without those that have no values."""
    return {name: float(sum(each) / len(each)) for name, each in values.items() if each}


def _episode_metrics(scored: Sequence[Trajectory]) -> Metrics:
    returns = [t.total_reward for t in scored]
    parts: dict[str, float] = defaultdict(float)
    for turn in (turn for trajectory in scored for turn in trajectory.turns):
        for name, value in turn.info.get("reward_parts", {}).items():
            parts[f"reward_part/{name}"] += float(value) / len(scored)
    return {
        **_means(
            success_rate=[t.success for t in scored],
            return_mean=returns,
            turns_mean=[len(t.turns) for t in scored],
            format_penalty_mean=[sum(float(u.info.get("format_penalty", 0.0)) for u in t.turns) for t in scored],
        ),
        **({"return_std": float(np.std(returns))} if returns else {}),
        **parts,
    }


def _turn_metrics(turns: Sequence[Turn]) -> Metrics:
    lengths = [len(turn.completion.ids) for turn in turns]
    return {
        **({"completion_tokens": float(sum(lengths))} if turns else {}),
        **_means(
            completion_tokens_per_turn=lengths,
            length_finish_rate=[turn.completion.finish == "length" for turn in turns],
            valid_action_rate=_flags(turns, "action_is_valid"),
            effective_action_rate=_flags(turns, "action_is_effective"),
        ),
    }


def _flags(turns: Sequence[Turn], key: str) -> list[bool]:
    """What the turns that say anything under ``key`` say."""
    return [bool(turn.info[key]) for turn in turns if key in turn.info]


def sequence_metrics(table: StepTable, prefix: str = "rollout/") -> Metrics:
    """How the turns of scored episodes fell into sequences; empty when nothing was sampled.

    Keys after ``prefix``: ``sequences_per_episode``, over episodes with at least one sequence; ``history_rewrites``,
    how many turns with sampled ids started a sequence though they were not their episode's first: the prompt did not
    continue the one before, because the chat template or the context shows earlier turns differently. Three turns of
    one episode in two sequences give 2.0 sequences per episode and 1.0 rewrites.
    """
    sequences, episodes = len(np.unique(table.tokens.sequence)), int((table.episode_tokens > 0).sum())
    if not sequences:
        return {}
    return {
        f"{prefix}sequences_per_episode": sequences / episodes,
        f"{prefix}history_rewrites": float(sequences - episodes),
    }


def mismatch_metrics(sampler: NDArray[Any], learner: NDArray[Any], prefix: str = "mismatch/") -> Metrics:
    """How far the learner's log-probs of the sampled ids [N] are from the sampler's; empty for N = 0.

    Keys after ``prefix``, with ``d = sampler - learner`` and ratio ``w = exp(-d)`` (learner over sampler): ``kl``, the
    mean of k3 ``exp(-d) - 1 + d`` (an unbiased estimate of KL(sampler || learner), d = 0.3 gives 0.040818);
    ``logprob_diff_max`` and ``logprob_diff_mean`` of ``|d|``; ``ratio_p01``, ``ratio_p50``, ``ratio_p99``,
    ``ratio_min``, ``ratio_max``; ``effective_sample_share``, ``(sum w)^2 / (N sum w^2)``, which is 1 when both agree.
    """
    diff = np.asarray(sampler, dtype=np.float64) - np.asarray(learner, dtype=np.float64)
    if diff.size == 0:
        return {}
    return {
        f"{prefix}logprob_diff_max": float(np.abs(diff).max()),
        f"{prefix}logprob_diff_mean": float(np.abs(diff).mean()),
        **_span_metrics(diff, np.arange(diff.size), prefix),  # each token is a span of its own
    }


def token_mismatch_metrics(
    tokens: Tokens, learner_logp: FloatArray, among: BoolArray, prefix: str = "mismatch/"
) -> Metrics:
    """:func:`mismatch_metrics` of the tokens ``among`` [N], of which the learner says ``learner_logp`` [N].

    And the same of turns and of sequences, under ``turn_`` and ``sequence_``: ``kl``, the mean over turns or sequences
    of the sum of k3 over their ids, an unbiased estimate of the KL of whole turns or sequences; ``ratio_...`` of
    geometric means over their ids (what level ``sequence-mean`` of the section ``correction`` looks at);
    ``effective_sample_share`` of the products (levels ``turn-product`` and ``sequence-product``). A sequence of two
    turns, with ``d`` 0.3, 0 in one and 0.3 in the other: turn_kl 0.040818, sequence_kl 0.081636, turn_ratio_min
    exp(-0.3), sequence_ratio_min exp(-0.2).
    """
    sampler, learner = tokens.sampler_logp[among], learner_logp[among]
    metrics = mismatch_metrics(sampler, learner, prefix)
    if metrics:
        sequence, turn = tokens.sequence[among], tokens.turn_number[among]
        diff = sampler - learner
        metrics.update(_span_metrics(diff, sequence * (turn.max() + 1) + turn, f"{prefix}turn_"))
        metrics.update(_span_metrics(diff, sequence, f"{prefix}sequence_"))
    return metrics


def _span_metrics(diff: FloatArray, keys: IntArray, prefix: str) -> Metrics:
    """Of the spans of ids that have the same key."""
    _, span, counts = np.unique(keys, return_inverse=True, return_counts=True)
    k3 = np.exp(np.clip(-diff, -50.0, 50.0)) - 1.0 + diff
    products = np.bincount(span, weights=-diff).astype(np.float64)  # logarithms of the ratios of whole spans
    ratio = np.exp(np.clip(products / counts, -50.0, 50.0))
    weights = np.exp(products - products.max())  # a common factor changes no share, and nothing can overflow
    quantiles = np.quantile(ratio, list(RATIO_QUANTILES.values()))
    return {
        f"{prefix}kl": float(np.bincount(span, weights=k3).mean()),
        f"{prefix}ratio_min": float(ratio.min()),
        f"{prefix}ratio_max": float(ratio.max()),
        **{f"{prefix}ratio_{n}": float(q) for n, q in zip(RATIO_QUANTILES, quantiles, strict=True)},
        f"{prefix}effective_sample_share": float(weights.sum() ** 2 / (weights.size * np.square(weights).sum())),
    }


def staleness_metrics(tokens: Tokens, version: int, prefix: str = "staleness/") -> Metrics:
    """How many weight versions before ``version`` the tokens were sampled; empty without any.

    Keys after ``prefix``: ``lag_mean`` and ``lag_max`` over tokens; ``sequence_lag_mean``, over sequences, of the
    oldest token of each; ``mixed_sequences``, the share of sequences that more than one version sampled, and
    ``sequence_span_max``, the most versions between two tokens of one sequence.
    """
    if not len(tokens.version):
        return {}
    lags = version - tokens.version
    first = np.flatnonzero(np.diff(tokens.sequence, prepend=-1))
    oldest, newest = np.maximum.reduceat(lags, first), np.minimum.reduceat(lags, first)
    return {
        f"{prefix}lag_mean": float(lags.mean()),
        f"{prefix}lag_max": float(lags.max()),
        f"{prefix}sequence_lag_mean": float(oldest.mean()),
        f"{prefix}mixed_sequences": float(np.mean(oldest != newest)),
        f"{prefix}sequence_span_max": float((oldest - newest).max()),
    }


def explained_variance(values: NDArray[Any], returns: NDArray[Any]) -> Metrics:
    """``critic/explained_variance``, ``1 - var(returns - values) / var(returns)``; empty where returns are all equal.

    1 is a perfect critic, 0 one that says nothing, below 0 one that is worse than that. Values 0, 1 of returns 0, 2:
    1 - 0.25 / 1 = 0.75.
    """
    spread = float(np.var(returns)) if len(returns) else 0.0
    return {"critic/explained_variance": 1.0 - float(np.var(returns - values)) / spread} if spread > 0 else {}
