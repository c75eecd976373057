"""Checks calls, their arguments by ``jsonschema`` against the tool's schema, and explains the first mistake to a model.

The meaning is JSON Schema's: draft 2020-12 unless the schema names another, ``format`` left aside, and names that it
does not mention are allowed unless it says otherwise. A reference to another document is never fetched.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped,unused-ignore]
import referencing
from referencing.exceptions import Unresolvable

from roll_envs.errors import ConfigError, RollError, did_you_mean
from roll_envs.tools.types import BadCall, ToolCall, ToolSpec

_MOST_SHOWN = 60
_MOST_SAID = 300
_PATTERN_S = 5.0
_MISTAKES = {
    "type": "must be of type {kinds}, not {kind} {value}",
    "enum": "must be one of {choices}, not {value}",
    "const": "must be {allowed}, not {value}",
    "minimum": "must be {rule} or more, not {value}",
    "maximum": "must be {rule} or less, not {value}",
    "minLength": "must have {rule} or more characters, not {size}",
    "maxLength": "must have {rule} or fewer characters, not {size}",
    "minItems": "must have {rule} or more items, not {size}",
    "maxItems": "must have {rule} or fewer items, not {size}",
}
"""What is said of a value that breaks a rule of a schema, by the rule's name."""
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def check_schema(schema: Any, where: str) -> None:
    """Raise :class:`ConfigError` unless ``schema`` is a valid JSON schema of an object."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"{where}: parameters must be a JSON schema of type 'object', not {_short(schema)}")
    try:
        validator = _validator(_text(schema))
        validator.check_schema(validator.schema)
        # References are looked up when a value gets there; one to nowhere is told before.
        for reference in _references(validator.schema):
            validator._resolver.lookup(reference)
    except jsonschema.SchemaError as error:
        said = f"{error.json_path}: {error.message[:_MOST_SAID]}"
        raise ConfigError(f"{where}: parameters is no valid JSON schema: {said}") from None
    except Unresolvable as error:
        raise ConfigError(f"{where}: parameters refers to {_short(error.ref)}, which it does not hold") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: parameters cannot be read as JSON: {error}") from None


def describe_parameters(schema: Mapping[str, Any]) -> str:
    """The parameters in one line: ``query (string), k (integer, optional)``."""
    required = schema.get("required", [])
    parts = []
    for name, part in schema.get("properties", {}).items():
        named = part.get("type", "") if isinstance(part, Mapping) else ""
        kind = named if isinstance(named, str) else " or ".join(named)
        marks = [m for m in (kind, "" if name in required else "optional") if m]
        parts.append(f"{name} ({', '.join(marks)})" if marks else name)
    return ", ".join(parts) or "none"


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, in one sentence with what is allowed; empty when they fit.

    Raises :class:`ConfigError` for a schema that :func:`check_schema` refuses.
    """
    try:
        text = _text(schema)
        if '"pattern' in text:
            return _matched(arguments, text)
        validator = _validator(text)
        errors = validator.iter_errors(_plain(arguments))
        # The one that is nearest to the top, and names missing before values that do not fit.
        error = min(errors, key=lambda each: (len(each.absolute_path), each.validator != "required"), default=None)
    except RecursionError:
        return "the arguments are nested too deep"
    except Unresolvable:
        check_schema(schema, "the tool")
        raise
    return "" if error is None else _explained(error, schema)


def call_problem(call: ToolCall | BadCall, specs: Mapping[str, ToolSpec]) -> str:
    """Why a call cannot run: its form, its name or its arguments; empty for one that can."""
    if isinstance(call, BadCall):
        return call.reason
    if call.name in specs:
        return check_arguments(call.arguments, specs[call.name].parameters)
    name = call.name if len(call.name) <= 60 else call.name[:60] + "..."
    return f"there is no tool {name!r}{did_you_mean(call.name, specs)}; tools: {', '.join(specs)}"


def _matched(arguments: Mapping[str, Any], schema: str) -> str:
    """As :func:`check_arguments`, in a worker process: matching a pattern may never end, and stops every thread.

    Raises :class:`RollError` where no worker can be had.
    """
    # Imported here because the verifiers import this module.
    from roll_envs.verifiers.workers import TEXT_TASKS, shared_pool

    given = [json.dumps(_plain(arguments)), json.loads(schema)]
    outcome = shared_pool(TEXT_TASKS).call("fit", given, deadline_s=_PATTERN_S)
    if outcome.status == "unavailable":
        raise RollError(f"the arguments of a call could not be checked: {outcome.detail}")
    if outcome.status != "ok":
        return f"the arguments could not be checked against the tool's patterns: {outcome.detail}"
    problem = outcome.value.get("problem", outcome.value.get("fault", ""))
    return f"the call does not fit: {problem}" if problem else ""


def _explained(error: jsonschema.ValidationError, schema: Mapping[str, Any]) -> str:
    path, value, rule = list(error.absolute_path), error.instance, error.validator_value
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    where = f"argument {where!r}" if path else "the call"
    allowed = f"; arguments: {describe_parameters(schema)}"
    if error.validator == "required":
        missing = next(name for name in rule if name not in value)
        return f"argument {missing!r} is missing{allowed}" if not path else f"{where} lacks {missing!r}"
    if error.validator == "additionalProperties" and rule is False:
        known = error.schema.get("properties", {})
        name = next(name for name in value if name not in known)
        return f"there is no argument {_short(name)}{did_you_mean(name, known)}{allowed if not path else ''}"
    if error.validator in _MISTAKES:
        rules = rule if isinstance(rule, list) else [rule]
        said = _MISTAKES[error.validator].format(
            value=_short(value), kind=_TYPES.get(type(value), "null"), rule=rule, allowed=_short(rule),
            size=len(value) if isinstance(value, str | list) else 0,
            kinds=" or ".join(map(str, rules)), choices=", ".join(map(_short, rules)),
        )  # fmt: skip
        return f"{where} {said}"
    return f"{where} does not fit: {error.message[:_MOST_SAID]}"


@functools.lru_cache(maxsize=512)
def _validator(text: str) -> Any:
    """The validator of a schema, given as JSON: a mapping cannot be remembered."""
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # An empty registry: a reference to another document is not fetched.
    return kind(schema, registry=referencing.Registry())


def _references(schema: Any) -> list[str]:
    found, left = [], [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            found += [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            # Data, in which "$ref" has no meaning.
            left += [inner for key, inner in part.items() if key not in ("enum", "const", "default", "examples")]
        elif isinstance(part, list):
            left += part
    return found


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps(_plain(schema), allow_nan=False)


def _plain(value: Any) -> Any:
    """The value with plain dicts and lists, which are all that ``jsonschema`` takes for objects and arrays."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
