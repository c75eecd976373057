"""Keys and values of the sequences that an engine ran, one slot each, and which of them a new prompt begins like."""

# Shapes: S slots, N sequences of this pass, H key-value heads, T new tokens, C capacity, D head width.

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

__all__ = ["KeyValueSlots", "PrefixIndex"]


class PrefixIndex:
    """Which token ids the slots hold: at most one sequence a slot.

    The sequences are sorted. The one that shares the longest prefix with a prompt then stands next to where the prompt
    would stand, so that finding it is a binary search.
    """

    def __init__(self) -> None:
        self._ordered: list[tuple[tuple[int, ...], int]] = []
        self._ids: dict[int, tuple[int, ...]] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._ids

    def ids(self, slot: int) -> tuple[int, ...]:
        """The sequence in ``slot``; empty when there is none."""
        return self._ids.get(slot, ())

    def put(self, slot: int, ids: tuple[int, ...]) -> None:
        """Note that ``slot`` holds ``ids``, instead of what it held."""
        self.drop(slot)
        self._ids[slot] = ids
        insort(self._ordered, (ids, slot))

    def drop(self, slot: int) -> None:
        """Note that ``slot`` holds nothing that may be used."""
        ids = self._ids.pop(slot, None)
        if ids is not None:
            del self._ordered[bisect_left(self._ordered, (ids, slot))]

    def clear(self) -> None:
        """Forget all slots."""
        self._ordered.clear()
        self._ids.clear()

    def has(self, ids: tuple[int, ...]) -> bool:
        """Whether a slot holds exactly ``ids``."""
        at = bisect_left(self._ordered, (ids, -1))
        return at < len(self._ordered) and self._ordered[at][0] == ids

    def longest(self, prompt: tuple[int, ...]) -> tuple[int, int]:
        """The slot that shares the longest prefix with ``prompt``, and its length; (-1, 0) when none shares any.

        Slots with 1 2 3 and 1 2 9 and the prompt 1 2 3 4: the first, 3.
        """
        at = bisect_left(self._ordered, (prompt, -1))
        best, length = -1, 0
        for ids, slot in self._ordered[max(at - 1, 0) : at + 1]:
            shared = _shared(ids, prompt)
            if shared > length:
                best, length = slot, shared
        return best, length


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is quicker than comparing ids one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class KeyValueSlots(Cache):  # type: ignore[misc]
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
