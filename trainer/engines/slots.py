"""SlotCache: keys and values of many sequences, one slot each, that grow and leave independently.

A Hugging Face model sees it as an ordinary cache; a forward pass may touch any subset of slots, each at its own
length, so that a finished row frees its place at once and no row waits for the longest of its batch.
"""

# Shapes: S slots, N rows of this pass, H key-value heads, T new tokens, C capacity, D head width.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

__all__ = ["SlotCache"]


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [layers][S, H, C, D]; ``C`` doubles when a sequence needs more."""

    def __init__(self, config: Any, slots: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, capacity, width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.rows = torch.zeros(0, dtype=torch.long, device=device)
        self.places = torch.zeros(0, 0, dtype=torch.long, device=device)
        self.visible = 0

    def begin(self, rows: torch.Tensor, places: torch.Tensor, visible: int) -> None:
        """Say what the next forward pass writes: slots ``rows`` [N] at token places ``places`` [N, T]; it reads the
        first ``visible`` places of those slots."""
        self._grow(visible)
        self.rows, self.places, self.visible = rows, places, visible

    def _grow(self, needed: int) -> None:
        capacity = self.keys.shape[3]
        if needed <= capacity:
            return
        extra = max(needed, 2 * capacity) - capacity
        self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, extra))
        self.values = torch.nn.functional.pad(self.values, (0, 0, 0, extra))

    def copy(self, pairs: Sequence[tuple[int, int]], places: int) -> None:
        """Give slot ``b`` the first ``places`` places of slot ``a``, for every pair (a, b). All are read before any is
        written: a slot may be on both sides."""
        sources, targets = (torch.tensor(slots, device=self.keys.device) for slots in zip(*pairs, strict=True))
        self.keys[:, targets, :, :places] = self.keys[:, sources, :, :places]
        self.values[:, targets, :, :places] = self.values[:, sources, :, :places]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        rows = self.rows[:, None]
        keys[rows, :, self.places] = key_states.transpose(1, 2)
        values[rows, :, self.places] = value_states.transpose(1, 2)
        return keys[self.rows, :, : self.visible], values[self.rows, :, : self.visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
