"""What estimators are given and what they give: the contract between the loop and every advantage estimator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roll_envs.types import Metrics
from trainer.config.algorithm import AdvantageConfig

__all__ = [
    "NO_SPREAD",
    "EpisodeView",
    "Estimate",
    "Estimator",
    "EstimatorSpec",
    "FloatArray",
    "by_group",
    "discounted",
    "equal",
    "normalized",
    "on_every_token",
    "on_last_tokens",
    "per_turn",
    "values_of",
    "whitened",
]

FloatArray = NDArray[np.float64]

NO_SPREAD = 1e-9
"""Values whose range is at most this (times the largest, where that is above 1) are equal: their advantage is exactly 0
and their group is counted."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeView:
    """What an estimator may know of one scored episode of T >= 1 turns and N sampled tokens.

    Tokens are those that the policy sampled, turn after turn; what the environment said is not among them, so that
    nothing has to be skipped. A turn may have no token (an aborted answer).
    """

    group: int
    rewards: FloatArray
    """Reward of each turn [T], shaped and normalised as configured."""
    lengths: tuple[int, ...]
    """Sampled tokens of each turn [T]; their sum is N."""
    anchors: tuple[str | None, ...]
    """Observation that each turn answered [T]; None where nothing was sampled (no part in step statistics)."""
    success: bool = False
    token_rewards: FloatArray | None = None
    """Further reward of each token [N], such as the KL penalty; None: none."""
    values: FloatArray | None = None
    """The critic's value before each token [N]; None without a critic."""
    greedy_return: float | None = None
    """Return of the greedy episode of the same task; None where none was played."""
    env: str = field(default="")
    """Environment id, for statistics by environment."""

    @property
    def total(self) -> float:
        """Undiscounted return, without token rewards."""
        return float(self.rewards.sum())

    @property
    def full_return(self) -> float:
        """Undiscounted return with token rewards: what episodes are compared by."""
        return self.total + (0.0 if self.token_rewards is None else float(self.token_rewards.sum()))

    @property
    def full_rewards(self) -> FloatArray:
        """Reward of each turn [T], with the token rewards of its tokens."""
        if self.token_rewards is None:
            return self.rewards
        turns = np.repeat(np.arange(len(self.lengths)), self.lengths)
        added = np.bincount(turns, weights=self.token_rewards, minlength=len(self.lengths))
        return np.asarray(self.rewards + added, dtype=np.float64)


class Estimate(NamedTuple):
    """What an estimator returns."""

    advantages: list[FloatArray]
    """Per episode, one number per token [N]."""
    metrics: Metrics
    """Its own statistics, named ``advantage/...``."""
    returns: list[FloatArray] | None = None
    """Per episode, what the critic shall learn to predict at each token [N]; None without a critic."""


Estimator = Callable[[Sequence[EpisodeView], AdvantageConfig], Estimate]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorSpec:
    """An estimator and what it asks of the loop."""

    estimate: Estimator
    needs_group: bool = False
    """It compares the episodes of one task, so that ``rollout.group_size`` must be 2 or more."""
    needs_values: bool = False
    """It needs a critic."""
    needs_greedy: bool = False
    """It needs one greedy episode per task."""
    keys: frozenset[str] | None = None
    """Keys of the section ``advantage`` that it reads among those that not all do; None: it may read any of them."""


def per_turn(values: Sequence[FloatArray], episodes: Sequence[EpisodeView]) -> list[FloatArray]:
    """One number per turn [T] of each episode, spread over the turn's tokens [N].

    Raises ValueError when an episode has another number of turns.
    """
    for value, episode in zip(values, episodes, strict=True):
        if len(value) != len(episode.lengths):
            raise ValueError(f"{len(value)} numbers for an episode of {len(episode.lengths)} turns")
    return [np.repeat(value, episode.lengths) for value, episode in zip(values, episodes, strict=True)]


def on_every_token(values: Sequence[float] | FloatArray, episodes: Sequence[EpisodeView]) -> list[FloatArray]:
    """One number per episode [E] on each of its tokens [N]."""
    return [np.full(sum(e.lengths), float(value)) for value, e in zip(values, episodes, strict=True)]


def values_of(episode: EpisodeView) -> FloatArray:
    """The critic's values [N]. Raises ValueError where there are none, or another number than sampled tokens."""
    if episode.values is None:
        raise ValueError("this estimator needs the values of a critic, and the episode has none")
    if len(episode.values) != sum(episode.lengths):
        raise ValueError(f"{len(episode.values)} values for an episode of {sum(episode.lengths)} sampled tokens")
    return episode.values


def on_last_tokens(episode: EpisodeView) -> FloatArray:
    """The rewards of the turns on their last tokens, token rewards added [N].

    The reward of a turn without tokens goes to the last token before it, or to the first token when there is none.
    """
    count = sum(episode.lengths)
    result = np.zeros(count) if episode.token_rewards is None else episode.token_rewards.astype(np.float64, copy=True)
    if count:
        ends = np.maximum(np.cumsum(episode.lengths) - 1, 0)
        np.add.at(result, ends, episode.rewards)
    return result


def discounted(rewards: Sequence[float] | FloatArray, gamma: float) -> FloatArray:
    """Discounted return to go, ``G_t = r_t + gamma * G_{t+1}``: rewards (0, 0, 1) at 0.95 give (0.9025, 0.95, 1)."""
    returns = np.empty(len(rewards))
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running
        returns[t] = running
    return returns


def equal(values: FloatArray) -> bool:
    """Whether values (one or more) have no spread but rounding."""
    return bool(np.ptp(values) <= NO_SPREAD * max(1.0, float(np.abs(values).max())))


def normalized(values: FloatArray, config: AdvantageConfig, *, ddof: int = 1) -> FloatArray:
    """Values minus their mean, over their std + epsilon if so configured; 0 for one value or equal ones."""
    if len(values) < 2 or equal(values):
        return np.zeros(len(values))
    centred = values - values.mean()
    scale = float(values.std(ddof=ddof)) + config.epsilon if config.normalize == "mean_std" else 1.0
    return np.asarray(centred / scale, dtype=np.float64)


def whitened(advantages: Sequence[FloatArray]) -> list[FloatArray]:
    """All tokens together to mean 0 and deviation 1: ``(x - mean) / sqrt(var(ddof=1) + 1e-8)``; 0 without spread.

    Arrays (1, 0) and (0, 1) give 0.866025 and -0.866025.
    """
    values = np.concatenate([np.empty(0), *advantages])
    if len(values) < 2 or equal(values):
        return [np.zeros(len(a)) for a in advantages]
    mean, scale = values.mean(), np.sqrt(values.var(ddof=1) + 1e-8)
    return [(a - mean) / scale for a in advantages]


def by_group(episodes: Sequence[EpisodeView]) -> dict[int, list[int]]:
    """Indices of the episodes of each group."""
    members: dict[int, list[int]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        members[episode.group].append(i)
    return members
