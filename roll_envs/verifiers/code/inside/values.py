"""Plain values as JSON and back, in both jails; classes of the answer are never recreated where tests run.

Only exact types keep their class: a subclass of a plain type arrives as the plain type, any other object as a handle.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import keyword
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MOST_VALUES = 200_000
MAX_DEPTH = 90
NODES = ("ListNode", "TreeNode")
"""Classes of which tests and answer have one each; where the tests define theirs, objects are copied between them."""
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
    kind = type(value)
    if kind in _BY_KIND:
        return [_BY_KIND[kind].tag, *_BY_KIND[kind].write(value)]

    def items(values: Any) -> list[Any]:
        return [encode(item, handle, depth + 1, left) for item in values]

    if isinstance(value, dict):
        pairs = [items(pair) for pair in dict.items(value)]
        tag = "C" if kind is collections.Counter else "O" if kind is collections.OrderedDict else "d"
        return [tag, pairs]
    fields = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple) and len(fields) == tuple.__len__(value):
        return ["N", kind.__name__, list(fields), items(tuple.__iter__(value))]
    for tag in ("l", "t", "S", "F"):
        if isinstance(value, _COLLECTIONS[tag]):
            return [tag, items(_COLLECTIONS[tag].__iter__(value))]
    if kind is collections.deque:
        return ["Q", items(value)]
    for name, view in _VIEWS.items():
        if kind is type(view({})):
            return ["v", name, encode(dict(value.mapping), handle, depth + 1, left)]
    if kind is slice:
        return ["sl", *items((value.start, value.stop, value.step))]
    for form in _FORMS:
        if form.subclasses and isinstance(value, form.kind):
            return [form.tag, *form.write(value)]
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

    if tag in _READERS:
        return _READERS[tag](*rest)
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
    if tag == "v":
        return _VIEWS[rest[0]](decode(rest[1], handle, depth + 1))
    if tag == "sl":
        return slice(*items(rest))
    if tag in ("a", "a0"):
        return _array(rest)
    return handle(data)


def encode_nodes(first: Any, kinds: Mapping[str, type], encoded: Callable[[Any], Any]) -> list[Any]:
    """An object of one of the classes ``kinds`` with all such that its attributes lead to, as a table of their
    attributes; a number there is a row. Raises :class:`ValueError` for too many."""
    found, rows, table = [first], {id(first): 0}, []
    for node in found:  # it grows
        row: dict[str, Any] = {}
        for name, value in vars(node).items():
            if not isinstance(value, tuple(kinds.values())):
                row[name] = encoded(value)
                continue
            row[name] = rows.setdefault(id(value), len(found))
            found += [value] if row[name] == len(found) else []
        table.append([next(name for name, kind in kinds.items() if isinstance(node, kind)), row])
        if len(found) > MOST_VALUES:
            raise ValueError("the value is too large to come out")
    return ["nd", table]


def decode_nodes(table: Any, kinds: Mapping[str, type], decoded: Callable[[Any], Any]) -> Any:
    """What :func:`encode_nodes` wrote, as objects of the classes here; none of their methods is called. Raises
    :class:`ValueError` and its like for anything else."""
    nodes = [object.__new__(kinds[name]) for name, _ in table]
    for node, (_, row) in zip(nodes, table):  # noqa: B905  they are as many
        for name, value in row.items():
            if not name.isidentifier() or name.startswith("_"):
                raise ValueError("not an attribute of a node")
            vars(node)[name] = nodes[value] if isinstance(value, int) else decoded(value)
    return nodes[0]


def _array(rest: list[Any]) -> Any:
    import numpy  # only where an array comes out

    kind = numpy.dtype(rest[0])
    if kind.kind not in "biufcMmSU":
        raise ValueError("not an array of numbers")
    flat = numpy.frombuffer(bytes.fromhex(rest[-1]), kind)
    return flat[0] if len(rest) == 2 else flat.reshape([int(n) for n in rest[1]]).copy()


class _Form(NamedTuple):
    """How values of one class are written and read."""

    tag: str
    kind: type
    write: Callable[[Any], list[Any]]
    """Methods are called on the plain type, since a subclass may override them."""
    read: Callable[..., Any]
    subclasses: bool = False
    """Whether values of subclasses are written so, too; they arrive as the plain type."""


def _from_hex(*parts: str) -> list[int]:
    return [int(part, 16) for part in parts]


# Hexadecimal: exact, and without Python's limit on the decimal digits of an int.
_FORMS = (
    _Form("n", type(None), lambda value: [], lambda: None),
    _Form("b", bool, lambda value: [int(value)], bool),
    _Form("i", int, lambda value: [hex(int.__add__(value, 0))], lambda text: int(text, 16), True),
    _Form("f", float, lambda value: [float.hex(float.__add__(value, 0.0))], float.fromhex, True),
    _Form("c", complex, lambda value: [float.hex(value.real), float.hex(value.imag)],
          lambda *parts: complex(*map(float.fromhex, parts)), True),
    _Form("s", str, lambda value: [str.__str__(value)], lambda text: str.__str__(text), True),
    _Form("y", bytes, lambda value: [bytes(value).hex()], bytes.fromhex, True),
    _Form("Y", bytearray, lambda value: [bytes(value).hex()], bytearray.fromhex, True),
    _Form("r", range, lambda value: [hex(value.start), hex(value.stop), hex(value.step)],
          lambda *parts: range(*_from_hex(*parts))),
    _Form("q", fractions.Fraction, lambda value: [hex(value.numerator), hex(value.denominator)],
          lambda *parts: fractions.Fraction(*_from_hex(*parts))),
    _Form("m", decimal.Decimal, lambda value: [str(value)], lambda text: decimal.Decimal(str.__str__(text))),
    _Form("D", datetime.date, lambda value: [value.isoformat()], datetime.date.fromisoformat),
    _Form("DT", datetime.datetime, lambda value: [value.isoformat()], datetime.datetime.fromisoformat),
    _Form("T", datetime.time, lambda value: [value.isoformat()], datetime.time.fromisoformat),
    _Form("td", datetime.timedelta, lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta),
)  # fmt: skip
_BY_KIND = {form.kind: form for form in _FORMS}
_READERS: dict[str, Callable[..., Any]] = {form.tag: form.read for form in _FORMS}
_READERS["g"] = lambda name: BUILT_IN[name]
_COLLECTIONS: dict[str, Any] = {
    "l": list, "t": tuple, "S": set, "F": frozenset, "Q": collections.deque,
}  # fmt: skip
_VIEWS: dict[str, Callable[..., Any]] = {name: getattr(dict, name) for name in ("keys", "values", "items")}
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
    elif type(mine).__name__ in NODES and type(theirs) is type(mine):
        vars(mine).update(vars(theirs))
    elif type(mine).__module__ == "numpy" and getattr(mine, "shape", None) == getattr(theirs, "shape", ()):
        mine[...] = theirs


def _synced(old: Any, new: Any) -> Any:
    if isinstance(old, (list, dict, set, bytearray, collections.deque)) and type(old) is type(new):
        sync(old, new)
        return old
    return new
