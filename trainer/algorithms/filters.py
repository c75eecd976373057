"""What is learnt from: filters choose groups before advantages are taken, masks and weights choose tokens after.

Filters look at scored episodes alone, by the rewards of the environment as they are, and come in this order: spread
(``zero_variance``), share of successes (``success_low``, ``success_high``), and then ``top_share`` of the groups that
are left. Masks leave sampled tokens out of the loss though their episodes count in all statistics of groups and
advantages; denominators count the tokens that are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.config.algorithm import FilterConfig, MaskConfig
from trainer.data.table import FloatArray, StepTable, compare, moments

__all__ = ["apply_masks", "keep_groups"]


def keep_groups(config: FilterConfig, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
    """The groups that pass, in order, and counts named ``filter/...``; scored episodes alone decide.

    ``zero_variance`` leaves out groups of equal returns (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11) and groups
    without two scored episodes, which have nothing to compare either. A group without a scored episode has no share of
    successes, so that a window of successes leaves it out. ``top_share`` keeps ``floor(share * n)`` of n groups, but at
    least one, by the standard deviation (ddof=1) of their returns (StarPO-S, Wang et al. 2025, arXiv:2504.20073); of
    equal ones the first. Of four groups with deviations 0, 0.5, 0.7, 0.5 a half is the second and the third. Without
    any filter there are no counts.
    """
    window = (config.success_low, config.success_high) != (0.0, 1.0)
    if not (config.zero_variance or window or config.top_share < 1):
        return list(groups), {}
    metrics: Metrics = {"filter/groups": float(len(groups))}
    kept = list(groups)
    if config.zero_variance:
        kept = [group for group in kept if _differs(group)]
        metrics["filter/zero_variance"] = float(len(groups) - len(kept))
    if window:
        passed = [group for group in kept if config.success_low <= _success_share(group) <= config.success_high]
        metrics["filter/success_window"] = float(len(kept) - len(passed))
        kept = passed
    if config.top_share < 1:
        top = _top(kept, config.top_share)
        metrics["filter/top_share"] = float(len(kept) - len(top))
        kept = top
    return kept, {**metrics, "filter/kept": float(len(kept))}


def _returns(group: Group) -> FloatArray:
    """Returns of the episodes that an estimator would see."""
    return np.array([t.total_reward for t in group.trajectories if t.scored and t.turns], dtype=np.float64)


def _differs(group: Group) -> bool:
    returns = _returns(group)
    return moments(returns)[2] != 0.0


def _success_share(group: Group) -> float:
    """NaN, which is in no window, for a group without a scored episode."""
    successes = [t.success for t in group.trajectories if t.scored and t.turns]
    return sum(successes) / len(successes) if successes else math.nan


def _top(groups: Sequence[Group], share: float) -> list[Group]:
    count = min(len(groups), max(1, math.floor(share * len(groups) + 1e-9)))
    best = sorted(range(len(groups)), key=lambda i: -_spread(groups[i]))[:count]
    return [groups[i] for i in sorted(best)]


def _spread(group: Group) -> float:
    """Deviation of the returns; infinite for a return that is not finite, which is then refused rather than lost."""
    returns = _returns(group)
    if not np.isfinite(returns).all():
        return math.inf
    return float(returns.std(ddof=1)) if _differs(group) else 0.0


# -- masks and weights -------------------------------------------------------------------------------------------------


def apply_masks(config: MaskConfig, table: StepTable) -> tuple[StepTable, Metrics]:
    """The step with the columns ``trained`` and ``weight`` (mean 1 over sequences), and counts named ``mask/...``.

    ``truncated_answers`` leaves out the tokens of turns whose answer was cut at the longest length (DAPO's overlong
    filtering, per turn), ``truncated_episodes`` those of episodes that ended at their turn limit, ``error_max_tokens``
    those of episodes without success that have more sampled tokens.

    A sequence weighs ``1 + difficulty_weight * (1 - s)``, with s the share of successes among the scored episodes of
    its task, times ``1 + length_weight * (longest - n) / (longest - shortest)``, with n the sampled tokens of its
    episode; all over the mean of the sequences that have tokens left. Two sequences of tasks that are always and never
    solved weigh 2/3 and 4/3 at a ``difficulty_weight`` of 1.
    """
    tokens, episodes, lengths = table.tokens, table.episodes, table.episode_tokens
    left_out = np.zeros(len(episodes.group), dtype=np.bool_)
    if config.truncated_episodes:
        left_out |= episodes.truncated
    if config.error_max_tokens is not None:
        left_out |= ~episodes.success & (lengths > config.error_max_tokens)
    trained = ~left_out[table.episode_of_token]
    if config.truncated_answers:
        trained &= ~table.turns.cut[table.turn_of_token]
    of_episode = np.ones(len(left_out))
    if config.difficulty_weight:
        solved = compare(episodes.success.astype(np.float64), episodes.group).mean
        of_episode *= 1.0 + config.difficulty_weight * (1.0 - solved)
    if config.length_weight and lengths.any():
        sampled = lengths[lengths > 0]  # an episode without a token has no sequence
        of_episode *= 1.0 + config.length_weight * (sampled.max() - lengths) / max(float(np.ptp(sampled)), 1.0)
    learnt, first = np.unique(tokens.sequence[trained], return_index=True)
    weights = of_episode[table.episode_of_token[trained][first]]  # of the sequences that have tokens left
    mean = float(weights.mean()) if len(learnt) else 1.0
    weight = of_episode[table.episode_of_token] / mean if len(learnt) else np.ones(len(trained))
    metrics: Metrics = {}
    if config.truncated_answers or config.truncated_episodes or config.error_max_tokens is not None:
        metrics["mask/tokens_share"] = float((~trained).sum() / max(len(trained), 1))
        metrics["mask/sequences"] = float(len(np.unique(tokens.sequence)) - len(learnt))
    if (config.difficulty_weight or config.length_weight) and len(learnt):
        metrics["mask/weight_min"] = float(weights.min() / mean)
        metrics["mask/weight_max"] = float(weights.max() / mean)
    return table.with_tokens(trained=trained, weight=weight), metrics
