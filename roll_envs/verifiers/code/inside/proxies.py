"""Stands for the answer's functions and objects in the jail of the tests; the answer's own code never runs here.

What a test compares with is never sent: an object of the answer is unequal to every plain value, and no operator of
its classes is asked about one, unless the test itself makes objects of that class; then it is noted as ``inside``.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import types
import unittest.mock
from collections.abc import Callable
from json import loads  # as it was before a patch of the tests
from typing import Any, NoReturn

from roll_envs.verifiers.code.inside.patches import Patches, is_mock, use
from roll_envs.verifiers.code.inside.shared import PLACE, State, TooLarge
from roll_envs.verifiers.code.inside.values import CONTENT, NODES, Nodes, Unusable, decode, encode, request, sync, told

# Exceptions of the answer keep their class only where no test framework gives it a meaning of its own.
_TRUSTED_ERRORS = sys.stdlib_module_names - {"unittest", "doctest", "bdb", "pdb", "asyncio"} | {"numpy"}
# Plain values come as such, and test frameworks treat objects of their own classes as no others.
_NO_LIBRARIES = frozenset("builtins answer unittest doctest pytest _pytest numbers abc types typing numpy".split())
_TOO_LARGE = "the files that have changed are too many or too large"
_SINGLE = 32
"""Items of an iterator that are fetched one by one, as a test may stop early; beyond, many at once."""


class Fault(BaseException):
    """The call of the answer had no result: ``status`` is the limit that it went over, or ``exit``."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Counts:
    """What is noted of the answer's jail, or of what stands in for it."""

    asked = 0
    """Calls and operations, all together."""
    inside = 0
    """Comparisons by classes of the answer since the last check, with the time and memory of its calls."""
    time_s = memory_mb = 0.0
    touched = 0
    """Uses of a value that allows everything, since the last statement."""
    raises = False
    """Whether no check is left out where the statement that runs, in a ``with``, raises an exception."""
    load_fault = ""

    def share(self, state: frozenset[str]) -> None:
        """Share files, and ``state`` that the tests set, with the answer."""

    def left(self) -> bool:
        """Whether tests or answer have written files where no other tests may find them."""
        return False


