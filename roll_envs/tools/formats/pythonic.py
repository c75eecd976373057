"""Llama 3.2 and 4: calls as a Python list, ``[get_weather(city="Paris"), add(a=1, b=2)]``.

Llama 4 may put it between ``<|python_start|>`` and ``<|python_end|>``. Only keyword arguments that are literals are
read, as vLLM's parser does; nothing is run.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Mapping, Sequence

from roll_envs.errors import ConfigError
from roll_envs.tools.formats.reading import Call, clip, dump
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

_FORM = "[NAME(KEY=VALUE, ...)]"
_MOST_CHARS = 20_000
"""Python's own parser is slow on long texts."""
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]{0,200}\s*\(")
_SPECIAL = re.compile(r"<\|(?:python_start|python_end|eot|eot_id|eom|eom_id)\|>")


def pythonic_calls(text: str, specs: Mapping[str, ToolSpec]) -> Sequence[Call]:
    """The calls of an answer that is nothing but a list of calls; none of any other."""
    said = _SPECIAL.sub("", text).strip()
    return python_calls(said) if _LIST.match(said) else ()


def python_calls(code: str) -> Sequence[Call]:
    """The calls of a Python expression: one, or a list of them."""
    if len(code) > _MOST_CHARS:
        return [BadCall(reason=f"the calls have {len(code)} characters; at most {_MOST_CHARS} are read")]
    try:
        body = ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return [BadCall(reason=f"the calls are no Python: {clip(str(error))}; write {_FORM}")]
    return [_call(node) for node in (body.elts if isinstance(body, ast.List) else [body])]


def _call(node: ast.expr) -> Call:
    try:
        if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
            return BadCall(reason=f"a call has a name and arguments by name, nothing else; write {_FORM}")
        name = ast.unparse(node.func)
        values = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
        # Tuples become lists; what is no JSON is refused.
        arguments = json.loads(json.dumps(values, allow_nan=False))
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        return BadCall(reason=f"the arguments must be plain values: {clip(str(error))}; write {_FORM}")
    if not all(map(_usable, name.split("."))):
        return BadCall(reason=f"{clip(name)!r} is no name of a tool; write {_FORM}")
    return ToolCall(name=name, arguments=arguments)


def _usable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def render_pythonic(calls: Sequence[ToolCall]) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for names that Python does not have."""
    return f"[{', '.join(map(_render, calls))}]"


def _render(call: ToolCall) -> str:
    for name in (*call.name.split("."), *call.arguments):
        if not _usable(name):
            raise ConfigError(f"{name!r} cannot be a name in Python, which this format needs; use 'hermes'")
    # By way of JSON, so that only what JSON has is written.
    values = json.loads(dump(dict(call.arguments)))
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
