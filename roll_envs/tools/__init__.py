"""Tools that an agent calls inside an episode: the contract, tools by name, formats of calls, and :class:`ToolEnv`.

    env = roll_envs.make("roll/ToolEnv-v0", env="roll/FrozenLake-v0", tools=["calculator"])

Left out: running code (:mod:`roll_envs.sandbox`), judging answers (:mod:`roll_envs.verifiers`).
"""

from roll_envs.tools.calculator import calculate
from roll_envs.tools.card import TOOL_ENV
from roll_envs.tools.env import PlansToolCalls, ToolEnv
from roll_envs.tools.formats import TOOL_FORMATS, ToolFormat, find_tool_format
from roll_envs.tools.registry import make_tools, register_tool, tool_names
from roll_envs.tools.runner import ToolRunner
from roll_envs.tools.types import BadCall, CallRecord, Tool, ToolBudget, ToolCall, ToolResult, ToolSpec

__all__ = [
    "TOOL_ENV",
    "TOOL_FORMATS",
    "BadCall",
    "CallRecord",
    "PlansToolCalls",
    "Tool",
    "ToolBudget",
    "ToolCall",
    "ToolEnv",
    "ToolFormat",
    "ToolResult",
    "ToolRunner",
    "ToolSpec",
    "calculate",
    "find_tool_format",
    "make_tools",
    "register_tool",
    "tool_names",
]
