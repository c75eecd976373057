"""DeepSeek, Kimi K2 and gpt-oss (harmony): a name and JSON arguments between special tokens.

- DeepSeek V3.1: ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``; V3 and R1 write ``function``
  before the separator and the name and a fence of JSON after it. Both are read, the newer one is written.
- Kimi K2: ``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``.
- harmony: ``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``; the recipient may also
  stand before the channel. Analysis is a channel of its own, and no call is read in it.

The tokens must be in the text: an engine has to decode with its special tokens kept. Forms as the parsers of vLLM and
SGLang read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    call_of,
    clip,
    dump,
    limited,
    read_json,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = [
    "describe_deepseek",
    "describe_harmony",
    "describe_kimi",
    "parse_deepseek",
    "parse_harmony",
    "parse_kimi",
    "render_deepseek",
    "render_harmony",
    "render_kimi",
    "show_deepseek",
    "show_harmony",
    "show_kimi",
]


class _Marks(NamedTuple):
    begin: re.Pattern[str]
    """Where a call begins."""
    head: re.Pattern[str]
    """What follows that, up to the arguments, with the group ``name``."""
    form: str


_DEEPSEEK = _Marks(
    re.compile("<｜tool▁call▁begin｜>"),
    re.compile(r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[^<>{}`\n]{1,200})(?:<｜tool▁sep｜>|\n?```json)\s*"),
    "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>",
)
_KIMI = _Marks(
    re.compile(r"<\|tool_call_begin\|>"),
    re.compile(r"\s*(?:functions\.)?(?P<name>[^<>{}\s]{1,200}?)(?::\d{1,9})?\s*<\|tool_call_argument_begin\|>\s*"),
    "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
)
_HARMONY = _Marks(
    re.compile(r"(?:<\|channel\|>commentary|<\|start\|>assistant|\A(?:assistant)?)\s*to=functions\."),
    re.compile(
        r"(?P<name>[\w.:-]{1,200})(?:<\|channel\|>\w{1,20})?\s{0,9}(?:<\|constrain\|>)?\s{0,9}\w{0,20}<\|message\|>\s*"
    ),
    "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
)


def _calls(text: str, marks: _Marks) -> Iterator[Call]:
    begin = marks.begin.search(text)
    while begin is not None:
        head = marks.head.match(text, begin.end())
        if head is None:
            at = begin.end()
            yield BadCall(reason=f"a name is expected, not {clip(text[at : at + 20])!r}; write {marks.form}")
        else:
            name = head["name"].strip()
            read = read_json(text, head.end())
            at = max(read.end, head.end())
            if read.problem:
                yield BadCall(reason=f"the arguments of {clip(name)!r} are malformed: {read.problem}")
            else:
                yield call_of({"name": name, "arguments": read.value}, marks.form)
        begin = marks.begin.search(text, at)


def _listed(specs: Sequence[ToolSpec], form: str) -> str:
    return f"These are the tools you may call:\n{tool_list(specs)}\n\nTo call one, write\n{form}"


def parse_deepseek(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when none begins."""
    return limited(_calls(after_thought(text), _DEEPSEEK))


def render_deepseek(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer that :func:`parse_deepseek` reads back."""
    body = "".join(
        f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>{dump(dict(call.arguments))}<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def show_deepseek(results: Results) -> str:
    """Results as an observation."""
    return "".join(f"<｜tool▁output▁begin｜>{result.text}<｜tool▁output▁end｜>" for _, result in results)


def describe_deepseek(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return _listed(specs, f"<｜tool▁calls▁begin｜>{_DEEPSEEK.form}<｜tool▁calls▁end｜>")


def parse_kimi(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when none begins."""
    return limited(_calls(after_thought(text), _KIMI))


def render_kimi(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer that :func:`parse_kimi` reads back."""
    body = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>{dump(dict(call.arguments))}"
        "<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def show_kimi(results: Results) -> str:
    """Results as an observation."""
    return "\n".join(
        f"## Return of functions.{_name(call)}:{number}\n{result.text}" for number, (call, result) in enumerate(results)
    )


def describe_kimi(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return _listed(specs, f"<|tool_calls_section_begin|>{_KIMI.form}<|tool_calls_section_end|>")


def parse_harmony(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer; ``()`` when no message has a tool as its recipient."""
    return limited(_calls(text, _HARMONY))  # thoughts are messages of their own, which have no recipient


def render_harmony(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer that :func:`parse_harmony` reads back."""
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
        f"{dump(dict(call.arguments))}<|call|>"
        for call in calls
    )


def show_harmony(results: Results) -> str:
    """Results as an observation."""
    return "".join(
        f"<|start|>functions.{_name(call)} to=assistant<|channel|>commentary<|message|>{result.text}<|end|>"
        for call, result in results
    )


def describe_harmony(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them."""
    return _listed(specs, _HARMONY.form)


def _name(call: Call) -> str:
    return call.name if isinstance(call, ToolCall) else "unknown"
