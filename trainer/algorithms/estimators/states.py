"""Estimators that compare turns which answered the same observation: GiGPO, and HGPO with the way that led there."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from pydantic import Field
from rapidfuzz.distance import Indel

from roll_envs.types import Metrics
from trainer.algorithms.estimators.group_relative import GroupSettings, episode_advantages
from trainer.algorithms.estimators.returns import turn_returns
from trainer.algorithms.estimators.types import Estimate, Estimator, TurnDiscount, normalized
from trainer.data.table import IntArray, StepTable, compare

__all__ = ["alike", "anchor_states"]


def anchor_states(table: StepTable, similarity: float = 1.0) -> IntArray:
    """A number for the state that each turn answered [M]; -1 for a turn without a sample. No state spans two groups.

    Observations are one state when they are identical, or, with a ``similarity`` below 1, by greedy leader clustering:
    an observation joins the first leader it is :func:`alike`, or leads a new state. Frequent observations come first,
    then the order of their texts, so that the order of the episodes does not matter.
    """
    group = table.episodes.group[table.turns.episode].tolist()
    counts = Counter((g, text) for g, text in zip(group, table.turns.anchor, strict=True) if text is not None)
    leader = {observation: observation for observation in counts}
    if similarity < 1.0:
        leaders: dict[int, list[str]] = {}
        for g, text in sorted(counts, key=lambda observation: (-counts[observation], observation[1])):
            known = leaders.setdefault(g, [])
            leader[g, text] = g, next((other for other in known if alike(other, text, similarity)), text)
            if leader[g, text] == (g, text):
                known.append(text)
    number: dict[tuple[int, str], int] = {}
    return np.array(
        [
            -1 if text is None else number.setdefault(leader[g, text], len(number))
            for g, text in zip(group, table.turns.anchor, strict=True)
        ],
        dtype=np.int64,
    )


def alike(first: str, second: str, similarity: float) -> bool:
    """Whether the texts share enough in order: ``2 * LCS / (len(first) + len(second)) >= similarity``.

    LCS is the length of their longest common subsequence: 20 characters of which one differs are 0.95 alike. difflib's
    ratio, which verl-agent takes, is this or less: it follows the longest common block, which in a grid of few symbols
    is often a shifted one, and leaves frequent characters out of texts of 200 and more.
    """
    allowed = math.floor((1.0 - similarity) * (len(first) + len(second)) + 1e-9)
    return Indel.distance(first, second, score_cutoff=allowed) <= allowed


def _anchor_metrics(states: IntArray) -> Metrics:
    """How many states were met, and by how many turns; empty when there were none."""
    if not len(states):
        return {}
    sizes = np.bincount(states)
    return {
        "advantage/anchor_groups": float(len(sizes)),
        "advantage/anchor_size_mean": len(states) / len(sizes),
        "advantage/anchor_size_max": float(sizes.max()),
        "advantage/anchor_singleton_turns": float((sizes == 1).sum()) / len(states),
    }


class GigpoSettings(TurnDiscount, GroupSettings):
    step_weight: float = Field(1.0, ge=0)
    """Weight of the step advantage. Default: GiGPO's paper."""
    similarity: float = Field(1.0, gt=0, le=1)
    """Anchor observations this alike are one state; 1: only identical ones.
    Default: identical states, as in GiGPO's paper; verl-agent offers 0.95."""


def gigpo(table: StepTable, settings: GigpoSettings) -> Estimate:
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
    states = anchor_states(table, settings.similarity)
    sampled = states >= 0
    returns = turn_returns(table, settings.gamma)[sampled]
    result = episode_advantages(table, settings)[table.turns.episode]
    step = normalized(returns, states[sampled], settings.normalize, settings.epsilon)
    result[sampled] += settings.step_weight * step
    return Estimate(result[table.turn_of_token], _anchor_metrics(states[sampled]))


class HgpoSettings(TurnDiscount, GroupSettings):
    history: int = Field(2, ge=1)
    """Longest history that states are compared by. Default: verl-agent's history_length."""
    history_power: float = Field(1.0, ge=0)
    """Longer histories weigh (k + 1) to this power. Default: verl-agent's HGPO."""
    base_weight: float = Field(0.0, ge=0)
    """Weight of the episode advantage beside the histories. Default: verl-agent's HGPO."""


def hgpo(table: StepTable, settings: HgpoSettings) -> Estimate:
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
    states = anchor_states(table)
    sampled = np.flatnonzero(states >= 0)
    states, episode = states[sampled], table.turns.episode[sampled]
    returns = turn_returns(table, settings.gamma)[sampled]
    differs = compare(table.returns, table.episodes.group).differs[episode]
    weights = settings.base_weight * differs
    sums = weights * episode_advantages(table, settings)[episode]
    cluster = states
    for k in range(1, settings.history + 2):
        inside = cluster >= 0
        found = normalized(returns[inside], cluster[inside], settings.normalize, settings.epsilon, ddof=0)
        weight = (k + 1) ** settings.history_power * compare(returns[inside], cluster[inside]).differs
        sums[inside] += weight * found
        weights[inside] += weight
        cluster = _longer(cluster, states, episode)
    result = np.zeros(len(table.turns.reward))
    result[sampled] = np.divide(sums, weights, out=np.zeros(len(sums)), where=weights > 0)
    return Estimate(result[table.turn_of_token], _anchor_metrics(states))


def _longer(cluster: IntArray, states: IntArray, episode: IntArray) -> IntArray:
    """Clusters by one more observation: that of the turn before, then this turn's state; -1 where there is none."""
    before = np.append(-1, cluster[:-1])[: len(cluster)]
    known = (np.diff(episode, prepend=-1) == 0) & (before >= 0)
    pairs = before[known] * (states.max(initial=0) + 1) + states[known]
    result = np.full(len(cluster), -1, dtype=np.int64)
    result[known] = np.unique(pairs, return_inverse=True)[1]
    return result


GIGPO = Estimator(estimate=gigpo, settings=GigpoSettings, needs_group=True)
HGPO = Estimator(estimate=hgpo, settings=HgpoSettings, needs_group=True)
