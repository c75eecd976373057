"""GiGPO: the episode's advantage within its group, and each turn's among all turns that met the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from roll_envs.types import Metrics
from trainer.algorithm_config import AdvantageConfig
from trainer.estimators.group_relative import episode_advantages
from trainer.estimators.types import EpisodeView, Estimate, discounted, normalized, per_turn

__all__ = ["gigpo"]


def gigpo(episodes: Sequence[EpisodeView], config: AdvantageConfig, *, across_steps: bool = False) -> Estimate:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, eq. 3-8): episode advantage + ``step_weight`` * step advantage.

    The step advantage normalises the discounted return to go within anchor groups: turns of one group that answered the
    same observation, wherever and by whomever. An anchor group of one turn gives 0. The episode advantage is
    that of :func:`grpo`, in which each trajectory weighs the same, as in the paper; ``across_steps=True`` repeats each
    return once per turn before taking the statistics, as verl-agent does by default (long trajectories weigh more).

    Penalties for invalid actions are part of the environment's reward here, so that they count in the return to go of
    earlier turns too (verl-agent subtracts them from their own step only).
    """
    of_episodes = episode_advantages(episodes, config, across_steps=across_steps)
    result = [np.full(len(e.rewards), a) for e, a in zip(episodes, of_episodes, strict=True)]
    returns = [discounted(e.rewards, config.gamma) for e in episodes]
    anchored: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        for t, anchor in enumerate(episode.anchors):
            if anchor is not None:
                anchored[episode.group, anchor].append((i, t))
    for places in anchored.values():
        normal = normalized(np.array([returns[i][t] for i, t in places]), config)
        for (i, t), value in zip(places, normal, strict=True):
            result[i][t] += config.step_weight * value
    return Estimate(per_turn(result, episodes), _anchor_metrics([len(places) for places in anchored.values()]))


def _anchor_metrics(sizes: list[int]) -> Metrics:
    if not sizes:
        return {}
    turns = sum(sizes)
    return {
        "advantage/anchor_groups": float(len(sizes)),
        "advantage/anchor_size_mean": turns / len(sizes),
        "advantage/anchor_size_max": float(max(sizes)),
        "advantage/anchor_singleton_turns": sum(s for s in sizes if s == 1) / turns,
    }
