"""Estimators that compare the returns of one task's episodes: one number per episode, the same on every token.

``R_i`` is the undiscounted return of episode i, token rewards included; ``mean_g`` and ``std_g`` (ddof=1) are over the
scored episodes of its group. A group of one scored episode, or of equal returns, gives exactly 0 everywhere (verl gives
a single episode its raw return); such groups are counted as ``advantage/singleton_groups`` and
``advantage/zero_variance_groups``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainer.algorithms.estimators.types import (
    NO_SPREAD,
    EpisodeView,
    Estimate,
    FloatArray,
    by_group,
    equal,
    normalized,
    on_every_token,
)
from trainer.config.algorithm import AdvantageConfig

__all__ = [
    "differing_groups",
    "dr_grpo",
    "episode_advantages",
    "gpg",
    "grpo",
    "lite_ppo",
    "maxrl",
    "opo",
    "pass_at_k",
    "rloo",
]


def differing_groups(episodes: Sequence[EpisodeView]) -> Iterator[tuple[list[int], FloatArray]]:
    """Indices and returns of the episodes of each group that has at least two different returns."""
    for members in by_group(episodes).values():
        returns = np.array([episodes[i].full_return for i in members])
        if not equal(returns):
            yield members, returns


def episode_advantages(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> FloatArray:
    """GRPO's advantage of each episode [E].

    With ``across_steps`` each return counts once per turn in the mean and the deviation, as in verl-agent: returns 1
    and 0 of episodes of three turns give +-0.912869 instead of +-0.707106.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        weights = [len(episodes[i].rewards) if config.across_steps else 1 for i in members]
        normal = normalized(np.repeat(returns, weights), config)
        result[members] = normal[np.cumsum(weights) - 1]
    return result


def grpo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """GRPO (Shao et al. 2024, arXiv:2402.03300, section 4.1.2): ``(R_i - mean_g) / (std_g + eps)``.

    Returns 1, 0, 0, 1 give 0.866024, -0.866024, -0.866024, 0.866024; ``normalize="mean"`` leaves the division out.
    """
    return Estimate(on_every_token(episode_advantages(episodes, config), episodes), {})


def dr_grpo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): ``R_i - mean_g``; 1, 0, 0, 1 give +-0.5.

    Its other half is ``loss.aggregation: constant``.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        result[members] = returns - returns.mean()
    return Estimate(on_every_token(result, episodes), {})


def rloo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): ``R_i`` minus the mean of the others.

    The same as ``n / (n - 1) * (R_i - mean_g)``: returns 1, 0, 0, 1 give 0.666667, -0.666667, -0.666667, 0.666667.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        result[members] = (returns - returns.mean()) * len(returns) / (len(returns) - 1)
    return Estimate(on_every_token(result, episodes), {})


def opo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """OPO (Hao et al. 2025, arXiv:2505.23585): ``R_i - sum(len * R) / sum(len)`` over the group.

    ``len`` is the number of sampled tokens. Returns 1, 0 of episodes of 1 and 3 tokens have the baseline 0.25 and give
    0.75, -0.25. Advantages times lengths sum to 0.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        lengths = np.array([sum(episodes[i].lengths) for i in members])
        if lengths.any():
            result[members] = returns - lengths @ returns / lengths.sum()
    return Estimate(on_every_token(result, episodes), {})


def maxrl(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): ``(R_i - mean_g) / (mean_g + eps)``, for rewards of 0 or more.

    Returns 1, 0, 0, 0 give 3, -1, -1, -1 (but for epsilon): rare successes weigh more than in GRPO. A group whose mean
    is not above 0 has no such advantage; it gives 0 and is counted as ``advantage/undefined_groups``.
    """
    result = np.zeros(len(episodes))
    undefined = 0
    for members, returns in differing_groups(episodes):
        if returns.mean() <= NO_SPREAD:
            undefined += 1
        else:
            result[members] = (returns - returns.mean()) / (returns.mean() + config.epsilon)
    return Estimate(on_every_token(result, episodes), {"advantage/undefined_groups": float(undefined)})


def pass_at_k(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """Pass@k with k the size of the group (Tang et al. 2025, arXiv:2503.19595; verl's ``grpo_passk``).

    The best episode gets ``(R_1 - R_2) / (std_g + eps)``, by how much it beats the second, and all others 0: returns
    1, 0, 0, 0 give 2, 0, 0, 0 (but for epsilon), and 1, 0, 0, 1 give 0. ``normalize="mean"`` leaves the division out.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        second, best = np.argsort(returns, kind="stable")[-2:]
        scale = float(returns.std(ddof=1)) + config.epsilon if config.normalize == "mean_std" else 1.0
        result[members[best]] = (returns[best] - returns[second]) / scale
    return Estimate(on_every_token(result, episodes), {})


def gpg(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """GPG (Chu et al. 2025, arXiv:2504.02546): ``alpha * (R_i - mean_g)``, alpha making up for idle groups.

    ``alpha`` is the number of episodes over that of episodes in groups whose returns differ: a group of 1, 0 beside one
    of 1, 1 gives 1, -1, 0, 0. (verl divides by the number of returns that are not 0 instead.)
    """
    result = np.zeros(len(episodes))
    active = 0
    for members, returns in differing_groups(episodes):
        result[members] = returns - returns.mean()
        active += len(members)
    return Estimate(on_every_token(result * (len(episodes) / max(active, 1)), episodes), {})


def lite_ppo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """LitePPO (Liu et al. 2025, arXiv:2508.08221): ``(R_i - mean_g) / (std_batch + eps)``.

    The deviation (ddof=1) is over all returns of the step. Groups 1, 0 and 1, 1 give 0.999998, -0.999998, 0, 0. Its
    other half is ``loss.aggregation: token-mean``.
    """
    result = np.zeros(len(episodes))
    for members, returns in differing_groups(episodes):
        result[members] = returns - returns.mean()
    if result.any():
        result /= np.array([e.full_return for e in episodes]).std(ddof=1) + config.epsilon
    return Estimate(on_every_token(result, episodes), {})
