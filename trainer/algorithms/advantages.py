"""From the scored episodes of a step to a number for every id of its rows: views, estimator, whitening, clipping.

Estimators see :class:`~trainer.algorithms.estimators.types.EpisodeView` only. An episode's sampled tokens are those of
its rows, one row after the other: rows never share a turn, so that the order of the rows is that of the turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from roll_envs.types import Group, Metrics, Trajectory
from trainer.algorithms.estimators import find_estimator
from trainer.algorithms.estimators.types import EpisodeView, FloatArray, by_group, equal, whitened
from trainer.config import AdvantageConfig
from trainer.data.sequences import TokenSequence

__all__ = ["Advantages", "Episodes", "estimate", "view_episodes"]


class Advantages(NamedTuple):
    """Per row, one float64 per id (0.0 where the id was not sampled); and statistics named ``advantage/...``."""

    per_row: list[FloatArray]
    metrics: Metrics
    returns: list[FloatArray] | None = None
    """What the critic shall predict at each id, in the same form; None without a critic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episodes:
    """The scored episodes of a step and where their tokens stand in its rows."""

    views: tuple[EpisodeView, ...]
    rows: tuple[tuple[int, ...], ...]
    """Per episode, the indices of its rows in order."""
    groups: int
    """Groups that were collected, those without a scored episode too."""
    left_out: int
    """Episodes that are in no statistic."""

    def with_views(self, views: Sequence[EpisodeView]) -> Episodes:
        """The same episodes with other rewards, values and so on."""
        return replace(self, views=tuple(views))

    def gather(self, rows: Sequence[TokenSequence], values: Sequence[FloatArray]) -> list[FloatArray]:
        """Numbers per row and id as numbers per episode and sampled token [N]."""
        return [
            np.concatenate([np.empty(0), *(np.asarray(values[r])[np.array(rows[r].mask)] for r in indices)])
            for indices in self.rows
        ]

    def scatter(self, rows: Sequence[TokenSequence], values: Sequence[FloatArray]) -> list[FloatArray]:
        """Numbers per episode and sampled token [N] as numbers per row and id, 0.0 where an id was not sampled."""
        result = [np.zeros(len(row.ids)) for row in rows]
        for indices, tokens in zip(self.rows, values, strict=True):
            used = 0
            for r in indices:
                mask = np.array(rows[r].mask)
                count = int(mask.sum())
                result[r][mask] = tokens[used : used + count]
                used += count
            if used != len(tokens):
                raise ValueError(f"{len(tokens)} numbers for an episode of {used} sampled tokens")
        return result


def view_episodes(groups: Sequence[Group], rows: Sequence[TokenSequence]) -> Episodes:
    """The scored episodes of ``groups``, whose rows are those of :func:`trainer.data.sequences.rows_of`.

    Left out: failed and cancelled episodes, and episodes that ended before their first turn.

    Raises:
        ValueError: A reward is not finite, or two trajectories of a group claim the same place in it.
    """
    scored = [(g, t) for g, group in enumerate(groups) for t in group.trajectories if t.scored and t.turns]
    place = {(g, t.member): i for i, (g, t) in enumerate(scored)}
    if len(place) != len(scored):
        raise ValueError("two trajectories of a group have the same `member`; their rows cannot be told apart")
    of_episode: list[list[int]] = [[] for _ in scored]
    for index, row in enumerate(rows):
        of_episode[place[row.group, row.member]].append(index)
    return Episodes(
        views=tuple(_view(g, t) for g, t in scored),
        rows=tuple(tuple(indices) for indices in of_episode),
        groups=len(groups),
        left_out=sum(len(g.trajectories) for g in groups) - len(scored),
    )


def estimate(config: AdvantageConfig, episodes: Episodes, rows: Sequence[TokenSequence]) -> Advantages:
    """Advantages of every id of ``rows`` by the configured estimator; whitened, then cut to ``[-clip, clip]``.

    Raises:
        UnknownNameError: No estimator has the configured name.
        ValueError: The estimator returned another shape than one number per sampled token.
    """
    spec = find_estimator(config.name)
    found = spec.estimate(episodes.views, config)
    wanted = [sum(view.lengths) for view in episodes.views]
    for name, values in (("advantage", found.advantages), ("return", found.returns)):
        if values is not None and [len(v) for v in values] != wanted:
            raise ValueError(f"estimator {config.name!r} must give each episode one {name} per sampled token")
    advantages = whitened(found.advantages) if config.whiten else found.advantages
    if config.clip is not None:
        advantages = [np.clip(a, -config.clip, config.clip) for a in advantages]
    per_row = episodes.scatter(rows, advantages)
    return Advantages(
        per_row,
        {**_group_metrics(episodes), **_size_metrics(advantages), **found.metrics},
        None if found.returns is None else episodes.scatter(rows, found.returns),
    )


def _view(group: int, trajectory: Trajectory) -> EpisodeView:
    rewards = np.array([float(t.reward) for t in trajectory.turns])
    if not np.isfinite(rewards).all():
        task = trajectory.task
        raise ValueError(f"{task.env_id} (index {task.index}, seed {task.seed}) gave rewards {rewards}: not finite")
    return EpisodeView(
        group=group,
        rewards=rewards,
        lengths=tuple(len(t.completion.ids) for t in trajectory.turns),
        anchors=tuple(t.prompt_observation if t.completion.ids else None for t in trajectory.turns),
        success=trajectory.success,
        env=trajectory.task.env_id,
    )


def _group_metrics(episodes: Episodes) -> Metrics:
    """Shares of the groups that have at least one scored episode; groups without one are counted apart."""
    returns = [np.array([episodes.views[i].full_return for i in m]) for m in by_group(episodes.views).values()]
    count = max(len(returns), 1)
    return {
        "advantage/groups": float(len(returns)),
        "advantage/groups_without_episodes": float(episodes.groups - len(returns)),
        "advantage/episodes_left_out": float(episodes.left_out),
        "advantage/singleton_groups": sum(len(r) == 1 for r in returns) / count,
        "advantage/zero_variance_groups": sum(len(r) > 1 and equal(r) for r in returns) / count,
    }


def _size_metrics(advantages: Sequence[FloatArray]) -> Metrics:
    """Mean and spread of the advantage over the sampled tokens."""
    values = np.concatenate([np.empty(0), *advantages])
    if not len(values):
        return {}
    return {
        "advantage/mean": float(values.mean()),
        "advantage/abs_mean": float(np.abs(values).mean()),
        "advantage/max": float(values.max()),
        "advantage/min": float(values.min()),
    }
