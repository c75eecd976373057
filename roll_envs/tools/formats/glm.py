"""GLM 4.5 and later: ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``.

Values are read as in :mod:`roll_envs.tools.formats.qwen_coder`: by the tool's schema, texts as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.tools.formats.qwen_coder import value_of
from roll_envs.tools.formats.reading import Call, after_thought, clip, dump, limited, skip_space, tool_list
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_glm", "parse_glm", "render_glm"]

_FORM = "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>"
_OPENING = "<tool_call>"
_NAME = re.compile(r"\s*([^<>{}\n]{1,200})\s*(?=<|\Z)")
_TAGS = re.compile(r"</?(?:tool_call|arg_key|arg_value)>")


def parse_glm(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when it has no ``<tool_call>``."""
    return limited(_calls(after_thought(text), specs))


def _calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterator[Call]:
    at = text.find(_OPENING)
    while at >= 0:
        call, at = _call(text, at + len(_OPENING), specs)
        yield call
        at = text.find(_OPENING, at)


def _call(text: str, at: int, specs: Mapping[str, ToolSpec]) -> tuple[Call, int]:
    """The call whose name stands at ``at``, and where to go on."""
    found = _NAME.match(text, at)
    if found is None or not found[1].strip():
        return BadCall(reason=f"a name is expected, not {clip(text[at : at + 20])!r}; write {_FORM}"), at
    name, at = found[1].strip(), found.end()
    arguments: dict[str, Any] = {}
    while text.startswith("<arg_key>", at):
        parts = []
        for tag in ("arg_key", "arg_value"):
            at = skip_space(text, at)
            end = text.find(f"</{tag}>", at) if text.startswith(f"<{tag}>", at) else -1
            if end < 0:
                # What a tag that never closes holds is not read again.
                after = len(text) if text.startswith(f"<{tag}>", at) else at
                return BadCall(reason=f"<{tag}> is missing or not closed in {clip(name)!r}; write {_FORM}"), after
            parts.append(text[at + len(tag) + 2 : end])
            at = end + len(tag) + 3
        key = parts[0].strip()
        arguments[key] = value_of(parts[1], specs, name, key)
        at = skip_space(text, at)
    if not text.startswith("</tool_call>", at) and at < len(text):
        found_text = clip(text[at : at + 20])
        return BadCall(reason=f"<arg_key> or </tool_call> is expected in {clip(name)!r}, not {found_text!r}"), at
    return ToolCall(name=name, arguments=arguments), at


def render_glm(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for a value that holds a tag of this format."""
    return "\n".join(map(_render, calls))


def _render(call: ToolCall) -> str:
    lines = [f"{_OPENING}{call.name}"]
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else dump(value)
        if _TAGS.search(key + text):
            raise ConfigError(f"argument {key!r} holds a closing tag, which this format cannot carry; use 'hermes'")
        lines.append(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>")
    return "\n".join([*lines, "</tool_call>"])


def describe_glm(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return (
        f"# Tools\n\nThese are the tools you may call:\n<tools>\n{tool_list(specs)}\n</tools>\n\n"
        "To call one, write it in this form, each value as it is, with nothing escaped:\n"
        "<tool_call>tool_name\n<arg_key>argument_name</arg_key>\n<arg_value>value</arg_value>\n</tool_call>\n"
        "Several calls may stand one after the other. The results come within <tool_response></tool_response> tags."
    )
