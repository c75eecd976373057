"""Qwen3-Coder: ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``.

Values are raw text. One that the tool's schema wants as something other than a text is read as JSON; what cannot be
read stays a text, and the check of the arguments then says which type is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    clip,
    dump,
    limited,
    read_json,
    skip_space,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_qwen_coder", "parse_qwen_coder", "render_qwen_coder", "show_qwen_coder", "value_of"]

_FORM = "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"
_START = re.compile(r"<tool_call>|<function=")
_FUNCTION = re.compile(r"<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,200})>")
_VALUE_END = re.compile(r"</parameter>|</function>|</tool_call>")


def parse_qwen_coder(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when it has neither ``<tool_call>`` nor ``<function=``."""
    return limited(_calls(after_thought(text), specs))


def _calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterator[Call]:
    start = _START.search(text)
    while start is not None:
        at = skip_space(text, start.end()) if start.group() == "<tool_call>" else start.start()
        call, end = _call(text, at, specs)
        yield call
        start = _START.search(text, end)


def _call(text: str, at: int, specs: Mapping[str, ToolSpec]) -> tuple[Call, int]:
    """The call whose ``<function=`` stands at ``at``, and where to go on."""
    opening = _FUNCTION.match(text, at)
    if opening is None:
        # Advance at least one character past a broken '<function=', so that it is not found again.
        after = at + len("<function=") if text.startswith("<function=", at) else at
        return BadCall(reason=f"<function=NAME> is expected, not {clip(text[at : at + 20])!r}; write {_FORM}"), after
    name, at = opening.group(1).strip(), skip_space(text, opening.end())
    arguments: dict[str, Any] = {}
    while True:
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            break
        key = parameter.group(1).strip()
        ending = _VALUE_END.search(text, parameter.end())
        if ending is None or ending.group() != "</parameter>":
            reason = f"the parameter {clip(key)!r} of {clip(name)!r} is not closed; write {_FORM}"
            return BadCall(reason=reason), len(text) if ending is None else ending.end()
        arguments[key] = value_of(text[parameter.end() : ending.start()], specs, name, key)
        at = skip_space(text, ending.end())
    if not text.startswith("</function>", at):
        found = clip(text[at : at + 20])
        return BadCall(reason=f"<parameter=KEY> or </function> is expected in {clip(name)!r}, not {found!r}"), at
    return ToolCall(name=name, arguments=arguments), at + len("</function>")


def _schema(specs: Mapping[str, ToolSpec], name: str, key: str) -> Any:
    spec = specs.get(name)
    properties = spec.parameters.get("properties") if spec is not None else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _is_text(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)


def value_of(raw: str, specs: Mapping[str, ToolSpec], name: str, key: str) -> Any:
    """The argument ``key`` of the tool ``name``, written as text."""
    schema = _schema(specs, name, key)
    # The template puts one newline on either side of a value.
    text = raw.removeprefix("\n").removesuffix("\n")
    if _is_text(schema):
        return text
    read = read_json(text, 0)
    return text if read.problem or skip_space(text, read.end) < len(text) else read.value


def render_qwen_coder(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for a value that holds a closing tag of its own."""
    return "\n".join(map(_render, calls))


def _render(call: ToolCall) -> str:
    lines = [f"<tool_call>\n<function={call.name}>"]
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else dump(value)
        if _VALUE_END.search(text):
            raise ConfigError(f"argument {key!r} holds a closing tag, which this format cannot carry; use 'hermes'")
        lines.append(f"<parameter={key}>\n{text}\n</parameter>")
    return "\n".join([*lines, "</function>\n</tool_call>"])


def show_qwen_coder(results: Results) -> str:
    """Results as an observation."""
    return "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for _, result in results)


def describe_qwen_coder(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return (
        f"# Tools\n\nThese are the tools you may call:\n<tools>\n{tool_list(specs)}\n</tools>\n\n"
        "To call one, write it in this form, each value as it is, with nothing escaped:\n"
        "<tool_call>\n<function=tool_name>\n<parameter=argument_name>\nvalue\n</parameter>\n</function>\n</tool_call>\n"
        "Several calls may stand one after the other. The results come within <tool_response></tool_response> tags."
    )
