"""From the gradients of micro-batches to an optimiser step: replicas, float32 master weights, what the ranks of a run
agree on, and which steps are taken.

A bfloat16 number has 8 significant bits, so that a step of less than 1/256 of a weight would be lost. The masters take
it, and the model's weights are their rounding.

Ranks are the processes that train one model together. Every rank calls the same methods in the same order. With one
rank, nothing is sent and every number is returned as it is. Gradients are summed, not averaged, because losses are
divided by the denominators of all ranks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

import torch
from torch import distributed

from roll_envs.errors import CheckpointError, RollError
from trainer.config import OptimizerConfig
from trainer.data.batches import Batch, Denominators

T = TypeVar("T")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the name that ``learner.precision`` uses."""


def cast_weights(network: Any, dtype: torch.dtype) -> Any:
    """``network`` with its parameters in ``dtype``, changed in place. Buffers (the angles of rotary positions) stay."""
    for parameter in network.parameters():
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    return network


def replica_of(network: Any, *, own: Iterable[torch.nn.Parameter] = ()) -> Any:
    """A copy of ``network`` whose weights share the storage of the original's, with gradients of their own.

    Parameters in ``own`` are copied. What is written into shared weights in place is seen by both.
    """
    copied = {id(p) for p in own}
    shared: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach(), requires_grad=p.requires_grad)
        for p in network.parameters()
        if id(p) not in copied
    }
    return copy.deepcopy(network, memo=shared)


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
        for value in (*self._parameters, *self.values):
            value.grad = None

    def take_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
        """The gradients that a backward pass left in ``parameters`` (the model's, or a replica's in the same order),
        which have none afterwards. None for those that are masters themselves: autograd has added them already."""
        taken: list[torch.Tensor | None] = []
        for value, parameter in zip(self.values, parameters, strict=True):
            taken.append(None if parameter is value else parameter.grad)
            if parameter is not value:
                parameter.grad = None
        return taken

    def add_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Add what one micro-batch gives, in the masters' precision, whatever the gradients come in."""
        for value, gradient in zip(self.values, gradients, strict=True):
            if gradient is None:
                continue
            if value.grad is None:  # the first micro-batch of the step: no sum with zeros
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
        for (parameter, value), copied in zip(self._pairs, saved, strict=True):
            value.copy_(copied)
            parameter.copy_(value)


