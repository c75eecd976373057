"""Half-precision weights with float32 master copies: the model computes in half, the optimiser steps in full.

A bfloat16 number has 8 significant bits, so that a step of less than 1/256 of a weight would be lost. The masters take
it, and the model's weights are their rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from roll_envs.errors import CheckpointError

__all__ = ["DTYPES", "MasterWeights", "cast_weights"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the name that ``learner.precision`` uses."""


def cast_weights(network: Any, dtype: torch.dtype) -> Any:
    """``network`` with its parameters in ``dtype``, changed in place. Buffers (the angles of rotary positions) stay."""
    for parameter in network.parameters():
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    return network


class MasterWeights:
    """What the optimiser steps: each parameter itself, or a float32 copy of one in half precision."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.values = [
            torch.nn.Parameter(p.detach().float()) if p.dtype in (torch.bfloat16, torch.float16) else p
            for p in self._parameters
        ]
        """In the order of ``parameters``."""
        self._pairs = [(p, v) for p, v in zip(self._parameters, self.values, strict=True) if p is not v]

    def clear_gradients(self) -> None:
        for value in self.values:
            value.grad = None

    def add_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """Add what one micro-batch gives, in the masters' precision, whatever the parts come in."""
        for value, gradient in zip(self.values, gradients, strict=True):
            if value.grad is None:
                value.grad = gradient.to(value.dtype)
            else:
                value.grad.add_(gradient)

    @torch.no_grad()
    def write_back(self) -> None:
        """The parameters become the masters' rounding; to call after each optimiser step."""
        for parameter, value in self._pairs:
            parameter.copy_(value)

    def state(self) -> dict[str, Any]:
        """The copies, for a checkpoint; nothing where the parameters are their own masters."""
        return {"masters": [value.detach() for _, value in self._pairs]} if self._pairs else {}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Put saved copies back. Raises :class:`CheckpointError` when they are not those of these parameters."""
        saved = list(state.get("masters", []))
        if [tuple(s.shape) for s in saved] != [tuple(v.shape) for _, v in self._pairs]:
            raise CheckpointError(
                f"the checkpoint has {len(saved)} float32 copies of weights and the learner needs "
                f"{len(self._pairs)}, each of its weight's shape; resume with the learner.precision it was saved with"
            )
        for (parameter, value), copy in zip(self._pairs, saved, strict=True):
            value.copy_(copy)
            parameter.copy_(value)
