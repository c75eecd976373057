"""Tools by name: entry points of the group ``roll_envs.tools``, and those registered in this process.

The target of an entry point is a class or function that makes a :class:`~roll_envs.tools.types.Tool`, or several of
them (a server of tools has many). Nothing is imported before a tool of that name is made.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError, PluginError, RollError, UnknownNameError
from roll_envs.tools.arguments import check_schema
from roll_envs.tools.types import Tool

__all__ = ["GROUP", "MakeTools", "make_tools", "register_tool", "tool_names"]

GROUP = "roll_envs.tools"
MakeTools = Callable[..., Tool | Sequence[Tool]]

_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")
_registered: dict[str, MakeTools] = {}


def register_tool(name: str, make: MakeTools, *, replace: bool = False) -> None:
    """Register a tool in this process: for tests, notebooks and programs that are no package.

    Raises :class:`ConfigError` for a malformed name, or one that is taken unless ``replace``.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"tool name {name!r} must be a letter or _, then up to 63 letters, digits or one of _ . : -")
    if name in tool_names() and not replace:
        raise ConfigError(f"tool name {name!r} is taken; choose another one or pass replace=True")
    _registered[name] = make


def tool_names() -> tuple[str, ...]:
    """Every name that :func:`make_tools` knows, in order."""
    return tuple(sorted({*_registered, *_points()}))


def make_tools(tool: str | Mapping[str, Any] | Tool) -> tuple[Tool, ...]:
    """The tools that a configuration names: ``"python"``, ``{"tool": "search", "corpus": "docs.jsonl"}``, or a
    :class:`Tool` itself.

    Raises :class:`UnknownNameError` for a name nobody registers, :class:`ConfigError` for arguments that do not fit,
    :class:`PluginError` when the tool's package is broken, and whatever the tool raises when it is made.
    """
    if isinstance(tool, Tool):
        return (_checked(tool, type(tool).__name__),)
    if isinstance(tool, str):
        name, kwargs = tool, {}
    elif isinstance(tool, Mapping) and isinstance(tool.get("tool"), str):
        name, kwargs = tool["tool"], {key: value for key, value in tool.items() if key != "tool"}
    else:
        raise ConfigError(f"a tool is a name, or a mapping with 'tool': name and its arguments; not {tool!r}")
    make = _find(name)
    try:
        made = make(**kwargs)
    except TypeError as error:
        raise ConfigError(f"tool {name!r} with the arguments {kwargs!r}: {error}") from error
    tools = (made,) if isinstance(made, Tool) else tuple(made)
    if not tools:
        raise ConfigError(f"tool {name!r} with the arguments {kwargs!r} offers no tool at all")
    return tuple(_checked(each, name) for each in tools)


def _find(name: str) -> MakeTools:
    if name in _registered:
        return _registered[name]
    points = _points()
    if name not in points:
        raise UnknownNameError("tool", name, tool_names())
    try:
        make: MakeTools = points[name].load()
    except RollError:
        raise
    except Exception as error:  # the import runs code of others
        raise PluginError(f"tool {name!r} ({points[name].value}) cannot be loaded: {error}") from error
    return make


def _points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _checked(tool: Any, source: str) -> Tool:
    if not isinstance(tool, Tool):
        raise PluginError(f"tool {source!r} made a {type(tool).__name__}, not a roll_envs.tools.Tool")
    if not _NAME.fullmatch(tool.spec.name):
        raise PluginError(f"tool {source!r} has the name {tool.spec.name!r}; allowed: {_NAME.pattern}")
    check_schema(tool.spec.parameters, f"tool {tool.spec.name!r}")
    return tool