class Ranks:
    """The processes that train together: those of ``group``, or this one alone."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self.group = group
        self.count = 1 if group is None else distributed.get_world_size(group)
        self.rank = 0 if group is None else distributed.get_rank(group)

    @property
    def team(self) -> Ranks:
        """Those that run each other's micro-batches with this one, each a part of the model or of the tokens."""
        return Ranks()

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in their order."""
        if self.group is None:
            return [value]
        # Python objects over the CPU: a few numbers per step, and ranks may have different names among them.
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self.group)
        return found

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums over the ranks by name: of metrics, moments, squared norms. A rank may lack a name that others have.

        Ranks are added in their order, in float64, so that all of them get the same bits.
        """
        total: dict[str, float] = {}
        for part in self.gather(dict(numbers)):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def most(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number over the ranks, which all give equally many."""
        return [max(found) for found in zip(*self.gather(list(numbers)), strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank: a step that one rank cannot take is skipped by all."""
        return any(self.gather(flag))

    def denominators(self, own: Denominators) -> Denominators:
        """What the losses of all ranks are divided by; ``own`` counts the sequences of this one."""
        total = self.sum({"tokens": own.tokens, "sequences": own.sequences})
        return replace(own, tokens=int(total["tokens"]), sequences=int(total["sequences"]))

    def empty_batches(self, own: int) -> list[Batch]:
        """What a rank with ``own`` micro-batches runs beside them, so that all ranks run equally many.

        An empty micro-batch is one token without a label: it goes through forward and backward, where sharded backends
        exchange weights and gradients, and adds exactly 0.
        """
        (most,) = self.most([own])
        return [_empty_batch() for _ in range(int(most) - own)]

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over the ranks. A gradient that a rank does not have counts as 0."""
        if self.group is None:
            return
        for parameter in parameters:
            if parameter.grad is None:  # every rank must take part in every sum, or the others wait for ever
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad, group=self.group)

    def clip_gradients(self, parameters: Sequence[torch.nn.Parameter], limit: float) -> float:
        """Scale gradients that are summed over the ranks so that their common norm is at most ``limit``; returns the
        norm before."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        return clipped(gradients, squares_of(gradients), limit)


def squares_of(gradients: Sequence[torch.Tensor]) -> float:
    """The sum of their squares in float64: in float32 that of millions of numbers is wrong in the fifth digit, by an
    amount that depends on how they are cut into shards."""
    flat = [gradient.reshape(-1) for gradient in gradients]
    pieces = (each[start : start + _PIECE] for each in flat for start in range(0, len(each), _PIECE))
    return float(sum(torch.linalg.vector_norm(piece, dtype=torch.float64).square() for piece in pieces))


def clipped(gradients: list[torch.Tensor], squares: float, limit: float) -> float:
    """Scale ``gradients`` as :func:`torch.nn.utils.clip_grad_norm_` does where all ``squares`` add up to more than
    ``limit`` allows; returns the norm."""
    norm = math.sqrt(squares)
    share = limit / (norm + 1e-6)
    if share < 1.0:
        torch._foreach_mul_(gradients, share)
    return norm


def _empty_batch() -> Batch:
    columns = {
        f.name: torch.zeros(1, 1, dtype=torch.bool if f.name == "label_mask" else torch.int64, device="cpu")
        for f in fields(Batch)
        if f.default is MISSING
    }
    return Batch(**columns)


_PIECE = 1 << 24
"""Numbers of a gradient that are in float64 at a time."""


class StepGuard:
    """Decides which optimiser steps are taken, by the norm of the gradient; all ranks decide alike."""

    def __init__(self, config: OptimizerConfig, ranks: Ranks) -> None:
        """Gradients are cut to ``max_grad_norm``. Steps with a norm that is not finite, or above ``skip_norm``, are
        skipped; after ``max_skipped`` in a row the next one is an error."""
        self._config, self._ranks = config, ranks
        self._limit = math.inf if config.skip_norm is None else config.skip_norm
        self.skipped_in_a_row = 0

    def admits(
        self, values: Sequence[torch.nn.Parameter], total_norm: torch.Tensor | None = None
    ) -> tuple[bool, float]:
        """Whether the step with these gradients (summed over the ranks) is to be taken, and their norm; they are cut
        where it is. ``total_norm``: the norm of the whole, where ``values`` are shards of it.

        Raises :class:`RollError` when too many steps in a row were skipped.
        """
        if total_norm is None:
            norm = self._ranks.clip_gradients(values, self._config.max_grad_norm)
        else:
            torch.nn.utils.clip_grads_with_norm_(values, self._config.max_grad_norm, total_norm)
            norm = float(total_norm)
        return self.count(self.refuses(norm), norm), norm

    def refuses(self, norm: float) -> bool:
        """Whether a step with a gradient of this ``norm`` is to be skipped, on any rank. Changes nothing."""
        return self._ranks.any(not (math.isfinite(norm) and norm <= self._limit))

    def count(self, refused: bool, norm: float) -> bool:
        """Count a step that was taken or refused; returns whether it was taken. Raises as :meth:`admits` does."""
        if not refused:
            self.skipped_in_a_row = 0
            return True
        if self.skipped_in_a_row >= self._config.max_skipped:
            before = f", nor were the {self.skipped_in_a_row} before it" if self.skipped_in_a_row else ""
            bound = f" (optimizer.skip_norm is {self._limit:g})" if math.isfinite(self._limit) else ""
            raise RollError(
                f"the gradient norm is {norm:g}{bound}; the step was not taken{before}. "
                "Lower optimizer.lr (or warm_start.lr) in the config.yaml of the run's folder and resume; "
                "optimizer.max_skipped is how many such steps in a row are passed over"
            )
        self.skipped_in_a_row += 1
        return False
