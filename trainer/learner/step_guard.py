"""Which optimiser steps are taken: gradients are cut to a norm, and broken ones are skipped, counted and, when they do
not end, an error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from roll_envs.errors import RollError

__all__ = ["StepGuard"]


class StepGuard:
    """Judges the gradient of each step by its norm."""

    def __init__(self, *, max_norm: float, skip_norm: float | None, max_skipped: int) -> None:
        """Gradients are cut to ``max_norm``. Steps with a norm that is not finite, or above ``skip_norm``, are
        skipped; after ``max_skipped`` in a row the next one is an error."""
        self._max_norm, self._skip_norm, self._max_skipped = max_norm, skip_norm, max_skipped
        self.skipped_in_a_row = 0

    def admits(self, values: Sequence[torch.nn.Parameter]) -> tuple[bool, float]:
        """Whether the step with these gradients is to be taken, and their norm; they are cut where it is.

        Raises :class:`RollError` when too many steps in a row were skipped.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(values, self._max_norm))
        limit = math.inf if self._skip_norm is None else self._skip_norm
        if math.isfinite(norm) and norm <= limit:
            self.skipped_in_a_row = 0
            return True, norm
        if self.skipped_in_a_row >= self._max_skipped:
            before = f", nor were the {self.skipped_in_a_row} before it" if self.skipped_in_a_row else ""
            bound = "" if self._skip_norm is None else f" (optimizer.skip_norm is {self._skip_norm:g})"
            raise RollError(
                f"the gradient norm is {norm:g}{bound}; the step was not taken{before}. "
                "Lower optimizer.lr (or warm_start.lr) in the config.yaml of the run's folder and resume; "
                "optimizer.max_skipped is how many such steps in a row are passed over"
            )
        self.skipped_in_a_row += 1
        return False, norm
