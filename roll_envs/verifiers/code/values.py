"""Encodes values in the sandbox as JSON and decodes them outside as plain Python data.

Nothing is unpickled and no class of the candidate is recreated: any other value arrives as :class:`Opaque`, with the
name of its type. Subclasses of plain types arrive as the plain type, so that their ``__eq__`` is never called here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["ENCODER", "Opaque", "decode", "literal", "same_value"]

MAX_DEPTH = 100
_LONGEST_RANGE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Opaque:
    """A value that has no plain form and stays in the sandbox."""

    kind: str


# Numbers are written in hexadecimal: exact for floats, and without Python's limit on the decimal digits of an int.
ENCODER = """
def encode(value, depth=0, left=None):
    left = [200000] if left is None else left
    left[0] -= 1
    if depth > 90 or left[0] < 0:
        raise ValueError("the value is too deep or too large to come out")
    if value is None: return ["n"]
    if value is True or value is False: return ["b", 1 if value else 0]
    kind = type(value)
    if isinstance(value, int): return ["i", hex(int.__add__(value, 0))]
    if isinstance(value, float):
        value = float.__add__(value, 0.0) if kind is not float else value
        return ["f", "nan" if value != value else float.hex(value)]
    if isinstance(value, complex): return ["c", encode(value.real), encode(value.imag)]
    if isinstance(value, str): return ["s", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)): return ["y" if isinstance(value, bytes) else "Y", bytes.hex(bytes(value))]
    if isinstance(value, range): return ["r", hex(value.start), hex(value.stop), hex(value.step)]
    if isinstance(value, dict):
        return ["d", [[encode(k, depth + 1, left), encode(v, depth + 1, left)] for k, v in dict.items(value)]]
    for plain, tag in ((list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F")):
        if isinstance(value, plain):
            return [tag, [encode(item, depth + 1, left) for item in plain.__iter__(value)]]
    module = getattr(kind, "__module__", "")
    if module == "collections" and kind.__name__ == "deque": return ["l", [encode(i, depth + 1, left) for i in value]]
    if isinstance(module, str) and module.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), depth + 1, left)
    if module in ("fractions", "decimal"): return ["q", module, str(value)]
    return ["o", kind.__name__]
"""
"""Source of the encoder that runs in the sandbox; it needs only built-ins.

