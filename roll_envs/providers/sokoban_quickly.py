"""GEM's and TextArena's rooms of Sokoban, the same to the cell, in a small part of the time that these packages take.

Both draw a room with its boxes on their targets, and search for the best start by pulling the boxes back, in a copy of
gym_sokoban's code that looks at up to 300,000 arrays for each of up to 1,000 rooms.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sokoban_quickly"]

_DEPTH = 300
_STATES = 300_000
_KEPT = 1024
"""Searches, of which a room takes some, that are kept: a group of episodes begins in the same room."""
_FLOOR, _TARGET, _BOX, _PLAYER = 1, 2, 4, 5
_Cell = tuple[int, int]


@contextlib.contextmanager
def sokoban_quickly(game: str, utils: str) -> Iterator[None]:
    """Where ``game`` is Sokoban, what is made and begun within has its rooms from the search here, in place of the one
    of the package's module ``utils``. To be used by one thread at a time."""
    if "Sokoban" not in game:
        yield
        return
    module: Any = importlib.import_module(utils)
    own, module.reverse_playing = module.reverse_playing, _reverse_playing
    try:
        yield
    finally:
        module.reverse_playing = own


def _reverse_playing(
    room: NDArray[np.int_], structure: NDArray[np.int_], search_depth: int = _DEPTH
) -> tuple[NDArray[np.int_], int, dict[_Cell, _Cell]]:
    """The packages' function: the best start, its score, and where the box of each target stands. ``search_depth`` is
    not used, as there."""
    width = structure.shape[1]
    cells = tuple(int(cell) for cell in structure.flat)
    score, player, boxes = _searched(cells, width, int(np.flatnonzero(room == _PLAYER)[0]))
    found = structure.copy()
    found.flat[list(boxes)] = _BOX
    found.flat[player] = _PLAYER
    placed = zip(_targets(cells), boxes, strict=True)
    return found, score, {divmod(target, width): divmod(box, width) for target, box in placed}


def _targets(cells: Sequence[int]) -> tuple[int, ...]:
    return tuple(at for at, cell in enumerate(cells) if cell == _TARGET)


@functools.lru_cache(maxsize=_KEPT)
def _searched(cells: Sequence[int], width: int, player: int) -> tuple[int, int, tuple[int, ...]]:
    """The score of the best start (pulls times the distance of the boxes from their targets, in cells), its player and
    its boxes. Depth first, in the order up, down, left, right; the first start with the highest score wins."""
    targets = _targets(cells)
    covered = sum(1 << target for target in targets)
    best_score, best_player, best_boxes = 0, player, targets
    seen: set[tuple[int, int, int]] = set()
    # What is to be looked at, the next one last: the player, the cells with boxes and with those that were pulled (a
    # bit for each), the boxes in the order of their targets, pulls and moves.
    left = [(player, covered, 0, targets, 0, 0)]
    while left and len(seen) < _STATES:
        player, standing, pulled, boxes, pulls, moves = left.pop()
        if (player, standing, pulled) in seen:
            continue
        seen.add((player, standing, pulled))
        if not (standing | 1 << player) & covered:
            pairs = zip(boxes, targets, strict=True)
            score = pulls * sum(abs(a // width - b // width) + abs(a % width - b % width) for a, b in pairs)
            if score > best_score:
                best_score, best_player, best_boxes = score, player, boxes
        if moves == _DEPTH - 2:
            continue
        for step in (1, -1, width, -width):
            there, behind = player + step, player - step
            if cells[there] not in (_FLOOR, _TARGET) or standing >> there & 1:
                continue
            if standing >> behind & 1:
                here = 1 << player
                after = tuple(player if box == behind else box for box in boxes)
                gone = ~(1 << behind)
                left.append((there, standing & gone | here, pulled & gone | here, after, pulls + 1, moves + 1))
            elif (there, standing, pulled) not in seen:
                left.append((there, standing, pulled, boxes, pulls, moves + 1))
    return best_score, best_player, best_boxes
