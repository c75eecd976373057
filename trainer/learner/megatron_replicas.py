"""The distributed optimiser of the Megatron-Core backend: replicas step a share of the rows of each weight, and tell
each other (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054).

What a step needs beside weights and gradients, the optimiser's state and float32 copies, is held for those rows alone.
Gradients are summed whole, so that norms are taken as without replicas.

Shapes: R replicas, n rows of a weight, W = ceil(n / R) of a share; behind the last row a share is shorter, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import distributed

from trainer.learner.gradients import MasterWeights
from trainer.learner.megatron_grid import Axis


class Rows:
    """This replica's share of the rows of one weight."""

    def __init__(self, count: int, replicas: Axis) -> None:
        self._count, self._replicas = count, replicas
        self._width = -(-count // replicas.count)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """A view."""
        return whole[self._width * self._replicas.rank :][: self._width]

    def whole(self, share: torch.Tensor) -> torch.Tensor:
        """All rows, from the shares of all replicas, which call this together."""
        if self._replicas.count == 1:
            return share
        sent = share.new_zeros(self._width, *share.shape[1:])
        sent[: len(share)] = share
        found = [torch.empty_like(sent) for _ in range(self._replicas.count)]
        distributed.all_gather(found, sent, group=self._replicas.group)
        return torch.cat(found)[: self._count]


class Joined(Mapping[str, torch.Tensor]):
    """Whole tensors by name, each put together when it is asked for; replicas ask for the same ones in one order."""

    def __init__(self, rows: Mapping[str, Rows], share: Callable[[str], torch.Tensor]) -> None:
        self._rows, self._share = rows, share

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._rows[name].whole(self._share(name))

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class SharedMasters(MasterWeights):
    """Master weights of which each replica holds a share of the rows.

    ``values`` collect gradients and are not stepped: with weights in half precision they have no numbers. What is
    stepped is in ``own``: parts of the weights themselves, or float32 copies of them.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], replicas: Callable[[str], Axis]) -> None:
        """``replicas`` has the ranks that hold the weight of a name."""
        self._parameters = list(parameters.values())
        self.rows = {name: Rows(len(p), replicas(name)) for name, p in parameters.items()}
        self.copies = any(p.dtype in (torch.bfloat16, torch.float16) for p in self._parameters)
        """Whether what is stepped is a copy, which a checkpoint has beside the weights."""
        self.values = [
            torch.nn.Parameter(torch.zeros((), device=p.device).expand(p.shape)) if self.copies else p
            for p in self._parameters
        ]
        self.own = {name: torch.nn.Parameter(self.rows[name].of(p.detach()).float()) for name, p in parameters.items()}
        """By name; float32. A view of the weight where that is float32."""
        self._pairs = []

    @torch.no_grad()
    def begin(self) -> None:
        """Take the weights, which others have written."""
        for rows, own, parameter in zip(self.rows.values(), self.own.values(), self._parameters, strict=True):
            if self.copies:
                own.copy_(rows.of(parameter))

    @torch.no_grad()
    def share_gradients(self) -> None:
        """Give what is stepped its part of the whole gradients."""
        for rows, own, value in zip(self.rows.values(), self.own.values(), self.values, strict=True):
            own.grad = None if value.grad is None else rows.of(value.grad)

    @torch.no_grad()
    def write_back(self) -> None:
        """The weights of all replicas become the masters' rounding."""
        for rows, own, parameter in zip(self.rows.values(), self.own.values(), self._parameters, strict=True):
            own.grad = None
            parameter.copy_(rows.whole(own.detach().to(parameter.dtype)))
