"""ToolEnv: any text environment, with tools that the agent may call before it answers.

An answer that holds tool calls is a turn that runs them and shows the results; any other answer goes to the wrapped
environment unchanged. Nothing of the wrapped environment's rules, rewards or seeds changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import gymnasium
from pydantic import TypeAdapter

from roll_envs import env_registry as registry
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError, check_number, check_whole
from roll_envs.settings import checked_arguments
from roll_envs.tools.formats import find_tool_format
from roll_envs.tools.registry import make_tools
from roll_envs.tools.runner import ToolRunner
from roll_envs.tools.types import BadCall, CallRecord, Tool, ToolBudget, ToolCall, ToolResult

DEFAULT_TOOL_TURNS = 8
"""Turns for calls beside the wrapped environment's own, where ``max_turns`` is not given."""

_SLOT = "\u241f"
"""Stands for text that a model fills in; a symbol that no tool uses in its own texts."""
_RECORDS = TypeAdapter(list[CallRecord])


@runtime_checkable
class PlansToolCalls(Protocol):
    """A wrapped environment whose best play needs tools says so: :meth:`ToolEnv.oracle` then asks it."""

    def tool_plan(self, tools: Collection[str], records: Sequence[CallRecord]) -> list[str | ToolCall] | None:
        """Like ``oracle``, given the names of the tools and the calls made so far: answers, and calls before them."""


