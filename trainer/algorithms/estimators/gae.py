"""Generalised advantage estimation with a critic, over sampled tokens only; and its bi-level form.

What the environment said is not in an :class:`EpisodeView`, so that value and advantage of the next *sampled* token
follow each token, across turns and rows alike. The end of an episode has value 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.estimators.types import EpisodeView, Estimate, FloatArray, on_last_tokens, values_of
from trainer.config.algorithm import AdvantageConfig

__all__ = ["bi_level_gae", "gae", "generalized_advantages"]


def generalized_advantages(rewards: FloatArray, values: FloatArray, gamma: float, lam: float) -> FloatArray:
    """``d_t = r_t + gamma * V_{t+1} - V_t`` and ``A_t = d_t + gamma * lam * A_{t+1}`` (Schulman et al. 2015, eq. 16).

    Rewards 0, 0, 1 and values 0.5, 0.4, 0.3 at gamma 1 and lam 0.95 give 0.43675, 0.565, 0.7.
    """
    result = np.empty(len(rewards))
    advantage = next_value = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        advantage = rewards[t] + gamma * next_value - values[t] + gamma * lam * advantage
        result[t] = advantage
        next_value = values[t]
    return result


def gae(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """GAE (Schulman et al. 2015, arXiv:1506.02438) per sampled token, with ``token_gamma`` and ``lam``.

    A turn's reward is on its last token. The critic learns ``A + V``, taken before any whitening. An episode that is
    cut at its turn limit ends there, as in verl: the limit is part of the task, and no value is put behind it.
    """
    advantages = [
        generalized_advantages(on_last_tokens(e), values_of(e), config.token_gamma, config.lam) for e in episodes
    ]
    return _with_returns(advantages, episodes)


def bi_level_gae(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """Bi-level GAE (VAGEN, Wang et al. 2025, arXiv:2510.16907): first between the ends of turns, then inside each turn.

    At the last tokens ``e_k`` of the turns, ``A(e_k)`` is the advantage of :func:`generalized_advantages` over turns,
    with ``high_gamma`` and ``high_lam``. Then ``A(e_k) + V(e_k)`` is the reward at ``e_k`` and each turn by itself has
    the advantages of its tokens, with ``token_gamma`` and ``lam``. Two turns of two tokens with rewards 0.5, 1 and
    values 0.5, 0.4, 0.2, 0.3 give 0.95, 1.05, 0.8, 0.7 (high_gamma 0.95, all others 1).

    Turns are told by ``lengths``, so that a turn may well pay 0. Token rewards before the last token of a turn count
    with the value of that turn's end.
    """
    return _with_returns([_bi_level(e, config) for e in episodes], episodes)


def _bi_level(episode: EpisodeView, config: AdvantageConfig) -> FloatArray:
    values, rewards = values_of(episode), on_last_tokens(episode)
    ends = np.cumsum([n for n in episode.lengths if n]).astype(int)
    result = np.empty(len(values))
    advantage = next_value = 0.0
    for k in range(len(ends) - 1, -1, -1):
        turn, last = slice(ends[k - 1] if k else 0, ends[k]), ends[k] - 1
        delta = rewards[last] + config.high_gamma * next_value - values[last]
        advantage = delta + config.high_gamma * config.high_lam * advantage
        inside = rewards[turn]
        next_value = float(inside[:-1].sum()) + values[last]
        inside[-1] = advantage + values[last]
        result[turn] = generalized_advantages(inside, values[turn], config.token_gamma, config.lam)
    return result


def _with_returns(advantages: list[FloatArray], episodes: Sequence[EpisodeView]) -> Estimate:
    return Estimate(advantages, {}, [a + values_of(e) for a, e in zip(advantages, episodes, strict=True)])
