"""Calls as JSON between marks: Hermes, Llama's function tags, Mistral, DeepSeek, Kimi K2 and gpt-oss (harmony).

Each is a row of :data:`MARKS`, in the form that the parsers of vLLM and SGLang read. Marks that are special tokens must
be in the text: an engine has to decode with its special tokens kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from roll_envs.tools.formats.reading import Call, call_of, calls_of_list, clip, read_json
from roll_envs.tools.types import BadCall


class Marks(NamedTuple):
    """How the calls of a format are marked."""

    begin: str
    """Pattern: where a call begins."""
    head: str
    """Pattern: what follows that, up to the JSON; its group ``name``, where it has one, names the tool of which the
    JSON holds the arguments."""
    form: str
    """The form as it is shown to a model."""
    end: str = ""
    """Pattern: what must follow the JSON."""
    lists: bool = False
    """Whether the JSON may be a list of calls."""


MARKS = {
    # A call at the very end may lack its closing tag: some engines stop on it and leave it out.
    "hermes": Marks(
        "<tool_call>", "", '<tool_call>{"name": ..., "arguments": {...}}</tool_call>', r"\s*(?:</tool_call>|\Z)"
    ),
    "llama3-function": Marks(
        "<function=", r"(?P<name>[^<>\n]{1,200})>", "<function=NAME>{...}</function>", r"\s*(?:</function>|\Z)"
    ),
    # The newer form, with [ARGS] or without it where decoding leaves that token out; else a list of calls.
    "mistral": Marks(
        r"\[TOOL_CALLS\]",
        r"(?:\s*(?P<name>[\w.:-]{1,200})\s*(?:\[ARGS\]\s*)?(?=\{))?",
        '[TOOL_CALLS][{"name": ..., "arguments": {...}}]',
        lists=True,
    ),
    # V3.1; V3 and R1 write "function" before the separator, and the name and a fence of JSON after it.
    "deepseek": Marks(
        "<｜tool▁call▁begin｜>",
        r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[^<>{}`\n]{1,200})(?:<｜tool▁sep｜>|\n?```json)\s*",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>",
    ),
    "kimi": Marks(
        r"<\|tool_call_begin\|>",
        r"\s*(?:functions\.)?(?P<name>[^<>{}\s]{1,200}?)(?::\d{1,9})?\s*<\|tool_call_argument_begin\|>\s*",
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
    ),
    # The recipient may also stand before the channel. Analysis is a channel of its own, without a recipient.
    "harmony": Marks(
        r"(?:<\|channel\|>commentary|<\|start\|>assistant|\A(?:assistant)?)\s*to=functions\.",
        r"(?P<name>[\w.:-]{1,200})(?:<\|channel\|>\w{1,20})?\s{0,9}(?:<\|constrain\|>)?\s{0,9}\w{0,20}<\|message\|>\s*",
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
    ),
}


def marked_calls(text: str, marks: Marks) -> Iterator[Call]:
    """The calls of a text, the malformed ones included; reading goes on where each call's reading stopped."""
    begins, head_of, end_of = re.compile(marks.begin), re.compile(marks.head), re.compile(marks.end)
    begin = begins.search(text)
    while begin is not None:
        at = begin.end()
        if (head := head_of.match(text, at)) is None:
            yield BadCall(reason=f"a name is expected, not {clip(text[at : at + 20])!r}; write {marks.form}")
        else:
            name = head.groupdict().get("name")
            what = "the call is" if name is None else f"the arguments of {clip(name)!r} are"
            read = read_json(text, head.end())
            at = max(read.end, head.end())
            if read.problem:
                yield BadCall(reason=f"{what} malformed: {read.problem}; write {marks.form}")
            elif end_of.match(text, at) is None:
                found = clip(text[at : at + 20].strip())
                yield BadCall(reason=f"{what} not closed: {found!r} follows; write {marks.form}")
            elif name is not None:
                yield call_of({"name": name.strip(), "arguments": read.value}, marks.form)
            else:
                yield from calls_of_list(read.value, marks.form) if marks.lists else [call_of(read.value, marks.form)]
        begin = begins.search(text, at)
