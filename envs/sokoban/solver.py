"""Shortest solutions: A* over the cells of player and boxes, counted in the player's moves.

The estimate of what is left is the sum over the boxes of the pushes to the nearest target, with walls but without other
boxes. One move changes it by one at most, so the first time a state is taken up its cost is final, and the first solved
state gives a shortest solution. A box on a cell from which no target can be reached is a dead end and is never entered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from envs.sokoban.search import TARGET
from roll_envs.errors import RollError

__all__ = ["MAX_STATES", "SolverLimitError", "solve"]

MAX_STATES = 2_000_000
"""States after which :func:`solve` gives up by default (some hundreds of MB)."""


class SolverLimitError(RollError):
    """The search met its limit of states before it could say whether there is a solution."""


def push_distances(structure: bytes, width: int) -> list[int]:
    """Fewest pushes from each cell to a target with no other box in the way; -1 where no target can be reached."""
    distance = [-1] * len(structure)
    queue: deque[int] = deque()
    for cell, kind in enumerate(structure):
        if kind == TARGET:
            distance[cell] = 0
            queue.append(cell)
    while queue:
        cell = queue.popleft()
        for step in (-width, width, -1, 1):
            # A box comes to `cell` from `origin`, pushed by a player who stood one cell further.
            origin, pusher = cell - step, cell - 2 * step
            if structure[origin] and distance[origin] < 0 and structure[pusher]:
                distance[origin] = distance[cell] + 1
                queue.append(origin)
    return distance


def solve(
    structure: bytes,
    width: int,
    player: int,
    boxes: Sequence[int],
    *,
    max_moves: int | None = None,
    max_states: int = MAX_STATES,
) -> list[int] | None:
    """A shortest solution as moves (0 up, 1 down, 2 left, 3 right), or None when there is none.

    With ``max_moves``, None also where the shortest solution is longer. Raises :class:`SolverLimitError` beyond
    ``max_states`` states. The same arguments always give the same solution.
    """
    cells, distance = len(structure), push_distances(structure, width)
    estimate = sum(distance[b] for b in boxes)
    if any(distance[b] < 0 for b in boxes):
        return None
    steps = (-width, width, -1, 1)
    # A state is one integer: a bit for each cell with a box, times the number of cells, plus the player's cell.
    box_bits = sum(1 << b for b in boxes)
    start = box_bits * cells + player
    # state -> (moves made, previous state, move). The priority queue of A* is a bucket for each value of moves made +
    # estimate, last in first out.
    best: dict[int, tuple[int, int, int]] = {start: (0, -1, -1)}
    buckets: dict[int, list[tuple[int, int, int, int, int]]] = {estimate: [(start, box_bits, player, 0, estimate)]}
    total = estimate
    limit = max_moves if max_moves is not None else cells * max_states
    while buckets and total <= limit:
        bucket = buckets.get(total)
        if not bucket:
            buckets.pop(total, None)
            total += 1
            continue
        state, box_bits, player, moves, estimate = bucket.pop()
        if best[state][0] < moves:  # reached by fewer moves after this entry was made
            continue
        if not estimate:
            return _path(best, state)
        moves += 1
        for move, step in enumerate(steps):
            there = player + step
            if not structure[there]:
                continue
            bits, left = box_bits, estimate
            if bits >> there & 1:
                beyond = there + step
                if bits >> beyond & 1 or distance[beyond] < 0:
                    continue
                bits ^= 1 << there | 1 << beyond
                left += distance[beyond] - distance[there]
            reached = bits * cells + there
            known = best.get(reached)
            if known is not None and known[0] <= moves:
                continue
            if known is None and len(best) >= max_states:
                raise SolverLimitError(f"no answer within {max_states} states; raise max_states")
            best[reached] = (moves, state, move)
            buckets.setdefault(moves + left, []).append((reached, bits, there, moves, left))
    return None


def _path(best: dict[int, tuple[int, int, int]], state: int) -> list[int]:
    path: list[int] = []
    while True:
        _, before, move = best[state]
        if before < 0:
            return path[::-1]
        path.append(move)
        state = before
