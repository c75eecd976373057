"""Expert parallelism: tokens are sent to the ranks that have the experts they are routed to, and back.

Stands for Megatron-Core's own token dispatchers: that which sends tokens to their ranks needs CUDA streams, and that
which gathers all of them needs equally many on each rank.

Shapes: C ranks with X experts each, n tokens of this rank, k experts of each token, r rows that reach this rank's
experts, D width.
"""

from __future__ import annotations

import torch
from torch import distributed

from trainer.model.context import all_to_all


class TokenDispatcher:
    """What Megatron-Core's ``MoELayer`` calls around its experts, in the order of the methods."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        """``group``: the ranks over which the experts are dealt, neighbours to each."""
        self._group, self._ranks = group, distributed.get_world_size(group)

    def dispatch_preprocess(
        self, hidden: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``hidden`` [n, 1, D] and bool ``routing_map`` [n, C * X] -> a row for each expert of each token [n * k, D],
        experts in their order, and its weight [n * k]."""
        self._shape = hidden.shape
        experts, self._tokens = routing_map.T.nonzero(as_tuple=True)
        counts = torch.bincount(experts, minlength=routing_map.shape[1]).view(self._ranks, -1)
        arriving = torch.empty_like(counts)
        distributed.all_to_all_single(arriving, counts, group=self._group)
        self._arriving = arriving.cpu()
        """int64 [C, X]; rows from each rank for each expert of this one."""
        self._sent, self._received = counts.sum(1).tolist(), self._arriving.sum(1).tolist()
        return hidden.flatten(0, -2).index_select(0, self._tokens), probs[self._tokens, experts]

    def token_dispatch(self, rows: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """To the ranks of their experts: [r, D] and [r], those of each rank together."""
        return self._send(rows), self._send(weights)

    def dispatch_postprocess(
        self, rows: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those of each expert together; and how many they are, int64 [X] on the CPU."""
        experts = torch.arange(self._arriving.shape[1]).repeat(self._ranks)
        order = experts.repeat_interleave(self._arriving.flatten()).argsort(stable=True)
        self._back = order.argsort().to(rows.device)
        order = order.to(rows.device)
        return rows.index_select(0, order), self._arriving.sum(0), weights.index_select(0, order)

    def combine_preprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """What the experts make of them, those of each rank together again."""
        return rows.index_select(0, self._back)

    def token_combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Back to the ranks of their tokens: [n * k, D]."""
        return all_to_all(rows, self._group, self._received, self._sent)

    def combine_postprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """The sum over the experts of each token, in the form in which ``hidden`` came."""
        width = self._shape[-1]
        tokens = rows.new_zeros(self._shape.numel() // width, width)
        return tokens.index_add(0, self._tokens, rows).view(self._shape)

    def get_expert_zero_copy_buffers(self) -> tuple[None, None]:
        """None: experts return tensors of their own."""
        return None, None

    def _send(self, rows: torch.Tensor) -> torch.Tensor:
        return all_to_all(rows, self._group, self._sent, self._received)
