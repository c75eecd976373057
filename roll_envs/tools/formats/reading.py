"""Shared by the formats: reading JSON in the middle of a text, and calls from JSON objects.

Every function here takes time linear in what it reads, and none raises for any text.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from roll_envs.errors import ConfigError
from roll_envs.tools.types import BadCall, ToolCall, ToolResult, ToolSpec

Call = ToolCall | BadCall

MAX_CALLS = 64
"""Calls read of one answer; the rest becomes one :class:`BadCall`."""

_SPACE = re.compile(r"[ \t\r\n]*")
# Characters in which malformed JSON must name its tool to be taken for a call.
_NAME_NEAR = 400
_MOST_SHOWN = 40


class JsonRead(NamedTuple):
    """A JSON value and where it ends; or what is wrong, and where."""

    value: Any
    end: int
    problem: str = ""


def skip_space(text: str, start: int) -> int:
    """Where the whitespace that begins at ``start`` ends."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {clip(digits)} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def read_json(text: str, start: int) -> JsonRead:
    """The JSON value at ``start`` (after whitespace). ``end`` is where reading stopped, for a problem too."""
    start = skip_space(text, start)
    if start >= len(text):
        return JsonRead(None, start, "there is no JSON")
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        # Reading never goes back: it goes on from here, and would find the same text again.
        at = max(error.pos, start)
        found = repr(clip(text[at : at + 12])) if at < len(text) else "the end of the text"
        return JsonRead(None, at, f"{error.msg.lower()} at character {at - start} of the JSON, before {found}")
    except ValueError as error:  # numbers of thousands of digits, NaN, Infinity
        # Behind the semicolon Python says how to raise its limit of digits, which is nothing for a model.
        return JsonRead(None, start + 1, str(error).split(";")[0].lower())
    except RecursionError:
        return JsonRead(None, start + 1, "it is nested too deep")
    return JsonRead(value, end)


def read_whole_json(text: str) -> JsonRead:
    """The JSON value that a text is; a problem where there is anything else."""
    read = read_json(text, 0)
    if not read.problem and skip_space(text, read.end) < len(text):
        return JsonRead(None, read.end, "there is more text after the JSON")
    return read


def call_of(value: Any, form: str) -> Call:
    """The call that a JSON value means: an object with ``name`` and ``arguments`` (or ``parameters``).

    The arguments may be an object or a text that holds one; a function call in OpenAI's wrapping is taken out of it.
    """
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping):
        return BadCall(reason=f"a call is a JSON object, not {_kind(value)}; write {form}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        found = f"'name' is {_kind(name)}" if "name" in value else "'name' is missing"
        return BadCall(reason=f"{found}; write {form}")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        read = read_whole_json(arguments if arguments.strip() else "{}")
        if read.problem:
            return BadCall(reason=f"the arguments of {clip(name)!r} are a text that is no JSON object: {read.problem}")
        arguments = read.value
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return BadCall(reason=f"the arguments of {clip(name)!r} must be a JSON object, not {_kind(arguments)}")
    return ToolCall(name=name, arguments=dict(arguments))


def calls_of_list(value: Any, form: str) -> tuple[Call, ...]:
    """The calls of a JSON list (or of one object)."""
    items = value if isinstance(value, list) else [value]
    if not items:
        return (BadCall(reason=f"the list of calls is empty; write {form}"),)
    return tuple(call_of(item, form) for item in items[: MAX_CALLS + 1])


def limited(calls: Iterable[Call]) -> tuple[Call, ...]:
    """The first :data:`MAX_CALLS` calls; one :class:`BadCall` stands for all others."""
    kept = tuple(itertools.islice(calls, MAX_CALLS + 1))
    if len(kept) <= MAX_CALLS:
        return kept
    return (*kept[:MAX_CALLS], BadCall(reason=f"only the first {MAX_CALLS} calls of an answer are read"))


def has_the_keys_of_a_call(value: Any) -> bool:
    """Whether a JSON value that no mark announces is a call: a name alone, such as a person's, is in other JSON too."""
    return isinstance(value, dict) and "name" in value and ("arguments" in value or "parameters" in value)


def looks_like_a_call(text: str, start: int) -> bool:
    """Whether malformed JSON at ``start`` was meant as a call: an object or list in which such keys stand soon."""
    near = text[start : start + _NAME_NEAR]
    return near[:1] in ("{", "[") and '"name"' in near and ('"arguments"' in near or '"parameters"' in near)


def dump(value: Any) -> str:
    """JSON in one line. Raises :class:`ConfigError` for what is no JSON (so that nothing unreadable is rendered)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the arguments of a call must be plain JSON: {error}") from error


def tool_list(specs: Sequence[ToolSpec]) -> str:
    """The tools as models are trained to read them: one JSON object a line."""
    about = ({"name": s.name, "description": s.description, "parameters": s.parameters} for s in specs)
    return "\n".join(dump({"type": "function", "function": each}) for each in about)


def clip(text: str) -> str:
    """The first characters of a text that is only quoted."""
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _kind(value: Any) -> str:
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


Results = Sequence[tuple[Call, ToolResult]]
"""What a format is given to show: each call with its result."""
