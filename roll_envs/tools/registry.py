"""Tools by name: entry points of the group ``roll_envs.tools``, and those registered in this process.

The target of an entry point is a class or function that makes a :class:`~roll_envs.tools.types.Tool`, or several of
them (a server of tools has many). Nothing is imported before a tool of that name is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError, PluginError
from roll_envs.registry import MakerRegistry
from roll_envs.tools.arguments import check_schema
from roll_envs.tools.types import Tool

MakeTools = Callable[..., Tool | Sequence[Tool]]

TOOLS: MakerRegistry[Tool | Sequence[Tool]] = MakerRegistry("tool", "roll_envs.tools")

_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")


def register_tool(name: str, make: MakeTools, *, replace: bool = False) -> None:
    """Register a tool in this process: for tests, notebooks and programs that are no package.

    Raises :class:`ConfigError` for a malformed name, or one that is taken unless ``replace``.
    """
    TOOLS.register(name, make, replace=replace)


def tool_names() -> tuple[str, ...]:
    """Every name that :func:`make_tools` knows, in order."""
    return TOOLS.names()


def make_tools(tool: str | Mapping[str, Any] | Tool) -> tuple[Tool, ...]:
    """The tools that a configuration names: ``"python"``, ``{"tool": "search", "corpus": "docs.jsonl"}``, or a
    :class:`Tool` itself.

    Raises :class:`UnknownNameError` for a name nobody registers or a setting that the tool does not read,
    :class:`ConfigError` for settings that do not fit,
    :class:`PluginError` when the tool's package is broken, and whatever the tool raises when it is made.
    """
    if isinstance(tool, Tool):
        return (_checked(tool, type(tool).__name__),)
    if isinstance(tool, str):
        name, settings = tool, {}
    elif isinstance(tool, Mapping) and isinstance(tool.get("tool"), str):
        name, settings = tool["tool"], {key: value for key, value in tool.items() if key != "tool"}
    else:
        raise ConfigError(f"a tool is a name, or a mapping with 'tool': name and its settings; not {tool!r}")
    made = TOOLS.make(name, settings)
    # A server of tools makes several.
    tools = (made,) if isinstance(made, Tool) else tuple(made)
    if not tools:
        raise ConfigError(f"tool {name!r} with the settings {settings!r} offers no tool at all")
    return tuple(_checked(each, name) for each in tools)


def _checked(tool: Any, source: str) -> Tool:
    if not isinstance(tool, Tool):
        raise PluginError(f"tool {source!r} made a {type(tool).__name__}, not a roll_envs.tools.Tool")
    if not _NAME.fullmatch(tool.spec.name):
        raise PluginError(f"tool {source!r} has the name {tool.spec.name!r}; allowed: {_NAME.pattern}")
    check_schema(tool.spec.parameters, f"tool {tool.spec.name!r}")
    return tool
