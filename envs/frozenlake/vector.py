"""FrozenLakeVectorEnv: many lakes stepped at once (``gymnasium.make_vec``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.arguments import check_int, seed_words
from envs.batch import GridVectorEnv, Played, Rows, one_by_one
from envs.frozenlake import lake
from envs.frozenlake.env import FrozenLakeEnv

try:
    from envs.frozenlake import _lakes
except ImportError:  # the C extension was not compiled at installation
    COMPILED = False
else:
    COMPILED = True

__all__ = ["BATCH", "FrozenLakeVectorEnv"]

SLIP_BYTES = 64
"""What the generator of an environment's slips takes."""


class FrozenLakeVectorEnv(GridVectorEnv[FrozenLakeEnv]):
    """``num_envs`` environments of the class :class:`~envs.frozenlake.env.FrozenLakeEnv`, which has the arguments."""

    def __init__(
        self, *, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        """``autoreset_mode``: "NextStep", "SameStep" or "Disabled", as Gymnasium defines them."""
        num_envs, single = check_int("num_envs", num_envs, 1), FrozenLakeEnv(**kwargs)
        super().__init__(single, num_envs, single.symbols, (single.size, single.size), autoreset_mode)
        self._shape = (num_envs, single.size, self._text.shape[1], self._chars)
        self._frozen_below = lake.frozen_below(single.p)
        cells = np.zeros((num_envs, single.size**2), np.int8)
        players, turns = (np.zeros(num_envs, np.int32) for _ in range(2))
        slips = np.zeros((num_envs, SLIP_BYTES), np.uint8)
        self._arrays = (cells, players, turns, slips, self._text, self._places, self._glyphs)

    def _begin(self, rows: Rows, seeds: Sequence[int]) -> None:
        words = seed_words(seeds)
        failed = _lakes.begin(self._arrays, self._shape, self._frozen_below, lake.MAX_ATTEMPTS, rows, words)
        if failed >= 0:
            raise lake.no_lake(self._single.size, self._single.p, seeds[failed])

    def _play(self, moves: bytes) -> Played:
        numbers, flags = np.zeros((3, self.num_envs)), np.zeros((5, self.num_envs), np.bool_)
        arrays, single = (*self._arrays, numbers, flags), self._single
        _lakes.play(
            arrays, self._shape, single.is_slippery, single.max_turns, single.format_penalty, self._ended, moves
        )
        (rewards, goal, penalty), (success, terminated, truncated, effective, valid) = numbers, flags
        return Played(
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            infos={
                "success": success,
                "action_is_valid": valid,
                "action_is_effective": effective,
                "format_penalty": penalty,
            },
            parts={"goal": goal, "format": penalty.copy()},
        )


BATCH: type[VectorEnv[Any, Any, Any]] = FrozenLakeVectorEnv if COMPILED else one_by_one(FrozenLakeEnv)
"""What ``make_vec`` makes."""
