"""Which groups of a step are learnt from. Scored episodes alone decide, by the rewards of the environment as they are.

Filters come in this order: spread (``zero_variance``), share of successes (``success_low``, ``success_high``), and then
``top_share`` of the groups that are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.algorithms.estimators.types import FloatArray, equal
from trainer.config.algorithm import FilterConfig

__all__ = ["keep_groups"]


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
    return len(returns) > 1 and not equal(returns)


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