class Link(Counts):
    """The conversation with the answer's jail, by way of the judge, which sees only opaque lines."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._lock = connection, threading.RLock()
        self.raised: BaseException | None = None
        self._over = False
        self.classes: set[str] = set()
        self.space: dict[str, Any] = {}
        """Names of the tests."""
        self.shared = frozenset(NODES)
        """Those of classes of which the answer has one each too."""
        self._nodes = Nodes({})
        self._functions: list[Any] = []
        self._mocks: dict[int, int] = {}
        self._objects: dict[int, Remote] = {}
        self._errors: dict[tuple[str, str], type[BaseException]] = {}
        self._state: State | None = None

    def share(self, state: frozenset[str]) -> None:
        try:
            self._state = State(state, Patches(unittest.mock))
        except OSError as error:
            if state:
                raise Unusable(f"the tests use {min(state)!r}, but cannot write to {PLACE} ({error})") from None

    def left(self) -> bool:
        return self._state is not None and self._state.left()

    def ask(self, do: str, *arguments: Any) -> dict[str, Any]:
        """Raises :class:`Fault`, and what the answer raised, as an exception of this jail."""
        message = {"do": do, "with": arguments}
        self.asked += do != "names"
        with self._lock:  # tests may have threads
            while "call" in (reply := self._exchange(message)):
                message = self._called_back(reply)
        if "fault" in reply:
            self._raise(reply["fault"], stops=arguments[0] == "next")
        return reply

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._over:  # each exchange would take time that is over
            raise Fault("skipped", "the time for all tests was over")
        state = self._state
        try:
            if state:
                message = message | {"shared": state.told(self.encode)}
            self._connection.send_bytes(b"ask " + request(message).encode())
            reply = self._read(self._connection.recv_bytes().decode())
        except Fault:
            if state:
                state.forget()
            raise
        except TooLarge:
            if self.asked > 1 or "do" not in message:  # they may hold what the answer gave
                raise Fault("output", _TOO_LARGE) from None
            raise Unusable(_TOO_LARGE) from None
        if state and reply.get("shared", 0) is None:
            raise Fault("output", _TOO_LARGE)
        if state and "shared" in reply:
            self._decoded(lambda: state.files.take(reply["shared"]))
        return reply

    def _read(self, message: str) -> dict[str, Any]:
        """The reply in a message of the judge, whose first line is what it says of the call itself."""
        head, _, line = message.partition("\n")
        facts = loads(head)
        self.time_s += facts["time_s"]
        self.memory_mb = max(self.memory_mb, facts["memory_mb"])
        if facts["printed"]:
            sys.stdout.write(facts["printed"])
        self._over = facts["status"] == "skipped"
        if facts["status"]:
            raise Fault(facts["status"], facts["text"])
        reply = self._decoded(lambda: loads(line))
        if not isinstance(reply, dict):
            raise Fault("error", "a reply in no known form")
        return reply

    def _called_back(self, reply: dict[str, Any]) -> dict[str, Any]:
        self._nodes = Nodes({})
        try:
            function, how = self._functions[reply["call"]], reply.get("how")
            args = [self.decode(arg) for arg in reply["args"]]
            named = {str(key): self.decode(value) for key, value in reply["named"].items()}
            value = use(function, how, *args, **named) if how else function(*args, **named)
            return {"value": self.encode(value)}
        except (Fault, Unusable):
            raise
        except BaseException as error:
            return {"fault": told(error, self.encode)}

    def call(self, target: Any, args: Any, named: dict[str, Any], *, lists: bool = False) -> Any:
        """Call a function of the answer; arguments that it changes are changed here too."""
        kinds = {name: kind for name in self.shared if isinstance(kind := self.space.get(name), type)}
        self._nodes = nodes = Nodes(kinds)
        given = [*args, *named.values()]
        sent = [self.encode(arg) for arg in args]
        by_name = {key: self.encode(value) for key, value in named.items()}
        how = [[list(kinds), nodes.table(self.encode)]] if kinds else []
        reply = self.ask("call", target, sent, by_name, lists, *how)
        self._nodes = nodes  # again, since the answer may have called back
        if kinds:
            self._decoded(lambda: nodes.take(reply["table"], self.decode))
        after = reply.get("after")
        if isinstance(after, list):
            for mine, theirs in zip(given, after):  # noqa: B905  a forged reply may have others
                if theirs is not None:
                    sync(mine, self.decode(theirs))
        same = reply.get("same")  # the result is one of the arguments
        return given[same] if isinstance(same, int) and same in range(len(given)) else self.decode(reply.get("value"))

    def operate(self, name: str, *args: Any) -> Any:
        """An operation of Python in the answer's jail."""
        self._nodes = Nodes({})  # they are copied with calls alone
        return self.decode(self.ask("op", name, [self.encode(arg) for arg in args]).get("value"))

    def encode(self, value: Any) -> Any:
        return encode(value, self._handle)

    def _handle(self, value: Any) -> list[Any]:
        if type(value) is types.CoroutineType and value.cr_code is Link._awaited.__code__ and value.cr_frame:
            value = value.cr_frame.f_locals["coroutine"]
        if isinstance(value, Remote):
            return ["h", target_of(value)]
        if (node := self._nodes.number(value)) is not None:
            return node
        if is_mock(value):
            if id(value) not in self._mocks:
                self._mocks[id(value)] = len(self._functions)
                self._functions.append(value)
            return ["mk", self._mocks[id(value)]]
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if module in sys.stdlib_module_names and getattr(sys.modules.get(module), str(name), None) is value:
            return ["G", module, name]
        if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinMethodType)) or (
            callable(value) and not isinstance(value, type) and type(value).__module__ == "functools"
        ):
            self._functions.append(value)
            return ["k", len(self._functions) - 1, str(name or "function")]
        raise Unusable(f"the tests hand a {type(value).__name__} to the answer")

    def decode(self, data: Any) -> Any:
        """The value of a reply. Raises :class:`Fault` for a forged one."""
        return self._decoded(lambda: decode(data, self._object))

    def _decoded(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            raise Fault("error", f"a reply that is no value ({type(error).__name__})") from None

    def _object(self, data: list[Any]) -> Any:
        tag, number, *facts = data
        if tag == "k":
            return self._functions[number]
        if tag == "nd":
            return self._nodes.node(number)
        if tag != "o" or not isinstance(number, int) or not isinstance(facts[0], dict):
            raise ValueError("not a value in the agreed form")
        known = facts[0] | {"kind": _library_class(facts[0].get("kinds", []))}
        found = self._objects.setdefault(number, Remote(self, number, known))  # ``is`` holds for it, as there
        return self._awaited(found) if facts[0].get("awaits") else found

    async def _awaited(self, coroutine: Remote) -> Any:
        """A coroutine of the answer, which runs to its end in the answer's jail when it is awaited."""
        return self.operate("await", coroutine)

    def names(self, names: list[str]) -> dict[str, Any]:
        """Which of the names the answer defines, with what :meth:`name` takes."""
        reply: dict[str, Any] = {}
        with contextlib.suppress(Fault):  # it will come again with each use
            reply = self.ask("names", names)
        self.load_fault = str(reply.get("load", ""))[:300]
        found = reply.get("names")
        return found if isinstance(found, dict) else {}

    def name(self, name: str, data: list[Any] | None) -> Any:
        """What a test gets for a name of the answer: its value, or a proxy that looks the name up with each call."""
        value = Remote(self, name, {}) if data is None else self.decode(data)
        if not isinstance(value, Remote):
            self.asked += 1  # what the tests do with it may fail by the answer's choice
            return value
        facts = facts_of(value)
        if facts.get("class") and isinstance(facts.get("error"), list):
            return self._error(facts["error"])
        if facts.get("class") and name[:1].isupper():
            self.classes.add(str(facts.get("type")))
        return Remote(self, name, facts)

    def _error(self, kinds: Any) -> type[BaseException]:
        """The exception class here for one of the answer: a known one, or one made by the same names."""
        made: type[BaseException] = BaseException
        for module, name in reversed([(str(kind[0]), str(kind[1])) for kind in kinds[:20]]):
            key = (module, name)
            if key not in self._errors:
                trusted = module.partition(".")[0] in _TRUSTED_ERRORS
                known = getattr(sys.modules.get(module), name, None) if trusted else None
                fits = isinstance(known, type) and issubclass(known, BaseException)
                if not fits and module == "builtins":
                    continue
                self._errors[key] = known if fits else type(name, (made,), {})  # type: ignore[assignment]
            made = self._errors[key]
        return made

    def _raise(self, fault: Any, *, stops: bool) -> NoReturn:
        try:
            kind = self._error(fault["kinds"])
            text = str(fault["text"])[:1000]
            args = [self.decode(arg) for arg in fault["args"]]
            if kind.__module__ != "builtins" or issubclass(kind, UnicodeError):
                kind = type(kind.__name__, (kind,), {"__str__": lambda self: text})
            if issubclass(kind, StopIteration) and not stops:  # it would end what iterates over calls
                kind = RuntimeError
            error = kind.__new__(kind, *args)
            error.args = tuple(args)
            if kind.__module__ == "builtins":  # it has attributes of its own, such as SystemExit.code
                with contextlib.suppress(TypeError):
                    kind.__init__(error, *args)
            for name, value in fault["state"].items():
                setattr(error, str(name), self.decode(value))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise Fault("error", "an error in no known form") from None
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise Fault("error", type(error).__name__)
        error.__dict__["_of_answer"] = True
        raise error


def _library_class(kinds: Any) -> type:
    """The first class among those of an object of the answer that a library here has, too: ``isinstance`` holds for it.
    An answer can make objects of such classes anyway, so that no claim gains it anything."""
    for module, name in [(str(kind[0]), str(kind[1])) for kind in kinds[:20]]:
        known = getattr(sys.modules.get(module), name, None)
        if module.partition(".")[0] not in _NO_LIBRARIES and isinstance(known, type):
            return known
    return Remote


def is_from_answer(error: BaseException | None) -> bool:
    """Whether the answer raised it, also as the cause of an error that the test raised in turn."""
    return error is not None and (isinstance(error, Fault) or bool(getattr(error, "_of_answer", False)))


class Remote:
    """An object of the answer."""

    __slots__ = ("_facts", "_link", "_target")

    def __init__(self, link: Link, target: Any, facts: dict[str, Any]) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_facts", facts)

    def __getattribute__(self, name: str) -> Any:
        facts = facts_of(self)
        if name == "__class__":
            content = {each.__name__: each for each in CONTENT}.get(
                str(facts.get("content")), facts.get("kind", Remote)
            )
            return types.GeneratorType if facts.get("generator") else content
        if name in ("__name__", "__qualname__") and facts.get("calls"):
            return str(facts.get("name"))
        # Libraries look for such names; the answer says at most whether it has one.
        if name.startswith("__") and name.endswith("__") and name not in ("__doc__", "__dict__", "__wrapped__"):
            mine = vars(Remote).get(name)
            if not isinstance(mine, types.FunctionType) or name not in link_of(self).operate("dir", self):
                raise AttributeError(name)
            return types.MethodType(mine, self)
        return link_of(self).operate("getattr", self, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return link_of(self).call(target_of(self), args, named)

    def __iter__(self) -> Any:
        link, facts = link_of(self), facts_of(self)
        iterator = self if facts.get("next") else link.operate("iter", self)
        if not isinstance(iterator, Remote):
            yield from iterator
            return
        for count in itertools.count():
            most = 1 if count < _SINGLE else 1000
            items = link.ask("take", target_of(iterator), most).get("items")
            if not isinstance(items, list) or len(items) > most:
                raise Fault("error", "a reply that is no list of items")
            yield from map(link.decode, items)
            if len(items) < most:
                return

    async def __aiter__(self) -> Any:
        for item in link_of(self).operate("await", self):
            yield item

    def __contains__(self, item: Any) -> bool:
        if _may_ask(self, item):
            return bool(link_of(self).operate("contains", self, item))
        return any(item is each or item == each for each in self)

    def __instancecheck__(self, value: Any) -> bool:
        if not isinstance(value, Remote):  # a named tuple has come as one of the same name
            return hasattr(value, "_fields") and type(value).__name__ == facts_of(self).get("name")
        return link_of(self).operate("isinstance", value, self) is True

    def __subclasscheck__(self, kind: Any) -> bool:
        return isinstance(kind, Remote) and link_of(self).operate("issubclass", kind, self)

    def __eq__(self, other: object) -> bool:
        link = link_of(self)
        if type(other) is not Remote and isinstance(other, CONTENT) and facts_of(self).get("content"):
            held = link.operate("content", self)
            return type(held) is not Remote and bool(held == other)  # one that holds itself does not come out
        if not _may_ask(self, other) or link.operate("eq", self, other) is not True:
            return False
        if isinstance(other, Remote):
            states = [_state(link, each) for each in (self, other)]
            if all(map(_is_plain, states)) and states[0] != states[1]:
                return False
        link.inside += 1
        return True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """The answer may stop an exception, but none that says that it is wrong or by which checks are left out."""
        link = link_of(self)
        if error is not None and not isinstance(error, Exception):
            return False
        if link.raises:
            link.raised, link.raises = error, False
        stopped = link.decode(link.ask("exit", target_of(self), error and [type(error).__name__, str(error)])["value"])
        return stopped is True and error is link.raised and not isinstance(error, AssertionError)


# Past the attributes of the answer, which __getattribute__ gives.
link_of, target_of, facts_of = (vars(Remote)[slot].__get__ for slot in ("_link", "_target", "_facts"))


def _may_ask(one: Remote, other: Any) -> bool:
    """Whether an operator of the answer may see the other operand: an object of its own, or the test made this one."""
    return isinstance(other, Remote) or facts_of(one).get("type") in link_of(one).classes


def _state(link: Link, remote: Remote) -> Any:
    try:
        return link.operate("state", remote)
    except (TypeError, AttributeError):  # it has no attributes of its own
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float, str, bytes, type(None)))


