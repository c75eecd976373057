"""Estimators that compare the returns of one task's episodes: one number per episode, the same on every token.

``R_i`` is the undiscounted return of episode i, token rewards included; ``mean_g`` and ``std_g`` (ddof=1) are over the
scored episodes of its group. A group of one scored episode, or of equal returns, gives exactly 0 everywhere (verl gives
a single episode its raw return); such groups are counted as ``advantage/singleton_groups`` and
``advantage/zero_variance_groups``.
"""

from __future__ import annotations

import numpy as np

from roll_envs.settings import Settings
from roll_envs.types import Metrics
from trainer.algorithms.estimators.types import Epsilon, Estimate, Estimator, Normalized, normalized, whitened
from trainer.data.table import NO_SPREAD, FloatArray, StepTable, compare

__all__ = ["GroupSettings", "episode_advantages"]


class GroupSettings(Normalized):
    across_steps: bool = False
    """An episode counts once per turn in its group's mean and deviation.
    Default: off as in GiGPO's paper; verl-agent's is on."""


def episode_advantages(table: StepTable, settings: GroupSettings) -> FloatArray:
    """GRPO's advantage of each episode [E].

    With ``across_steps`` each return counts once per turn in the mean and the deviation, as in verl-agent: returns 1
    and 0 of episodes of three turns give +-0.912869 instead of +-0.707106.
    """
    turns = np.bincount(table.turns.episode, minlength=len(table.episodes.group)) if settings.across_steps else None
    return normalized(table.returns, table.episodes.group, settings.normalize, settings.epsilon, weight=turns)


def centred_returns(table: StepTable) -> FloatArray:
    """``R_i - mean_g`` of each episode [E]; 0 where the group has no spread."""
    return normalized(table.returns, table.episodes.group, "mean", 0.0)


def _on_tokens(values: FloatArray, table: StepTable, metrics: Metrics | None = None) -> Estimate:
    """One number per episode [E] on each of its tokens."""
    return Estimate(values[table.episode_of_token], metrics or {})


def grpo(table: StepTable, settings: GroupSettings) -> Estimate:
    """GRPO (Shao et al. 2024, arXiv:2402.03300, section 4.1.2): ``(R_i - mean_g) / (std_g + eps)``.

    Returns 1, 0, 0, 1 give 0.866024, -0.866024, -0.866024, 0.866024; ``normalize="mean"`` leaves the division out.
    """
    return _on_tokens(episode_advantages(table, settings), table)


def dr_grpo(table: StepTable, settings: Settings) -> Estimate:
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): ``R_i - mean_g``; 1, 0, 0, 1 give +-0.5.

    Its other half is ``loss.aggregation: constant``.
    """
    return _on_tokens(centred_returns(table), table)


def rloo(table: StepTable, settings: Settings) -> Estimate:
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): ``R_i`` minus the mean of the others.

    The same as ``n / (n - 1) * (R_i - mean_g)``: returns 1, 0, 0, 1 give 0.666667, -0.666667, -0.666667, 0.666667.
    """
    size = compare(table.returns, table.episodes.group).size
    return _on_tokens(centred_returns(table) * size / np.maximum(size - 1, 1), table)


def opo(table: StepTable, settings: Settings) -> Estimate:
    """OPO (Hao et al. 2025, arXiv:2505.23585): ``R_i - sum(len * R) / sum(len)`` over the group.

    ``len`` is the number of sampled tokens. Returns 1, 0 of episodes of 1 and 3 tokens have the baseline 0.25 and give
    0.75, -0.25. Advantages times lengths sum to 0.
    """
    lengths = table.episode_tokens
    return _on_tokens(normalized(table.returns, table.episodes.group, "mean", 0.0, weight=lengths), table)


