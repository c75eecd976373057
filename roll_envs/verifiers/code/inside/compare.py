"""Compares what the answer returned with what is expected, in the jail of the tests."""

from __future__ import annotations

import math
from typing import Any

from roll_envs.verifiers.code.inside.proxies import Fault, Remote, facts_of
from roll_envs.verifiers.code.inside.values import decode


def plain_value(data: Any) -> Any:
    return decode(data, lambda _: None)


def shown(value: Any) -> str:
    if isinstance(value, Remote):
        return f"a {facts_of(value).get('type')}"
    if isinstance(value, BaseException):
        return str(value)[:200]
    try:
        return repr(value)[:200]
    except (ValueError, Fault):
        return f"a {type(value).__name__} too large to show"


def readings(args: Any) -> list[Any]:
    integer = _with_integer_keys(args)
    return [args] if integer == args else [integer, args]


def _with_integer_keys(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_with_integer_keys, value))
    if not isinstance(value, dict):
        return value
    whole = bool(value) and all(isinstance(k, str) and k.lstrip("-").isdecimal() for k in value)
    return {int(k) if whole else k: _with_integer_keys(v) for k, v in value.items()}


def expected(said: Any, wanted: list[Any], tolerance: float | None, *, loose: bool) -> bool:
    """Whether it is one of the ``wanted``. ``loose``: the values are JSON, whose floats may be rounded otherwise."""
    forms = [*wanted, *map(_with_integer_keys, wanted)] if loose else wanted
    tolerance = (1e-9 if loose else 0.0) if tolerance is None else tolerance
    return any(same_value(said, form, tolerance=tolerance, as_json=loose) for form in forms)


def same_value(said: Any, wanted: Any, *, tolerance: float = 0.0, as_json: bool = False) -> bool:
    """Whether two plain values are the same.

    Unlike ``==``: ``True`` is not 1, nan is nan, and with ``tolerance`` floats may differ by it (relative to the
    larger, absolute below 1). ``as_json``: a tuple may stand for a list, since JSON has no tuples, and 1 for ``True``,
    as in the judges of the data sets in JSON.
    """
    if isinstance(said, Remote):
        return False

    def same(one: Any, other: Any) -> bool:
        return same_value(one, other, tolerance=tolerance, as_json=as_json)

    if type(said).__module__ == "numpy" and hasattr(said, "tolist"):
        said = said.tolist()
    # Before the numbers, since a bool is an int in Python.
    if not as_json and (isinstance(said, bool) or isinstance(wanted, bool)):
        return said is wanted
    numbers = (int, float, complex)
    if isinstance(said, numbers) and isinstance(wanted, numbers):
        return _same_number(said, wanted, tolerance)
    if isinstance(said, (list, tuple)) and isinstance(wanted, (list, tuple)):
        alike = as_json or isinstance(said, list) is isinstance(wanted, list)
        return alike and len(said) == len(wanted) and all(map(same, said, wanted))
    if isinstance(said, dict) and isinstance(wanted, dict):
        return len(said) == len(wanted) and all(key in said and same(said[key], wanted[key]) for key in wanted)
    return bool(type(said) is type(wanted) and said == wanted)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _same_number(said: Any, wanted: Any, tolerance: float) -> bool:
    if said != said or wanted != wanted:
        return bool(said != said and wanted != wanted)
    if said == wanted:
        return True
    integer = isinstance(said, int) or isinstance(wanted, int)
    if not tolerance or (integer and _is_whole(said) and _is_whole(wanted)):
        return False
    try:
        difference, size = abs(said - wanted), max(abs(said), abs(wanted), 1.0)
        return bool(math.isfinite(size) and difference <= tolerance * size)
    except OverflowError:
        return False
