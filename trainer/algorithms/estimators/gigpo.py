"""GiGPO: the episode's advantage within its group, and each turn's among all turns that met the same state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.estimators.anchors import anchor_metrics, anchor_states
from trainer.algorithms.estimators.group_relative import episode_advantages
from trainer.algorithms.estimators.types import EpisodeView, Estimate, discounted, normalized, per_turn
from trainer.config.algorithm import AdvantageConfig

__all__ = ["gigpo"]


def gigpo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, eq. 3-8): episode advantage + ``step_weight`` * step advantage.

    The step advantage normalises the discounted return to go within anchor groups: turns of one group that answered the
    same observation (or one ``similarity`` alike), wherever and by whomever. An anchor group of one turn, or of equal
    returns to go, gives 0. The episode advantage is that of :func:`grpo`, in which each trajectory weighs the same, as
    in the paper; ``across_steps`` has each return count once per turn, as in verl-agent.

    Episodes of states (s0, s1, s2) and (s0, s1, s1) with rewards (0, 0, 1) and (0, 0, 0), gamma 0.95 and
    ``normalize="mean"`` give (0.95125, 1.133333, 0.5) and (-0.95125, -0.816667, -0.816667).

    Penalties for invalid actions are part of the environment's reward here, so that they count in the return to go of
    earlier turns too (verl-agent subtracts them from their own step only).
    """
    of_episodes = episode_advantages(episodes, config)
    result = [np.full(len(e.rewards), a) for e, a in zip(episodes, of_episodes, strict=True)]
    returns = [discounted(e.full_rewards, config.gamma) for e in episodes]
    states = anchor_states(episodes, config.similarity)
    for places in states:
        normal = normalized(np.array([returns[i][t] for i, t in places]), config)
        for (i, t), value in zip(places, normal, strict=True):
            result[i][t] += config.step_weight * value
    return Estimate(per_turn(result, episodes), anchor_metrics([len(places) for places in states]))
