"""An environment that raises, hangs and dies at random; importing this registers it."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import gymnasium

import roll_envs
from roll_envs import AnyText, EnvironmentCard

UNRELIABLE = "unreliable:test/Unreliable-v0"


class Unreliable(gymnasium.Env[str, str]):
    """One to six turns, by its seed; ``raises``, ``hangs`` and ``dies`` are shares of its steps."""

    instructions = ""
    splits = ()

    def __init__(self, *, raises: float = 0.0, hangs: float = 0.0, dies: float = 0.0) -> None:
        self.action_space = self.observation_space = AnyText()
        self._raises, self._hangs, self._dies = raises, hangs, dies
        self._luck = random.SystemRandom()
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._left = 1 + (seed or 0) % 6
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        draw = self._luck.random()
        if draw < self._dies:
            os._exit(3)
        if draw < self._dies + self._hangs:
            time.sleep(600)
        if draw < self._dies + self._hangs + self._raises:
            raise RuntimeError("no luck")
        self._left -= 1
        done = self._left == 0
        reward = float(len(action) % 2) if done else 0.0
        return "go", reward, done, False, {"action_is_valid": True, "success": reward > 0}


roll_envs.register(
    EnvironmentCard(
        id="test/Unreliable-v0", entry_point="unreliable:Unreliable", summary="-", tests="-", turns="-",
        reward_range=(0.0, 1.0), rewards="-", success="-",
    )
)  # fmt: skip
