"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from roll_envs.errors import UnknownNameError

__all__ = ["DECAY_SHARE", "FLOOR", "SCHEDULES", "learning_rate"]

FLOOR = 0.05
"""Share of the peak at which a decaying schedule ends, unless another is given."""
DECAY_SHARE = 0.2
"""Share of the steps in which 'wsd' decays, unless another is given."""

SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, decay_share: 1.0,
    "linear": lambda done, decay_share: 1.0 - done,
    "cosine": lambda done, decay_share: 0.5 * (1.0 + math.cos(math.pi * done)),
    "wsd": lambda done, decay_share: min(1.0, (1.0 - done) / decay_share) if decay_share else 1.0,
}
"""By the name that ``lr_schedule`` uses: (share of the steps after the warm-up, decay share) -> share of the way from
the floor to the peak. 'wsd' is warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395), with a linear decay."""


def learning_rate(
    name: str,
    peak: float,
    *,
    step: int,
    steps: int,
    warmup_steps: int,
    min_share: float = FLOOR,
    decay_share: float = DECAY_SHARE,
) -> float:
    """Rate of optimiser step ``step`` (from 0) of ``steps``: a linear warm-up, then ``name``'s decay.

    Decaying schedules end at ``min_share`` of the peak; ``decay_share`` is the part of the steps after the warm-up in
    which 'wsd' decays. With peak 1, 2 warm-up steps and a floor of 0.05, 'linear' over 4 steps: 0.5, 1, 1, 0.525; 'wsd'
    with a decay share of 0.5 over 6 steps: 0.5, 1, 1, 1, 1, 0.525.

    Raises :class:`UnknownNameError` for a name that is not in :data:`SCHEDULES`.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("learning-rate schedule", name, SCHEDULES)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return peak * (min_share + (1.0 - min_share) * SCHEDULES[name](done, decay_share))
