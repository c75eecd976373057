"""A plain format for models trained on none: a block fenced by ```` ```tool ```` with one JSON object a call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from roll_envs.tools.arguments import describe_parameters
from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    call_of,
    clip,
    dump,
    limited,
    read_json,
    skip_space,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_fenced", "parse_fenced", "render_fenced", "show_fenced"]

FENCE = "```"
_OPENING = re.compile(r"^```tool[ \t]*\r?\n", re.MULTILINE)
_FORM = '```tool\n{"name": ..., "arguments": {...}}\n```'


def parse_fenced(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when no line opens a block of the kind ``tool``."""
    return limited(_calls(after_thought(text)))


def _calls(text: str) -> Iterator[Call]:
    opening = _OPENING.search(text)
    while opening is not None:
        at = skip_space(text, opening.end())
        if text.startswith(FENCE, at):
            yield BadCall(reason=f"the block is empty; write\n{_FORM}")
        while at < len(text) and not text.startswith(FENCE, at):
            read = read_json(text, at)
            at = skip_space(text, read.end)
            if read.problem:
                yield BadCall(reason=f"the block is malformed: {read.problem}; write\n{_FORM}")
                break
            if at < len(text) and not text.startswith((FENCE, "{"), at):
                yield BadCall(reason=f"{clip(text[at : at + 20])!r} follows a call; write\n{_FORM}")
                break
            yield call_of(read.value, _FORM)
        # From where reading stopped, so that every character is read once.
        opening = _OPENING.search(text, at)


def render_fenced(calls: Sequence[ToolCall]) -> str:
    """Calls as blocks, one each."""
    bodies = (dump({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
    return "\n".join(f"{FENCE}tool\n{body}\n{FENCE}" for body in bodies)


def show_fenced(results: Results) -> str:
    """Results as an observation."""
    return "\n".join(f"{FENCE}result\n{result.text}\n{FENCE}" for _, result in results)


def describe_fenced(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them, without JSON schemas."""
    lines = "\n".join(f"- {s.name}: {s.description} Arguments: {describe_parameters(s.parameters)}." for s in specs)
    return f"These are the tools you may call:\n{lines}\n\nTo call one, write a block in this form:\n{_FORM}"
