"""Estimators that compare the episodes of one task: by their returns, one number per episode on each of its tokens; and
turn by turn where they met the same observation (GiGPO, and HGPO with the way that led there).

``R_i`` is the undiscounted return of episode i, token rewards included; ``mean_g`` and ``std_g`` (ddof=1) are over the
scored episodes of its group. A group of one scored episode, or of equal returns, gives exactly 0 everywhere (verl gives
a single episode its raw return); such groups are counted as ``advantage/singleton_groups`` and
``advantage/zero_variance_groups``.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from pydantic import Field
from rapidfuzz.distance import Indel

from roll_envs.settings import Settings
from roll_envs.types import Metrics
from trainer.algorithms.estimators import (
    Epsilon,
    Estimate,
    Estimator,
    Normalized,
    TurnDiscount,
    normalized,
    turn_returns,
    whitened,
)
from trainer.data.table import NO_SPREAD, FloatArray, IntArray, StepTable, compare


class GroupSettings(Normalized):
    across_steps: bool = False
    """An episode counts once per turn in its group's mean and deviation.
    Default: off as in GiGPO's paper; verl-agent's is on."""


def episode_advantages(table: StepTable, settings: GroupSettings) -> FloatArray:
    """GRPO's advantage of each episode [E].

    With ``across_steps`` each return counts once per turn in the mean and the deviation, as in verl-agent: returns 1
    and 0 of episodes of three turns give +-0.912869 instead of +-0.707106.
    """
    turns = np.bincount(table.turns.episode, minlength=len(table.episodes.group)) if settings.across_steps else None
    return normalized(table.returns, table.episodes.group, settings.normalize, settings.epsilon, weight=turns)


def centred_returns(table: StepTable) -> FloatArray:
    """``R_i - mean_g`` of each episode [E]; 0 where the group has no spread."""
    return normalized(table.returns, table.episodes.group, "mean", 0.0)


def _on_tokens(values: FloatArray, table: StepTable, metrics: Metrics | None = None) -> Estimate:
    """One number per episode [E] on each of its tokens."""
    return Estimate(values[table.episode_of_token], metrics or {})


def grpo(table: StepTable, settings: GroupSettings) -> Estimate:
    """GRPO (Shao et al. 2024, arXiv:2402.03300, section 4.1.2): ``(R_i - mean_g) / (std_g + eps)``.

    Returns 1, 0, 0, 1 give 0.866024, -0.866024, -0.866024, 0.866024; ``normalize="mean"`` leaves the division out.
    """
    return _on_tokens(episode_advantages(table, settings), table)


def dr_grpo(table: StepTable, settings: Settings) -> Estimate:
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): ``R_i - mean_g``; 1, 0, 0, 1 give +-0.5.

    Its other half is ``loss.aggregation: constant``.
    """
    return _on_tokens(centred_returns(table), table)


def rloo(table: StepTable, settings: Settings) -> Estimate:
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): ``R_i`` minus the mean of the others.

    The same as ``n / (n - 1) * (R_i - mean_g)``: returns 1, 0, 0, 1 give 0.666667, -0.666667, -0.666667, 0.666667.
    """
    size = compare(table.returns, table.episodes.group).size
    return _on_tokens(centred_returns(table) * size / np.maximum(size - 1, 1), table)


def opo(table: StepTable, settings: Settings) -> Estimate:
    """OPO (Hao et al. 2025, arXiv:2505.23585): ``R_i - sum(len * R) / sum(len)`` over the group.

    ``len`` is the number of sampled tokens. Returns 1, 0 of episodes of 1 and 3 tokens have the baseline 0.25 and give
    0.75, -0.25. Advantages times lengths sum to 0.
    """
    lengths = table.episode_tokens
    return _on_tokens(normalized(table.returns, table.episodes.group, "mean", 0.0, weight=lengths), table)


def maxrl(table: StepTable, settings: Epsilon) -> Estimate:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): ``(R_i - mean_g) / (mean_g + eps)``, for rewards of 0 or more.

    Returns 1, 0, 0, 0 give 3, -1, -1, -1 (but for epsilon): rare successes weigh more than in GRPO. A group whose mean
    is not above 0 has no such advantage; it gives 0 and is counted as ``advantage/undefined_groups``.
    """
    group = table.episodes.group
    found = compare(table.returns, group)
    undefined = found.differs & (found.mean <= NO_SPREAD)
    scale = np.where(undefined, np.inf, found.mean + settings.epsilon)
    counted = {"advantage/undefined_groups": float(len(np.unique(group[undefined])))}
    return _on_tokens(np.where(found.differs, (table.returns - found.mean) / scale, 0.0), table, counted)


