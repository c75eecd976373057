"""The card of ToolEnv."""

from __future__ import annotations

from roll_envs.env import EnvironmentCard

TOOL_ENV = EnvironmentCard(
    id="roll/ToolEnv-v0",
    entry_point="roll_envs.tools.env:ToolEnv",
    kwargs={"env": "roll/FrozenLake-v0", "tools": ("calculator",)},
    summary="Any text environment with tools: code, search, a calculator, MCP servers.",
    tests="When to call a tool, and what to do with what it says.",
    turns="Those of the wrapped environment and 8 more (the argument max_turns counts all); an answer with tool calls "
    "takes a turn and leaves the wrapped environment as it is.",
    reward_range=(0.0, 1.0),
    rewards="Those of the wrapped environment; tool_calls: the argument call_cost (0 by default), taken for each call.",
    success="As in the wrapped environment.",
    splits="Those of the wrapped environment.",
    versions={"v0": "First version."},
)
