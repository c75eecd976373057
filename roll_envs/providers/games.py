"""What environments over another package's game have in common: a move in a tag each turn, the game's own rewards."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import gymnasium

from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import FreeFormat, make_free_format
from roll_envs.providers.isolation import isolated

__all__ = ["SHARES", "GameEnv", "Played", "share_of"]

SHARES = ("all", "train", "test")
"""Splits of a list of tasks that has none of its own."""
HELD_OUT = 10
"""Each tenth task is of the split test there, the others of train."""


def share_of(tasks: int, split: str) -> Sequence[int]:
    """The numbers of the tasks of a split of :data:`SHARES`. Raises :class:`ConfigError` where there are none."""
    numbers = [n for n in range(tasks) if split == "all" or (n % HELD_OUT == HELD_OUT - 1) == (split == "test")]
    if not numbers:
        raise ConfigError(
            f"of {tasks} tasks none is of the split {split!r}: each {HELD_OUT}th is of 'test'; play 'all'"
        )
    return numbers


_UNREADABLE = re.compile(r"\d{4301}")
"""A number of more digits than Python reads, at which games would raise."""


class Played(NamedTuple):
    """What became of a move."""

    shown: str
    paid: float = 0.0
    over: bool = False
    valid: bool = True
    success: bool = False
    effective: bool | None = None
    """Whether the state changed; by default what ``valid`` says."""
    told: Mapping[str, Any] = {}
    """Added to ``info``."""


class GameEnv(TextEnv):
    """A game of another package. Its global generators follow from the episode's seed and the turn."""

    plays_unread = False
    """Whether an answer in which no move can be read is played, as an empty move; else it costs a turn alone."""

    def __init__(
        self, *, action_format: str, max_turns: int, format_penalty: float, example: str, moves: Sequence[str]
    ) -> None:
        """``moves``: some that the game might take, for tools that send examples.

        Raises :class:`ConfigError` for values that make no sense.
        """
        if not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty!r}; give 0 or less")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; give a whole number of 1 or more")
        self.max_turns, self._penalty = max_turns, float(format_penalty)
        self.action_format: FreeFormat = make_free_format(action_format, example=example)
        self.action_space = AnyText(tuple(self.action_format.write(move) for move in moves))
        self.observation_space = AnyText()
        self._seed, self._turns, self._over, self._shown = 0, 0, True, ""
        self._split = ""
        """Of this episode; empty where there are none."""

    @property
    def instructions(self) -> str:
        return f"Play the game, one move in each answer. {self.action_format.instructions}"

    def _apart(self, *seed: int) -> AbstractContextManager[None]:
        """What the game is played within; by default alone, with global generators that follow from ``seed``."""
        return isolated(*seed)

    @abstractmethod
    def _begin(self, seed: int) -> str:
        """Start the game that follows from ``seed``; what it shows."""

    @abstractmethod
    def _play(self, move: str) -> Played:
        """Make a move."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode of ``options["split"]``, by default of the first. Raises :class:`ConfigError` for a split
        that is not there."""
        split = (options or {}).get("split", self.splits[0] if self.splits else "")
        if self.splits and split not in self.splits:
            raise ConfigError(f"split is {split!r}; it must be one of {', '.join(map(repr, self.splits))}")
        self._seed, self._split = self.episode_seed(seed), split
        with self._apart(self._seed):
            self._shown = self._begin(self._seed)
        self._turns, self._over = 0, False
        return self._shown, {"success": False} | ({"split": split} if self.splits else {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() first")
        said = self.action_format.read(action)
        if said is not None and _UNREADABLE.search(said):
            said = None
        self._turns += 1
        played = Played(self._shown, valid=False)
        if said is not None or self.plays_unread:
            with self._apart(self._seed, self._turns):
                played = self._play(said or "")
        self._shown = played.shown
        penalty = self._penalty if said is None else 0.0
        truncated = not played.over and self._turns >= self.max_turns
        self._over = played.over or truncated
        valid = played.valid and said is not None
        info = {
            "success": played.success,
            "action_is_valid": valid,
            "action_is_effective": valid if played.effective is None else valid and played.effective,
            "format_penalty": penalty,
            "reward_parts": {"game": played.paid, "format": penalty},
            **played.told,
        }
        return self._shown, played.paid + penalty, played.over, truncated, info
