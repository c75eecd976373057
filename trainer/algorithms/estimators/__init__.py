"""Advantage estimators: pure functions from the table of a step to one number per sampled token.

Here is what an estimator is, what several of them share, and the step from an estimator's numbers to the column that
losses read. The names stand in :data:`trainer.config.parts.ESTIMATORS`. Looking one up loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from roll_envs.settings import Part, Settings
from roll_envs.types import Metrics
from trainer.config import AdvantageConfig
from trainer.config.parts import ESTIMATORS, part_settings
from trainer.data.table import FloatArray, IntArray, StepTable, compare, moments

__all__ = ["Estimate", "Estimator", "make_estimator", "normalized", "whitened"]

Normalize = Literal["mean", "mean_std"]


class Estimate(NamedTuple):
    """What an estimator returns."""

    advantages: FloatArray
    """One number per sampled token [N]."""
    metrics: Metrics
    """Its own statistics, named ``advantage/...``."""
    returns: FloatArray | None = None
    """What the critic shall learn to predict at each token [N]; None without a critic."""


@dataclass(frozen=True, kw_only=True)
class Estimator(Part):
    """An estimator and what it asks of the loop: a pure function of the step's table and the estimator's settings.

    Failed and cancelled episodes are not in the table, so that they are in no mean, no deviation and no count.
    """

    estimate: Callable[[StepTable, Any], Estimate]
    needs_group: bool = False
    """It compares the episodes of one task, so that ``rollout.group_size`` must be 2 or more."""
    needs_values: bool = False
    """It needs a critic."""
    needs_greedy: bool = False
    """It needs one greedy episode per task."""

    def problems(self, config: Any) -> list[str]:
        name, problems = config.advantage.name, []
        if self.needs_group and config.rollout.group_size < 2:
            problems.append(
                f"rollout.group_size is {config.rollout.group_size}, but advantage.name {name!r} compares "
                "the episodes of one task; allowed: 2 or more, or advantage.name 'reinforce'"
            )
        if self.needs_greedy and (config.reward.clip or config.reward.overlong_tokens):
            problems.append(
                f"advantage.name {name!r} compares with the return of a greedy episode, which reward.clip and "
                "reward.overlong_tokens cannot be applied to; leave them out, or choose another estimator"
            )
        return problems


# -- what several estimators share: each class of settings names those of its estimator --------------------------------


class Epsilon(Settings):
    epsilon: float = Field(1e-6, gt=0)
    """Added to standard deviations. Default: verl, ROLL, SkyRL; TRL's is 1e-4."""


class Normalized(Epsilon):
    normalize: Normalize = "mean_std"
    """What is normalised by. Default: DeepSeekMath."""


class TurnDiscount(Settings):
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per turn. Default: 1 as verl-agent's default; its scripts and GiGPO's paper use 0.95."""


class TokenDiscount(Settings):
    token_gamma: float = Field(1.0, ge=0, le=1)
    """Discount per sampled token. Default: 1 as every trainer."""


def normalized(
    values: FloatArray, label: IntArray, normalize: Normalize, epsilon: float, *, weight: Any = None, ddof: int = 1
) -> FloatArray:
    """Values minus the mean of their label, over its std + epsilon if so configured; 0 for one value or equal ones.

    A value counts ``weight`` times, once without.
    """
    found = compare(values, label, weight=weight, ddof=ddof)
    scale = found.std + epsilon if normalize == "mean_std" else 1.0
    # Exactly 0 without a spread: the mean of equal numbers differs from them by rounding, and epsilon is small.
    return np.where(found.differs, (values - found.mean) / scale, 0.0)


def whitened(advantages: FloatArray) -> FloatArray:
    """All tokens together to mean 0 and deviation 1: ``(x - mean) / sqrt(var(ddof=1) + 1e-8)``; 0 without spread.

    1, 0, 0, 1 give 0.866025, -0.866025, -0.866025, 0.866025.
    """
    mean, variance = moments(advantages)
    if variance == 0.0:
        return np.zeros(len(advantages))
    return np.asarray((advantages - mean) / np.sqrt(variance + 1e-8), dtype=np.float64)


def turn_returns(table: StepTable, gamma: float) -> FloatArray:
    """Discounted return to go of each turn [M], one ``gamma`` per turn."""
    return accumulate_back(table.turn_rewards, table.turns.episode, gamma)


def accumulate_back(values: FloatArray, label: IntArray, factor: float) -> FloatArray:
    """``G_n = v_n + factor * G_{n+1}`` within each stretch of equal labels: the discounted return to go.

    Values 0, 0, 1 under one label at 0.95 give 0.9025, 0.95, 1.
    """
    result = values.astype(np.float64, copy=True)
    if not len(result):
        return result
    ends = np.flatnonzero(np.append(np.diff(label) != 0, True))
    lengths = np.diff(ends, prepend=-1)
    for step in range(1, int(lengths.max())):  # the last but one of every stretch, then the one before, and so on
        at = ends[lengths > step] - step
        result[at] += factor * result[at + 1]
    return result


# -- from the configuration to the column ------------------------------------------------------------------------------


def make_estimator(config: AdvantageConfig) -> Callable[[StepTable], tuple[StepTable, Metrics]]:
    """What gives the step its advantages (and with a critic its returns): the configured estimator, whitening, and a
    cut to ``[-clip, clip]``; returns of the critic are taken before both. To be made once for a run.

    What is made raises ValueError when the estimator returns another shape than one number per sampled token.

    Raises:
        UnknownNameError: No estimator has the configured name.
    """
    part: Estimator = ESTIMATORS.find(config.name)
    return partial(_estimated, config, part.estimate, part_settings(config, part))


def _estimated(
    config: AdvantageConfig, estimate: Callable[[StepTable, Any], Estimate], settings: Any, table: StepTable
) -> tuple[StepTable, Metrics]:
    found = estimate(table, settings)
    for name, values in (("advantage", found.advantages), ("return", found.returns)):
        if values is not None and np.shape(values) != table.episode_of_token.shape:
            raise ValueError(
                f"estimator {config.name!r} gave {name}s of shape {np.shape(values)}; allowed: one {name} for each of "
                f"the {len(table.episode_of_token)} sampled tokens"
            )
    advantages = np.asarray(found.advantages, dtype=np.float64)
    advantages = whitened(advantages) if config.whiten else advantages
    if config.clip is not None:
        advantages = np.clip(advantages, -config.clip, config.clip)
    metrics = {**_group_metrics(table), **found.metrics}
    if len(advantages):
        metrics["advantage/mean"] = float(advantages.mean())
        metrics["advantage/abs_mean"] = float(np.abs(advantages).mean())
        metrics["advantage/max"] = float(advantages.max())
        metrics["advantage/min"] = float(advantages.min())
    return table.with_tokens(advantage=advantages, return_=found.returns), metrics


def _group_metrics(table: StepTable) -> Metrics:
    """Shares of the groups that have at least one scored episode; groups without one are counted apart."""
    group = table.episodes.group
    found = compare(table.returns, group)
    _, first = np.unique(group, return_index=True)
    count = max(len(first), 1)
    single = found.size[first] == 1
    return {
        "advantage/groups": float(len(first)),
        "advantage/groups_without_episodes": float(table.groups - len(first)),
        "advantage/episodes_left_out": float(table.left_out),
        "advantage/singleton_groups": float(single.sum()) / count,
        "advantage/zero_variance_groups": float((~single & ~found.differs[first]).sum()) / count,
    }
