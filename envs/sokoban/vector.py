"""SokobanVectorEnv: many rooms stepped at once (``gymnasium.make_vec``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envs.arguments import check_int, seed_words
from envs.batch import GridVectorEnv, Played, Rows, one_by_one
from envs.sokoban import generator, search
from envs.sokoban.env import SokobanEnv

if generator.COMPILED:
    from envs.sokoban import _rooms

__all__ = ["BATCH", "SokobanVectorEnv"]


class SokobanVectorEnv(GridVectorEnv[SokobanEnv]):
    """``num_envs`` environments of the class :class:`~envs.sokoban.env.SokobanEnv`, which has the arguments."""

    def __init__(
        self, *, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        """``autoreset_mode``: "NextStep", "SameStep" or "Disabled", as Gymnasium defines them."""
        num_envs, room = check_int("num_envs", num_envs, 1), SokobanEnv(**kwargs)
        super().__init__(room, num_envs, room._cell_texts, room.size, autoreset_mode)
        self._room = (*room.size, room.num_boxes, room.search_depth)
        self._shape = (num_envs, *self._room, search.MAX_STATES, self._text.shape[1], self._chars)
        self._bounded = room.min_solution is not None or room.max_solution is not None
        cells = room.size[0] * room.size[1]
        # What stands on each cell: ground, boxes; then player's cell, boxes on targets, turns, answers not read.
        grids: list[NDArray[Any]] = [np.zeros((num_envs, cells), np.int8) for _ in range(2)]
        counts: list[NDArray[Any]] = [np.zeros(num_envs, np.int32) for _ in range(4)]
        self._arrays = (*grids, *counts, self._text, self._places, self._glyphs)

    def _begin(self, rows: Rows, seeds: Sequence[int]) -> None:
        if self._bounded:  # the solver decides which rooms are used
            seeds = [self._single._draw(seed).seed or 0 for seed in seeds]
        now, left = list(seeds), np.arange(len(seeds))
        for _ in range(generator.MAX_ATTEMPTS):
            failed = _rooms.begin(self._arrays, self._shape, rows[left], seed_words(now))
            if not failed:
                return
            now, left = [generator.next_seed(now[at]) for at in failed], left[failed]
        size, rest = self._single.size, (self._single.num_boxes, self._single.search_depth)
        raise generator.no_room(size, *rest, seeds[left[0]])

    def _play(self, moves: bytes) -> Played:
        numbers, flags = np.zeros((5, self.num_envs)), np.zeros((4, self.num_envs), np.bool_)
        room = self._single
        arrays = (*self._arrays, numbers, flags)
        _rooms.play(arrays, self._shape, room.max_turns, room.invalid_counts, room.format_penalty, self._ended, moves)
        (rewards, step, box, bonus, penalty), (success, truncated, effective, valid) = numbers, flags
        if len(moves) > self.num_envs or not valid.all():
            # Sums as in single environments: sum() rounds differently from Python 3.12 on.
            given = (np.frombuffer(moves, np.int8).reshape(self.num_envs, -1) >= 0).sum(axis=1)
            for at in np.flatnonzero((given != 1) & ~self._ended).tolist():
                rewards[at] = sum(numbers[1:, at].tolist())
        return Played(
            rewards=rewards,
            terminated=success.copy(),
            truncated=truncated,
            infos={
                "success": success,
                "action_is_valid": valid,
                "action_is_effective": effective,
                "format_penalty": penalty,
            },
            parts={"step": step, "box": box, "solved": bonus, "format": penalty.copy()},
        )


BATCH: type[VectorEnv[Any, Any, Any]] = SokobanVectorEnv if generator.COMPILED else one_by_one(SokobanEnv)
"""What ``make_vec`` makes."""
