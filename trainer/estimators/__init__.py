"""Advantage estimators by name: pure functions from scored episodes to one number per sampled token.

Failed and cancelled episodes never reach an estimator, so they are in no mean, no standard deviation and no count.
"""

from __future__ import annotations

from roll_envs.errors import UnknownNameError
from trainer.estimators.gigpo import gigpo
from trainer.estimators.group_relative import grpo
from trainer.estimators.returns import reinforce
from trainer.estimators.types import EpisodeView, Estimate, Estimator, EstimatorSpec, discounted, per_turn

__all__ = [
    "ESTIMATORS",
    "EpisodeView",
    "Estimate",
    "Estimator",
    "EstimatorSpec",
    "discounted",
    "find_estimator",
    "gigpo",
    "grpo",
    "per_turn",
    "register_estimator",
    "reinforce",
]

ESTIMATORS: dict[str, EstimatorSpec] = {
    "gigpo": EstimatorSpec(estimate=gigpo, needs_group=True),
    "grpo": EstimatorSpec(estimate=grpo, needs_group=True),
    "reinforce": EstimatorSpec(estimate=reinforce),
}
"""Estimators by the name that ``advantage.name`` uses."""


def register_estimator(
    name: str,
    estimator: Estimator,
    *,
    needs_group: bool = False,
    needs_values: bool = False,
    needs_greedy: bool = False,
) -> None:
    """Make an estimator available as ``advantage.name``; what it needs of the loop is as in :class:`EstimatorSpec`.

    Raises:
        ValueError: The name is taken by another estimator.
    """
    spec = EstimatorSpec(
        estimate=estimator, needs_group=needs_group, needs_values=needs_values, needs_greedy=needs_greedy
    )
    if ESTIMATORS.setdefault(name, spec).estimate is not estimator:
        raise ValueError(f"estimator {name!r} is already registered; choose another name")


def find_estimator(name: str) -> EstimatorSpec:
    """The estimator ``name``. Raises :class:`UnknownNameError` for a name that is not registered."""
    if name not in ESTIMATORS:
        raise UnknownNameError("advantage estimator", name, ESTIMATORS)
    return ESTIMATORS[name]
