"""SokobanVectorEnv: many rooms stepped at once (``gymnasium.make_vec``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envs.arguments import check_int
from envs.batch import GridVectorEnv, Ints, Played
from envs.sokoban.env import BOX, BOX_ON, PLAYER, PLAYER_ON, SOLVED_REWARD, STEP_REWARD, SokobanEnv
from envs.sokoban.search import WALL

__all__ = ["SokobanVectorEnv"]

# Code of a box and of the player by the ground below (WALL, FLOOR, TARGET = 0, 1, 2; neither stands in a wall).
BOXES = np.array([WALL, BOX, BOX_ON])
PLAYERS = np.array([WALL, PLAYER, PLAYER_ON])


class SokobanVectorEnv(GridVectorEnv[SokobanEnv]):
    """``num_envs`` environments of the class :class:`~envs.sokoban.env.SokobanEnv`, which has the arguments."""

    def __init__(
        self, *, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        """``autoreset_mode``: "NextStep", "SameStep" or "Disabled", as Gymnasium defines them."""
        singles = [SokobanEnv(**kwargs) for _ in range(check_int("num_envs", num_envs, 1))]
        room = singles[0]
        super().__init__(singles, room._cell_texts, room.size[1], autoreset_mode)
        self._num_boxes, self._penalty = room.num_boxes, room.format_penalty
        self._max_turns, self._invalid_counts = room.max_turns, room.invalid_counts
        self._moves_by = np.array(room._steps)
        self._count = room.size[0] * room.size[1]
        # Both by the place of a cell in all rooms, one after the other.
        self._grounds = np.zeros(num_envs * self._count, np.int8)
        self._boxes = np.zeros(num_envs * self._count, np.bool_)
        self._players, self._on_target, self._turns, self._invalid = (np.zeros(num_envs, np.intp) for _ in range(4))

    def _begin(self, row: int, single: SokobanEnv) -> Sequence[int]:
        start, stop = row * self._count, (row + 1) * self._count
        self._grounds[start:stop] = np.frombuffer(single._structure, np.int8)
        self._boxes[start:stop] = np.frombuffer(single._boxes, np.bool_)
        self._players[row], self._on_target[row] = start + single._player, single._on_target
        self._turns[row] = self._invalid[row] = 0
        return [single._code(cell) for cell in range(self._count)]

    def _play(self, rows: Ints, moves_RK: NDArray[np.int8]) -> Played:
        given = (moves_RK >= 0).sum(axis=1)
        valid = given > 0
        step = np.where(valid, 0.0, STEP_REWARD)
        box = np.zeros(len(rows))
        effective = np.zeros(len(rows), np.bool_)
        on_target = self._on_target.take(rows)
        solved = ~valid & (on_target == self._num_boxes)
        for column in range(moves_RK.shape[1]):
            moves = moves_RK[:, column]
            going = (moves >= 0) & ~solved
            change, moved = self._move(rows, self._moves_by[moves], going)
            step += np.where(going, STEP_REWARD, 0.0)
            box += change
            effective |= moved
            on_target += change
            solved |= going & (on_target == self._num_boxes)
        self._on_target[rows] = on_target
        turns = self._turns[rows] = self._turns.take(rows) + 1
        invalid = self._invalid[rows] = self._invalid.take(rows) + ~valid
        limit = self._max_turns + (0 if self._invalid_counts else np.minimum(invalid, self._max_turns))
        bonus = np.where(solved, SOLVED_REWARD, 0.0)
        penalty = np.where(valid, 0.0, self._penalty)
        rewards = step + box + bonus
        # The others are sums as in single environments: sum() rounds differently from Python 3.12 on.
        for at in np.flatnonzero(given != 1).tolist():
            rewards[at] = sum((float(step[at]), float(box[at]), float(bonus[at]), float(penalty[at])))
        return Played(
            rewards=rewards,
            success=solved,
            terminated=solved,
            truncated=~solved & (turns >= limit),
            effective=effective,
            penalty=penalty,
            parts={"step": step, "box": box, "solved": bonus, "format": penalty},
        )

    def _move(self, rows: Ints, by: Ints, going: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.bool_]]:
        """Move the players of the rows that are ``going``; returns by how much the boxes on targets changed, and where
        anything moved."""
        grounds, boxes = self._grounds, self._boxes
        old = self._players.take(rows)
        new = old + by
        # Walls are all round: what is beyond them is never used.
        beyond = new + by
        ground, further = grounds.take(new), grounds.take(beyond, mode="clip")
        at_box = boxes.take(new)
        moved = going & (ground != WALL)
        moved &= ~(at_box & ((further == WALL) | boxes.take(beyond, mode="clip")))
        pushed = moved & at_box
        # FLOOR and TARGET are 1 and 2: 1 where the box comes on a target, -1 where it leaves one.
        change = np.where(pushed, further - ground, 0).astype(np.intp)
        at = np.flatnonzero(pushed)
        if len(at):
            boxes[new[at]] = False
            boxes[beyond[at]] = True
            self._draw_at(rows[at], beyond[at], BOXES[further[at]])
        at = np.flatnonzero(moved)
        self._draw_at(rows[at], old[at], grounds.take(old[at]))
        self._draw_at(rows[at], new[at], PLAYERS[ground[at]])
        self._players[rows[at]] = new[at]
        return change, moved

    def _draw_at(self, rows: Ints, places: Ints, codes: NDArray[np.int8]) -> None:
        self._draw(rows, places - rows * self._count, codes)
