"""Which token ids the slots of an engine hold, and which of them a new prompt begins like."""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["HeldTokens"]


class HeldTokens:
    """Sequences of token ids, one a slot. In the order of their ids, the one that shares the longest beginning with a
    prompt stands next to where the prompt would stand, so a look takes as many steps as the logarithm of their number.
    """

    def __init__(self) -> None:
        self._ordered: list[tuple[tuple[int, ...], int]] = []
        self._ids: dict[int, tuple[int, ...]] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._ids

    def ids(self, slot: int) -> tuple[int, ...]:
        """What ``slot`` holds; nothing when it was not put."""
        return self._ids.get(slot, ())

    def put(self, slot: int, ids: tuple[int, ...]) -> None:
        """Say that ``slot`` holds ``ids``, instead of what it held."""
        self.drop(slot)
        self._ids[slot] = ids
        insort(self._ordered, (ids, slot))

    def drop(self, slot: int) -> None:
        """Say that ``slot`` holds nothing that is of use."""
        ids = self._ids.pop(slot, None)
        if ids is not None:
            del self._ordered[bisect_left(self._ordered, (ids, slot))]

    def clear(self) -> None:
        """Say so of all slots."""
        self._ordered.clear()
        self._ids.clear()

    def has(self, ids: tuple[int, ...]) -> bool:
        """Whether a slot holds exactly ``ids``."""
        at = bisect_left(self._ordered, (ids, -1))
        return at < len(self._ordered) and self._ordered[at][0] == ids

    def longest(self, prompt: tuple[int, ...]) -> tuple[int, int]:
        """The slot that shares the longest beginning with ``prompt``, and its length; (-1, 0) when none shares any.

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
    """Length of the longest beginning of both."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
