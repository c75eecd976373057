"""Many environments on grids stepped at once: what Sokoban's and FrozenLake's vector environments have in common.

Each environment of the batch begins its episodes in a single environment of its own, whose start is copied into arrays;
steps are NumPy on these arrays. Texts, rewards, flags and infos are those of the single environments, infos in the
form of ``gymnasium.vector.SyncVectorEnv``. Left out: oracles and snapshots, which single environments have.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.arguments import check_choice
from roll_envs.env import TextEnv
from roll_envs.parsing import CACHED_ANSWERS, CACHED_CHARS, ActionFormat

__all__ = ["GridVectorEnv", "Played"]

# Shapes: N environments, R rows of them that are stepped now, K moves in the longest answer, W characters of a cell.

E = TypeVar("E", bound=TextEnv)
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What one answer in each of R rows led to."""

    rewards: Floats
    success: Bools
    terminated: Bools
    truncated: Bools
    effective: Bools
    penalty: Floats
    parts: Mapping[str, Floats]

    def of(self, rows: Ints) -> Played:
        """What it led to in some of the rows."""
        kept = {each.name: getattr(self, each.name)[rows] for each in fields(self) if each.name != "parts"}
        return Played(**kept, parts={name: values[rows] for name, values in self.parts.items()})


class GridVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]], Generic[E], abc.ABC):
    """A batch of environments of one class; :meth:`_begin` and :meth:`_play` say what is special about it."""

    metadata: ClassVar[dict[str, Any]] = {**TextEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # type: ignore[misc]

    def __init__(
        self, singles: Sequence[E], cells: Sequence[str], width: int, autoreset_mode: str | AutoresetMode
    ) -> None:
        """``cells`` are the texts of a cell by its code, ``width`` the cells in a row of the grid."""
        modes = tuple(mode.value for mode in AutoresetMode)
        chosen = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        self.autoreset_mode = AutoresetMode(check_choice("autoreset_mode", chosen, modes))
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}  # type: ignore[misc]
        self._singles = singles
        first = singles[0]
        assert isinstance(first.action_format, ActionFormat)
        self._format = first.action_format
        self.num_envs, self.render_mode = len(singles), first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self._width, self._cells = width, cells
        self._known: dict[str, bytes] = {}
        self._all = np.arange(self.num_envs)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._begun = False
        self._num_cells = 0

    @abc.abstractmethod
    def _begin(self, row: int, single: E) -> Sequence[int]:
        """Copy the start of the episode in ``single``; returns the code of each cell."""

    @abc.abstractmethod
    def _play(self, rows: Ints, moves_RK: NDArray[np.int8]) -> Played:
        """Play moves (-1 behind the last of each row), drawing what changes by :meth:`_draw`."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in every environment, or in those of ``options["reset_mask"]`` (a boolean array).

        ``seed``: one for each environment, or the first of consecutive ones, or None for the next episode of each.
        Raises ``ValueError`` and ``TypeError`` where one of the two does not fit.
        """
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a NumPy array of booleans, not {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must have the shape ({self.num_envs},) and a True in it, not {mask!r}"
            )
        if not self._begun and not mask.all():
            raise gymnasium.error.ResetNeeded("the first reset must be of all environments, without a reset_mask")
        seeds = [seed] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = range(seeds, seeds + self.num_envs)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must be one number, or one for each of {self.num_envs} environments, not {seed!r}")
        infos: dict[str, Any] = {}
        for row in np.flatnonzero(mask).tolist():
            infos = self._add_info(infos, self._reset_row(row, seeds[row]), row)
        self._begun = True
        return self.render(), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Play one answer in each environment.

        An environment whose episode ended with the step before begins its next one instead (``NextStep``), it begins it
        in the same step (``SameStep``: the last text and info are in ``final_obs`` and ``final_info``), or not at all
        (``Disabled``: reset it by ``options["reset_mask"]``). Raises ``ResetNeeded`` where an episode has not begun.
        """
        if not self._begun:
            raise gymnasium.error.ResetNeeded("no episode has begun: call reset() first")
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions were given to {self.num_envs} environments; each needs one")
        resets = np.flatnonzero(self._ended)
        if len(resets) and self.autoreset_mode != AutoresetMode.NEXT_STEP:
            raise gymnasium.error.ResetNeeded(
                f"the episodes of environments {resets.tolist()} are over: reset them by options['reset_mask']"
            )
        rows = np.flatnonzero(~self._ended) if len(resets) else self._all
        moves = self._read(actions, rows)
        played = self._play(rows, moves)
        valid, over = moves[:, 0] >= 0, played.terminated | played.truncated
        rewards, terminated, truncated = played.rewards, played.terminated, played.truncated
        if len(resets):
            infos = self._infos(rows, played, valid) if len(rows) else {}
            rewards, terminated, truncated, self._ended = (
                self._spread(rows, each) for each in (rewards, terminated, truncated, over)
            )
            for row in resets.tolist():
                infos = self._add_info(infos, self._reset_row(row, None), row)
        elif self.autoreset_mode == AutoresetMode.SAME_STEP and over.any():
            infos = self._begin_again(played, valid, over)
        else:
            infos = self._infos(rows, played, valid)
            self._ended = over
        return self.render(), rewards, terminated, truncated, infos

    def render(self) -> tuple[str, ...]:
        """The current texts."""
        if not self._num_cells:
            raise gymnasium.error.ResetNeeded("there is nothing to render before reset()")
        text = self._text_NL.tobytes().decode("utf-32-le", "surrogatepass").replace(self._pad, "")
        return tuple(text.split(self._end)[:-1])

    def _read(self, actions: Sequence[str], rows: Ints) -> NDArray[np.int8]:
        """Moves of the answers in ``rows``, -1 behind the last of each; at least one column."""
        answers = actions if len(rows) == self.num_envs else [actions[row] for row in rows.tolist()]
        found: list[Any] = list(map(self._known.get, answers))
        if None in found:
            found = [self._moves(text) if moves is None else moves for text, moves in zip(answers, found, strict=True)]
        longest = max(map(len, found), default=1) or 1
        joined = b"".join(found)
        if len(joined) != len(found) * longest or longest > 1:
            joined = b"".join(moves.ljust(longest, b"\xff") for moves in found)
        return np.frombuffer(joined, np.int8).reshape(len(found), longest)

    def _moves(self, text: str) -> bytes:
        moves = bytes(self._format.parse(text).actions)
        if len(text) < CACHED_CHARS:
            if len(self._known) >= CACHED_ANSWERS:
                self._known.clear()
            self._known[text] = moves
        return moves

    def _reset_row(self, row: int, seed: int | None) -> dict[str, Any]:
        _, info = self._singles[row].reset(seed=seed)
        codes = self._begin(row, self._singles[row])
        if not self._num_cells:
            self._make_texts(len(codes))
        self._draw(np.full(len(codes), row), np.arange(len(codes)), np.asarray(codes))
        self._ended[row] = False
        return info

    def _make_texts(self, num_cells: int) -> None:
        """One array of characters for all texts; two that no cell uses fill up short cells and end each text."""
        used = {"\n", *"".join(self._cells)}
        self._pad, self._end = [chr(code) for code in range(len(used) + 2) if chr(code) not in used][:2]
        chars = max(map(len, self._cells))
        padded = "".join(text.ljust(chars, self._pad) for text in self._cells)
        self._glyphs = np.array([ord(c) for c in padded], "<u4").reshape(-1, chars)
        # A line break, or at last the end, stands behind each row of cells.
        line = self._width * chars + 1
        length = num_cells // self._width * line
        self._text_NL = np.full((self.num_envs, length), ord("\n"), "<u4")
        self._text_NL[:, -1] = ord(self._end)
        cells = np.arange(num_cells)
        starts = cells // self._width * line + cells % self._width * chars
        self._places = starts[:, None] + np.arange(chars)
        self._row_starts = self._all * length
        self._num_cells = num_cells

    def _draw(self, rows: Ints, cells: Ints, codes: NDArray[Any]) -> None:
        places = self._places.take(cells, axis=0) + self._row_starts.take(rows)[:, None]
        self._text_NL.reshape(-1)[places] = self._glyphs.take(codes, axis=0)

    def _spread(self, rows: Ints, values: NDArray[Any]) -> NDArray[Any]:
        """The values of ``rows`` in an array of all environments, 0 elsewhere."""
        if len(rows) == self.num_envs:
            return values.copy()
        spread = np.zeros(self.num_envs, values.dtype)
        spread[rows] = values
        return spread

    def _infos(self, rows: Ints, played: Played, valid: Bools) -> dict[str, Any]:
        mask = self._spread(rows, np.ones(len(rows), np.bool_))
        parts: dict[str, Any] = {}
        for part, paid in played.parts.items():
            parts[part], parts[f"_{part}"] = self._spread(rows, paid), mask.copy()
        infos: dict[str, Any] = {}
        for name, values in {
            "success": played.success,
            "action_is_valid": valid,
            "action_is_effective": played.effective,
            "format_penalty": played.penalty,
        }.items():
            infos[name], infos[f"_{name}"] = self._spread(rows, values), mask.copy()
        infos["reward_parts"], infos["_reward_parts"] = parts, mask
        return infos

    def _begin_again(self, played: Played, valid: Bools, over: Bools) -> dict[str, Any]:
        """Start the next episode where one is over; ``final_obs`` and ``final_info`` have how it ended."""
        on, ends = np.flatnonzero(~over), np.flatnonzero(over)
        infos = self._infos(on, played.of(on), valid[on]) if len(on) else {}
        texts = np.full(self.num_envs, None, dtype=object)
        texts[ends] = np.array(self.render(), dtype=object)[ends]
        infos["final_obs"], infos["_final_obs"] = texts, over.copy()
        infos["final_info"], infos["_final_info"] = self._infos(ends, played.of(ends), valid[ends]), over.copy()
        for row in ends.tolist():
            infos = self._add_info(infos, self._reset_row(row, None), row)
        return infos
