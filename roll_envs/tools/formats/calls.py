"""Reads the calls of an answer.

Between marks stands JSON (Hermes, Llama's function tags, Mistral, DeepSeek, Kimi K2, gpt-oss), or each value in tags of
its own as raw text (Qwen3-Coder, GLM 4.5 and later, MiniMax). A raw value that the tool's schema wants as something
other than a text is read as JSON; what cannot be read stays a text, and the check of the arguments then says which type
is wanted.

Calls may also be the whole answer (Llama 3 and 4, Mistral without its token, OpenAI's messages), or stand in blocks
fenced by ```` ```tool ````, for models trained on none of the formats.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.tools.arguments import check_arguments
from roll_envs.tools.formats.forms import FORMS, Form
from roll_envs.tools.formats.reading import (
    Call,
    JsonRead,
    call_of,
    calls_of_list,
    clip,
    dump,
    has_the_keys_of_a_call,
    looks_like_a_call,
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
    texts: dict[str, str] = {}
    while (key := re.compile(form.key).match(text, at)) is not None:
        ending = re.compile(form.value_end).search(text, key.end())
        if ending is None or ending.groupdict().get("cut"):
            reason = f"the argument {clip(key[1].strip())!r} of {clip(name)!r} is not closed; write {form.form}"
            # What a tag that never closes holds is not read again.
            return [BadCall(reason=reason)], len(text) if ending is None else ending.end()
        texts[key[1].strip()] = text[key.end() : ending.start()]
        at = skip_space(text, ending.end())
    if (end := re.compile(form.end).match(text, at)) is None:
        found = clip(text[at : at + 20])
        return [BadCall(reason=f"{found!r} stands where {clip(name)!r} goes on; write {form.form}")], at
    parameters = specs[name].parameters if name in specs else {}
    return [ToolCall(name=name, arguments={key: _value_of(texts[key], parameters, key) for key in texts})], end.end()


def _value_of(text: str, parameters: Mapping[str, Any], key: str) -> Any:
    """A raw value as the schema has it: the JSON that it is where that fits, or where a text does not."""
    schema = parameters.get("properties", {}).get(key)
    if not isinstance(schema, Mapping) or schema.get("type") == "string" or not schema.keys() & _TYPES:
        return text
    # Models write Python's words for these, too.
    read = read_whole_json(_PYTHON_WORDS.get(text.strip(), text))
    if read.problem:
        return text
    if not isinstance(schema.get("type"), str):  # there are several, or they are in anyOf, a reference, or an enum
        parameters = {**parameters, "required": []}
        fits = not isinstance(read.value, str) and not check_arguments({key: read.value}, parameters)
        if not fits and not check_arguments({key: text}, parameters):
            return text
    return read.value


_TYPES = {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_JSON_WORDS = {"true": True, "false": False, "null": None}
_LLAMA_TAG = "<|python_tag|>"
_LLAMA_FORM = FORMS["llama3"].form
# Special tokens at the end, where decoding has not left them out.
_ENDS = re.compile(r"(?:\s|<\|eom_id\|>|<\|eot_id\|>)*\Z")
_BUILT_IN = re.compile(r"\s*([A-Za-z_]\w{0,100})\.call\(")


def llama_calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterable[Call]:
    """A JSON object alone, ``<|python_tag|>`` before it or before code, or ``<function=name>{...}</function>``.

    ``<|python_tag|>`` is a special token, which decoding usually leaves out; a JSON object that is the whole answer is
    therefore a call without it, where it has a name and arguments, as for vLLM's parser. Code after the tag is a call
    of the tool ``python``, unless it is ``NAME.call(key=value)``, by which built-in tools are called, and there is a
    tool of that name.
    """
    _, tag, behind = text.partition(_LLAMA_TAG)
    if tag:
        return _tagged(behind, specs)
    if "<function=" in text:
        return marked_calls(text, specs, FORMS["llama3-function"])
    return _llama_objects(text)


def _tagged(text: str, specs: Mapping[str, ToolSpec]) -> Iterator[Call]:
    # A dict literal is Python code too: only an object that has a name, or seems meant to have one, is a call.
    if calls := list(_llama_objects(text)):
        yield from calls
        return
    code = _SPECIAL_TOKENS.sub("", text).strip("\r\n")
    name = _BUILT_IN.match(code)
    if name is not None and name[1] in specs:
        yield from (replace(call, name=name[1]) if isinstance(call, ToolCall) else call for call in python_calls(code))
    elif code.strip():
        yield ToolCall(name="python", arguments={"code": code})
    else:
        yield BadCall(reason=f"nothing stands after {_LLAMA_TAG}; write {_LLAMA_FORM} or Python code after it")


def _llama_objects(text: str) -> Iterator[Call]:
    """JSON objects one after the other, with ``;`` or whitespace between them, up to the end of the text; none where
    the first is no call: some other JSON is an answer to the task."""
    at = skip_space(text, 0)
    first = read_json(text, at)
    meant = looks_like_a_call(text, at) if first.problem else has_the_keys_of_a_call(first.value)
    if not meant or not text.startswith("{", at):
        return
    while _ENDS.match(text, at) is None:
        read = read_json(text, at)
        at = skip_space(text, read.end)
        if read.problem:
            yield BadCall(reason=f"the call is malformed: {read.problem}; write {_LLAMA_FORM}")
            return
        yield call_of(read.value, _LLAMA_FORM)
        if text.startswith(";", at):
            at = skip_space(text, at + 1)
        if _ENDS.match(text, at) is None and not text.startswith("{", at):
            found = clip(text[at : at + 20])
            yield BadCall(reason=f"only another call may follow a call, not {found!r}; write {_LLAMA_FORM}")
            return


def mistral_calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterable[Call]:
    """``[TOOL_CALLS]`` and what follows it; or a JSON list of calls that is the whole answer, since decoding usually
    leaves that token out."""
    form, start = FORMS["mistral"], skip_space(text, 0)
    if "[TOOL_CALLS]" in text:
        return marked_calls(text, specs, form)
    if not re.compile(r"\[\s*\{").match(text, start):
        return ()
    read = read_json(text, start)
    if read.problem:
        bad = BadCall(reason=f"the list of calls is malformed: {read.problem}; write {form.form}")
        return (bad,) if looks_like_a_call(text, start) else ()
    if not has_the_keys_of_a_call(read.value[0]) or skip_space(text, read.end) < len(text):
        return ()  # some other JSON: an answer to the task
    return calls_of_list(read.value, form.form)


_OPENAI_FORM = FORMS["openai"].form


def openai_calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterable[Call]:
    """The calls of an answer that is a message (a JSON object) with ``tool_calls``; none of any other."""
    start = skip_space(text, 0)
    if not text.startswith("{", start):
        return ()
    read = read_json(text, start)
    if read.problem:
        # A broken message must name its calls soon to be taken for one.
        meant = '"tool_calls"' in text[start : start + 400] or looks_like_a_call(text, start)
        return (BadCall(reason=f"the message is malformed: {read.problem}; write {_OPENAI_FORM}"),) if meant else ()
    calls = read.value.get("tool_calls")
    # Servers write null or an empty list where there is no call.
    if calls is None:
        return ()
    if skip_space(text, read.end) < len(text):
        return (BadCall(reason=f"nothing may follow the message; write {_OPENAI_FORM}"),)
    if not isinstance(calls, list):
        return (BadCall(reason=f"'tool_calls' must be a list; write {_OPENAI_FORM}"),)
    return calls_of_list(calls, _OPENAI_FORM) if calls else ()


_FENCE = "```"
_OPENING = re.compile(r"^```tool[ \t]*\r?\n", re.MULTILINE)
_FENCED_FORM = FORMS["fenced"].form


def fenced_calls(text: str, specs: Mapping[str, ToolSpec]) -> Iterator[Call]:
    """JSON objects in blocks of the kind ``tool``."""
    opening = _OPENING.search(text)
    while opening is not None:
        at = skip_space(text, opening.end())
        if text.startswith(_FENCE, at):
            yield BadCall(reason=f"the block is empty; write\n{_FENCED_FORM}")
        while at < len(text) and not text.startswith(_FENCE, at):
            read = read_json(text, at)
            at = skip_space(text, read.end)
            if read.problem:
                yield BadCall(reason=f"the block is malformed: {read.problem}; write\n{_FENCED_FORM}")
                break
            if at < len(text) and not text.startswith((_FENCE, "{"), at):
                yield BadCall(reason=f"{clip(text[at : at + 20])!r} follows a call; write\n{_FENCED_FORM}")
                break
            yield call_of(read.value, _FENCED_FORM)
        # From where reading stopped, so that every character is read once.
        opening = _OPENING.search(text, at)


_PYTHONIC_FORM = FORMS["llama-pythonic"].form
_MOST_CHARS = 20_000
"""Python's own parser is slow on long texts."""
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]{0,200}\s*\(")
_SPECIAL_TOKENS = re.compile(r"<\|(?:python_start|python_end|eot|eot_id|eom|eom_id)\|>")


def pythonic_calls(text: str, specs: Mapping[str, ToolSpec]) -> Sequence[Call]:
    """The calls of an answer that is nothing but a Python list of calls; none of any other.

    ``[get_weather(city="Paris"), add(a=1, b=2)]`` has two.

    Llama 4 may put it between ``<|python_start|>`` and ``<|python_end|>``. Only keyword arguments that are literals are
    read, as vLLM's parser does; nothing is run.
    """
    said = _SPECIAL_TOKENS.sub("", text).strip()
    return python_calls(said) if _LIST.match(said) else ()


def python_calls(code: str) -> Sequence[Call]:
    """The calls of a Python expression: one, or a list of them."""
    if len(code) > _MOST_CHARS:
        return [BadCall(reason=f"the calls have {len(code)} characters; at most {_MOST_CHARS} are read")]
    try:
        body = ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return [BadCall(reason=f"the calls are no Python: {clip(str(error))}; write {_PYTHONIC_FORM}")]
    return [_python_call(node) for node in (body.elts if isinstance(body, ast.List) else [body])]


def _python_call(node: ast.expr) -> Call:
    try:
        if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
            return BadCall(reason=f"a call has a name and arguments by name, nothing else; write {_PYTHONIC_FORM}")
        name = ast.unparse(node.func)
        values = {str(each.arg): ast.literal_eval(_JsonWords().visit(each.value)) for each in node.keywords}
        # Tuples become lists; what is no JSON is refused.
        arguments = json.loads(json.dumps(values, allow_nan=False))
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        return BadCall(reason=f"the arguments must be plain values: {clip(str(error))}; write {_PYTHONIC_FORM}")
    if not all(map(_is_name, name.split("."))):
        return BadCall(reason=f"{clip(name)!r} is no name of a tool; write {_PYTHONIC_FORM}")
    return ToolCall(name=name, arguments=arguments)


class _JsonWords(ast.NodeTransformer):
    """Replaces the words of JSON, which models write in calls in Python, too."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def render_pythonic(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for names that Python does not have."""
    return f"[{', '.join(map(_render_python, calls))}]"


def _render_python(call: ToolCall) -> str:
    for name in (*call.name.split("."), *call.arguments):
        if not _is_name(name):
            raise ConfigError(f"{name!r} cannot be a name in Python, which this format needs; use 'hermes'")
    # By way of JSON, so that only what JSON has is written.
    values = json.loads(dump(dict(call.arguments)))
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
