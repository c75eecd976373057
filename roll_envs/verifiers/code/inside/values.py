"""Plain values as JSON and back, in both jails; classes of the answer are never recreated where tests run.

Only exact types keep their class: a subclass of a plain type arrives as the plain type, any other object as a handle.
What JSON has is written as it is, everything else as a list that begins with a tag.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import fractions
import inspect
import keyword
import pathlib
import sys
import types
from collections.abc import Callable, Mapping
from json import dumps
from typing import Any, NamedTuple, NoReturn

from roll_envs.verifiers.code.inside.frames import NotPlain, framed, read_frame, take_frame

MOST_VALUES, _MOST_CHARACTERS = 250_000, 4_000_000
"""Items in a value, and characters of a request, which is less than a jail may print."""
MAX_DEPTH = 90
CONTENT = (dict, list, set)
"""Of a class derived from one of these, with methods of its own, objects stay with the answer; they equal what they
hold."""
NODES = ("ListNode", "TreeNode")
"""Classes that answers have without defining them, as on LeetCode."""
BUILT_IN = {
    kind.__name__: kind
    for kind in (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range, type(None), object)
}


class Unusable(BaseException):
    """The test does what cannot be done from a jail of its own."""


_NATIVE, _WORD = (type(None), bool, int, float, str), 1 << 63


def _is_native(value: Any) -> bool:
    """Whether JSON has the value: as decimal digits, a longer integer could exceed Python's limit on them."""
    return type(value) in _NATIVE and (type(value) is not int or -_WORD < value < _WORD)


def encode(value: Any, handle: Callable[[Any], list[Any]], depth: int = 0, left: list[int] | None = None) -> Any:
    """The value as JSON; ``handle`` writes what is not plain. Raises :class:`ValueError` for one too deep or large."""
    left = [MOST_VALUES] if left is None else left
    kind = type(value)
    if _is_native(value):
        return value

    def parts(form: _Form) -> list[Any]:
        return [form.tag, *[encode(part, handle, depth, left) for part in form.write(value)]]

    if kind in _BY_KIND:
        return parts(_BY_KIND[kind])

    def items(values: Any) -> list[Any]:
        values = list(values)
        left[0] -= len(values)
        if depth > MAX_DEPTH or left[0] < 0:
            raise ValueError("the value is too deep or too large to come out")
        return [item if _is_native(item) else encode(item, handle, depth + 1, left) for item in values]

    if kind.__module__.partition(".")[0] == "pandas":
        with contextlib.suppress(NotPlain):
            return ["pd", *framed(value, lambda each: encode(each, _refuse, depth + 1, left))]
    if kind.__module__ == "answer" and issubclass(kind, CONTENT) and _has_methods(kind):
        return handle(value)  # "class LRUCache(OrderedDict)"
    fields = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and isinstance(fields, tuple) and len(fields) == tuple.__len__(value):
        return ["N", kind.__name__, list(fields), items(tuple.__iter__(value))]
    for tag, plain in _COLLECTIONS.items():
        if kind is plain or (plain.__module__ == "builtins" and issubclass(kind, plain)):
            if issubclass(plain, dict):
                return [tag, [items(pair) for pair in dict.items(value)]]
            return [tag, items(plain.__iter__(value))]
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind in (numpy.ndarray, numpy.matrix) and value.dtype.kind in "biufcMmSU":
        left[0] -= value.size
        return ["a", value.dtype.str, list(value.shape), numpy.ascontiguousarray(value).tobytes().hex()]
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)) and kind.__module__ == "numpy":
        return ["a0", value.dtype.str, value.tobytes().hex()] if kind.__name__ != "ndarray" else ["l", items(value)]
    for form in _FORMS:
        if form.subclasses and isinstance(value, form.kind):
            return parts(form)
    if issubclass(kind, type) and value in BUILT_IN.values():
        return ["g", value.__name__]
    return handle(value)


def _refuse(value: Any) -> NoReturn:
    raise NotPlain


def told(error: BaseException, encoded: Callable[[Any], Any]) -> dict[str, Any]:
    """An exception as JSON: its classes and text, and its first arguments and attributes where they can be written."""
    kinds = [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__]
    text = ""
    with contextlib.suppress(BaseException):  # the answer's own class may raise anything
        text = str(error)[:1000]
    try:
        args = [encoded(arg) for arg in error.args[:20]]
        state = {name: encoded(value) for name, value in list(vars(error).items())[:20]}
    except BaseException:
        args, state = [text], {}
    return {"kinds": kinds, "text": text, "args": args, "state": state}