def _define(name: str, *, compares: bool = False, reflected: bool = False) -> None:
    def binary(self: Remote, *others: Any) -> Any:
        if not all(_may_ask(self, other) for other in others):
            return NotImplemented
        link = link_of(self)
        link.inside += compares or not all(isinstance(other, Remote) for other in others)
        return link.operate(name, *others, self) if reflected else link.operate(name, self, *others)

    setattr(Remote, f"__{'r' * reflected}{name.rstrip('_')}__", binary)


def _define_plain(name: str, kind: type | None = None) -> None:
    def plain(self: Remote, *others: Any) -> Any:
        value = link_of(self).operate(name, self, *others)
        if kind is not None and type(value) is not kind:
            raise Fault("error", f"a reply to {name}() that is none")
        return value

    setattr(Remote, f"__{name}__", plain)


BINARY = "add sub mul truediv floordiv mod pow lshift rshift and_ or_ xor matmul divmod".split()
for _name in ("lt", "le", "gt", "ge"):
    _define(_name, compares=True)
for _name in BINARY:
    _define(_name)
    _define(_name, reflected=True)
for _name in "neg pos abs invert getitem setitem delitem round reversed setattr delattr format dir next enter".split():
    _define_plain(_name)
for _name, _kind in {"len": int, "index": int, "hash": int, "repr": str}.items():
    _define_plain(_name, _kind)
for _kind in (int, float, str, bool, bytes, complex):
    _define_plain(_kind.__name__, _kind)
