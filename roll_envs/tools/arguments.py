"""Checks arguments against a tool's JSON schema and explains the first mistake in one sentence for the model.

Keywords that are checked: ``type`` (one or several), ``enum``, ``const``, ``properties``, ``required``, ``items``,
``minimum``, ``maximum``, ``minLength``, ``maxLength``, ``minItems``, ``maxItems``, and ``additionalProperties`` (where
it is missing, the arguments may have no other names, so that misspelt ones are errors; objects within them may). Other
keywords (``anyOf``, ``$ref``, ...) are left to the tool itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError, nearest

__all__ = ["check_arguments", "check_schema", "describe_parameters"]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}
_MOST_SHOWN = 60


def check_schema(schema: Any, where: str) -> None:
    """Raise :class:`ConfigError` unless ``schema`` is a JSON schema of an object that :func:`check_arguments` reads."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"{where}: parameters must be a JSON schema of type 'object', not {_short(schema)}")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence) or isinstance(required, str):
        raise ConfigError(f"{where}: parameters needs 'properties' (an object) and 'required' (a list of names)")


def describe_parameters(schema: Mapping[str, Any]) -> str:
    """The parameters in one line: ``query (string), k (integer, optional)``."""
    required = schema.get("required", [])
    parts = []
    for name, part in schema.get("properties", {}).items():
        kind = _type_names(part) if isinstance(part, Mapping) else ""
        marks = [m for m in (kind, "" if name in required else "optional") if m]
        parts.append(f"{name} ({', '.join(marks)})" if marks else name)
    return ", ".join(parts) or "none"


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, in one sentence with what is allowed; empty when they fit."""
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", []) if name not in arguments]
    if missing:
        return f"argument {missing[0]!r} is missing; arguments: {describe_parameters(schema)}"
    for name, value in arguments.items():
        if name not in properties:
            # Where the schema allows other names, the tool itself checks them.
            if schema.get("additionalProperties", False) is not False:
                continue
            close = nearest(str(name), properties, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            return f"there is no argument {_short(name)}{hint}; arguments: {describe_parameters(schema)}"
        problem = _problem(value, properties[name], f"argument {name!r}", 0)
        if problem:
            return problem
    return ""


def _problem(value: Any, schema: Any, where: str, depth: int) -> str:
    # What lies deeper than in any usual schema is left to the tool.
    if not isinstance(schema, Mapping) or depth > 20:
        return ""
    names = _type_list(schema)
    if names and not any(_is(value, name) for name in names):
        return f"{where} must be of type {_type_names(schema)}, not {_type_of(value)} {_short(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(_short(v) for v in schema['enum'])}, not {_short(value)}"
    if "const" in schema and value != schema["const"]:
        return f"{where} must be {_short(schema['const'])}, not {_short(value)}"
    return _bound(value, schema, where) or _inside(value, schema, where, depth)


def _bound(value: Any, schema: Mapping[str, Any], where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"{where} must be {schema['minimum']} or more, not {_short(value)}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"{where} must be {schema['maximum']} or less, not {_short(value)}"
    for kinds, least, most, unit in (
        (str, "minLength", "maxLength", "characters"),
        (list, "minItems", "maxItems", "items"),
    ):
        if isinstance(value, kinds):
            if least in schema and len(value) < schema[least]:
                return f"{where} must have {schema[least]} or more {unit}, not {len(value)}"
            if most in schema and len(value) > schema[most]:
                return f"{where} must have {schema[most]} or fewer {unit}, not {len(value)}"
    return ""


def _inside(value: Any, schema: Mapping[str, Any], where: str, depth: int) -> str:
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for place, item in enumerate(value):
            problem = _problem(item, schema["items"], f"{where}, item {place}", depth + 1)
            if problem:
                return problem
    if isinstance(value, Mapping) and isinstance(schema.get("properties"), Mapping):
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            return f"{where} lacks {missing[0]!r}; it holds: {describe_parameters(schema)}"
        for name, part in value.items():
            if name in schema["properties"]:
                problem = _problem(part, schema["properties"][name], f"{where}.{name}", depth + 1)
                if problem:
                    return problem
            elif schema.get("additionalProperties") is False:
                return f"{where} may not hold {_short(name)}; it holds: {describe_parameters(schema)}"
    return ""


def _type_list(schema: Mapping[str, Any]) -> list[str]:
    named = schema.get("type", [])
    return [n for n in ([named] if isinstance(named, str) else named) if n in _TYPES]


def _type_names(schema: Mapping[str, Any]) -> str:
    return " or ".join(_type_list(schema))


def _is(value: Any, name: str) -> bool:
    # In Python a bool is an int; in JSON it is not.
    if isinstance(value, bool):
        return name == "boolean"
    # In JSON schema 1.0 is an integer.
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _type_of(value: Any) -> str:
    return next((name for name in _TYPES if _is(value, name)), type(value).__name__)


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
