"""WordProblemsEnv: one problem, one answer; with ``roll_envs.tools.ToolEnv`` around it, calls come before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from roll_envs import AnyText, ConfigError, TextEnv, make_free_format
from roll_envs.tools import CallRecord, ToolCall
from tool_math.problems import Problem, draw_problem, vocabulary

__all__ = ["WordProblemsEnv"]

MAX_NUMBER_CHARS = 40


class WordProblemsEnv(TextEnv):
    """Word problems whose numbers have ``digits`` digits; the answer is a whole number within <answer> tags."""

    def __init__(self, *, digits: int = 3) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 2 <= digits <= 9:
            raise ConfigError(f"digits must be a whole number from 2 to 9, not {digits!r}")
        self.digits, self.max_turns = digits, 1
        self.action_format = make_free_format("answer", example="1234")
        self.action_space = AnyText(tuple(self.action_format.write(str(n)) for n in (0, 10**digits)))
        self.observation_space = AnyText()
        self._problem: Problem | None = None
        self._over = True

    @property
    def instructions(self) -> str:
        """The task and the form of an answer."""
        return f"Solve the problem. The answer is a whole number. {self.action_format.instructions}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words of the problems."""
        return vocabulary()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The problem of ``seed``."""
        self._problem = draw_problem(np.random.default_rng(self.episode_seed(seed)), self.digits)
        self._over = False
        return self.render(), {"success": False, "kind": self._problem.kind}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the answer; the episode is over."""
        if self._over or self._problem is None:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        number = _whole_number(self.action_format.read(action))
        success = number == self._problem.answer
        self._over = True
        reward = 1.0 if success else 0.0
        info = {
            "success": success,
            "action_is_valid": number is not None,
            "action_is_effective": number is not None,
            "format_penalty": 0.0,
            "reward_parts": {"solved": reward},
        }
        return self.render(), reward, True, False, info

    def render(self) -> str:
        """The text of the problem."""
        return self._problem.text if self._problem is not None else super().render()

    def legal_answers(self) -> list[str]:
        """Wrong guesses of one who does not compute: the numbers of the text, and the answer to one digit."""
        if self._problem is None:
            return [self.action_format.write("0")]
        answer = self._problem.answer
        rough = round(answer, 1 - len(str(answer)))
        guesses = dict.fromkeys([*self._problem.numbers, rough])
        return [self.action_format.write(str(n)) for n in guesses if n != answer]

    def oracle(self) -> list[str] | None:
        """The right answer."""
        if self._over or self._problem is None:
            return None
        return [self.action_format.write(str(self._problem.answer))]

    def tool_plan(self, tools: Collection[str], records: Sequence[CallRecord]) -> list[str | ToolCall] | None:
        """With a tool that computes: the call (unless one already gave the answer), then the answer."""
        answer = self.oracle()
        if answer is None or self._problem is None:
            return None
        expression = self._problem.expression
        if any(record.ok and record.text == str(self._problem.answer) for record in records):
            return [*answer]
        if "calculator" in tools:
            return [ToolCall(name="calculator", arguments={"expression": expression}), *answer]
        if "python" in tools:
            return [ToolCall(name="python", arguments={"code": f"print({expression})"}), *answer]
        return [*answer]

    def snapshot(self) -> Mapping[str, Any]:
        """Everything that a new instance needs to go on."""
        problem = self._problem
        return {
            "problem": problem and {name: getattr(problem, name) for name in Problem.__slots__},
            "over": self._over,
            "np_random": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Go on from ``snapshot``."""
        saved = snapshot["problem"]
        self._problem = Problem(**{**saved, "numbers": tuple(saved["numbers"])})
        self._over = snapshot["over"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        return self.render()


def _whole_number(text: str | None) -> int | None:
    if text is None or len(text) > MAX_NUMBER_CHARS:
        return None
    plain = text.replace(",", "")
    digits = plain.removeprefix("-")
    return int(plain) if digits.isascii() and digits.isdigit() else None
