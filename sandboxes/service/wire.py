"""The native wire format: the fields of programs, limits and results as JSON, bytes in base64, lossless.

Used by the service and by its client. Reading raises :class:`MalformedError`.
"""

from __future__ import annotations

import base64
import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Limits, Program


class MalformedError(ConfigError):
    """Something that is not in this format; the message names the field."""


VERSION = 1
"""Version of the format; reported by ``GET /v1/health``."""


def encode_bytes(content: bytes) -> str:
    """Base64 as text."""
    return base64.b64encode(content).decode("ascii")


def decode_bytes(text: object, where: str) -> bytes:
    """The bytes of base64 text; ``where`` names the field in the error."""
    try:
        return base64.b64decode(_checked(text, str, "base64 text", where), validate=True)
    except ValueError as error:
        raise MalformedError(f"{where} is not base64: {error}") from error


def dump(value: Any) -> Any:
    """A program, limits or a result, or a part of one, as JSON."""
    if isinstance(value, bytes):
        return encode_bytes(value)
    if is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: dump(part) for key, part in value.items()}
    return list(map(dump, value)) if isinstance(value, tuple) else value


def load(kind: Any, value: Any, where: str) -> Any:
    """The program, limits or result that :func:`dump` wrote, or a part of one, as a ``kind``; what is not named has its
    default, and unknown fields of results, of later versions, are ignored."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _load_fields(kind, _checked(value, Mapping, "an object", where), where)
    if origin is types.UnionType:
        return None if value is None else load(inner[0], value, where)
    if origin is Literal:
        if value not in inner:
            raise MalformedError(f"{where} must be one of {', '.join(inner)}, not {value!r:.40}")
        return value
    if origin is tuple:
        items = enumerate(_checked(value, (list, tuple), "a list", where))
        return tuple(load(inner[0], each, f"{where}[{number}]") for number, each in items)
    if origin is Mapping:
        pairs = _checked(value, Mapping, "an object", where).items()
        return {load(str, key, where): load(inner[1], part, f"{where}[{key!r}]") for key, part in pairs}
    if kind is str:
        return _checked(value, str, "text", where)
    return decode_bytes(value, where) if kind is bytes else _number(kind, value, where)


def _load_fields(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    kinds = _kinds(kind)
    for name in given if kind in (Program, Limits) else ():
        if name not in kinds:
            raise MalformedError(f"{where} has no field {name!r}; known: {', '.join(kinds)}")
    for field in fields(kind):
        # A result without its output is not one of a program that printed nothing.
        needed = field.default is field.default_factory is MISSING or field.name in ("stdout", "stderr")
        if needed and field.name not in given:
            raise MalformedError(f"{where}.{field.name} is missing")
    # A result in a result, of the compiler, is read like the whole.
    paths = {name: where if name == "compile" else f"{where}.{name}" for name in kinds}
    return kind(**{name: load(kinds[name], given[name], paths[name]) for name in kinds if name in given})


_kinds = functools.cache(get_type_hints)


def _checked(value: Any, kind: Any, what: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise MalformedError(f"{where} must be {what}, not {type(value).__name__}")
    return value


def _number(kind: type[int] | type[float], value: Any, where: str) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e300
    if not usable or (kind is int and value % 1 != 0):
        what = "a whole number" if kind is int else "a finite number"
        raise MalformedError(f"{where} must be {what} of 0 or more, not {value!r:.40}")
    return kind(value)
