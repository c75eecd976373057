"""Estimators from each episode's own returns: no critic, and no comparison but with the greedy episode or the step."""

from __future__ import annotations

import numpy as np

from roll_envs.settings import Settings
from trainer.algorithms.estimators.types import (
    Estimate,
    Estimator,
    Normalized,
    TokenDiscount,
    TurnDiscount,
    normalized,
    whitened,
)
from trainer.data.table import FloatArray, StepTable, accumulate_back


def turn_returns(table: StepTable, gamma: float) -> FloatArray:
    """Discounted return to go of each turn [M], one ``gamma`` per turn."""
    return accumulate_back(table.turn_rewards, table.turns.episode, gamma)


def token_returns(table: StepTable, gamma: float) -> FloatArray:
    """Discounted return to go of each sampled token [N]; a turn's reward is on its last token."""
    return accumulate_back(table.token_rewards, table.episode_of_token, gamma)


def reinforce(table: StepTable, settings: TurnDiscount) -> Estimate:
    """REINFORCE (Williams 1992) over turns: ``G_t = r_t + gamma * G_{t+1}`` on every token of turn t.

    Rewards 0, 0, 1 at gamma 0.95 give 0.9025, 0.95, 1. No baseline and no normalisation (``reward.normalize_*`` and
    ``advantage.whiten`` bring them).
    """
    return Estimate(turn_returns(table, settings.gamma)[table.turn_of_token], {})


def reinforce_token(table: StepTable, settings: TokenDiscount) -> Estimate:
    """REINFORCE (Williams 1992) over sampled tokens: ``G_n = r_n + token_gamma * G_{n+1}``.

    A turn's reward is on its last token. Turns of 2 and 1 tokens with rewards 1 and 4 at 0.5 give 1.5, 3, 4: what the
    environment said in between takes no part, so that a discount does not depend on how much that was.
    """
    return Estimate(token_returns(table, settings.token_gamma), {})


def reinforce_pp(table: StepTable, settings: TokenDiscount) -> Estimate:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): returns to go per token, whitened over the step.

    Token rewards, such as the KL of ``reward.kl_coef``, enter the returns to go of the tokens before them. Episodes of
    two tokens with returns 1 and 0 give 0.866025 and -0.866025 at ``token_gamma`` 1. Across what the environment said
    the return goes on (verl starts anew at every token that was not sampled).
    """
    return Estimate(whitened(token_returns(table, settings.token_gamma), table.ranks), {})


class StepReinforceSettings(TurnDiscount, Normalized):
    pass


def step_reinforce(table: StepTable, settings: StepReinforceSettings) -> Estimate:
    """Step-wise REINFORCE (ROLL): returns to go of turns, normalised over all turns of the training step.

    ``(G_t - mean) / (std(ddof=1) + eps)`` over every turn of every episode that has a token; ``normalize="mean"``
    leaves the division out. Rewards (0, 0, 1) and (0, 0, 0) at gamma 0.95 have the mean 0.475417.
    """
    result = turn_returns(table, settings.gamma)
    sampled = table.turns.tokens > 0
    together = np.zeros(int(sampled.sum()), dtype=np.int64)
    result[sampled] = normalized(result[sampled], together, settings.normalize, settings.epsilon)
    return Estimate(result[table.turn_of_token], {})


def remax(table: StepTable, settings: Settings) -> Estimate:
    """ReMax (Li et al. 2023, arXiv:2310.10505): ``R_i`` minus the return of the greedy episode of its task.

    Returns 1, 0 beside a greedy 0.5 give 0.5, -0.5. Where no greedy episode was scored there is no baseline: the
    episode gets 0 and is counted as ``advantage/without_greedy``.
    """
    missing = np.isnan(table.episodes.greedy_return)
    advantages = np.where(missing, 0.0, table.returns - table.episodes.greedy_return)
    return Estimate(advantages[table.episode_of_token], {"advantage/without_greedy": float(missing.sum())})


REINFORCE = Estimator(estimate=reinforce, settings=TurnDiscount)
REINFORCE_TOKEN = Estimator(estimate=reinforce_token, settings=TokenDiscount)
REINFORCE_PP = Estimator(estimate=reinforce_pp, settings=TokenDiscount)
STEP_REINFORCE = Estimator(estimate=step_reinforce, settings=StepReinforceSettings)
REMAX = Estimator(estimate=remax, needs_greedy=True)