def request(message: Any) -> str:
    """As text. Raises :class:`ValueError` for one that is larger than what the jail of the tests may print."""
    text = dumps(message)
    if len(text) > _MOST_CHARACTERS:
        raise ValueError("the values are too large to go to the answer")
    return text


def decode(data: Any, handle: Callable[[list[Any]], Any], depth: int = 0) -> Any:
    """The value that :func:`encode` wrote. Raises :class:`ValueError` and its like for anything else."""
    if type(data) in _NATIVE:
        return data
    if depth > MAX_DEPTH + 10 or not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise ValueError("not a value in the agreed form")
    tag, *rest = data

    def items(values: Any) -> list[Any]:
        if not isinstance(values, list):
            raise ValueError("not a list of values")
        return [item if type(item) in _NATIVE else decode(item, handle, depth + 1) for item in values]

    if tag in _READERS:
        return _READERS[tag](*[decode(part, handle, depth) for part in rest])

    def mapping(pairs: Any) -> dict[Any, Any]:
        return dict([items(pair) for pair in pairs])

    if tag in _COLLECTIONS:
        kind = _COLLECTIONS[tag]
        return kind((mapping if issubclass(kind, dict) else items)(rest[0]))
    if tag == "N":
        name, fields, values = rest
        if not str(name).isidentifier() or keyword.iskeyword(name) or not isinstance(fields, list) or len(fields) > 100:
            raise ValueError("not a named tuple")
        return collections.namedtuple(name, fields)(*items(values))
    if tag in ("a", "a0"):
        return _array(rest)
    if tag == "pd":
        return read_frame(rest, lambda each: decode(each, handle, depth + 1))
    return handle(data)


_USUAL = frozenset(f"__{name}__" for name in "init new repr str eq ne hash".split())


def _has_methods(kind: type) -> bool:
    """Whether a class has methods of its own beside those that make, show and compare its objects."""
    return any(isinstance(each, types.FunctionType) and name not in _USUAL for name, each in vars(kind).items())


class Nodes:
    """Objects of classes that tests and answer have one each of (``kinds``): a table of their attributes goes along
    with a call and comes back with it, and in values each is its number there. So they may lead to each other in any
    way, and one that comes back is the object that was sent."""

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self._kinds = kinds
        self._numbers: dict[int, int] = {}
        self._found: list[Any] = []

    def number(self, value: Any) -> list[Any] | None:
        """How a value is written; None for any but a node."""
        if not isinstance(value, tuple(self._kinds.values())):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._found)
            self._found.append(value)
        return ["nd", self._numbers[id(value)]]

    def node(self, number: int) -> Any:
        return self._found[number]

    def table(self, encoded: Callable[[Any], Any]) -> list[Any]:
        """All that have a number, and those that they lead to. Raises :class:`ValueError` for too many."""
        table: list[Any] = []
        for node in self._found:  # it grows
            if len(table) > MOST_VALUES:
                raise ValueError("the value is too large to come out")
            name = next(name for name, kind in self._kinds.items() if isinstance(node, kind))
            table.append([name, {key: encoded(value) for key, value in _attributes(node).items()}])
        return table

    def take(self, table: Any, decoded: Callable[[Any], Any]) -> None:
        """Make the nodes here equal to those of a table; no method of theirs is called, or hidden by an attribute.
        Raises :class:`ValueError` and its like for what is no table."""
        for name, _ in table[len(self._found) :]:
            self.number(object.__new__(self._kinds[name]))
        for node, (_, attributes) in zip(self._found, table):  # noqa: B905  a forged table may be shorter
            for key, value in attributes.items():
                mine = inspect.getattr_static(type(node), key, None)
                hides = hasattr(mine, "__get__") and not isinstance(mine, types.MemberDescriptorType)
                if key.isidentifier() and not key.startswith("__") and not hides:
                    object.__setattr__(node, key, decoded(value))


