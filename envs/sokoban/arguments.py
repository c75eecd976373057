"""Arguments of SokobanEnv and the form of its snapshots: what is allowed, and the errors that say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.arguments import check_int
from envs.sokoban.generator import Room
from envs.sokoban.search import FLOOR, TARGET, WALL
from roll_envs.errors import ConfigError

__all__ = [
    "MAX_DRAWS",
    "MEANINGS",
    "STYLES",
    "SYMBOLS",
    "check_size",
    "check_solution",
    "read_room",
]

SYMBOLS = "#_O√XPS"
MEANINGS = ("wall", "empty", "target", "box on target", "box", "player", "player on target")

STYLES = {"plain": "{}", "verl-agent": " {} \t"}
"""Name of an observation style -> how a symbol is written."""

MAX_DRAWS = 2000
"""Rooms drawn in search of a shortest solution of the length that is asked for."""

MAX_SIDE = 100


def check_size(value: Any) -> tuple[int, int]:
    """``value`` as (rows, columns)."""
    sides = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    # A box can only have been pulled where three free cells lie in line: 4x4 has none within its walls.
    whole = len(sides) == 2 and all(hasattr(s, "__index__") and 4 <= s <= MAX_SIDE for s in sides)
    if not whole or max(sides) < 5:
        raise ConfigError(
            f"size must be two whole numbers (rows, columns) from 4 to {MAX_SIDE}, one of them 5 or more, not {value!r}"
        )
    return int(sides[0]), int(sides[1])


def check_solution(lowest: Any, highest: Any) -> tuple[int | None, int | None]:
    """The lengths of shortest solutions that are asked for, None where there is no bound."""
    low = None if lowest is None else check_int("min_solution", lowest, 1)
    high = None if highest is None else check_int("max_solution", highest, 1)
    if low is not None and high is not None and low > high:
        raise ConfigError(f"min_solution must not be above max_solution, but {low} is above {high}")
    return low, high


def read_room(rows: Any, size: tuple[int, int], num_boxes: int) -> Room:
    """A room from the rows of a snapshot, written in ``SYMBOLS``."""
    height, width = size
    usable = isinstance(rows, Sequence) and all(isinstance(r, str) for r in rows)
    if not usable or [len(r) for r in rows] != [width] * height or not set("".join(rows)) <= set(SYMBOLS):
        raise ConfigError(
            f"a snapshot for this environment has 'room': {height} strings of {width} symbols of {SYMBOLS!r}, not "
            f"{rows!r}; restore it into an environment with the arguments of the one it was taken from"
        )
    # Codes as in MEANINGS: 3 and 4 are boxes, 5 and 6 the player; below them is floor or a target.
    codes = [SYMBOLS.index(c) for c in "".join(rows)]
    structure = bytes((WALL, FLOOR, TARGET, TARGET, FLOOR, FLOOR, TARGET)[c] for c in codes)
    boxes = tuple(i for i, c in enumerate(codes) if c in (3, 4))
    players = [i for i, c in enumerate(codes) if c in (5, 6)]
    inner = [structure[r * width + c] for r in range(1, height - 1) for c in range(1, width - 1)]
    closed = sum(c != WALL for c in inner) == sum(c != WALL for c in structure)
    if len(players) != 1 or len(boxes) != num_boxes or structure.count(TARGET) != num_boxes or not closed:
        raise ConfigError(
            f"the room must have walls all around, one player, {num_boxes} boxes and as many targets: {list(rows)!r}"
        )
    return Room(width=width, structure=structure, player=players[0], boxes=boxes)
