"""Estimators from each episode's own returns: no critic, and no comparison but with the greedy episode or the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.estimators.types import (
    EpisodeView,
    Estimate,
    FloatArray,
    discounted,
    normalized,
    on_every_token,
    on_last_tokens,
    per_turn,
)
from trainer.config.algorithm import AdvantageConfig

__all__ = ["reinforce", "reinforce_token", "remax", "step_reinforce"]


def _returns_of_turns(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> list[FloatArray]:
    """Discounted return to go of each turn [T], one ``gamma`` per turn."""
    return [discounted(e.full_rewards, config.gamma) for e in episodes]


def reinforce(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """REINFORCE (Williams 1992) over turns: ``G_t = r_t + gamma * G_{t+1}`` on every token of turn t.

    Rewards 0, 0, 1 at gamma 0.95 give 0.9025, 0.95, 1. No baseline and no normalisation (``reward.normalize_*`` and
    ``advantage.whiten`` bring them).
    """
    return Estimate(per_turn(_returns_of_turns(episodes, config), episodes), {})


def reinforce_token(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """REINFORCE (Williams 1992) over sampled tokens: ``G_n = r_n + token_gamma * G_{n+1}``.

    A turn's reward is on its last token. Turns of 2 and 1 tokens with rewards 1 and 4 at 0.5 give 1.5, 3, 4: what the
    environment said in between takes no part, so that a discount does not depend on how much that was.
    """
    return Estimate([discounted(on_last_tokens(e), config.token_gamma) for e in episodes], {})


def step_reinforce(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """Step-wise REINFORCE (ROLL): returns to go of turns, normalised over all turns of the training step.

    ``(G_t - mean) / (std(ddof=1) + eps)`` over every turn of every episode that has a token; ``normalize="mean"``
    leaves the division out. Rewards (0, 0, 1) and (0, 0, 0) at gamma 0.95 have the mean 0.475417.
    """
    returns = _returns_of_turns(episodes, config)
    sampled = [np.array(e.lengths) > 0 for e in episodes]
    values = np.concatenate([np.empty(0), *(r[s] for r, s in zip(returns, sampled, strict=True))])
    ends = np.cumsum([s.sum() for s in sampled])
    result = [np.zeros(len(r)) for r in returns]
    for turns, s, part in zip(result, sampled, np.split(normalized(values, config), ends)[:-1], strict=True):
        turns[s] = part
    return Estimate(per_turn(result, episodes), {})


def remax(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """ReMax (Li et al. 2023, arXiv:2310.10505): ``R_i`` minus the return of the greedy episode of its task.

    Returns 1, 0 beside a greedy 0.5 give 0.5, -0.5. Where no greedy episode was scored there is no baseline: the
    episode gets 0 and is counted as ``advantage/without_greedy``.
    """
    advantages = [0.0 if e.greedy_return is None else e.full_return - e.greedy_return for e in episodes]
    missing = sum(e.greedy_return is None for e in episodes)
    return Estimate(on_every_token(advantages, episodes), {"advantage/without_greedy": float(missing)})
