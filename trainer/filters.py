"""Which groups of a step are learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from roll_envs.types import Group, Metrics
from trainer.algorithm_config import FilterConfig

__all__ = ["keep_groups"]


def keep_groups(config: FilterConfig, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
    """The groups that pass, in order, and counts named ``filter/...``; scored episodes alone decide."""
    return list(groups), {}
