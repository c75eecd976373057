"""Rooms from a seed: walls by a random walk, a random solved position, then reverse play and a short walk.

The rooms are those of gym_sokoban as ROLL and RAGEN changed it, cell for cell, but drawn from local generators:
``random.Random(seed)`` for the walks, ``numpy.random.RandomState(seed)`` for where player and boxes go. Where the
originals fail (no free place, or no box could be moved) they go on with ``hash(str(seed))``, which differs from process
to process; here the next seed is :func:`next_seed`, which depends on the seed alone.

Every room can be solved: playing the pulls backwards is a solution, and the short walk at the end crosses free cells
only, so that it can be walked back.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envs.arguments import seed_words
from envs.sokoban import search
from envs.sokoban.search import FLOOR, TARGET, WALL
from roll_envs.errors import ConfigError

_compiled_draw_room: Callable[[int, int, int, int, int, bytes], tuple[bytes, int, list[int]] | None] | None
try:
    from envs.sokoban._rooms import draw_room as _compiled_draw_room
except ImportError:  # the C extension was not compiled at installation: the same rooms, slower
    _compiled_draw_room = None

__all__ = ["COMPILED", "MAX_ATTEMPTS", "Room", "draw_room", "generate_room", "next_seed", "no_room"]

COMPILED = _compiled_draw_room is not None
"""Whether rooms are drawn in C."""

# Numbers of the originals, here and in the functions below; only MAX_ATTEMPTS is not.
P_TURN = 0.35
TRIES = 4
MAX_ATTEMPTS = 1000
"""Seeds tried before a room is declared impossible."""

# Cells of a 3x3 mask that become floor, as (row, column) offsets from its middle.
MASKS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))


class _Placing(threading.local):
    """One RandomState per thread, seeded anew for every room: making one takes longer than making a room."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(0)


_PLACING = _Placing()


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """A start position. Cells are numbered row by row."""

    width: int
    structure: bytes
    """One byte a cell: WALL, FLOOR or TARGET."""
    player: int
    boxes: tuple[int, ...]
    seed: int | None = None
    """The seed that :func:`draw_room` draws it from, where it is known."""


def next_seed(seed: int) -> int:
    """The seed to go on with where ``seed`` gives no room: 32 bits of a SHA-256, the same on every host."""
    return int.from_bytes(hashlib.sha256(b"sokoban room %d" % seed).digest()[:4], "big")


def generate_room(size: tuple[int, int], num_boxes: int, search_depth: int, seed: int) -> Room:
    """The room of ``seed`` (rows, columns in ``size``); :class:`ConfigError` when none of many seeds gives one."""
    attempt = seed
    for _ in range(MAX_ATTEMPTS):
        room = draw_room(size, num_boxes, search_depth, attempt)
        if room is not None:
            return room
        attempt = next_seed(attempt)
    raise no_room(size, num_boxes, search_depth, seed)


def no_room(size: tuple[int, int], num_boxes: int, search_depth: int, seed: int) -> ConfigError:
    """The error where none of ``MAX_ATTEMPTS`` seeds gives a room."""
    return ConfigError(
        f"no room of size {size} with num_boxes={num_boxes} and search_depth={search_depth} after {MAX_ATTEMPTS} tries "
        f"from seed {seed}; use a larger size, fewer boxes or a larger search_depth"
    )


def draw_room(size: tuple[int, int], num_boxes: int, search_depth: int, seed: int) -> Room | None:
    """The room of exactly this seed, or None where the originals fail."""
    if _compiled_draw_room is None:
        return _draw_room(size, num_boxes, search_depth, seed)
    found = _compiled_draw_room(*size, num_boxes, search_depth, search.MAX_STATES, seed_words([seed]))
    if found is None:
        return None
    structure, player, boxes = found
    return Room(width=size[1], structure=structure, player=player, boxes=tuple(sorted(boxes)), seed=seed)


def _draw_room(size: tuple[int, int], num_boxes: int, search_depth: int, seed: int) -> Room | None:
    width = size[1]
    rng = random.Random(seed)
    placing = _PLACING.rng
    # RandomState takes 32 bits.
    placing.seed(seed % 2**32)
    for _ in range(TRIES):
        structure = _topology(size, rng)
        player = _place(structure, num_boxes, placing)
        if player is None:
            return None
        fixed = bytes(structure)
        start, boxes, displacement = search.reverse_play(fixed, width, player, search_depth, search.MAX_STATES)
        if displacement:
            player = _walk(fixed, width, start, boxes, 0.8 if displacement == 1 else 0.5, rng)
            return Room(width=width, structure=fixed, player=player, boxes=tuple(sorted(boxes)), seed=seed)
    return None


def _below(rng: random.Random, n: int) -> int:
    # What random.choice, sample and randint draw, spelled out so that no Python version can change the rooms.
    bits = n.bit_length()
    draw = rng.getrandbits
    r = draw(bits)
    while r >= n:
        r = draw(bits)
    return r


def _topology(size: tuple[int, int], rng: random.Random) -> bytearray:
    height, width = size
    step_row, step_column = DIRECTIONS[_below(rng, 4)]
    # May be the wall on the far side, as in the original; the first step moves it back inside.
    row = 1 + _below(rng, height - 1)
    column = 1 + _below(rng, width - 1)
    floor: set[int] = set()
    last_row, last_column = height - 2, width - 2
    uniform, draw = rng.random, rng.getrandbits
    for _ in range(int(1.7 * (height + width))):
        if uniform() < P_TURN:
            step_row, step_column = DIRECTIONS[_below(rng, 4)]
        row = max(min(row + step_row, last_row), 1)
        column = max(min(column + step_column, last_column), 1)
        # `_below(rng, 5)`, written out: it is drawn at every step of the walk.
        mask = draw(3)
        while mask >= 5:
            mask = draw(3)
        for dr, dc in MASKS[mask]:
            if 0 < row + dr <= last_row and 0 < column + dc <= last_column:
                floor.add((row + dr) * width + column + dc)
    structure = bytearray(height * width)
    for cell in floor:
        structure[cell] = FLOOR
    return structure


def _place(structure: bytearray, num_boxes: int, placing: np.random.RandomState) -> int | None:
    """Put targets into ``structure``; returns the player's cell, or None when there is too little room."""
    free = [i for i, c in enumerate(structure) if c != WALL]
    if len(free) <= num_boxes + 1:
        return None
    # dtype is given because the default differs between platforms, and with it the numbers that are drawn.
    player = free.pop(int(placing.randint(len(free), dtype=np.int64)))
    for _ in range(num_boxes):
        structure[free.pop(int(placing.randint(len(free), dtype=np.int64)))] = TARGET
    return player


def _walk(fixed: bytes, width: int, player: int, boxes: tuple[int, ...], p_move: float, rng: random.Random) -> int:
    """Up to three random steps over free cells, so that the player does not always start beside a box."""
    if rng.random() > p_move:
        return player
    visited = [player]
    for taken in (1, 2, 3):
        ways = [player + s for s in (-width, width, -1, 1)]
        ways = [c for c in ways if fixed[c] != WALL and c not in boxes and c not in visited]
        if not ways:
            break
        player = ways[_below(rng, len(ways))]
        visited.append(player)
        if taken == 3 or rng.random() > 0.5:
            break
    return player
