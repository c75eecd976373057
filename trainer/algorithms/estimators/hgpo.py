"""HGPO: each turn among those that met the same state, among those that came to it the same way, and so on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trainer.algorithms.estimators.anchors import Place, anchor_metrics
from trainer.algorithms.estimators.group_relative import differing_groups, episode_advantages
from trainer.algorithms.estimators.types import (
    EpisodeView,
    Estimate,
    FloatArray,
    discounted,
    equal,
    normalized,
    per_turn,
)
from trainer.config.algorithm import AdvantageConfig

__all__ = ["hgpo"]


def hgpo(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """HGPO (He et al. 2026, arXiv:2602.22817; verl-agent's recipe): the mean of a turn's advantages by history.

    For k = 1 ... ``history`` + 1, turns of one group whose last k observations are the same are a cluster; ``a_k`` is
    the return to go less the cluster's mean, over its std (ddof=0) + epsilon unless ``normalize="mean"``. The advantage
    is the mean of the ``a_k`` weighted by ``(k + 1) ** history_power``; ``base_weight`` above 0 adds the episode
    advantage of :func:`grpo` with that weight. With ``history`` 1 the episodes of :func:`gigpo`'s example give
    (0.45125, 0.538333, 0) and (-0.45125, -0.411667, -0.316667).

    A cluster of one turn or of equal returns to go takes no part, and a turn in no other gets 0. (verl-agent leaves
    each ``a_k`` that is 0 out instead, that of a turn in the very middle of its cluster too.) A turn without a
    sample is in no history.
    """
    returns = [discounted(e.full_rewards, config.gamma) for e in episodes]
    sums = [np.zeros(len(r)) for r in returns]
    weights = [np.zeros(len(r)) for r in returns]
    sizes = []
    for k, places in _clusters(episodes, config.history + 1):
        values = np.array([returns[i][t] for i, t in places])
        if k == 1:
            sizes.append(len(places))
        if not equal(values):
            for (i, t), value in zip(places, normalized(values, config, ddof=0), strict=True):
                sums[i][t] += (k + 1) ** config.history_power * value
                weights[i][t] += (k + 1) ** config.history_power
    if config.base_weight:
        of_episodes = episode_advantages(episodes, config)
        for i in (i for members, _ in differing_groups(episodes) for i in members):
            sums[i] += config.base_weight * of_episodes[i]
            weights[i] += config.base_weight
    result: list[FloatArray] = [
        np.divide(s, w, out=np.zeros(len(s)), where=w > 0) for s, w in zip(sums, weights, strict=True)
    ]
    return Estimate(per_turn(result, episodes), anchor_metrics(sizes))


def _clusters(episodes: Sequence[EpisodeView], longest: int) -> list[tuple[int, list[Place]]]:
    """Length of the common history, and the turns that share it."""
    found: dict[tuple[int, tuple[str, ...]], list[Place]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        seen: list[str] = []
        for t, anchor in enumerate(episode.anchors):
            if anchor is not None:
                seen.append(anchor)
                for k in range(1, min(longest, len(seen)) + 1):
                    found[episode.group, tuple(seen[-k:])].append((i, t))
    return [(len(history), places) for (_, history), places in found.items()]
