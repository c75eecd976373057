"""Estimators that compare the returns of one task's episodes: one number per episode, the same on every token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithm_config import AdvantageConfig
from trainer.estimators.types import EpisodeView, Estimate, FloatArray, by_group, normalized, per_turn

__all__ = ["episode_advantages", "grpo"]


def episode_advantages(
    episodes: Sequence[EpisodeView], config: AdvantageConfig, *, across_steps: bool = False
) -> FloatArray:
    """One group-relative advantage per episode [E], from undiscounted returns."""
    returns = np.array([episode.total for episode in episodes], dtype=np.float64)
    result = np.zeros(len(episodes))
    for members in by_group(episodes).values():
        weights = [len(episodes[i].rewards) if across_steps else 1 for i in members]
        if len(members) < 2:
            continue
        normal = normalized(np.repeat(returns[members], weights), config)
        result[members] = normal[np.cumsum(weights) - 1]
    return result


def grpo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 3): ``(R_i - mean_g) / (std_g(ddof=1) + eps)`` on every token.

    Returns 1, 0, 0, 1 of one group give 0.866024, -0.866024, -0.866024, 0.866024; ``normalize="mean"`` leaves the
    division out (Dr. GRPO, arXiv:2503.20783). A group of one scored episode, or of equal returns, gives 0 (verl gives a
    single episode its raw return).
    """
    advantages = episode_advantages(episodes, config)
    turns = [np.full(len(e.rewards), a) for e, a in zip(episodes, advantages, strict=True)]
    return Estimate(per_turn(turns, episodes), {})