class ToolEnv(TextEnv):
    """``env`` with ``tools``. See docs/tools.md.

    ``info`` has, beside the usual keys, ``tool_calls`` (calls in this answer), ``tool_errors`` (those that failed or
    could not run) and ``tool_seconds`` (what they took, by the clock: the one value that a seed does not fix).
    """

    def __init__(
        self,
        *,
        env: str | TextEnv,
        tools: Sequence[str | Mapping[str, Any] | Tool],
        env_kwargs: Mapping[str, Any] | None = None,
        format: str = "hermes",
        budget: ToolBudget | Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        call_cost: float = 0.0,
    ) -> None:
        """``env`` is an id (made with ``env_kwargs``) or an environment; ``tools`` are names, mappings with ``tool``
        and arguments, or tools. ``max_turns`` counts all turns (default: the environment's own and 8 more);
        ``call_cost`` is taken from the reward for each call. Raises :class:`ConfigError` and what making raises.
        """
        if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence) or not tools:
            raise ConfigError(f"tools must be a list with at least one tool, not {tools!r}")
        if isinstance(env, TextEnv) and env_kwargs:
            raise ConfigError("env_kwargs are for an environment that is named by its id; this one is made already")
        check_number("call_cost, taken from the reward,", call_cost, lambda n: 0 <= n < 1e6, "a number of 0 or more")
        self.call_cost = float(call_cost)
        self.format_name, self._format = format, find_tool_format(format)
        # Checked before anything is made that would have to be closed again.
        plain = asdict(budget) if isinstance(budget, ToolBudget) else budget or {}
        made = ToolBudget(**checked_arguments("budget", ToolBudget, plain))
        if max_turns is not None:
            check_whole("max_turns", max_turns)
        wrapped = registry.make(env, **dict(env_kwargs or {})) if isinstance(env, str) else env
        if not isinstance(wrapped, TextEnv):
            raise ConfigError(f"environment {env!r} is a {type(wrapped).__name__}; ToolEnv wraps a roll_envs.TextEnv")
        self.env = wrapped
        self.runner = _make_runner(tools, made)
        self.max_turns = self.env.max_turns + DEFAULT_TOOL_TURNS if max_turns is None else max_turns
        self.action_format = self.env.action_format
        self.splits = self.env.splits  # type: ignore[misc]
        given = self.env.action_space
        call = self._format.render([ToolCall(name=next(iter(self.runner.specs)))])
        self.action_space = AnyText((*(given.examples if isinstance(given, AnyText) else ("",)), call))
        self.observation_space = AnyText()
        self._shown, self._turns, self._over, self._success = "", 0, True, False

    @property
    def instructions(self) -> str:
        """The wrapped environment's, then the tools, how to call them, and what they may use."""
        budget = self.runner.budget
        return (
            f"{self.env.instructions}\n\n{self._format.describe(tuple(self.runner.specs.values()))}\n\n"
            f"An answer with tool calls shows you their results, and you answer again; an answer without is your "
            f"answer to the task. You have {self.max_turns} turns in all, and up to {budget.calls} calls of up to "
            f"{budget.call_seconds:g} s each."
        )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The wrapped environment's words, and the texts around the arguments in a call of each tool, and around a
        result: a small model reads each as one token. Required text arguments are left open; all others are left out.
        """
        words: list[str] = []
        for spec in self.runner.specs.values():
            required, properties = (spec.parameters.get(key, {}) for key in ("required", "properties"))
            texts = [name for name, part in properties.items() if part.get("type") == "string" and name in required]
            call = ToolCall(name=spec.name, arguments=dict.fromkeys(texts, _SLOT))
            words += self._format.render([call]).split(_SLOT)
            words += self._format.show([(call, ToolResult(text=_SLOT))]).split(_SLOT)
        return tuple(dict.fromkeys([*self.env.vocabulary, *(word for word in words if len(word) > 1)]))

    def split_size(self, split: str) -> int | None:
        """The wrapped environment's."""
        return self.env.split_size(split)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the wrapped environment's episode of ``seed``, with fresh tools."""
        gymnasium.Env.reset(self, seed=seed)
        self.runner.close()
        self.runner.open()
        self._shown, info = self.env.reset(seed=seed, options=options)
        self._turns, self._over, self._success = 0, False, False
        return self._shown, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Run the calls of ``action``, or hand it to the wrapped environment when it has none."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        calls = self._format.parse(action, self.runner.specs)
        self._turns += 1
        reward, terminated, truncated, info = self._run(calls) if calls else self._play(action)
        truncated = truncated or (not terminated and self._turns >= self.max_turns)
        self._over, self._success = terminated or truncated, info["success"]
        if self._over:
            # Tools free what they hold as soon as the episode ends, not at the next reset.
            self.runner.close()
        return self._shown, reward, terminated, truncated, info

    def _play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        self._shown, reward, terminated, truncated, info = self.env.step(action)
        parts = {**info.get("reward_parts", {}), "tool_calls": 0.0}
        # The same keys after every turn, with calls or without.
        info = {**info, "reward_parts": parts, "tool_calls": 0, "tool_errors": 0, "tool_seconds": 0.0}
        return float(reward), terminated, truncated, info

    def _run(self, calls: Sequence[ToolCall | BadCall]) -> tuple[float, bool, bool, dict[str, Any]]:
        records = self.runner.run(calls)
        self._shown = self._format.show([(r.call, ToolResult(text=r.text, ok=r.ok)) for r in records])
        # Not -0.0 where calls are free.
        cost = -self.call_cost * len(records) if self.call_cost else 0.0
        info = {
            "success": self._success,
            "action_is_valid": all(r.ran for r in records),
            "action_is_effective": any(r.ran for r in records),
            "format_penalty": 0.0,
            "reward_parts": {"tool_calls": cost},
            "tool_calls": len(records),
            "tool_errors": sum(not r.ok for r in records),
            "tool_seconds": sum(r.seconds for r in records),
        }
        return cost, False, False, info

    def legal_answers(self) -> list[str]:
        """The wrapped environment's; calls are always allowed beside them."""
        return self.env.legal_answers()

    def oracle(self) -> list[str] | None:
        """The wrapped environment's plan, with calls in it where that environment is a :class:`PlansToolCalls`."""
        if self._over:
            return None
        if isinstance(self.env, PlansToolCalls):
            planned = self.env.tool_plan(tuple(self.runner.specs), tuple(self.runner.records))
            plan = [p if isinstance(p, str) else self._format.render([p]) for p in planned or ()]
        else:
            plan = self.env.oracle() or []
        return plan if 0 < len(plan) <= self.max_turns - self._turns else None

    def render(self) -> str:
        """What was shown last."""
        return self._shown if self._turns or not self._over else super().render()

    def snapshot(self) -> Mapping[str, Any]:
        """The wrapped environment's snapshot, and the calls made so far; the state of tools is not in it."""
        return {
            "env": self.env.snapshot(),
            "shown": self._shown,
            "turns": self._turns,
            "over": self._over,
            "success": self._success,
            "calls": [asdict(record) for record in self.runner.records],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Go on from ``snapshot``: tools that keep state are brought back by making the recorded calls again.

        Raises :class:`ConfigError` for a tool whose state cannot be brought back that way (see its ``state``), and
        :class:`~roll_envs.errors.EnvironmentFaultError` when a call now gives another result.
        """
        self.runner.close()
        self.runner.open()
        # Until all is restored: if something below raises, no step can be taken.
        self._over = True
        self.env.restore(snapshot["env"])
        records = _RECORDS.validate_python(snapshot["calls"])
        # An episode that is over makes no more calls, so the state of its tools is not needed.
        if snapshot["over"]:
            self.runner.records = records
        else:
            self.runner.replay(records)
        self._shown, self._turns = snapshot["shown"], snapshot["turns"]
        self._over, self._success = snapshot["over"], snapshot["success"]
        return self._shown

    def close(self) -> None:
        """Close the tools and the wrapped environment."""
        try:
            self.runner.dispose()
        finally:
            self.env.close()


def _make_runner(tools: Sequence[str | Mapping[str, Any] | Tool], budget: ToolBudget) -> ToolRunner:
    made: list[Tool] = []
    try:
        for tool in tools:
            made += make_tools(tool)
        return ToolRunner(made, budget)
    except BaseException:
        for each in made:  # tools made before the failing one may hold processes
            with contextlib.suppress(Exception):
                each.dispose()
        raise
