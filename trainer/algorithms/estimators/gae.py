"""Generalised advantage estimation with a critic, over sampled tokens only; and its bi-level form.

What the environment said has no line in the table, so that value and advantage of the next *sampled* token follow each
token, across turns and sequences alike. The end of an episode has value 0.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from trainer.algorithms.estimators.types import Estimate, Estimator, TokenDiscount
from trainer.data.table import FloatArray, IntArray, StepTable, accumulate_back, sum_by

__all__ = ["generalized_advantages"]


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


GAE = Estimator(estimate=gae, settings=GaeSettings, needs_values=True)
BI_LEVEL_GAE = Estimator(estimate=bi_level_gae, settings=BiLevelSettings, needs_values=True)
