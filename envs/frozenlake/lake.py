"""Maps from a seed, and how moves go on the ice.

The maps are those of ROLL and RAGEN, cell for cell: every cell frozen with probability ``p``, a random start and goal,
drawn again until the goal can be reached. The slips are gymnasium's: one uniform number a move from a second generator
of the same seed, whose first number is spent at the reset.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from roll_envs.errors import ConfigError

__all__ = ["FROZEN", "GOAL", "HOLE", "LETTERS", "Slips", "draw_map", "frozen_below", "neighbours", "no_lake", "slip_of"]

FROZEN, HOLE, GOAL = 0, 1, 2
LETTERS = "FHG"
"""How maps are written down (gymnasium's letters; its S, the start, is a frozen cell)."""

MAX_ATTEMPTS = 100_000
"""Maps drawn before a lake of these arguments is declared impossible."""

# Drawn at once, since a call for each would take longer than a move; the numbers are the same.
SLIP_BLOCK = 32


@lru_cache(maxsize=64)
def neighbours(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """For each cell the cells that Left, Down, Right, Up lead to; at the edge a move leads nowhere."""
    last = size - 1
    return tuple(
        (
            cell if cell % size == 0 else cell - 1,
            cell if cell // size == last else cell + size,
            cell if cell % size == last else cell + 1,
            cell if cell // size == 0 else cell - size,
        )
        for cell in range(size * size)
    )


@lru_cache(maxsize=256)
def draw_map(size: int, p: float, seed: int) -> tuple[bytes, int]:
    """One byte a cell (FROZEN, HOLE or GOAL), and the start cell; remembered, as the members of a group share them."""
    rng = np.random.Generator(np.random.PCG64(seed))
    below = frozen_below(p)
    for _ in range(MAX_ATTEMPTS):
        cells = bytearray((rng.random(size * size) >= below).astype(np.uint8).tobytes())
        # In the order of the originals: any other would give other lakes.
        start_row, start_column, goal_row, goal_column = rng.integers(size, size=4).tolist()
        start, goal = start_row * size + start_column, goal_row * size + goal_column
        if start == goal:
            continue
        cells[start], cells[goal] = FROZEN, GOAL
        if _reachable(cells, start, neighbours(size)):
            return bytes(cells), start
    raise no_lake(size, p, seed)


def frozen_below(p: float) -> float:
    """The cumulated probability with which ``Generator.choice(p=...)`` compares uniform numbers: below it is ice."""
    cumulated = np.cumsum([p, 1 - p])
    return float(cumulated[0] / cumulated[1])


def no_lake(size: int, p: float, seed: int) -> ConfigError:
    """The error where none of ``MAX_ATTEMPTS`` lakes has a path to the goal."""
    return ConfigError(
        f"no {size}x{size} lake with p={p} has a path to the goal after {MAX_ATTEMPTS} tries from seed {seed}; use a "
        "larger p or a smaller size"
    )


def _reachable(cells: bytearray, start: int, ways: tuple[tuple[int, int, int, int], ...]) -> bool:
    seen = {start}
    stack = [start]
    while stack:
        for cell in ways[stack.pop()]:
            kind = cells[cell]
            if kind == GOAL:
                return True
            if kind == FROZEN and cell not in seen:
                seen.add(cell)
                stack.append(cell)
    return False


class Slips:
    """The uniform numbers of an episode's moves by their index; index 0 belongs to the reset.

    Fixed by ``seed`` alone, so that the state of an episode needs no more than the count of numbers used.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._drawn: list[float] = []

    def __getitem__(self, index: int) -> float:
        while index >= len(self._drawn):
            self._drawn += self._rng.random(SLIP_BLOCK).tolist()
        return self._drawn[index]


# gymnasium's cumulated probabilities of going to the one side, straight on, to the other side.
_STRAIGHT = 1.0 / 3.0
_SIDE = (1.0 - _STRAIGHT) / 2.0
_BELOW = (_SIDE, _SIDE + _STRAIGHT, _SIDE + _STRAIGHT + _SIDE)


def slip_of(u: float) -> int:
    """How far the direction turns for the uniform number ``u``: -1, 0 or 1."""
    # Past the last bound (by rounding) gymnasium's argmax falls back to the first outcome.
    return -1 if u < _BELOW[0] else 0 if u < _BELOW[1] else 1 if u < _BELOW[2] else -1
