"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["FLOOR", "learning_rate"]

FLOOR = 0.05
"""Share of the peak at which a decaying schedule ends."""

_DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def learning_rate(name: str, peak: float, *, step: int, steps: int, warmup_steps: int) -> float:
    """Rate of optimiser step ``step`` (from 0) of ``steps``: a linear warm-up, then ``name``'s decay to 5% of the peak.

    Peak 1, 2 warm-up steps, 'linear' over 4 steps: 0.5, 1, 1, 0.525.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (FLOOR + (1.0 - FLOOR) * _DECAYS[name](min(1.0, done)))
