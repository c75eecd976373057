"""An environment of one turn for the tests of the loop, with planted faults: say the word that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roll_envs.env import AnyText, EnvironmentCard, TextEnv
from roll_envs.parsing import make_action_format

__all__ = ["CARD", "WordEnv", "fault_of"]

WORDS = ("red", "green", "blue")


def fault_of(seed: int, share: float) -> bool:
    """Whether the episode of ``seed`` fails at every attempt."""
    return bool(np.random.default_rng(seed).random() < share)


class WordEnv(TextEnv):
    """Shows one of three words; +1 for saying it, 0 else; one turn."""

    max_turns = 1

    def __init__(self, *, fail_share: float = 0.0, prints: str = "") -> None:
        self.fail_share, self._prints = fail_share, prints
        self.action_format = make_action_format("word", WORDS)
        self.action_space = AnyText(WORDS)
        self.observation_space = AnyText()
        self._word, self._over, self._fails = "", True, False

    @property
    def instructions(self) -> str:
        return "say it"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        episode = self.episode_seed(seed)
        self._word, self._over = WORDS[episode % 3], False
        self._fails = fault_of(episode, self.fail_share)
        return self._word, {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._prints:
            print(self._prints)
        if self._fails:
            raise OSError("the planted fault")
        read = self.action_format.parse(action)
        won = read.valid and WORDS[read.actions[0]] == self._word
        self._over = True
        info = {
            "success": won,
            "action_is_valid": read.valid,
            "action_is_effective": read.valid,
            "format_penalty": 0.0,
            "reward_parts": {"word": float(won)},
        }
        return "over", float(won), True, False, info

    def oracle(self) -> list[str] | None:
        return None if self._over else [self._word]

    def render(self) -> str:
        return self._word

    def snapshot(self) -> Mapping[str, Any]:
        return {"word": self._word, "over": self._over, "fails": self._fails}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        self._word, self._over, self._fails = snapshot["word"], snapshot["over"], snapshot["fails"]
        return self._word


CARD = EnvironmentCard(
    id="test/Word-v0",
    entry_point="word_env:WordEnv",
    summary="Say the word that is shown.",
    tests="Whether a trainer learns at all.",
    turns="One.",
    reward_range=(0.0, 1.0),
    rewards="word: +1 for the word that is shown.",
    success="The word was said.",
)
