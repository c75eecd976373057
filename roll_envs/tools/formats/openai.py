"""OpenAI's message: ``{"tool_calls": [{"type": "function", "function": {"name": ..., "arguments": "{...}"}}]}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    calls_of_list,
    dump,
    looks_like_a_call,
    read_json,
    skip_space,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = ["describe_openai", "parse_openai", "render_openai", "show_openai"]

_KEY = '"tool_calls"'
_FORM = '{"tool_calls": [{"type": "function", "function": {"name": ..., "arguments": "{...}"}}]}'
# Characters in which a broken message must name its calls to be taken for one.
_KEY_NEAR = 400


def parse_openai(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer that is a message (a JSON object) with ``tool_calls``; ``()`` for any other."""
    said = after_thought(text)
    start = skip_space(said, 0)
    if not said.startswith("{", start):
        return ()
    read = read_json(said, start)
    if read.problem:
        if _KEY not in said[start : start + _KEY_NEAR] and not looks_like_a_call(said, start):
            return ()
        return (BadCall(reason=f"the message is malformed: {read.problem}; write {_FORM}"),)
    # Servers write null or an empty list where there is no call.
    if "tool_calls" not in read.value or read.value["tool_calls"] is None:
        return ()
    if skip_space(said, read.end) < len(said):
        return (BadCall(reason=f"nothing may follow the message; write {_FORM}"),)
    if not isinstance(read.value["tool_calls"], list):
        return (BadCall(reason=f"'tool_calls' must be a list; write {_FORM}"),)
    return calls_of_list(read.value["tool_calls"], _FORM) if read.value["tool_calls"] else ()


def render_openai(calls: Sequence[ToolCall]) -> str:
    """Calls as a message, with the arguments as text, as OpenAI's API writes them."""
    listed = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": dump(dict(call.arguments))},
        }
        for number, call in enumerate(calls, 1)
    ]
    return dump({"tool_calls": listed})


def show_openai(results: Results) -> str:
    """Results as an observation: one tool message a line."""
    return "\n".join(
        dump({"role": "tool", "tool_call_id": f"call_{number}", "content": result.text})
        for number, (_, result) in enumerate(results, 1)
    )


def describe_openai(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return (
        f"These are the tools you may call:\n{tool_list(specs)}\n\n"
        f"To call tools, answer with nothing but a JSON object in this form:\n{_FORM}\n"
        "where the arguments are a JSON object written as text. The results come as messages of the role tool."
    )
