"""Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, and the newer ``[TOOL_CALLS]name[ARGS]{...}``.

``[TOOL_CALLS]`` is a special token in newer tokenizers, which decoding usually leaves out; a JSON list of calls that is
the whole answer is therefore read without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    call_of,
    calls_of_list,
    clip,
    dump,
    limited,
    looks_like_a_call,
    read_json,
    skip_space,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_mistral", "parse_mistral", "render_mistral", "show_mistral"]

TAG = "[TOOL_CALLS]"
_FORM = TAG + '[{"name": ..., "arguments": {...}}]'
# The newer form, with [ARGS] or without it where decoding leaves that token out.
_NAMED = re.compile(r"\s*([\w.:-]{1,200})\s*(?:\[ARGS\]\s*)?(?=\{)")
_FIRST_OF_LIST = re.compile(r"\[\s*\{")


def parse_mistral(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when it has no ``[TOOL_CALLS]`` and is no list of calls."""
    said = after_thought(text)
    at = said.find(TAG)
    if at >= 0:
        return limited(_calls(said, at))
    start = skip_space(said, 0)
    if not _FIRST_OF_LIST.match(said, start):
        return ()
    read = read_json(said, start)
    if read.problem:
        if not looks_like_a_call(said, start):
            return ()
        return (BadCall(reason=f"the list of calls is malformed: {read.problem}; write {_FORM}"),)
    if not (isinstance(read.value[0], dict) and "name" in read.value[0]) or skip_space(said, read.end) < len(said):
        return ()
    return calls_of_list(read.value, _FORM)


def _calls(text: str, at: int) -> Iterator[Call]:
    while at >= 0:
        start = skip_space(text, at + len(TAG))
        named = _NAMED.match(text, start)
        read = read_json(text, named.end() if named else start)
        if read.problem:
            what = f"the arguments of {clip(named.group(1))!r}" if named else f"the text after {TAG}"
            yield BadCall(reason=f"{what}: {read.problem}; write {_FORM}")
        elif named:
            yield call_of({"name": named.group(1), "arguments": read.value}, _FORM)
        else:
            yield from calls_of_list(read.value, _FORM)
        at = text.find(TAG, read.end)


def render_mistral(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer that :func:`parse_mistral` reads back."""
    return TAG + dump([{"name": call.name, "arguments": dict(call.arguments)} for call in calls])


def show_mistral(results: Results) -> str:
    """Results as an observation."""
    return "\n".join(f"[TOOL_RESULTS]{dump({'content': result.text})}[/TOOL_RESULTS]" for _, result in results)


def describe_mistral(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    listed = ", ".join(tool_list([spec]) for spec in specs)
    return (
        f"[AVAILABLE_TOOLS][{listed}][/AVAILABLE_TOOLS]\n"
        f'To call tools, answer with {TAG}[{{"name": <tool name>, "arguments": <object of arguments>}}], one object '
        "for each call."
    )
