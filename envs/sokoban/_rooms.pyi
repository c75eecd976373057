from typing import Any

from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]
Shape = tuple[int, int, int, int, int, int, int, int]

def draw_room(
    height: int, width: int, num_boxes: int, depth: int, max_states: int, seed: bytes, /
) -> tuple[bytes, int, list[int]] | None: ...
def begin(arrays: Arrays, shape: Shape, rows: NDArray[Any], seeds: bytes, /) -> list[int]: ...
def play(
    arrays: Arrays,
    shape: Shape,
    max_turns: int,
    invalid_counts: bool,
    penalty: float,
    ended: NDArray[Any],
    moves: bytes,
    /,
) -> None: ...
