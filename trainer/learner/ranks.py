"""The ranks of a training run: what the processes that train one model together must agree on.

Every rank calls the same methods in the same order. With one rank, nothing is sent and every number is returned as it
is. Gradients are summed, not averaged, because losses are divided by the denominators of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

import torch
from torch import distributed

from trainer.data.batches import Batch, Denominators, balance

__all__ = ["Ranks"]

T = TypeVar("T")


class Ranks:
    """The processes that train together: those of ``group``, or this one alone."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.count = 1 if group is None else distributed.get_world_size(group)
        self.rank = 0 if group is None else distributed.get_rank(group)

    def _gather(self, value: T) -> list[T]:
        """The value of every rank, in their order."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self._group)
        return found

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums over the ranks by name: of metrics, moments, squared norms. A rank may lack a name that others have.

        Ranks are added in their order, in float64, so that all of them get the same bits.
        """
        total: dict[str, float] = {}
        for part in self._gather(dict(numbers)):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def most(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number over the ranks, which all give equally many."""
        return [max(found) for found in zip(*self._gather(list(numbers)), strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank: a step that one rank cannot take is skipped by all."""
        return any(self._gather(flag))

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

    def share(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences that this rank trains on, of all those of a step, by their ``lengths`` in tokens."""
        return balance(lengths, self.count)[self.rank]

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over the ranks. A gradient that a rank does not have counts as 0."""
        if self._group is None:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad, group=self._group)


def _empty_batch() -> Batch:
    columns = {
        f.name: torch.zeros(1, 1, dtype=torch.bool if f.name == "label_mask" else torch.int64, device="cpu")
        for f in fields(Batch)
        if f.default is MISSING
    }
    return Batch(**columns)
