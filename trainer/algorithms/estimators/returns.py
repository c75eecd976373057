"""Estimators from each episode's own returns to go, with a critic (GAE) or without: no comparison but with the critic,
the greedy episode or the whole step.

What the environment said has no line in the table, so that reward and value of the next *sampled* token follow each
token, across turns and sequences alike. The end of an episode has value 0.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from roll_envs.settings import Settings
from trainer.algorithms.estimators import (
    Estimate,
    Estimator,
    Normalized,
    TokenDiscount,
    TurnDiscount,
    accumulate_back,
    normalized,
    turn_returns,
    whitened,
)
from trainer.data.table import FloatArray, IntArray, StepTable, sum_by


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
    return Estimate(whitened(token_returns(table, settings.token_gamma)), {})


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


# -- with a critic -----------------------------------------------------------------------------------------------------


class GaeSettings(TokenDiscount):
    lam: float = Field(0.95, ge=0, le=1)
    """Lambda per token. Default: 0.95 as GAE's paper and ROLL; verl's is 1."""


class BiLevelSettings(GaeSettings):
    high_gamma: float = Field(0.95, ge=0, le=1)
    """Discount per turn of the upper level. Default: RAGEN."""
    high_lam: float = Field(1.0, ge=0, le=1)
    """Lambda per turn of the upper level. Default: RAGEN."""


def generalized_advantages(
    rewards: FloatArray, values: FloatArray, label: IntArray, gamma: float, lam: float
) -> FloatArray:
    """``d_t = r_t + gamma * V_{t+1} - V_t`` and ``A_t = d_t + gamma * lam * A_{t+1}`` (Schulman et al. 2015, eq. 16),
    within each stretch of equal labels.

    Rewards 0, 0, 1 and values 0.5, 0.4, 0.3 at gamma 1 and lam 0.95 give 0.43675, 0.565, 0.7.
    """
    following = np.where(np.diff(label, append=-1) == 0, np.append(values[1:], 0.0)[: len(values)], 0.0)
    return accumulate_back(rewards + gamma * following - values, label, gamma * lam)


def _values(table: StepTable) -> FloatArray:
    if table.tokens.value is None:
        raise ValueError("this estimator needs the values of a critic, and the step has none")
    return table.tokens.value


def gae(table: StepTable, settings: GaeSettings) -> Estimate:
    """GAE (Schulman et al. 2015, arXiv:1506.02438) per sampled token, with ``token_gamma`` and ``lam``.

    A turn's reward is on its last token. The critic learns ``A + V``, taken before any whitening. An episode that is
    cut at its turn limit ends there, as in verl: the limit is part of the task, and no value is put behind it.
    """
    values = _values(table)
    advantages = generalized_advantages(
        table.token_rewards, values, table.episode_of_token, settings.token_gamma, settings.lam
    )
    return Estimate(advantages, {}, advantages + values)


def bi_level_gae(table: StepTable, settings: BiLevelSettings) -> Estimate:
    """Bi-level GAE (VAGEN, Wang et al. 2025, arXiv:2510.16907): first between the ends of turns, then inside each turn.

    At the last tokens ``e_k`` of the turns, ``A(e_k)`` is the advantage of :func:`generalized_advantages` over turns,
    with ``high_gamma`` and ``high_lam``. Then ``A(e_k) + V(e_k)`` is the reward at ``e_k`` and each turn by itself has
    the advantages of its tokens, with ``token_gamma`` and ``lam``. Two turns of two tokens with rewards 0.5, 1 and
    values 0.5, 0.4, 0.2, 0.3 give 0.95, 1.05, 0.8, 0.7 (high_gamma 0.95, all others 1).

    Turns are told by their tokens, so that a turn may well pay 0. Token rewards before the last token of a turn count
    with the value of that turn's end.
    """
    values, rewards, turn = _values(table), table.token_rewards, table.turn_of_token
    ends = np.flatnonzero(np.diff(turn, append=-1))
    inside = rewards.copy()
    inside[ends] = 0.0
    # What a turn pays before its end, then the value of the end: what the end of the turn before is followed by.
    entered = sum_by(turn, inside, len(table.turns.reward))[turn[ends]] + values[ends]
    episode = table.episode_of_token[ends]
    following = np.where(np.diff(episode, append=-1) == 0, np.append(entered[1:], 0.0)[: len(ends)], 0.0)
    errors = rewards[ends] + settings.high_gamma * following - values[ends]
    of_turns = accumulate_back(errors, episode, settings.high_gamma * settings.high_lam)
    rewards[ends] = of_turns + values[ends]
    advantages = generalized_advantages(rewards, values, turn, settings.token_gamma, settings.lam)
    return Estimate(advantages, {}, advantages + values)


REINFORCE = Estimator(estimate=reinforce, settings=TurnDiscount)
REINFORCE_TOKEN = Estimator(estimate=reinforce_token, settings=TokenDiscount)
REINFORCE_PP = Estimator(estimate=reinforce_pp, settings=TokenDiscount)
STEP_REINFORCE = Estimator(estimate=step_reinforce, settings=StepReinforceSettings)
REMAX = Estimator(estimate=remax, needs_greedy=True)
GAE = Estimator(estimate=gae, settings=GaeSettings, needs_values=True)
BI_LEVEL_GAE = Estimator(estimate=bi_level_gae, settings=BiLevelSettings, needs_values=True)
