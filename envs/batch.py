"""Many environments on grids stepped at once: what Sokoban's and FrozenLake's vector environments have in common.

Starts and steps come from compiled code, which works on arrays of this class. Texts, rewards, flags and infos are those
of the single environments, infos in the form of ``gymnasium.vector.SyncVectorEnv``. Left out: oracles and snapshots,
which single environments have.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.arguments import check_choice, check_int
from roll_envs.env import TextEnv
from roll_envs.parsing import CACHED_ANSWERS, CACHED_CHARS, ActionFormat

__all__ = ["GridVectorEnv", "Played", "one_by_one"]

# N environments, C cells in each.

E = TypeVar("E", bound=TextEnv)
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

SEEDS_AHEAD = 16
"""Seeds that are drawn at once from the generator of an environment; the numbers are those of one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What one answer in each environment led to; 0 where none was played."""

    rewards: Floats
    terminated: Bools
    truncated: Bools
    infos: Mapping[str, NDArray[Any]]
    parts: Mapping[str, Floats]

    def only(self, mask: Bools) -> Played:
        """The same, with infos of 0 where ``mask`` is not set."""
        infos, parts = ({name: value * mask for name, value in each.items()} for each in (self.infos, self.parts))
        return replace(self, infos=infos, parts=parts)


def one_by_one(make: type[TextEnv]) -> type[SyncVectorEnv]:
    """The vector environment of ``make`` where there is no compiled code: single ones, one after the other."""

    class OneByOne(SyncVectorEnv):
        def __init__(
            self, *, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
        ) -> None:
            singles = [lambda: make(**kwargs)] * check_int("num_envs", num_envs, 1)
            super().__init__(singles, autoreset_mode=_autoreset_mode(autoreset_mode))

    return OneByOne


def _autoreset_mode(value: str | AutoresetMode) -> AutoresetMode:
    chosen = value.value if isinstance(value, AutoresetMode) else value
    return AutoresetMode(check_choice("autoreset_mode", chosen, tuple(mode.value for mode in AutoresetMode)))


class GridVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]], Generic[E], abc.ABC):
    """A batch of environments of one class; :meth:`_begin` and :meth:`_play` say what is special about it."""

    metadata: ClassVar[dict[str, Any]] = {**TextEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # type: ignore[misc]

    def __init__(
        self,
        single: E,
        num_envs: int,
        cells: Sequence[str],
        sides: tuple[int, int],
        autoreset_mode: str | AutoresetMode,
    ) -> None:
        """``single`` is an environment of the batch's arguments, ``cells`` are the texts of a cell by its code,
        ``sides`` the rows and columns of the grid."""
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}  # type: ignore[misc]
        assert isinstance(single.action_format, ActionFormat)
        self._single, self._format = single, single.action_format
        self.num_envs, self.render_mode = num_envs, single.render_mode
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._known: dict[str, bytes] = {}
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._begun = False
        # The seeds of the next episodes of each environment, and how many of them are used.
        self._ahead = np.zeros((num_envs, SEEDS_AHEAD), np.int64)
        self._used = np.full(num_envs, SEEDS_AHEAD)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._last_seeds: list[int | None] = [None] * num_envs
        self._make_texts(cells, *sides)

    @abc.abstractmethod
    def _begin(self, rows: Rows, seeds: Sequence[int]) -> None:
        """Start the episodes of ``seeds`` in the environments ``rows``, and write their texts."""

    @abc.abstractmethod
    def _play(self, moves: bytes) -> Played:
        """Play the moves of all environments whose episode goes on (as many for each, -1 behind its last)."""

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
        seeds = self._read_seeds(seed)
        rows = np.flatnonzero(mask)
        if seeds is not None:
            for row in rows.tolist():
                if (own := seeds[row]) is not None:
                    self._generators[row], self._last_seeds[row], self._used[row] = None, own, SEEDS_AHEAD
            drawn = self._next_seeds(rows[[seeds[row] is None for row in rows.tolist()]]).tolist()[::-1]
            self._begin(rows, [drawn.pop() if (own := seeds[row]) is None else own for row in rows.tolist()])
        else:
            self._begin(rows, self._next_seeds(rows).tolist())
        self._ended[rows] = False
        self._begun = True
        return self.render(), self._add_starts({}, rows)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Play one answer in each environment.

        An environment whose episode ended with the step before begins its next one instead (``NextStep``), it begins it
        in the same step (``SameStep``: the last text and info are in ``final_obs`` and ``final_info``), or not at all
        (``Disabled``: reset it by ``options["reset_mask"]``). Raises ``ResetNeeded`` where an episode has not begun,
        ``ValueError`` and ``TypeError`` where ``actions`` are not one text for each environment.
        """
        if not self._begun:
            raise gymnasium.error.ResetNeeded("no episode has begun: call reset() first")
        resets = np.flatnonzero(self._ended)
        if len(resets) and self.autoreset_mode != AutoresetMode.NEXT_STEP:
            raise gymnasium.error.ResetNeeded(
                f"the episodes of environments {resets.tolist()} are over: reset them by options['reset_mask']"
            )
        played = self._play(self._read(actions))
        over = played.terminated | played.truncated
        if self.autoreset_mode == AutoresetMode.SAME_STEP and over.any():
            infos = self._begin_again(played, over)
        else:
            infos = self._infos(played, ~self._ended)
            self._restart(resets)
            infos = self._add_starts(infos, resets)
            self._ended = over
        return self.render(), played.rewards, played.terminated, played.truncated, infos

    def render(self) -> tuple[str, ...]:
        """The current texts."""
        if not self._begun:
            raise gymnasium.error.ResetNeeded("there is nothing to render before reset()")
        text = self._text.tobytes().decode("utf-32-le", "surrogatepass")
        if self._padded:
            text = text.replace(self._pad, "")
        return tuple(text.split(self._end)[:-1])

    def _read_seeds(self, seed: Any) -> list[int | None] | None:
        allowed = f"None, a whole number of 0 or more, or a list of {self.num_envs} of these, one for each environment"
        if seed is None:
            return None
        if _is_seed(seed):
            return list(range(int(seed), int(seed) + self.num_envs))
        listed = isinstance(seed, (Sequence, np.ndarray)) and np.iterable(seed)  # an array of no dimensions is none
        if isinstance(seed, (str, bytes)) or not listed:
            raise TypeError(f"seed must be {allowed}, not {seed!r}")
        if len(seed) != self.num_envs:
            raise ValueError(f"seed must be {allowed}, not {len(seed)} of them: {seed!r}")
        for row, own in enumerate(seed):
            if own is not None and not _is_seed(own):
                raise TypeError(f"seed must be {allowed}; the one of environment {row} is {own!r}")
        return [None if own is None else int(own) for own in seed]

    def _next_seeds(self, rows: Rows) -> Rows:
        """The seed of the next episode of each of ``rows``, drawn as ``TextEnv.episode_seed`` does."""
        for row in rows[self._used[rows] == SEEDS_AHEAD].tolist():
            generator = self._generators[row]
            if generator is None:
                generator = self._generators[row] = seeding.np_random(self._last_seeds[row])[0]
            self._ahead[row], self._used[row] = generator.integers(np.iinfo(np.int32).max, size=SEEDS_AHEAD), 0
        seeds: Rows = self._ahead[rows, self._used[rows]]
        self._used[rows] += 1
        return seeds

    def _restart(self, rows: Rows) -> None:
        if len(rows):
            self._begin(rows, self._next_seeds(rows).tolist())

    def _read(self, actions: Sequence[str]) -> bytes:
        """Moves of the answers, as many for each as the longest has, -1 behind its last; one at least. Answers to an
        episode that is over are not looked at."""
        if isinstance(actions, str) or not isinstance(actions, (Sequence, np.ndarray)):
            raise TypeError(
                f"actions must be a list of {self.num_envs} texts, one for each environment, not {actions!r}"
            )
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions were given to {self.num_envs} environments; each needs one")
        try:
            found: list[Any] = list(map(self._known.get, actions))
        except TypeError:  # something in it cannot be a key; which one is said below
            found = [None] * self.num_envs
        if None in found:
            found = [
                b"" if over else self._moves(row, actions[row]) if moves is None else moves
                for row, (moves, over) in enumerate(zip(found, self._ended.tolist(), strict=True))
            ]
        longest = max(map(len, found)) or 1
        joined = b"".join(found)
        if len(joined) != len(found) * longest or longest > 1:
            joined = b"".join([moves.ljust(longest, b"\xff") for moves in found])
        return joined

    def _moves(self, row: int, text: str) -> bytes:
        if not isinstance(text, str):
            example = self._format.format([0])
            raise TypeError(f"an answer is a text such as {example!r}; the one for environment {row} is {text!r}")
        moves = bytes(self._format.parse(text).actions)
        if len(text) < CACHED_CHARS:
            if len(self._known) >= CACHED_ANSWERS:
                self._known.clear()
            self._known[text] = moves
        return moves

    def _make_texts(self, cells: Sequence[str], height: int, width: int) -> None:
        """One array of characters for all texts; two that no cell uses fill up short cells and end each text."""
        used = {"\n", *"".join(cells)}
        self._pad, self._end = [chr(code) for code in range(len(used) + 2) if chr(code) not in used][:2]
        self._chars = max(map(len, cells))
        padded = "".join(text.ljust(self._chars, self._pad) for text in cells)
        self._padded = self._pad in padded
        self._glyphs = np.array([ord(c) for c in padded], np.uint32)
        # A line break, or at last the end, stands behind each row of cells.
        line = width * self._chars + 1
        self._text = np.full((self.num_envs, height * line), ord("\n"), np.uint32)
        self._text[:, -1] = ord(self._end)
        places_C = np.arange(height * width)
        self._places = (places_C // width * line + places_C % width * self._chars).astype(np.int32)

    def _infos(self, played: Played, mask: Bools) -> dict[str, Any]:
        """Infos of the environments in ``mask``; the values elsewhere are 0 already."""
        if not mask.any():
            return {}
        parts: dict[str, Any] = {}
        infos: dict[str, Any] = {"reward_parts": parts, "_reward_parts": mask}
        for target, values in ((infos, played.infos), (parts, played.parts)):
            for name, value in values.items():
                target[name], target[f"_{name}"] = value, mask.copy()
        return infos

    def _add_starts(self, infos: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """``infos`` with those of the episodes that began in ``rows``."""
        if len(rows):
            for name, value in (("success", False), ("_success", True)):
                infos.setdefault(name, np.zeros(self.num_envs, np.bool_))[rows] = value
        return infos

    def _begin_again(self, played: Played, over: Bools) -> dict[str, Any]:
        """Start the next episode where one is over; ``final_obs`` and ``final_info`` have how it ended."""
        infos, ends = self._infos(played.only(~over), ~over), np.flatnonzero(over)
        texts = np.full(self.num_envs, None, dtype=object)
        texts[ends] = np.array(self.render(), dtype=object)[ends]
        infos["final_obs"], infos["_final_obs"] = texts, over.copy()
        infos["final_info"], infos["_final_info"] = self._infos(played.only(over), over), over.copy()
        self._restart(ends)
        return self._add_starts(infos, ends)


def _is_seed(value: Any) -> bool:
    # Integers of numpy are welcome too.
    return hasattr(value, "__index__") and not isinstance(value, (bool, np.ndarray)) and int(value) >= 0