def pass_at_k(table: StepTable, settings: Normalized) -> Estimate:
    """Pass@k with k the size of the group (Tang et al. 2025, arXiv:2503.19595; verl's ``grpo_passk``).

    The best episode gets ``(R_1 - R_2) / (std_g + eps)``, by how much it beats the second, and all others 0: returns
    1, 0, 0, 0 give 2, 0, 0, 0 (but for epsilon), and 1, 0, 0, 1 give 0. ``normalize="mean"`` leaves the division out.
    """
    returns, group = table.returns, table.episodes.group
    found = compare(returns, group)
    order = np.lexsort((returns, group))  # group by group, the best last
    last = np.flatnonzero(np.diff(group[order], append=-1))
    last = last[found.differs[order[last]]]
    best, second = order[last], order[last - 1]
    scale = found.std[best] + settings.epsilon if settings.normalize == "mean_std" else 1.0
    result = np.zeros(len(returns))
    result[best] = (returns[best] - returns[second]) / scale
    return _on_tokens(result, table)


def gpg(table: StepTable, settings: Settings) -> Estimate:
    """GPG (Chu et al. 2025, arXiv:2504.02546): ``alpha * (R_i - mean_g)``, alpha making up for idle groups.

    ``alpha`` is the number of episodes over that of episodes in groups whose returns differ: a group of 1, 0 beside one
    of 1, 1 gives 1, -1, 0, 0. (verl divides by the number of returns that are not 0 instead.)
    """
    active = int(compare(table.returns, table.episodes.group).differs.sum())
    return _on_tokens(centred_returns(table) * (len(table.episodes.group) / max(active, 1)), table)


def lite_ppo(table: StepTable, settings: Epsilon) -> Estimate:
    """LitePPO (Liu et al. 2025, arXiv:2508.08221): ``(R_i - mean_g) / (std_batch + eps)``.

    The deviation (ddof=1) is over all returns of the step. Groups 1, 0 and 1, 1 give 0.999998, -0.999998, 0, 0. Its
    other half is ``loss.aggregation: token-mean``.
    """
    deviation = compare(table.returns, np.zeros(len(table.returns), dtype=np.int64)).std
    return _on_tokens(centred_returns(table) / (deviation + settings.epsilon), table)


def reinforce_pp_baseline(table: StepTable, settings: Settings) -> Estimate:
    """REINFORCE++-baseline (arXiv:2501.03262): ``R_i - mean_g``, whitened over all tokens of the step.

    Groups of one episode or of equal returns count as 0 in the step's mean and deviation, and get exactly 0 (in verl
    they get minus the mean over the deviation, a bias by length). Returns 1, 0 of one token each give +-0.707107.
    """
    differs = compare(table.returns, table.episodes.group).differs[table.episode_of_token]
    white = whitened(centred_returns(table)[table.episode_of_token])
    return Estimate(np.where(differs, white, 0.0), {})


# -- turns that answered the same observation --------------------------------------------------------------------------


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
        # Greedy clustering depends on the order of what comes; this one does not depend on the order of episodes.
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
    episode_weight: float = Field(1.0, ge=0)
    """Weight of the episode advantage; 0 leaves the step advantage alone: a turn then has one only where another that
    answered the same observation got another return, and no other turn is computed. Default: GiGPO's paper."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of the step advantage. Default: GiGPO's paper."""
    similarity: float = Field(1.0, gt=0, le=1)
    """Anchor observations this alike are one state; 1: only identical ones.
    Default: identical states, as in GiGPO's paper; verl-agent offers 0.95."""


def gigpo(table: StepTable, settings: GigpoSettings) -> Estimate:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, eq. 3-8): episode advantage + ``step_weight`` * step advantage, the
    former times ``episode_weight``, which the paper does not have.

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
    result = settings.episode_weight * episode_advantages(table, settings)[table.turns.episode]
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
    # Sums of weighted advantages and of their weights; a history without a comparison adds to neither.
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


GRPO = Estimator(estimate=grpo, settings=GroupSettings, needs_group=True)
DR_GRPO = Estimator(estimate=dr_grpo, needs_group=True)
RLOO = Estimator(estimate=rloo, needs_group=True)
OPO = Estimator(estimate=opo, needs_group=True)
MAXRL = Estimator(estimate=maxrl, settings=Epsilon, needs_group=True)
PASS_AT_K = Estimator(estimate=pass_at_k, settings=Normalized, needs_group=True)
GPG = Estimator(estimate=gpg, needs_group=True)
LITE_PPO = Estimator(estimate=lite_ppo, settings=Epsilon, needs_group=True)
REINFORCE_PP_BASELINE = Estimator(estimate=reinforce_pp_baseline, needs_group=True)
GIGPO = Estimator(estimate=gigpo, settings=GigpoSettings, needs_group=True)
HGPO = Estimator(estimate=hgpo, settings=HgpoSettings, needs_group=True)