def _attributes(node: Any) -> dict[str, Any]:
    slots = [vars(kind).get("__slots__", ()) for kind in type(node).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return {**{name: getattr(node, name) for name in names if hasattr(node, name)}, **getattr(node, "__dict__", {})}


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
    """The parts of a value. Methods are called on the plain type, since a subclass may override them."""
    read: Callable[..., Any]
    """Makes one of its parts, which a forged reply may have of any kind."""
    subclasses: bool = False
    """Whether values of subclasses are written so, too; they arrive as the plain type."""


def _factory_and_held(value: Any) -> list[Any]:
    return [value.default_factory if value.default_factory in BUILT_IN.values() else None, dict(value)]


# Hexadecimal: exact, and without Python's limit on the decimal digits of an int.
_FORMS = (
    _Form("i", int, lambda value: [hex(int.__add__(value, 0))], lambda text: int(text, 16), True),
    _Form("f", float, lambda value: [float.hex(float.__add__(value, 0.0))], float.fromhex, True),
    _Form("c", complex, lambda value: [value.real, value.imag], complex, True),
    _Form("s", str, lambda value: [str.__str__(value)], lambda text: str.__str__(text), True),
    _Form("y", bytes, lambda value: [bytes(value).hex()], bytes.fromhex, True),
    _Form("Y", bytearray, lambda value: [bytes(value).hex()], bytearray.fromhex, True),
    _Form("r", range, lambda value: [value.start, value.stop, value.step], range),
    _Form("sl", slice, lambda value: [value.start, value.stop, value.step], slice),
    _Form("q", fractions.Fraction, lambda value: [value.numerator, value.denominator],
          lambda above, below: fractions.Fraction(int.__index__(above), int.__index__(below))),
    _Form("m", decimal.Decimal, lambda value: [str(value)], lambda text: decimal.Decimal(str.__str__(text))),
    _Form("D", datetime.date, lambda value: [value.isoformat()], datetime.date.fromisoformat),
    _Form("DT", datetime.datetime, lambda value: [value.isoformat()], datetime.datetime.fromisoformat),
    _Form("T", datetime.time, lambda value: [value.isoformat()], datetime.time.fromisoformat),
    _Form("td", datetime.timedelta, lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta),
    _Form("p", pathlib.PosixPath, lambda value: [str(value)], lambda text: pathlib.PosixPath(str.__str__(text))),
    _Form("dd", collections.defaultdict, _factory_and_held, collections.defaultdict),
    *(_Form(view.__name__, type(view({})), lambda value: [dict(value.mapping)], view)
      for view in (dict.keys, dict.values, dict.items)),
)  # fmt: skip
_BY_KIND = {form.kind: form for form in _FORMS}
_READERS: dict[str, Callable[..., Any]] = {form.tag: form.read for form in _FORMS}
_READERS["g"] = lambda name: BUILT_IN[name]
_COLLECTIONS: dict[str, Any] = {
    "l": list, "t": tuple, "S": set, "F": frozenset, "Q": collections.deque,
    "C": collections.Counter, "O": collections.OrderedDict, "d": dict,
}  # fmt: skip
"""Values of subclasses of the built-in ones arrive as these; of the others only those of the very class are written."""


def sync(mine: Any, theirs: Any) -> None:
    """Make the container ``mine``, which was an argument, equal to what the call left of it, in place."""
    if isinstance(mine, list) and isinstance(theirs, list):
        mine[:] = map(_synced, mine, theirs) if len(mine) == len(theirs) else theirs
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        kept = {key: _synced(mine[key], new) if key in mine else new for key, new in theirs.items()}
        mine.clear()
        mine.update(kept)
    elif isinstance(mine, set) and isinstance(theirs, set):  # one of a subclass comes back as a plain one
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, (bytearray, collections.deque)) and type(theirs) is type(mine):
        mine.clear()
        mine.extend(theirs)
    elif type(mine).__module__ == "numpy" and getattr(mine, "shape", None) == getattr(theirs, "shape", ()):
        mine[...] = theirs
    elif type(mine).__name__ in ("DataFrame", "Series") and type(theirs) is type(mine):
        take_frame(mine, theirs)


def _synced(old: Any, new: Any) -> Any:
    if isinstance(old, (list, dict, set, bytearray, collections.deque)) and type(old) is type(new):
        sync(old, new)
        return old
    return new


def compiled(sources: tuple[str, ...]) -> types.CodeType:
    """The first of these that compiles. Where none does, raises what the first raises."""
    for source in sources:
        with contextlib.suppress(SyntaxError, ValueError):
            return compile(source, "<answer>", "exec", dont_inherit=True)
    return compile(sources[0], "<answer>", "exec", dont_inherit=True)