Methods are called on the plain type (``int.__add__``), since a subclass of the candidate may override them.
"""


def decode(data: Any, depth: int = 0) -> Any:
    """The value that the encoder wrote.

    Raises :class:`ValueError` for anything else: the candidate can forge replies.
    """
    if depth > MAX_DEPTH or not isinstance(data, list) or not data or data[0] not in _READERS:
        raise ValueError("not a value in the agreed form")
    return _READERS[data[0]](data, depth + 1)


def _items(data: list[Any], depth: int) -> list[Any]:
    if not isinstance(data[1], list):
        raise ValueError("not a list of values")
    return [decode(item, depth) for item in data[1]]


def _hashable(data: list[Any], depth: int) -> list[Any]:
    items = _items(data, depth)
    for item in items:
        try:
            hash(item)
        except TypeError as error:
            raise ValueError(str(error)) from None
    return items


def _pairs(data: list[Any], depth: int) -> dict[Any, Any]:
    try:
        return {decode(key, depth): decode(value, depth) for key, value in data[1]}
    except TypeError as error:
        raise ValueError(str(error)) from None


def _float(data: list[Any], depth: int) -> float:
    return math.nan if data[1] == "nan" else float.fromhex(data[1])


def _quotient(data: list[Any], depth: int) -> Any:
    from decimal import Decimal, InvalidOperation
    from fractions import Fraction

    try:
        return Fraction(data[2]) if data[1] == "fractions" else Decimal(data[2])
    except (InvalidOperation, ZeroDivisionError) as error:
        raise ValueError(str(error)) from None


def _range(start: int, stop: int, step: int) -> Any:
    """A range; one that is too long stays opaque, so that no loop here can be made to run 10 ** 18 times."""
    return (
        Opaque(kind="range") if step and abs(stop - start) // abs(step) > _LONGEST_RANGE else range(start, stop, step)
    )


def _text(data: list[Any], depth: int) -> str:
    if not isinstance(data[1], str):
        raise ValueError("not a text")
    return data[1]


_READERS: dict[Any, Callable[[list[Any], int], Any]] = {
    "n": lambda data, depth: None,
    "b": lambda data, depth: bool(data[1]),
    "i": lambda data, depth: int(data[1], 16),
    "f": _float,
    "c": lambda data, depth: complex(decode(data[1], depth), decode(data[2], depth)),
    "s": _text,
    "y": lambda data, depth: bytes.fromhex(data[1]),
    "Y": lambda data, depth: bytearray.fromhex(data[1]),
    "r": lambda data, depth: _range(*(int(n, 16) for n in data[1:4])),
    "d": _pairs,
    "l": _items,
    "t": lambda data, depth: tuple(_items(data, depth)),
    "S": lambda data, depth: set(_hashable(data, depth)),
    "F": lambda data, depth: frozenset(_hashable(data, depth)),
    "q": _quotient,
    "o": lambda data, depth: Opaque(kind=str(data[1])[:100]),
}


def literal(value: Any) -> str:
    """Source text that makes a plain value inside the sandbox. Raises :class:`TypeError` for one that is not plain.

    ``literal({(1, 2): {float("inf")}})`` is ``"{(1, 2): {float('inf')}}"``.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, range):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind is bytearray:
        return f"bytearray({bytes(value)!r})"
    if kind is dict:
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if kind in (list, tuple, set, frozenset):
        items = ", ".join(map(literal, value))
        if kind is list:
            return f"[{items}]"
        if kind is tuple:
            return f"({items}{',' if len(value) == 1 else ''})"
        # {} would be an empty dict.
        return f"{kind.__name__}([{items}])" if kind is frozenset or not value else f"{{{items}}}"
    raise TypeError(f"a {kind.__name__} cannot be sent into the sandbox")


def same_value(said: Any, wanted: Any, *, tolerance: float = 0.0, sequences_alike: bool = False) -> bool:
    """Whether two plain values are the same.

    Unlike ``==``: ``True`` is not 1, nan is nan, and with ``tolerance`` floats may differ by it (relative to the
    larger, absolute below 1). Whole floats equal ints, as in Python. ``sequences_alike``: a tuple may stand for a
    list, since JSON has no tuples.
    """
    if isinstance(said, Opaque) or isinstance(wanted, Opaque):
        return False
    # Before the numbers, since a bool is an int in Python.
    if isinstance(said, bool) or isinstance(wanted, bool):
        return said is wanted
    numbers = (int, float, complex)
    if isinstance(said, numbers) and isinstance(wanted, numbers):
        return _same_number(said, wanted, tolerance)
    if isinstance(said, list | tuple) and isinstance(wanted, list | tuple):
        alike = sequences_alike or type(said) is type(wanted)
        return (
            alike
            and len(said) == len(wanted)
            and all(
                same_value(a, b, tolerance=tolerance, sequences_alike=sequences_alike)
                for a, b in zip(said, wanted, strict=True)
            )
        )
    if isinstance(said, dict) and isinstance(wanted, dict):
        return (
            len(said) == len(wanted)
            and all(key in said for key in wanted)
            and all(
                same_value(said[key], wanted[key], tolerance=tolerance, sequences_alike=sequences_alike)
                for key in wanted
            )
        )
    return bool(type(said) is type(wanted) and said == wanted)


def _same_number(said: Any, wanted: Any, tolerance: float) -> bool:
    if said != said or wanted != wanted:
        return bool(said != said and wanted != wanted)
    if said == wanted:
        return True
    if not tolerance or (isinstance(said, int) and isinstance(wanted, int)):
        return False
    try:
        difference, size = abs(said - wanted), max(abs(said), abs(wanted), 1.0)
        return bool(math.isfinite(size) and difference <= tolerance * size)
    except OverflowError:
        return False
