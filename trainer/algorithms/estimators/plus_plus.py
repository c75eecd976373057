"""REINFORCE++ and its baseline variant: advantages whitened over all tokens of the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.estimators.group_relative import differing_groups
from trainer.algorithms.estimators.types import (
    EpisodeView,
    Estimate,
    discounted,
    on_every_token,
    on_last_tokens,
    whitened,
)
from trainer.config.algorithm import AdvantageConfig

__all__ = ["reinforce_pp", "reinforce_pp_baseline"]


def reinforce_pp(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): returns to go per token, whitened over the step.

    Token rewards, such as the KL of ``reward.kl_coef``, enter the returns to go of the tokens before them. Episodes of
    two tokens with returns 1 and 0 give 0.866025 and -0.866025 at ``token_gamma`` 1. Across what the environment said
    the return goes on (verl starts anew at every token that was not sampled).
    """
    return Estimate(whitened([discounted(on_last_tokens(e), config.token_gamma) for e in episodes]), {})


def reinforce_pp_baseline(episodes: Sequence[EpisodeView], config: AdvantageConfig) -> Estimate:
    """REINFORCE++-baseline (arXiv:2501.03262): ``R_i - mean_g``, whitened over all tokens of the step.

    Groups of one episode or of equal returns count as 0 in the step's mean and deviation, and get exactly 0 (in verl
    they get minus the mean over the deviation, a bias by length). Returns 1, 0 of one token each give +-0.707107.
    """
    centred = np.zeros(len(episodes))
    differs = np.zeros(len(episodes), dtype=bool)
    for members, returns in differing_groups(episodes):
        centred[members] = returns - returns.mean()
        differs[members] = True
    white = whitened(on_every_token(centred, episodes))
    return Estimate([w if d else np.zeros(len(w)) for w, d in zip(white, differs, strict=True)], {})
