"""Calls with each value in tags of its own, as raw text: Qwen3-Coder, and GLM 4.5 and later.

A value that the tool's schema wants as something other than a text is read as JSON; what cannot be read stays a text,
and the check of the arguments then says which type is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from roll_envs.errors import ConfigError
from roll_envs.tools.formats.reading import Call, clip, dump, read_json, skip_space
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec


class Tags(NamedTuple):
    """How the calls of a format are tagged: patterns for reading, templates for writing."""

    begin: str
    name: str
    """What follows ``begin``: the tool's name in a group."""
    key: str
    """The name of an argument in a group, up to its value."""
    value_end: str
    closing: str
    """Of all that ``value_end`` finds, what closes a value in order."""
    end: str
    call: tuple[str, str]
    """Written before and after the arguments."""
    argument: str

    @property
    def form(self) -> str:
        """The form as it is shown to a model."""
        argument = self.argument.format(key="KEY", value="VALUE")
        return f"{self.call[0].format(name='NAME')}{argument}{self.call[1]}".replace("\n", "")


TAGS = {
    "qwen3-coder": Tags(
        begin=r"(?:<tool_call>\s*)?<function=|<tool_call>",
        name=r"(?<=<function=)([^<>\n]{1,200})>\s*",
        key=r"<parameter=([^<>\n]{1,200})>",
        value_end="</parameter>|</function>|</tool_call>",
        closing="</parameter>",
        end="</function>",
        call=("<tool_call>\n<function={name}>\n", "</function>\n</tool_call>"),
        argument="<parameter={key}>\n{value}\n</parameter>\n",
    ),
    "glm": Tags(
        begin="<tool_call>",
        name=r"\s*([^\s<>{}][^<>{}\n]{0,199})\s*(?=<|\Z)",
        key=r"<arg_key>([^<>]{1,200})</arg_key>\s*<arg_value>",
        value_end="</arg_value>",
        closing="</arg_value>",
        end=r"</tool_call>|\Z",
        call=("<tool_call>{name}\n", "</tool_call>"),
        argument="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    ),
}


def tagged_calls(text: str, specs: Mapping[str, ToolSpec], tags: Tags) -> Iterator[Call]:
    """The calls of a text, the malformed ones included."""
    begin = re.search(tags.begin, text)
    while begin is not None:
        call, at = _call(text, begin.end(), specs, tags)
        yield call
        begin = re.compile(tags.begin).search(text, at)


def _call(text: str, at: int, specs: Mapping[str, ToolSpec], tags: Tags) -> tuple[Call, int]:
    """The call whose name stands at ``at``, and where to go on."""
    found = re.compile(tags.name).match(text, at)
    if found is None:
        return BadCall(reason=f"a name is expected, not {clip(text[at : at + 20])!r}; write {tags.form}"), at
    name, at = found[1].strip(), found.end()
    arguments: dict[str, Any] = {}
    while (key := re.compile(tags.key).match(text, at)) is not None:
        ending = re.compile(tags.value_end).search(text, key.end())
        if ending is None or ending[0] != tags.closing:
            reason = f"the argument {clip(key[1].strip())!r} of {clip(name)!r} is not closed; write {tags.form}"
            # What a tag that never closes holds is not read again.
            return BadCall(reason=reason), len(text) if ending is None else ending.end()
        arguments[key[1].strip()] = _value_of(text[key.end() : ending.start()], specs.get(name), key[1].strip())
        at = skip_space(text, ending.end())
    if (end := re.compile(tags.end).match(text, at)) is None:
        found_text = clip(text[at : at + 20])
        return BadCall(reason=f"{found_text!r} stands where {clip(name)!r} goes on; write {tags.form}"), at
    return ToolCall(name=name, arguments=arguments), end.end()


def _value_of(raw: str, spec: ToolSpec | None, key: str) -> Any:
    properties = spec.parameters.get("properties") if spec is not None else None
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    # The templates put one newline on either side of a value.
    text = raw.removeprefix("\n").removesuffix("\n")
    if kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    read = read_json(text, 0)
    return text if read.problem or skip_space(text, read.end) < len(text) else read.value


def render_tagged(calls: Sequence[ToolCall], tags: Tags) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for a value that holds a closing tag of this format."""
    return "\n".join(_render(call, tags) for call in calls)


def _render(call: ToolCall, tags: Tags) -> str:
    written = []
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else dump(value)
        if re.search(tags.value_end, text) or re.search("[<>\n]", key):
            raise ConfigError(f"argument {key!r} holds a closing tag, which this format cannot carry; use 'hermes'")
        written.append(tags.argument.format(key=key, value=text))
    return f"{tags.call[0].format(name=call.name)}{''.join(written)}{tags.call[1]}"
