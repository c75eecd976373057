"""Which sampled tokens are left out of the loss though their episodes count, and what the others weigh.

Statistics of groups and advantages are taken before, over all scored episodes; denominators count what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roll_envs.types import Group, Metrics, Trajectory
from trainer.algorithms.estimators.types import FloatArray
from trainer.config.algorithm import MaskConfig
from trainer.data.sequences import TokenSequence

__all__ = ["Masked", "apply_masks"]


class Masked(NamedTuple):
    """Rows as the loss sees them, what each weighs (mean 1), and counts named ``mask/...``."""

    rows: list[TokenSequence]
    weights: FloatArray
    metrics: Metrics


def apply_masks(config: MaskConfig, groups: Sequence[Group], rows: Sequence[TokenSequence]) -> Masked:
    """``rows`` of ``groups`` with masks cleared where the configuration leaves tokens out; weights of the rows [R].

    ``truncated_answers`` leaves out the tokens of turns whose answer was cut at the longest length (DAPO's overlong
    filtering, per turn), ``truncated_episodes`` those of episodes that ended at their turn limit, ``error_max_tokens``
    those of episodes without success that have more sampled tokens.

    A row weighs ``1 + difficulty_weight * (1 - s)``, with s the share of successes among the scored episodes of its
    task, times ``1 + length_weight * (longest - n) / (longest - shortest)``, with n the sampled tokens of its episode;
    all over the mean of the rows that have tokens left. Two rows of tasks that are always and never solved weigh 2/3
    and 4/3 at a ``difficulty_weight`` of 1.
    """
    episodes = {(g, t.member): t for g, group in enumerate(groups) for t in group.trajectories if t.scored and t.turns}
    kept = [_masked(config, row, episodes[row.group, row.member]) for row in rows]
    weights = _weights(config, groups, rows, episodes)
    learnt = np.array([any(row.mask) for row in kept], dtype=bool)
    if learnt.any():
        weights /= weights[learnt].mean()
    else:
        weights = np.ones(len(rows))
    return Masked(kept, weights, _metrics(config, rows, kept, weights[learnt]))


def _masked(config: MaskConfig, row: TokenSequence, episode: Trajectory) -> TokenSequence:
    if _left_out(config, episode):
        return replace(row, mask=(False,) * len(row.mask))
    if not config.truncated_answers:
        return row
    cut = {i for i, turn in enumerate(episode.turns) if turn.completion.finish == "length"}
    if not cut.intersection(row.turns):
        return row
    return replace(row, mask=tuple(m and t not in cut for m, t in zip(row.mask, row.turns, strict=True)))


def _left_out(config: MaskConfig, episode: Trajectory) -> bool:
    """Whether the whole episode is."""
    if config.truncated_episodes and episode.outcome.kind == "truncated":
        return True
    most = config.error_max_tokens
    return most is not None and not episode.success and _tokens(episode) > most


def _tokens(episode: Trajectory) -> int:
    return sum(len(turn.completion.ids) for turn in episode.turns)


def _weights(
    config: MaskConfig,
    groups: Sequence[Group],
    rows: Sequence[TokenSequence],
    episodes: dict[tuple[int, int], Trajectory],
) -> FloatArray:
    """Before they are brought to mean 1."""
    weights = np.ones(len(rows))
    if not rows:
        return weights
    if config.difficulty_weight:
        solved = [[t.success for t in group.trajectories if t.scored and t.turns] for group in groups]
        unsolved = np.array([1.0 - sum(s) / len(s) if s else 0.0 for s in solved])
        weights *= 1.0 + config.difficulty_weight * unsolved[[row.group for row in rows]]
    if config.length_weight:
        tokens = np.array([_tokens(episodes[row.group, row.member]) for row in rows], dtype=np.float64)
        shorter = (tokens.max() - tokens) / max(float(np.ptp(tokens)), 1.0)
        weights *= 1.0 + config.length_weight * shorter
    return weights


def _metrics(
    config: MaskConfig, rows: Sequence[TokenSequence], kept: Sequence[TokenSequence], weights: FloatArray
) -> Metrics:
    """Nothing where nothing is configured."""
    metrics: Metrics = {}
    if config.truncated_answers or config.truncated_episodes or config.error_max_tokens is not None:
        before, after = (sum(sum(row.mask) for row in some) for some in (rows, kept))
        metrics["mask/tokens_share"] = (before - after) / max(before, 1)
        metrics["mask/rows"] = float(sum(any(a.mask) and not any(b.mask) for a, b in zip(rows, kept, strict=True)))
    if (config.difficulty_weight or config.length_weight) and len(weights):
        metrics["mask/weight_min"] = float(weights.min())
        metrics["mask/weight_max"] = float(weights.max())
    return metrics
