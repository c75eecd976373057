"""Context parallelism: ranks run a micro-batch together, each a slice of its tokens (DeepSpeed Ulysses; Jacobs et al.
2023, arXiv:2309.14509).

Everything but attention treats tokens alone. Before attention the ranks exchange slices for heads, so that each has all
tokens for a share of the heads, and behind it back; so any attention will do. Log-probs are computed where their tokens
are and then told to all ranks of the group, so that a loss may ask for whole sequences: it is computed on each of them,
and its gradient goes back into the slice of each.

Left out: ring attention, and more ranks than the model has attention heads.

Shapes: C ranks, M tokens of a micro-batch that are computed, W = ceil(M / C) of a slice, H heads, E width of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from roll_envs.errors import ConfigError


def check_heads(config: Any, ranks: int, *, tensor: int = 1) -> None:
    """Raises :class:`ConfigError` when the heads of a model of this Hugging Face configuration, divided by ``tensor``,
    cannot be dealt to ``ranks``. Key and value heads need not be: each is sent to all ranks that have queries for
    it."""
    if config.num_attention_heads % (ranks * tensor):
        over = f" over learner.tensor_parallel {tensor}" if tensor > 1 else ""
        raise ConfigError(
            f"learner.context_parallel {ranks} does not divide the model's num_attention_heads, "
            f"{config.num_attention_heads}{over}; choose one that does"
        )


class ContextRanks:
    """The ranks that run each micro-batch together; all call the same methods in the same order."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        """``group`` exchanges tensors of the model's device."""
        self.group = group
        self.count, self.rank = distributed.get_world_size(group), distributed.get_rank(group)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of ``values`` that are 0 on all of them but one. Each passes its own gradient on: all have
        the same, for they compute the same loss."""
        found: torch.Tensor = _Whole.apply(values, self.group)  # type: ignore[no-untyped-call]
        return found


@dataclass(frozen=True, slots=True)
class TokenSlice:
    """The share of this rank in M tokens. Slices are equally long: behind the last token zeros stand for tokens that
    attention does not see and nobody asks for."""

    ranks: ContextRanks
    total: int
    """M."""

    @property
    def width(self) -> int:
        return -(-self.total // self.ranks.count)

    @property
    def start(self) -> int:
        return self.ranks.rank * self.width

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """[M] -> [W]"""
        missing = self.width * self.ranks.count - self.total
        return torch.nn.functional.pad(tokens, (0, missing))[self.start : self.start + self.width]

    def has(self, places: torch.Tensor) -> torch.Tensor:
        """bool; which of these places among the M tokens are in it."""
        return (places >= self.start) & (places < self.start + self.width)

    def to_heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """All tokens of this rank's heads: [1, h, W, E] -> [1, h / C, M, E].

        Where C does not divide h, as that of keys and values may be, each of ``heads`` / h neighbouring query heads has
        its head in common, and heads are repeated until C divides them.
        """
        count = self.ranks.count
        x = x[0]
        if repeats := count // math.gcd(count, len(x)) - 1:
            assert heads % (len(x) * (repeats + 1)) == 0
            x = x.repeat_interleave(repeats + 1, dim=0)
        found = all_to_all(x.reshape(count, -1, *x.shape[1:]), self.ranks.group).transpose(0, 1).flatten(1, 2)
        return found[None, :, : self.total]

    def to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """All heads of this rank's tokens: [1, M, H / C, E] -> [1, W, H, E]."""
        count = self.ranks.count
        missing = self.width * count - self.total
        sent = torch.nn.functional.pad(x[0], (0, 0, 0, 0, 0, missing))
        found = all_to_all(sent.view(count, -1, *sent.shape[1:]), self.ranks.group)
        return found.transpose(0, 1).flatten(1, 2)[None]


Sizes = list[int] | None
"""Rows for each rank; None: equally many."""


def all_to_all(
    rows: torch.Tensor, group: distributed.ProcessGroup, sent: Sizes = None, received: Sizes = None
) -> torch.Tensor:
    """The rows that the ranks of ``group`` have for this one, in their order, of ``rows`` for each of them in turn; can
    be differentiated."""
    found: torch.Tensor = _AllToAll.apply(rows, group, sent, received)  # type: ignore[no-untyped-call]
    return found


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, group: distributed.ProcessGroup, sent: Sizes, received: Sizes
    ) -> torch.Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchanged(rows, group, sent, received)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _exchanged(gradient, ctx.group, ctx.received, ctx.sent), None, None, None


def _exchanged(rows: torch.Tensor, group: distributed.ProcessGroup, sent: Sizes, received: Sizes) -> torch.Tensor:
    found = rows.new_empty(len(rows) if received is None else sum(received), *rows.shape[1:])
    distributed.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: distributed.ProcessGroup) -> torch.Tensor:
        whole = values.clone()
        distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
