"""EnvironmentCard: what an environment package registers, one object per id.

An entry point of the group ``roll_envs`` has the environment's id as its name and an EnvironmentCard as its target:

    roll/SimpleSokoban-v0 = envs.sokoban:SIMPLE_SOKOBAN

Nothing of the package is imported until that id is made or shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EnvironmentCard"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentCard:
    """One registered environment: how to build it, and what a user must know to read its results."""

    id: str
    """``namespace/Name-vN``."""
    entry_point: str
    """``module:Class``, imported only when the environment is made."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Default keyword arguments; those given to ``make`` win."""
    summary: str
    """One line."""
    tests: str
    """What ability it tests."""
    turns: str
    """Turn limit and what counts as a turn."""
    reward_range: tuple[float, float]
    """Lowest and highest total reward of an episode without format penalties."""
    rewards: str
    """What is rewarded, part by part."""
    success: str
    """What ``info["success"]`` means."""
    splits: str = "Tasks are seeds; the trainer draws train and held-out seeds from disjoint ranges."
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version suffix -> what changed."""
    citation: str = ""
    differences: tuple[str, ...] = ()
    """Deliberate differences from the original, each with its reason."""
