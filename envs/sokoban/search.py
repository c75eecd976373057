"""Reverse play: from the solved room, pull the boxes to their start positions (pure Python).

This is the search of gym_sokoban, result for result: depth first, moves in the order up, down, left, right, at most
``max_states`` states, first state with the best score wins. A state is the player's cell, the cells of the boxes, and
which of them stand where a pull has put them. ``_search.h`` does the same in C; ``envs.sokoban.generator`` picks one.

Cells are numbered row by row; a structure has one byte a cell (WALL, FLOOR or TARGET) with walls all around.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FLOOR", "MAX_STATES", "TARGET", "WALL", "ReversePlay", "reverse_play"]

WALL, FLOOR, TARGET = 0, 1, 2

MAX_STATES = 300_000
"""Where the originals stop searching."""


class ReversePlay(NamedTuple):
    """The best start that was found."""

    player: int
    boxes: tuple[int, ...]
    """Cell of each box, in the order of the targets they were pulled from (row by row)."""
    displacement: int
    """Sum of the boxes' Manhattan distances from those targets; 0 when no start was found."""


def reverse_play(structure: bytes, width: int, player: int, depth: int, max_states: int = MAX_STATES) -> ReversePlay:
    """Search from the solved room (a box on every target) for the start with the highest score.

    Score = box swaps (how often another box is pulled than before) x displacement; 0 while any target is covered.
    States are looked at up to ``depth - 2`` moves away, as in the originals.
    """
    cells = len(structure)
    targets = tuple(i for i, c in enumerate(structure) if c == TARGET)
    target_mask = sum(1 << t for t in targets)
    steps = (-width, width, -1, 1)
    best, best_score = ReversePlay(player, targets, 0), 0
    seen: set[int] = set()
    # Pending states in the order of a recursion: player, mask of boxes, mask of pulled boxes, boxes, box last pulled,
    # box swaps, displacement, moves made.
    stack = [(player, target_mask, 0, targets, -1, 0, 0, 0)]
    last_depth = depth - 2
    while stack:
        player, boxes_mask, pulled_mask, boxes, last, swaps, displacement, moves = stack.pop()
        # One integer for the whole state: smaller than a tuple, and quicker to look up.
        key = ((boxes_mask << cells) | pulled_mask) * cells + player
        if key in seen:
            continue
        if len(seen) >= max_states:
            break
        seen.add(key)
        score = swaps * displacement
        if score > best_score and not (boxes_mask | 1 << player) & target_mask:
            best, best_score = ReversePlay(player, boxes, displacement), score
        if moves >= last_depth:
            continue
        moves += 1
        # In reverse, since the state pushed last is taken up first.
        for step in (steps[3], steps[2], steps[1], steps[0]):
            there = player + step
            if not structure[there] or boxes_mask >> there & 1:
                continue
            behind = player - step
            if not boxes_mask >> behind & 1:
                if ((boxes_mask << cells) | pulled_mask) * cells + there not in seen:
                    stack.append((there, boxes_mask, pulled_mask, boxes, last, swaps, displacement, moves))
                continue
            box = boxes.index(behind)
            row, column = divmod(targets[box], width)
            change = abs(player // width - row) + abs(player % width - column)
            change -= abs(behind // width - row) + abs(behind % width - column)
            moved = (1 << behind) | (1 << player)
            stack.append(
                (
                    there,
                    boxes_mask ^ moved,
                    pulled_mask & ~(1 << behind) | 1 << player,
                    (*boxes[:box], player, *boxes[box + 1 :]),
                    box,
                    swaps + (box != last),
                    displacement + change,
                    moves,
                )
            )
    return best
