from typing import Any

from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]
Shape = tuple[int, int, int, int]

def begin(
    arrays: Arrays, shape: Shape, frozen_below: float, attempts: int, rows: NDArray[Any], seeds: bytes, /
) -> int: ...
def play(
    arrays: Arrays,
    shape: Shape,
    slippery: bool,
    max_turns: int,
    penalty: float,
    ended: NDArray[Any],
    moves: bytes,
    /,
) -> None: ...
