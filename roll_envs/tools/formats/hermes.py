"""Hermes and Qwen 2.5 / 3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once for each call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    call_of,
    dump,
    limited,
    read_json,
    skip_space,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_hermes", "parse_hermes", "render_hermes", "show_hermes"]

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_FORM = OPENING + '{"name": ..., "arguments": {...}}' + CLOSING
_TAG = re.compile(r"</?tool_call>")


def parse_hermes(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when it has no ``<tool_call>``."""
    return limited(_calls(after_thought(text)))


def _calls(text: str) -> Iterator[Call]:
    # One pass: after each call, valid or not, the search continues after the text that was read.
    at = text.find(OPENING)
    while at >= 0:
        read = read_json(text, at + len(OPENING))
        after = skip_space(text, read.end)
        if read.problem:
            yield BadCall(reason=f"the text after {OPENING} is malformed: {read.problem}; write {_FORM}")
        elif text.startswith(CLOSING, after) or after == len(text):
            # A call at the very end may lack its closing tag: some engines stop on it and leave it out.
            yield call_of(read.value, _FORM)
        else:
            yield BadCall(reason=f"there is more than one JSON object before {CLOSING}; write {_FORM}")
        tag = _TAG.search(text, read.end)
        at = -1 if tag is None else tag.start() if tag.group() == OPENING else text.find(OPENING, tag.end())


def render_hermes(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer that :func:`parse_hermes` reads back."""
    objects = (dump({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
    return "\n".join(f"{OPENING}\n{body}\n{CLOSING}" for body in objects)


def show_hermes(results: Results) -> str:
    """Results as an observation."""
    return "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for _, result in results)


def describe_hermes(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return (
        f"# Tools\n\nThese are the tools you may call:\n<tools>\n{tool_list(specs)}\n</tools>\n\n"
        f"To call one, write its name and arguments as a JSON object within {OPENING}{CLOSING} tags, in this form:\n"
        f'{OPENING}\n{{"name": <tool name>, "arguments": <JSON object of arguments>}}\n{CLOSING}\n'
        "Several calls may stand one after the other. The results come within <tool_response></tool_response> tags."
    )
