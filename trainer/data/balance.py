"""Rows dealt over ranks so that all have about the same work: a pure function, the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from roll_envs.errors import ConfigError

__all__ = ["QUADRATIC", "balance", "cost", "imbalance"]

QUADRATIC = 1.0 / 24_000
"""Work of attention over that of all else, per token of the row: with a causal kernel about 1 / (12 D), here D 2048."""


def cost(length: int, quadratic: float = QUADRATIC) -> float:
    """Work of a row in tokens: ``length * (1 + quadratic * length)``. With 0.001, 1000 tokens cost 2000."""
    return length * (1.0 + quadratic * length)


def balance(lengths: Sequence[int], ranks: int, *, quadratic: float = QUADRATIC) -> list[list[int]]:
    """Indices of the rows of each rank, in rising order; numbers of rows may differ, and parts may be empty.

    Largest differencing (Karmarkar and Karp 1982) over ``ranks`` ways: the two partial solutions that are furthest
    apart are merged, the heaviest part of one with the lightest of the other. The busiest rank has at most the load of
    the largest row more than any other.

    Lengths 8, 7, 6, 5, 4 on 2 ranks with ``quadratic=0`` give rows [0, 2] and [1, 3, 4], loads 14 and 16; dealing the
    largest first would give 17 and 13.

    Raises:
        ConfigError: ``ranks`` is not positive.
    """
    if ranks < 1:
        raise ConfigError(f"rows cannot be dealt to {ranks} ranks; allowed: 1 or more")
    # A partial solution is (load, rows) for each rank, lightest first. The heap gives the largest difference; the
    # counter makes the order of equals a function of the rows.
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, length in enumerate(lengths):
        load = cost(length, quadratic)
        heap.append((-load, index, [*((0.0, []) for _ in range(ranks - 1)), (load, [index])]))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        merged = [(x[0] + y[0], x[1] + y[1]) for x, y in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda part: (part[0], part[1]))
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], number, merged))
        number += 1
    parts = [sorted(rows) for _, rows in heap[0][2]] if heap else [[] for _ in range(ranks)]
    return sorted(parts, key=lambda rows: rows or [len(lengths)])


def imbalance(lengths: Sequence[int], parts: Sequence[Sequence[int]], *, quadratic: float = QUADRATIC) -> float:
    """Load of the busiest rank over the mean load: 1 is even, 1.25 makes every rank wait a fifth of the time."""
    loads = [sum(cost(lengths[i], quadratic) for i in rows) for rows in parts]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0
