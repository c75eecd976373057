"""Advantage estimators: pure functions from rewards, groups and anchors to one number per turn.

An estimator sees :class:`EpisodeRewards` only, never tokens; :func:`estimate` hands it the scored episodes of a step
and spreads what it returns over the sampled ids of the rows. Failed and cancelled episodes never reach an estimator, so
they are in no mean, no standard deviation and no count. Critics and token-level penalties are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roll_envs.errors import UnknownNameError
from roll_envs.types import Group, Metrics, Trajectory
from trainer.config import AdvantageConfig
from trainer.sequences import TokenSequence

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "EpisodeRewards",
    "Estimator",
    "TurnAdvantages",
    "discounted_returns",
    "estimate",
    "gigpo",
    "grpo",
    "register_estimator",
    "reinforce",
]

FloatArray = NDArray[np.float64]

NO_SPREAD = 1e-9
"""Values of a group whose range is at most this are equal: their advantage is exactly 0 and the group is counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRewards:
    """What an estimator may know of one scored episode of T >= 1 turns."""

    group: int
    rewards: tuple[float, ...]
    """Reward of each turn [T]."""
    anchors: tuple[str | None, ...]
    """Observation that each turn answered [T]; None where nothing was sampled (no part in step statistics)."""


class TurnAdvantages(NamedTuple):
    """What an estimator returns: per episode, one advantage per turn [T]; and its own statistics."""

    per_episode: list[FloatArray]
    metrics: Metrics


class Advantages(NamedTuple):
    """Per row, one float64 per id (0.0 where the id was not sampled); and statistics named ``advantage/...``."""

    per_row: list[FloatArray]
    metrics: Metrics


Estimator = Callable[[Sequence[EpisodeRewards], AdvantageConfig], TurnAdvantages]


def discounted_returns(rewards: Sequence[float], gamma: float) -> FloatArray:
    """Discounted return to go, ``G_t = r_t + gamma * G_{t+1}``: rewards (0, 0, 1) at 0.95 give (0.9025, 0.95, 1)."""
    returns = np.empty(len(rewards))
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running
        returns[t] = running
    return returns


def _equal(values: FloatArray) -> bool:
    return bool(np.ptp(values) <= NO_SPREAD)


def _normalize(values: FloatArray, config: AdvantageConfig) -> FloatArray:
    """Values minus their mean, over (std with ddof=1) + epsilon if so configured; 0 for one value or equal ones."""
    if len(values) < 2 or _equal(values):
        return np.zeros(len(values))
    centred = values - values.mean()
    scale = float(values.std(ddof=1)) + config.epsilon if config.normalize == "mean_std" else 1.0
    return np.asarray(centred / scale, dtype=np.float64)


