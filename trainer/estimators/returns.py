"""Estimators from returns to go alone: no comparison within a group, no critic."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.algorithm_config import AdvantageConfig
from trainer.estimators.types import EpisodeView, Estimate, discounted, per_turn

__all__ = ["reinforce"]


def reinforce(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """REINFORCE (Williams 1992): the discounted return to go of each turn, with no baseline and no normalisation."""
    return Estimate(per_turn([discounted(e.rewards, config.gamma) for e in episodes], episodes), {})
