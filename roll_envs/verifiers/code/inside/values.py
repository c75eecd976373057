"""Plain values as JSON and back, in both jails; classes of the answer are never recreated where tests run.

Only exact types keep their class: a subclass of a plain type arrives as the plain type, any other object as a handle.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import keyword
import math
import sys
from collections.abc import Callable
from typing import Any

MOST_VALUES = 200_000
MAX_DEPTH = 90
_PLAIN: tuple[tuple[Any, str], ...] = ((list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F"))
_EXACT: dict[type, str] = {datetime.date: "D", datetime.datetime: "DT", datetime.time: "T"}
BUILT_IN = {
    kind.__name__: kind
    for kind in (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range, type(None), object)
}


def encode(value: Any, handle: Callable[[Any], Any], depth: int = 0, left: list[int] | None = None) -> list[Any]:
    """The value as JSON; ``handle`` writes what is not plain. Raises :class:`ValueError` for one too deep or large."""
    left = [MOST_VALUES] if left is None else left
    left[0] -= 1
    if depth > MAX_DEPTH or left[0] < 0:
        raise ValueError("the value is too deep or too large to come out")
    if value is None:
        return ["n"]
    if value is True or value is False:
        return ["b", 1 if value else 0]
    kind = type(value)
    # Methods are called on the plain type, since a subclass may override them. Hexadecimal: exact, and without
    # Python's limit on the decimal digits of an int.
    if isinstance(value, int):
        return ["i", hex(int.__add__(value, 0))]
    if isinstance(value, float):
        return ["f", float.hex(float.__add__(value, 0.0)) if value == value else "nan"]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["Y" if isinstance(value, bytearray) else "y", bytes(value).hex()]
    if kind is range:
        return ["r", hex(value.start), hex(value.stop), hex(value.step)]

    def items(values: Any) -> list[Any]:
        return [encode(item, handle, depth + 1, left) for item in values]

    if isinstance(value, dict):
        pairs = [items(pair) for pair in dict.items(value)]
        tag = "C" if kind is collections.Counter else "O" if kind is collections.OrderedDict else "d"
        return [tag, pairs]
    fields = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple) and len(fields) == tuple.__len__(value):
        return ["N", kind.__name__, list(fields), items(tuple.__iter__(value))]
    for plain, tag in _PLAIN:
        if isinstance(value, plain):
            return [tag, items(plain.__iter__(value))]
    if kind is collections.deque:
        return ["Q", items(value)]
    if kind is fractions.Fraction:
        return ["q", hex(value.numerator), hex(value.denominator)]
    if kind is decimal.Decimal:
        return ["m", str(value)]
    if kind in _EXACT:
        return [_EXACT[kind], value.isoformat()]
    if kind is datetime.timedelta:
        return ["td", value.days, value.seconds, value.microseconds]
    if kind is slice:
        return ["sl", *items((value.start, value.stop, value.step))]
    if BUILT_IN.get(getattr(value, "__name__", "")) is value and isinstance(value, type):
        return ["g", value.__name__]
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind in (numpy.ndarray, numpy.matrix) and value.dtype.kind in "biufc":
        left[0] -= value.size
        return ["a", value.dtype.str, list(value.shape), numpy.ascontiguousarray(value).tobytes().hex()]
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)) and kind.__module__ == "numpy":
        return ["a0", value.dtype.str, value.tobytes().hex()] if kind.__name__ != "ndarray" else ["l", items(value)]
    found: list[Any] = handle(value)
    return found


def decode(data: Any, handle: Callable[[list[Any]], Any], depth: int = 0) -> Any:
    """The value that :func:`encode` wrote. Raises :class:`ValueError` and its like for anything else."""
    if depth > MAX_DEPTH + 10 or not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise ValueError("not a value in the agreed form")
    tag, *rest = data

    def items(values: Any) -> list[Any]:
        if not isinstance(values, list):
            raise ValueError("not a list of values")
        return [decode(item, handle, depth + 1) for item in values]

    def number(text: Any) -> int:
        return int(text, 16)

    simple = _READERS.get(tag)
    if simple is not None:
        return simple(*rest)
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag](items(rest[0]))
    if tag in _MAPPINGS:
        pairs = [items(pair) for pair in rest[0]]
        return _MAPPINGS[tag](dict(pairs))
    if tag == "N":
        name, fields, values = rest
        if not str(name).isidentifier() or keyword.iskeyword(name) or not isinstance(fields, list) or len(fields) > 100:
            raise ValueError("not a named tuple")
        return collections.namedtuple(name, fields)(*items(values))
    if tag == "sl":
        return slice(*items(rest))
    if tag in ("a", "a0"):
        return _array(rest)
    return handle(data)


def _array(rest: list[Any]) -> Any:
    import numpy  # only where an array comes out

    kind = numpy.dtype(rest[0])
    if kind.kind not in "biufcMmSU":
        raise ValueError("not an array of numbers")
    flat = numpy.frombuffer(bytes.fromhex(rest[-1]), kind)
    return flat[0] if len(rest) == 2 else flat.reshape([int(n) for n in rest[1]]).copy()


_READERS: dict[str, Callable[..., Any]] = {
    "n": lambda: None,
    "b": bool,
    "i": lambda text: int(text, 16),
    "f": lambda text: math.nan if text == "nan" else float.fromhex(text),
    "c": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "s": lambda text: str.__str__(text),
    "y": bytes.fromhex,
    "Y": bytearray.fromhex,
    "r": lambda *parts: range(*(int(part, 16) for part in parts)),
    "q": lambda *parts: fractions.Fraction(*(int(part, 16) for part in parts)),
    "m": lambda text: decimal.Decimal(str.__str__(text)),
    "D": datetime.date.fromisoformat,
    "DT": datetime.datetime.fromisoformat,
    "T": datetime.time.fromisoformat,
    "td": datetime.timedelta,
    "g": lambda name: BUILT_IN[name],
}
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "l": list, "t": tuple, "S": set, "F": frozenset, "Q": collections.deque,
}  # fmt: skip
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "d": dict, "C": collections.Counter, "O": collections.OrderedDict,
}  # fmt: skip


def sync(mine: Any, theirs: Any) -> None:
    """Make the container ``mine``, which was an argument, equal to what the call left of it, in place."""
    if isinstance(mine, list) and isinstance(theirs, list):
        if len(mine) == len(theirs):
            for index, (old, new) in enumerate(zip(mine, theirs)):  # noqa: B905  as in the line above
                mine[index] = _synced(old, new)
        else:
            mine[:] = theirs
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        kept = {key: _synced(mine[key], new) if key in mine else new for key, new in theirs.items()}
        mine.clear()
        mine.update(kept)
    elif isinstance(mine, set) and isinstance(theirs, set):
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, (bytearray, collections.deque)) and type(theirs) is type(mine):
        mine.clear()
        mine.extend(theirs)
    elif type(mine).__module__ == "numpy" and getattr(mine, "shape", None) == getattr(theirs, "shape", ()):
        mine[...] = theirs


def _synced(old: Any, new: Any) -> Any:
    if isinstance(old, (list, dict, set, bytearray, collections.deque)) and type(old) is type(new):
        sync(old, new)
        return old
    return new