def _by_group(episodes: Sequence[EpisodeRewards]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        members[episode.group].append(i)
    return members


def _episode_advantages(
    episodes: Sequence[EpisodeRewards], config: AdvantageConfig, *, across_steps: bool = False
) -> FloatArray:
    """One group-relative advantage per episode [E], from undiscounted returns."""
    returns = np.array([sum(e.rewards) for e in episodes], dtype=np.float64)
    result = np.zeros(len(episodes))
    for members in _by_group(episodes).values():
        weights = [len(episodes[i].rewards) if across_steps else 1 for i in members]
        if len(members) < 2:
            continue
        normal = _normalize(np.repeat(returns[members], weights), config)
        result[members] = normal[np.cumsum(weights) - 1]
    return result


def grpo(episodes: Sequence[EpisodeRewards], config: AdvantageConfig) -> TurnAdvantages:
    """GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 3): ``(R_i - mean_g) / (std_g(ddof=1) + eps)`` on every turn.

    Returns 1, 0, 0, 1 of one group give 0.866024, -0.866024, -0.866024, 0.866024; ``normalize="mean"`` leaves the
    division out (Dr. GRPO, arXiv:2503.20783). A group of one scored episode, or of equal returns, gives 0 (verl gives a
    single episode its raw return).
    """
    advantages = _episode_advantages(episodes, config)
    per_turn = [np.full(len(e.rewards), a) for e, a in zip(episodes, advantages, strict=True)]
    return TurnAdvantages(per_turn, {})


def reinforce(episodes: Sequence[EpisodeRewards], config: AdvantageConfig) -> TurnAdvantages:
    """REINFORCE (Williams 1992): the discounted return to go of each turn, with no baseline and no normalisation."""
    return TurnAdvantages([discounted_returns(e.rewards, config.gamma) for e in episodes], {})


def gigpo(episodes: Sequence[EpisodeRewards], config: AdvantageConfig, *, across_steps: bool = False) -> TurnAdvantages:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, eq. 3-8): episode advantage + ``step_weight`` * step advantage.

    The step advantage normalises the discounted return to go within anchor groups: turns of one group that answered the
    same observation, wherever and by whomever. An anchor group of one turn gives 0. The episode advantage is
    that of :func:`grpo`, in which each trajectory weighs the same, as in the paper; ``across_steps=True`` repeats each
    return once per turn before taking the statistics, as verl-agent does by default (long trajectories weigh more);
    register ``functools.partial(gigpo, across_steps=True)`` to train with it.

    Penalties for invalid actions are part of the environment's reward here, so that they count in the return to go of
    earlier turns too (verl-agent subtracts them from their own step only).
    """
    episode_advantages = _episode_advantages(episodes, config, across_steps=across_steps)
    result = [np.full(len(e.rewards), a) for e, a in zip(episodes, episode_advantages, strict=True)]
    returns = [discounted_returns(e.rewards, config.gamma) for e in episodes]
    anchored: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        for t, anchor in enumerate(episode.anchors):
            if anchor is not None:
                anchored[episode.group, anchor].append((i, t))
    for places in anchored.values():
        normal = _normalize(np.array([returns[i][t] for i, t in places]), config)
        for (i, t), value in zip(places, normal, strict=True):
            result[i][t] += config.step_weight * value
    return TurnAdvantages(result, _anchor_metrics([len(places) for places in anchored.values()]))


def _anchor_metrics(sizes: list[int]) -> Metrics:
    if not sizes:
        return {}
    turns = sum(sizes)
    return {
        "advantage/anchor_groups": float(len(sizes)),
        "advantage/anchor_size_mean": turns / len(sizes),
        "advantage/anchor_size_max": float(max(sizes)),
        "advantage/anchor_singleton_turns": sum(s for s in sizes if s == 1) / turns,
    }


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "reinforce": reinforce, "gigpo": gigpo}
"""Estimators by the name that ``advantage.name`` uses."""


def register_estimator(name: str, estimator: Estimator) -> None:
    """Make an estimator available as ``advantage.name``.

    Raises:
        ValueError: The name is taken by another estimator.
    """
    if ESTIMATORS.setdefault(name, estimator) is not estimator:
        raise ValueError(f"estimator {name!r} is already registered; choose another name")


def estimate(config: AdvantageConfig, groups: Sequence[Group], rows: Sequence[TokenSequence]) -> Advantages:
    """Advantages of every id of ``rows``, which are those of :func:`trainer.sequences.rows_of` for these ``groups``.

    Every id sampled in a turn carries the advantage of that turn, cut to ``[-clip, clip]`` if configured. Left out of
    every statistic: failed and cancelled episodes, and episodes that ended before their first turn.

    Raises:
        UnknownNameError: No estimator has the configured name.
        ValueError: A reward is not finite, two trajectories of a group claim the same place in it, or the estimator
            returned another shape than one number per turn.
    """
    if config.name not in ESTIMATORS:
        raise UnknownNameError("advantage estimator", config.name, ESTIMATORS)
    scored = [(g, t) for g, group in enumerate(groups) for t in group.trajectories if t.scored and t.turns]
    episodes = [_episode_rewards(g, t) for g, t in scored]
    place = {(g, t.member): i for i, (g, t) in enumerate(scored)}
    if len(place) != len(scored):
        raise ValueError("two trajectories of a group have the same `member`; their rows cannot be told apart")
    per_turn, metrics = ESTIMATORS[config.name](episodes, config)
    if [len(a) for a in per_turn] != [len(e.rewards) for e in episodes]:
        raise ValueError(f"estimator {config.name!r} must return one array per episode with one number per turn")
    if config.clip is not None:
        per_turn = [np.clip(a, -config.clip, config.clip) for a in per_turn]
    per_row = [_spread(row, per_turn[place[row.group, row.member]]) for row in rows]
    return Advantages(per_row, {**_group_metrics(groups, episodes), **_size_metrics(rows, per_row), **metrics})


def _episode_rewards(group: int, trajectory: Trajectory) -> EpisodeRewards:
    rewards = tuple(float(t.reward) for t in trajectory.turns)
    if not np.isfinite(rewards).all():
        task = trajectory.task
        raise ValueError(f"{task.env_id} (index {task.index}, seed {task.seed}) gave rewards {rewards}: not finite")
    anchors = tuple(t.prompt_observation if t.completion.ids else None for t in trajectory.turns)
    return EpisodeRewards(group=group, rewards=rewards, anchors=anchors)


def _spread(row: TokenSequence, per_turn: FloatArray) -> FloatArray:
    turns = np.array(row.turns, dtype=np.int64)
    return np.where(turns >= 0, per_turn[turns], 0.0)


def _group_metrics(groups: Sequence[Group], episodes: Sequence[EpisodeRewards]) -> Metrics:
    """Shares of the groups that have at least one scored episode; groups without one are counted apart."""
    returns = [np.array([sum(episodes[i].rewards) for i in m]) for m in _by_group(episodes).values()]
    count = max(len(returns), 1)
    return {
        "advantage/groups": float(len(returns)),
        "advantage/groups_without_episodes": float(len(groups) - len(returns)),
        "advantage/episodes_left_out": float(sum(len(g.trajectories) for g in groups) - len(episodes)),
        "advantage/singleton_groups": sum(len(r) == 1 for r in returns) / count,
        "advantage/zero_variance_groups": sum(len(r) > 1 and _equal(r) for r in returns) / count,
    }


def _size_metrics(rows: Sequence[TokenSequence], per_row: Sequence[FloatArray]) -> Metrics:
    """Mean and spread of the advantage over the sampled ids."""
    if not rows:
        return {}
    values = np.concatenate([a[np.array(r.mask, dtype=np.bool_)] for r, a in zip(rows, per_row, strict=True)])
    return {
        "advantage/mean": float(values.mean()),
        "advantage/abs_mean": float(np.abs(values).mean()),
        "advantage/max": float(values.max()),
        "advantage/min": float(values.min()),
    }
