"""FrozenLakeVectorEnv: many lakes stepped at once (``gymnasium.make_vec``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envs.arguments import check_int
from envs.batch import GridVectorEnv, Ints, Played
from envs.frozenlake.env import EMPTY, ON, FrozenLakeEnv
from envs.frozenlake.lake import FROZEN, GOAL, HOLE, SLIP_BLOCK, neighbours, slips_of

__all__ = ["FrozenLakeVectorEnv"]

KINDS = (FROZEN, HOLE, GOAL)


class FrozenLakeVectorEnv(GridVectorEnv[FrozenLakeEnv]):
    """``num_envs`` environments of the class :class:`~envs.frozenlake.env.FrozenLakeEnv`, which has the arguments."""

    def __init__(
        self, *, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        """``autoreset_mode``: "NextStep", "SameStep" or "Disabled", as Gymnasium defines them."""
        singles = [FrozenLakeEnv(**kwargs) for _ in range(check_int("num_envs", num_envs, 1))]
        lake = singles[0]
        super().__init__(singles, lake.symbols, lake.size, autoreset_mode)
        self._slippery, self._max_turns, self._penalty = lake.is_slippery, lake.max_turns, lake.format_penalty
        self._ways = np.array(neighbours(lake.size))
        self._empty = np.array([EMPTY[kind] for kind in KINDS])
        self._on = np.array([ON[kind] for kind in KINDS])
        count = lake.size**2
        self._grounds = np.zeros(num_envs * count, np.int8)
        self._offsets = self._all * count
        self._players, self._turns, self._slipped = (np.zeros(num_envs, np.intp) for _ in range(3))
        self._slips = np.zeros((num_envs, SLIP_BLOCK), np.int8)

    def _begin(self, row: int, single: FrozenLakeEnv) -> Sequence[int]:
        cells, player = single._cells, single._player
        start = row * len(cells)
        self._grounds[start : start + len(cells)] = np.frombuffer(cells, np.int8)
        self._players[row], self._turns[row] = player, 0
        if self._slippery:
            self._slips[row], self._slipped[row] = slips_of(single._slips.block(0)), 1
        codes = [EMPTY[kind] for kind in cells]
        codes[player] = ON[cells[player]]
        return codes

    def _play(self, rows: Ints, moves_RK: NDArray[np.int8]) -> Played:
        offsets, first = self._offsets.take(rows), self._players.take(rows)
        player, effective = first, np.zeros(len(rows), np.bool_)
        kinds = np.zeros(len(rows), np.int8)
        for column in range(moves_RK.shape[1]):
            moves = moves_RK[:, column]
            # A hole or the goal ends the episode, and with it the answer.
            going = (moves >= 0) & (kinds == FROZEN)
            if self._slippery:
                moves = (moves + self._next_slips(rows, going)) % 4
            after = np.where(going, self._ways[player, moves], player)
            effective |= after != player
            player = after
            kinds = np.where(going, self._grounds.take(offsets + player), kinds)
        self._players[rows] = player
        self._draw(rows, first, self._empty.take(self._grounds.take(offsets + first)))
        self._draw(rows, player, self._on.take(self._grounds.take(offsets + player)))
        turns = self._turns[rows] = self._turns.take(rows) + 1
        success, terminated = kinds == GOAL, kinds != FROZEN
        goal = success.astype(np.float64)
        penalty = np.where(moves_RK[:, 0] >= 0, 0.0, self._penalty)
        return Played(
            rewards=goal + penalty,
            success=success,
            terminated=terminated,
            truncated=~terminated & (turns >= self._max_turns),
            effective=effective,
            penalty=penalty,
            parts={"goal": goal, "format": penalty},
        )

    def _next_slips(self, rows: Ints, going: NDArray[np.bool_]) -> NDArray[np.int8]:
        """How far the next move of each row slips; used up where the row is ``going``."""
        used = self._slipped.take(rows)
        for row in rows[going & (used % SLIP_BLOCK == 0)].tolist():
            self._slips[row] = slips_of(self._singles[row]._slips.block(int(self._slipped[row])))
        self._slipped[rows] = used + going
        return self._slips[rows, used % SLIP_BLOCK]
