"""What stands in for the answer's jail: a control that allows everything, the answer beside the tests, or records.

By records the calls of simple tests are collected ahead, so that the judge makes them all between two exchanges with
this jail. Simple tests (calls with expected values; asserts, loops and functions that change nothing outside their own
module) are run twice in the process of the cells, each time with :class:`Records`: first they note what is called, then
they have the replies. The answer still sees each call only when it has replied to the one before. Where the two runs
differ, as when a test works with an object of the answer, the tests are run again as all others are: in a fork that
asks call by call.
"""

from __future__ import annotations

import builtins
import json
import sys
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from roll_envs.verifiers.code.inside.compare import plain_value, readings
from roll_envs.verifiers.code.inside.proxies import BINARY, Counts, Fault, Link
from roll_envs.verifiers.code.inside.reading import ANSWER_MODULES, prepared
from roll_envs.verifiers.code.inside.values import compiled, encode, request

MOST_BYTES = 2 << 20
"""Of the calls of a batch together; the output of a cell is limited."""


_MOST_ANSWERS = 300_000
"""Questions to which a value of the control says yes; then no, lest a loop never end."""


class Control(Counts):
    """In place of the answer's jail: an answer that has every name and whose values allow everything.

    An error in a statement that did nothing with such a value is an error of the tests.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.anything = _anything(self)

    def names(self, names: list[str]) -> dict[str, Any]:
        return dict.fromkeys(names)

    def name(self, name: str, data: Any) -> Any:
        if name[:1].isupper():  # a class, perhaps of an exception
            return _Whatever(name, (Exception,), vars(type(self.anything)) | {"_control": self})
        # A function, or a plain value.
        return type("Named", (type(self.anything),), {"__call__": lambda _, *given, **named: self.call(given, named)})()

    def call(self, *given: Any, **_: Any) -> Any:
        self.asked += 1
        request(encode(given, lambda value: []))  # raises for arguments that are too large with any answer
        return self.anything


class _Whatever(type):
    def __getattr__(cls, name: str) -> Any:
        control = type.__getattribute__(cls, "_control")
        control.touched += 1
        return control.anything


class Beside(Counts):
    """In place of the answer's jail: the answer's module beside the tests, which it can then cheat."""

    asked = 1

    def __init__(self, sources: tuple[str, ...]) -> None:
        self._sources = sources
        self._module: Any = None

    def names(self, names: list[str]) -> dict[str, Any]:
        if self._module is None:
            self._module = types.ModuleType("solution")
            sys.modules.update(dict.fromkeys(ANSWER_MODULES - {"__main__", "code"}, self._module))
            try:
                exec(compiled(self._sources), self._module.__dict__)
            except BaseException as error:
                raise Fault("error", f"{type(error).__name__}: {error}") from None
        return {name: None for name in names if hasattr(self._module, name)}

    def name(self, name: str, data: Any) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise Fault("error", f"NameError: the answer defines no {name!r}") from None


def _anything(control: Control | Records) -> Any:
    def method(result: Callable[[Any], Any]) -> Any:
        def touched(self: Any, *args: Any, **named: Any) -> Any:
            control.touched += 1
            return result(self)

        return touched

    def agrees(self: Any) -> bool:
        control.answered += 1
        return control.answered < _MOST_ANSWERS

    own: dict[str, Any] = {}
    for name in [*BINARY, *(f"r{each}" for each in BINARY), *"call getattr getitem neg pos abs invert enter".split()]:
        own[f"__{name.rstrip('_')}__"] = method(lambda self: self)
    for name in "eq ne lt le gt ge bool contains instancecheck".split():
        own[f"__{name}__"] = method(agrees)
    for name in "setattr setitem delitem delattr exit".split():
        own[f"__{name}__"] = method(lambda self: None)
    for value, names in ((1, "len int index hash"), (1.0, "float"), (b"1", "bytes"), ("1", "str repr format")):
        for name in names.split():
            own[f"__{name}__"] = method(lambda self, value=value: value)  # type: ignore[misc]
    own["__iter__"] = method(lambda self: iter([self]))
    return type("Anything", (), own)()


def is_simple(plan: dict[str, Any]) -> bool:
    """Whether the tests can be run twice in one process."""
    if plan["calls"]:
        return all(not call["loose"] or len(readings(plain_value(call["args"]))) == 1 for call in plan["calls"])
    return prepared(tuple(plan["asserts"]), plan["entry_point"], plan["helpers"]).harmless


class Diverged(BaseException):
    """The tests do not call what they called before, or what cannot be collected."""


class Records(Link):
    """In place of the answer's jail, for simple tests: notes their requests and gives values that allow everything; or,
    with the replies to the requests, gives those. Requests that the tests leave out then are passed over."""

    def __init__(self, requests: Sequence[str] = (), replies: Sequence[str] | None = None) -> None:
        super().__init__(None)
        self.requests: list[str] = []
        self.diverged = False
        """Also where the tests catch the exception."""
        # The judge stops where replies are too long.
        self._replies = None if replies is None else deque(zip(requests, replies))  # noqa: B905
        self._left, self.answered = MOST_BYTES, 0
        self._anything = _anything(self)

    def names(self, names: list[str]) -> dict[str, Any]:
        # A class may make objects, which live in the jail of the answer; a built-in name may be the answer's or not.
        if any((name[:1].isupper() and "." not in name) or hasattr(builtins, name) for name in names):
            raise self._diverge()
        return super().names(names)

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        wanted = json.dumps(message)
        if self._replies is None:
            self._left -= len(wanted)
            if self._left < 0 or message["do"] not in ("names", "call"):
                raise self._diverge()
            self.requests.append(wanted)
            found = dict.fromkeys(message["with"][0]) if message["do"] == "names" else {}
            return {"names": found, "value": ["anything"]}
        while self._replies:
            request, reply = self._replies.popleft()
            if request == wanted:
                return self._read(reply)
        raise self._diverge()

    def _object(self, data: list[Any]) -> Any:
        return self._anything if self._replies is None else super()._object(data)

    def _handle(self, value: Any) -> list[Any]:
        raise self._diverge()

    def _diverge(self) -> Diverged:
        self.diverged = True
        return Diverged()
