"""BracketsEnv: a text of open brackets, to be closed one bracket a turn, innermost first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from roll_envs import AnyText, ConfigError, TextEnv, make_action_format

__all__ = ["BracketsEnv"]

CLOSES = {"(": ")", "[": "]", "{": "}"}
NAMES = {"Round": ")", "Square": "]", "Curly": "}"}


class BracketsEnv(TextEnv):
    """Shows brackets such as ``([(`` and expects the names of the closing ones: Round, Square, Round."""

    def __init__(self, *, length: int = 3, action_format: str = "answer") -> None:
        if not 1 <= length <= 50:
            raise ConfigError(f"length must be from 1 to 50, not {length}")
        self.length, self.max_turns = length, length + 2
        self.action_format = make_action_format(action_format, tuple(NAMES))
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in range(len(NAMES))))
        self.observation_space = AnyText()
        self._open = self._text = ""
        self._turns, self._over = 0, True

    @property
    def instructions(self) -> str:
        """The rules and the form of an answer."""
        return (
            "Close all open brackets, the innermost (rightmost) first, one a turn.\n"
            "Your available actions are: Round closes (, Square closes [, Curly closes {.\n"
            f"You have {self.max_turns} turns. {self.action_format.instructions}"
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of ``seed``."""
        draw = np.random.default_rng(self.episode_seed(seed))  # a generator of our own, from the seed alone
        self._open = self._text = "".join("([{"[i] for i in draw.integers(3, size=self.length))
        self._turns, self._over = 0, False
        return self.render(), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an answer: the right closing bracket closes one, any other changes nothing."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        read = self.action_format.parse(action)
        bracket = tuple(NAMES.values())[read.actions[0]] if read.valid else ""
        closes = bracket == CLOSES[self._open[-1]]
        if closes:
            self._open, self._text = self._open[:-1], self._text + bracket
        self._turns += 1
        success = not self._open
        truncated = not success and self._turns >= self.max_turns
        self._over = success or truncated
        parts = {"turn": 0.0 if closes else -0.1, "closed": 1.0 if success else 0.0}
        info = {
            "success": success,
            "action_is_valid": read.valid,
            "action_is_effective": closes,
            "format_penalty": 0.0,
            "reward_parts": parts,
        }
        return self.render(), sum(parts.values()), success, truncated, info

    def render(self) -> str:
        """The text so far."""
        return self._text if self._text else super().render()

    def oracle(self) -> list[str] | None:
        """The closing brackets in order; None when the turns left are too few."""
        if self._over or len(self._open) > self.max_turns - self._turns:
            return None
        order = [tuple(NAMES.values()).index(CLOSES[bracket]) for bracket in reversed(self._open)]
        return [self.action_format.format([action]) for action in order]

    def snapshot(self) -> Mapping[str, Any]:
        """Everything that a new instance needs to go on."""
        return {
            "open": self._open,
            "text": self._text,
            "turns": self._turns,
            "over": self._over,
            "np_random": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Go on from ``snapshot``."""
        self._open, self._text = snapshot["open"], snapshot["text"]
        self._turns, self._over = snapshot["turns"], snapshot["over"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        return self.render()
