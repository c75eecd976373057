"""Llama 3: a JSON object alone, ``<|python_tag|>`` before it or before code, or ``<function=name>{...}</function>``.

``<|python_tag|>`` is a special token, which decoding usually leaves out; a JSON object that is the whole answer is
therefore a call without it. Code after the tag is a call of the tool ``python``, unless it is ``NAME.call(key=value)``,
by which built-in tools are called, and there is a tool of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from roll_envs.tools.formats.pythonic import python_calls
from roll_envs.tools.formats.reading import (
    Call,
    Results,
    after_thought,
    call_of,
    clip,
    dump,
    limited,
    looks_like_a_call,
    read_json,
    skip_space,
    tool_list,
)
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

__all__ = [
    "describe_llama",
    "describe_llama_function",
    "parse_llama",
    "render_llama",
    "render_llama_function",
    "show_llama",
]

TAG = "<|python_tag|>"
_JSON_FORM = '{"name": ..., "parameters": {...}}'
_FUNCTION_FORM = "<function=NAME>{...}</function>"
# Special tokens at the end, where decoding has not left them out.
_ENDS = re.compile(r"(?:\s|<\|eom_id\|>|<\|eot_id\|>)*\Z")
_BUILT_IN = re.compile(r"\s*([A-Za-z_]\w{0,100})\.call\(")
_FUNCTION = re.compile(r"<function=([^<>\n]{0,200})(>?)")


def parse_llama(text: str, specs: Mapping[str, ToolSpec]) -> tuple[Call, ...]:
    """The calls of an answer in any of the three forms; ``()`` when there is none."""
    said = after_thought(text)
    _, tag, behind = said.partition(TAG)
    if tag:
        return limited(_tagged(behind, specs))
    if "<function=" in said:
        return limited(_functions(said))
    start = skip_space(said, 0)
    return limited(_objects(said, start)) if said.startswith("{", start) else ()


def _tagged(text: str, specs: Mapping[str, ToolSpec]) -> Iterator[Call]:
    start = skip_space(text, 0)
    if text.startswith("{", start):
        read = read_json(text, start)
        # A dict literal is Python code too: only an object that has a name, or seems meant to have one, is a call.
        if (not read.problem and isinstance(read.value, dict) and "name" in read.value) or (
            read.problem and looks_like_a_call(text, start)
        ):
            yield from _objects(text, start)
            return
    # Only the end is searched, which keeps the time linear in the text.
    code = re.sub(r"(?:<\|eom_id\|>|<\|eot_id\|>)\s*\Z", "", text[-200:])
    code = (text[:-200] + code).strip("\r\n")
    name = _BUILT_IN.match(code)
    if name is not None and name[1] in specs:
        yield from (replace(call, name=name[1]) if isinstance(call, ToolCall) else call for call in python_calls(code))
    elif code.strip():
        yield ToolCall(name="python", arguments={"code": code})
    else:
        yield BadCall(reason=f"nothing stands after {TAG}; write {_JSON_FORM} or Python code after it")


def _objects(text: str, at: int) -> Iterator[Call]:
    """JSON objects one after the other, with ``;`` or whitespace between them, up to the end of the text."""
    first = True
    while True:
        read = read_json(text, at)
        if read.problem:
            if not first or looks_like_a_call(text, at):
                yield BadCall(reason=f"the call is malformed: {read.problem}; write {_JSON_FORM}")
            return
        if first and not (isinstance(read.value, dict) and "name" in read.value):
            return  # some other JSON: an answer to the task
        yield call_of(read.value, _JSON_FORM)
        first, at = False, skip_space(text, read.end)
        if text.startswith(";", at):
            at = skip_space(text, at + 1)
        if at == len(text) or _ENDS.match(text, at):
            return
        if not text.startswith("{", at):
            found = clip(text[at : at + 20])
            yield BadCall(reason=f"only another call may follow a call, not {found!r}; write {_JSON_FORM}")
            return


def _functions(text: str) -> Iterator[Call]:
    opening = _FUNCTION.search(text)
    while opening is not None:
        name, closed = opening.group(1).strip(), opening.group(2)
        at = opening.end()
        if not closed or not name:
            yield BadCall(reason=f"<function=NAME> is expected, not {clip(opening.group())!r}; write {_FUNCTION_FORM}")
        else:
            read = read_json(text, at)
            at = skip_space(text, read.end)
            if read.problem:
                yield BadCall(reason=f"the arguments of {clip(name)!r} are malformed: {read.problem}")
            elif not text.startswith("</function>", at) and at < len(text):
                yield BadCall(reason=f"</function> is missing after the arguments of {clip(name)!r}")
            else:
                yield call_of({"name": name, "arguments": read.value}, _FUNCTION_FORM)
        opening = _FUNCTION.search(text, at)


def render_llama(calls: Sequence[ToolCall]) -> str:
    """Calls as JSON objects, joined by ``; ``."""
    return "; ".join(dump({"name": call.name, "parameters": dict(call.arguments)}) for call in calls)


def render_llama_function(calls: Sequence[ToolCall]) -> str:
    """Calls in the form ``<function=name>{...}</function>``."""
    return "\n".join(f"<function={call.name}>{dump(dict(call.arguments))}</function>" for call in calls)


def show_llama(results: Results) -> str:
    """Results as an observation: one JSON object a line."""
    return "\n".join(dump({"output" if result.ok else "error": result.text}) for _, result in results)


def describe_llama(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them as JSON alone."""
    return (
        f"These are the tools you may call:\n{tool_list(specs)}\n\n"
        'To call one, answer with nothing but a JSON object {"name": <tool name>, "parameters": <JSON of arguments>}; '
        'several are joined by ";". Do not use variables.'
    )


def describe_llama_function(specs: Sequence[ToolSpec]) -> str:
    """The tools and how to call them within function tags."""
    return (
        f"These are the tools you may call:\n{tool_list(specs)}\n\n"
        "To call one, write <function=tool_name>{JSON object of arguments}</function> on a line of its own, such as\n"
        '<function=example>{"argument": "value"}</function>'
    )