def maxrl(table: StepTable, settings: Epsilon) -> Estimate:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): ``(R_i - mean_g) / (mean_g + eps)``, for rewards of 0 or more.

    Returns 1, 0, 0, 0 give 3, -1, -1, -1 (but for epsilon): rare successes weigh more than in GRPO. A group whose mean
    is not above 0 has no such advantage; it gives 0 and is counted as ``advantage/undefined_groups``.
    """
    group = table.episodes.group
    found = compare(table.returns, group)
    undefined = found.differs & (found.mean <= NO_SPREAD)
    scale = np.where(undefined, np.inf, found.mean + settings.epsilon)
    counted = {"advantage/undefined_groups": float(len(np.unique(group[undefined])))}
    return _on_tokens(np.where(found.differs, (table.returns - found.mean) / scale, 0.0), table, counted)


def pass_at_k(table: StepTable, settings: Normalized) -> Estimate:
    """Pass@k with k the size of the group (Tang et al. 2025, arXiv:2503.19595; verl's ``grpo_passk``).

    The best episode gets ``(R_1 - R_2) / (std_g + eps)``, by how much it beats the second, and all others 0: returns
    1, 0, 0, 0 give 2, 0, 0, 0 (but for epsilon), and 1, 0, 0, 1 give 0. ``normalize="mean"`` leaves the division out.
    """
    returns, group = table.returns, table.episodes.group
    found = compare(returns, group)
    order = np.lexsort((returns, group))  # group by group, the best last
    last = np.flatnonzero(np.diff(group[order], append=-1))
    last = last[found.differs[order[last]]]
    best, second = order[last], order[last - 1]
    scale = found.std[best] + settings.epsilon if settings.normalize == "mean_std" else 1.0
    result = np.zeros(len(returns))
    result[best] = (returns[best] - returns[second]) / scale
    return _on_tokens(result, table)


def gpg(table: StepTable, settings: Settings) -> Estimate:
    """GPG (Chu et al. 2025, arXiv:2504.02546): ``alpha * (R_i - mean_g)``, alpha making up for idle groups.

    ``alpha`` is the number of episodes over that of episodes in groups whose returns differ: a group of 1, 0 beside one
    of 1, 1 gives 1, -1, 0, 0. (verl divides by the number of returns that are not 0 instead.)
    """
    active = int(compare(table.returns, table.episodes.group).differs.sum())
    return _on_tokens(centred_returns(table) * (len(table.episodes.group) / max(active, 1)), table)


def lite_ppo(table: StepTable, settings: Epsilon) -> Estimate:
    """LitePPO (Liu et al. 2025, arXiv:2508.08221): ``(R_i - mean_g) / (std_batch + eps)``.

    The deviation (ddof=1) is over all returns of the step. Groups 1, 0 and 1, 1 give 0.999998, -0.999998, 0, 0. Its
    other half is ``loss.aggregation: token-mean``.
    """
    deviation = compare(table.returns, np.zeros(len(table.returns), dtype=np.int64)).std
    return _on_tokens(centred_returns(table) / (deviation + settings.epsilon), table)


def reinforce_pp_baseline(table: StepTable, settings: Settings) -> Estimate:
    """REINFORCE++-baseline (arXiv:2501.03262): ``R_i - mean_g``, whitened over all tokens of the step.

    Groups of one episode or of equal returns count as 0 in the step's mean and deviation, and get exactly 0 (in verl
    they get minus the mean over the deviation, a bias by length). Returns 1, 0 of one token each give +-0.707107.
    """
    differs = compare(table.returns, table.episodes.group).differs[table.episode_of_token]
    white = whitened(centred_returns(table)[table.episode_of_token], table.ranks)
    return Estimate(np.where(differs, white, 0.0), {})


GRPO = Estimator(estimate=grpo, settings=GroupSettings, needs_group=True)
DR_GRPO = Estimator(estimate=dr_grpo, needs_group=True)
RLOO = Estimator(estimate=rloo, needs_group=True)
OPO = Estimator(estimate=opo, needs_group=True)
MAXRL = Estimator(estimate=maxrl, settings=Epsilon, needs_group=True)
PASS_AT_K = Estimator(estimate=pass_at_k, settings=Normalized, needs_group=True)
GPG = Estimator(estimate=gpg, needs_group=True)
LITE_PPO = Estimator(estimate=lite_ppo, settings=Epsilon, needs_group=True)
REINFORCE_PP_BASELINE = Estimator(estimate=reinforce_pp_baseline, needs_group=True)
