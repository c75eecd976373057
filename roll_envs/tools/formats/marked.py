"""Calls between marks: JSON (Hermes, Llama's function tags, Mistral, DeepSeek, Kimi K2, gpt-oss), or each value in tags
of its own as raw text (Qwen3-Coder, GLM 4.5 and later).

A raw value that the tool's schema wants as something other than a text is read as JSON; what cannot be read stays a
text, and the check of the arguments then says which type is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll_envs.tools.arguments import check_arguments
from roll_envs.tools.formats.forms import Form
from roll_envs.tools.formats.reading import (
    Call,
    JsonRead,
    call_of,
    calls_of_list,
    clip,
    read_json,
    read_whole_json,
    skip_space,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec


def marked_calls(text: str, specs: Mapping[str, ToolSpec], form: Form) -> Iterator[Call]:
    """The calls of a text, the malformed ones included; reading goes on where each call's reading stopped."""
    begins, name_of = re.compile(form.begin), re.compile(form.name)
    begin = begins.search(text)
    while begin is not None:
        at = begin.end()
        if (head := name_of.match(text, at)) is None:
            yield BadCall(reason=f"a name is expected, not {clip(text[at : at + 20])!r}; write {form.form}")
        else:
            name = head.groupdict().get("name")
            if form.key:
                calls, at = _raw_call(text, head.end(), head["name"].strip(), specs, form)
            else:
                calls, at = _json_calls(text, head.end(), name, form)
            yield from calls
        begin = begins.search(text, at)


def _json_calls(text: str, at: int, name: str | None, form: Form) -> tuple[Sequence[Call], int]:
    """The calls in the JSON at ``at``, which are the arguments of ``name`` where there is one; and where to go on."""
    what = "the call is" if name is None else f"the arguments of {clip(name)!r} are"
    # The mark that closes the call follows at once.
    empty = name is not None and text.startswith(("<|", "<｜", "</function>"), skip_space(text, at))
    read = JsonRead({}, at) if empty else read_json(text, at)
    at = max(read.end, at)
    if read.problem:
        return [BadCall(reason=f"{what} malformed: {read.problem}; write {form.form}")], at
    if re.compile(form.end).match(text, at) is None:
        found = clip(text[at : at + 20].strip())
        return [BadCall(reason=f"{what} not closed: {found!r} follows; write {form.form}")], at
    if name is not None:
        return [call_of({"name": name.strip(), "arguments": read.value}, form.form)], at
    return calls_of_list(read.value, form.form) if form.lists else [call_of(read.value, form.form)], at


def _raw_call(text: str, at: int, name: str, specs: Mapping[str, ToolSpec], form: Form) -> tuple[Sequence[Call], int]:
    """The call of ``name`` whose arguments stand at ``at``, and where to go on."""
    arguments: dict[str, Any] = {}
    while (key := re.compile(form.key).match(text, at)) is not None:
        ending = re.compile(form.value_end).search(text, key.end())
        if ending is None or ending.groupdict().get("cut"):
            reason = f"the argument {clip(key[1].strip())!r} of {clip(name)!r} is not closed; write {form.form}"
            # What a tag that never closes holds is not read again.
            return [BadCall(reason=reason)], len(text) if ending is None else ending.end()
        arguments[key[1].strip()] = _value_of(text[key.end() : ending.start()], specs.get(name), key[1].strip())
        at = skip_space(text, ending.end())
    if (end := re.compile(form.end).match(text, at)) is None:
        found = clip(text[at : at + 20])
        return [BadCall(reason=f"{found!r} stands where {clip(name)!r} goes on; write {form.form}")], at
    return [ToolCall(name=name, arguments=arguments)], end.end()


def _value_of(raw: str, spec: ToolSpec | None, key: str) -> Any:
    properties = spec.parameters.get("properties") if spec is not None else None
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    # The templates put one newline on either side of a value.
    text = raw.removeprefix("\n").removesuffix("\n")
    if not isinstance(schema, Mapping) or kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    read = read_whole_json(text)
    if spec is not None and kind is None and not read.problem:  # the types are in anyOf, a reference, or an enum
        parameters = {**spec.parameters, "required": []}
        if not check_arguments({key: text}, parameters) or check_arguments({key: read.value}, parameters):
            return text
    return text if read.problem else read.value
