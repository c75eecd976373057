"""Two tiny environments for tests: one to win by counting, one that repeats what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium

from roll_envs.env import AnyText, EnvironmentCard, TextEnv
from roll_envs.parsing import ActionFormat, make_action_format


class CounterEnv(TextEnv):
    """Bring a counter to its target by More and Less: +1 when it gets there, -0.1 a turn."""

    action_format: ActionFormat

    def __init__(self, *, highest: int = 4, max_turns: int = 6, action_format: str = "answer") -> None:
        self.highest, self.max_turns = highest, max_turns
        self.action_format = make_action_format(action_format, ("Less", "More"))
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in (0, 1)))
        self.observation_space = AnyText()
        self._over, self._value, self._target, self._turns = True, 0, 0, 0

    @property
    def instructions(self) -> str:
        return f"Bring the counter to its target with Less and More. {self.action_format.instructions}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        draw = gymnasium.utils.seeding.np_random(self.episode_seed(seed))[0]
        self._value, self._turns, self._over = 0, 0, False
        self._target = int(draw.integers(1, self.highest + 1))
        return self.render(), {"success": False}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("call reset() first")
        read = self.action_format.parse(action)
        change = (-1, 1)[read.actions[0]] if read.valid else 0
        self._turns += 1
        self._value += change
        solved = self._value == self._target
        truncated = not solved and self._turns >= self.max_turns
        self._over = solved or truncated
        parts = {"turn": -0.1, "target": 1.0 if solved else 0.0}
        flags = {"success": solved, "action_is_valid": read.valid, "action_is_effective": change != 0}
        info = {**flags, "format_penalty": 0.0, "reward_parts": parts}
        return self.render(), sum(parts.values()), solved, truncated, info

    def render(self) -> str:
        return f"counter {self._value}, target {self._target}"

    def snapshot(self) -> Mapping[str, Any]:
        counts = {"value": self._value, "target": self._target, "turns": self._turns, "over": self._over}
        return {**counts, "np_random": self.np_random.bit_generator.state}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        self._value, self._target = snapshot["value"], snapshot["target"]
        self._turns, self._over = snapshot["turns"], snapshot["over"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        return self.render()

    def oracle(self) -> list[str] | None:
        apart = self._target - self._value
        if self._over or abs(apart) > self.max_turns - self._turns:
            return None
        return [self.action_format.format([int(apart > 0)])] * abs(apart)


COUNTER_CARD = EnvironmentCard(
    id="test/Counter-v0",
    entry_point="roll_envs.testing.toy:CounterEnv",
    summary="A counter to bring to its target.",
    tests="Whether a loop works at all.",
    turns="6 turns of one change.",
    reward_range=(-0.6, 0.9),
    rewards="turn: -0.1 each; target: +1 when the counter gets there.",
    success="The counter is at its target.",
)


class EchoEnv(gymnasium.Env[str, str]):
    """Shows the last answer; not a TextEnv, never pays, ends by truncation after ``max_turns``."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - as in gymnasium.Env

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        self.max_turns, self.render_mode = max_turns, render_mode
        self.action_space = AnyText(("hello", "world"))
        self.observation_space = AnyText()
        self._turns, self._shown = -1, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turns, self._shown = 0, f"say something ({self.np_random.integers(100)})"
        return self._shown, {}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if not 0 <= self._turns < self.max_turns:
            raise gymnasium.error.ResetNeeded("call reset() first")
        self._turns += 1
        self._shown = action
        return action, 0.0, False, self._turns >= self.max_turns, {"success": False}

    def render(self) -> str:
        return self._shown
