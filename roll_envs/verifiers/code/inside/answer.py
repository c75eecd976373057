"""Serves the answer's functions and objects in its own jail: one JSON message in, one out.

Everything here runs beside the answer, which can change or forge it; nothing that is expected is ever sent here.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import operator
import os
import queue
import re
import sys
import threading
import types
import typing
from json import dumps, loads  # as they were before the answer, or a patch of the tests, replaced them
from typing import Any

from roll_envs.verifiers.code.inside.patches import Patched, StandIn
from roll_envs.verifiers.code.inside.preamble import raise_limits
from roll_envs.verifiers.code.inside.shared import Files, obey
from roll_envs.verifiers.code.inside.values import CONTENT, Nodes, compiled, decode, encode, told

_CHANGING = ("l", "d", "S", "Y", "Q", "C", "O", "a", "dd", "pd")
"""Tags of values that can be changed in place."""
STACK_BYTES = 64 << 20


class Answer:
    """The answer's module with the objects that the tests hold handles of."""

    def __init__(self, mark: str, sources: tuple[str, ...], identity: str) -> None:
        self._mark, self._sources = mark, sources
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._nodes = Nodes({})
        self._stand_ins: dict[int, StandIn] = {}
        self._files: Files | None = None
        self._inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.space: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self._patched = Patched(self.given)
        raise_limits()
        threading.stack_size(STACK_BYTES)
        threading.Thread(target=self._serve, daemon=True).start()
        self._reply(identity)

    def step(self, identity: str, message: str) -> None:
        """Give a message to the thread of the answer and print what it says next."""
        self._inbox.put(message)
        self._reply(identity)

    def _reply(self, identity: str) -> None:
        content = self._outbox.get()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the answer may have closed or replaced it
                stream.flush()
        # It begins with a newline, since the answer may have printed a line without an end.
        data = ("\n" + self._mark + identity + dumps(content) + "\n").encode()
        while data:
            data = data[os.write(1, data) :]

    # -- in the thread of the answer ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        fault = self._guarded(self._load).get("fault")
        # Functions defined before an error can still be called.
        self._load_fault = f"{fault['kinds'][0][1]}: {fault['text'][:300]}" if fault else ""
        self._outbox.put({"value": None})
        while True:
            self._say(self._handled(self._told()))

    def _told(self) -> dict[str, Any]:
        """The next message, when what the tests share has been taken from it."""
        message: dict[str, Any] = loads(self._inbox.get())
        if shared := message.get("shared"):
            self._guarded(lambda: self._share(shared))
        self._patched.enter()
        return message

    def _share(self, shared: dict[str, Any]) -> dict[str, Any]:
        self._files = self._files or Files(shared["root"])
        self._files.take(shared["changes"])
        obey(shared, self._decode)
        if shared.get("patches") is not None:
            self._patched.set(shared["patches"], self._decode)
        return {}

    def _say(self, reply: dict[str, Any]) -> None:
        self._patched.leave()
        if self._files is not None:
            reply["shared"] = None
            with contextlib.suppress(Exception):
                reply["shared"] = self._files.changes()
        self._outbox.put(reply)

    def _load(self) -> dict[str, Any]:
        module = sys.modules["answer"] = types.ModuleType("answer")
        known = vars(sys.modules[raise_limits.__module__])
        below = {name: value for name, value in known.items() if not name.startswith("__")}
        self.space = module.__dict__
        self.given.update({**below, **vars(builtins)})
        self.space["__builtins__"] = self.given
        exec(compiled(self._sources), self.space)
        return {"value": None}

    def _handled(self, request: dict[str, Any]) -> dict[str, Any]:
        self._nodes = Nodes({})  # they are copied with calls alone
        return self._guarded(lambda: getattr(self, "_do_" + request["do"])(*request["with"]))

    def _guarded(self, work: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = work()
            return found
        except BaseException as error:
            return {"fault": told(error, lambda value: encode(value, self._handle))}

    def _do_names(self, names: list[str]) -> dict[str, Any]:
        """Which of the names the answer has, with their values."""
        found = {}
        for name in names:
            with contextlib.suppress(NameError, AttributeError):
                found[name] = self._encode(self.find(name))
        return {"names": found, "load": self._load_fault}

    def find(self, name: str) -> Any:
        """A dotted name; a function that is only a method of ``Solution`` is found there."""
        first, *rest = name.replace("()", "").split(".")
        if first not in self.space:
            if not rest and hasattr(self.space.get("Solution"), first):
                return getattr(self.space["Solution"](), first)
            raise NameError(f"name {first!r} is not defined")
        value = self.space[first]
        for part in rest:
            value = getattr(value() if isinstance(value, type) else value, part)
        return value

    def _do_call(
        self, target: Any, args: list[Any], named: dict[str, Any], lists: bool = False, nodes: Any = ((), ())
    ) -> dict[str, Any]:
        own = self._nodes = Nodes({name: kind for name in nodes[0] if isinstance(kind := self._node(name), type)})
        own.take(nodes[1], self._decode)
        function = self._target(target)
        given, names = [self._decode(a) for a in args], {k: self._decode(v) for k, v in named.items()}
        if lists:
            given = self._nodes_in(function, given)
        value = function(*given, **names)
        self._nodes = own  # again, since it may have called back
        if lists:
            # On LeetCode nothing is the empty list of nodes.
            kind = str(getattr(function, "__annotations__", {}).get("return"))
            value = [] if value is None and re.search("ListNode|TreeNode", kind) else self._nodes_out(value)
        # An argument that the call changed in place goes back too.
        before, now = [*args, *named.values()], [*given, *names.values()]
        changing = [isinstance(data, list) and data[0] in _CHANGING for data in before]
        same = [i for i, each in enumerate(now) if each is value and changing[i]]
        after = [self._again(data, new) if may else None for may, data, new in zip(changing, before, now)]  # noqa: B905
        reply: dict[str, Any] = {"same": same[0]} if same else {"value": self._encode(value)}
        reply["table"] = own.table(self._encode)
        return reply | ({"after": after} if any(after) else {})

    def _again(self, old: list[Any], value: Any) -> Any:
        new = self._encode(value)
        return new if dumps(new) != dumps(old) else None  # for ``!=`` 1 is True

    def _do_op(self, name: str, args: list[Any]) -> dict[str, Any]:
        return {"value": self._encode(_OPERATIONS[name](*map(self._decode, args)))}

    def _do_exit(self, target: Any, raised: list[str] | None) -> dict[str, Any]:
        error = self._error([["builtins", raised[0]]], raised[1]) if raised else None
        value = self._target(target)
        return {"value": self._encode(bool(type(value).__exit__(value, error and type(error), error, None)))}

    def _do_take(self, target: Any, most: int) -> dict[str, Any]:
        """At most ``most`` items of an iterator; fewer where it has ended."""
        return {"items": [self._encode(item) for item in itertools.islice(self._target(target), most)]}

    def _target(self, target: Any) -> Any:
        return self.find(target) if isinstance(target, str) else self._kept[target]

    def _encode(self, value: Any) -> Any:
        try:
            return encode(value, self._handle)
        except ValueError:
            return self._handle(value)

    def _handle(self, value: Any) -> list[Any]:
        """``["o", id, facts]`` for an object that stays here."""
        if type(value) in (_Test, StandIn):
            return ["k", value._number]
        if (node := self._nodes.number(value)) is not None:
            return node
        if id(value) not in self._numbers:  # it is kept, so that no other object gets its id
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        kind = value if isinstance(value, type) else type(value)
        facts = {
            "type": kind.__name__,
            "calls": callable(value),
            "name": getattr(value, "__name__", "") if callable(value) else "",
            "class": isinstance(value, type),
            "awaits": inspect.iscoroutine(value),
            "next": hasattr(kind, "__next__"),
            "content": next((each.__name__ for each in CONTENT if issubclass(type(value), each)), ""),
            "generator": isinstance(value, types.GeneratorType),
        }
        named = [[each.__module__, each.__qualname__] for each in kind.__mro__]
        if isinstance(value, type):
            facts |= {"error": named} if issubclass(value, BaseException) else {}
        else:
            facts["kinds"] = named
        return ["o", self._numbers[id(value)], facts]

    def _decode(self, data: Any) -> Any:
        return decode(data, self._theirs)

    def _theirs(self, data: list[Any]) -> Any:
        if data[0] == "h":
            return self._target(data[1])
        if data[0] == "k":
            return _Test(self, *data[1:])
        if data[0] == "mk":
            return self._stand_ins.setdefault(data[1], StandIn(data[1], self.use))  # ``is`` holds for it
        if data[0] == "nd":
            return self._nodes.node(data[1])
        if data[0] == "G":
            __import__(data[1])
            return getattr(sys.modules[data[1]], data[2])
        raise ValueError("not a value in the agreed form")

    def use(self, number: int, how: str, /, *args: Any, **named: Any) -> Any:
        """Use a mock of the tests."""
        return self.call_back(number, args, named, how)

    def call_back(self, number: int, args: Any, named: dict[str, Any], how: str = "") -> Any:
        """Call a function of the tests: requests that it makes meanwhile are served until its result comes."""
        self._nodes = Nodes({})
        given, names = [self._encode(arg) for arg in args], {k: self._encode(v) for k, v in named.items()}
        self._say({"call": number, "args": given, "named": names, "how": how})
        while "do" in (message := self._told()):
            self._say(self._handled(message))
        if "fault" in message:
            raise self._error(**message["fault"])
        return self._decode(message["value"])

    def _error(self, kinds: list[list[str]], text: str, args: Any = None, state: Any = None) -> Exception:
        """An exception of the tests: of a class of the answer, or the first of those here that a library has."""
        found = [self.space.get(kinds[0][1]), *(getattr(sys.modules.get(at), name, None) for at, name in kinds)]
        kind = next((each for each in found if isinstance(each, type) and issubclass(each, Exception)), Exception)
        error = kind.__new__(kind)
        error.args = (text,) if args is None else tuple(map(self._decode, args))
        with contextlib.suppress(TypeError):
            kind.__init__(error, *error.args)
        for name, value in (state or {}).items():
            setattr(error, name, self._decode(value))
        return error

    def _nodes_in(self, function: Any, args: list[Any]) -> list[Any]:
        """Lists as ListNode or TreeNode where the annotation of a parameter says so, as on LeetCode."""
        kinds: list[str] = []
        with contextlib.suppress(TypeError, ValueError):
            kinds = [str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()]
        return [*map(self._as_node, kinds, args), *args[len(kinds) :]]

    def _as_node(self, kind: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if "ListNode" in kind and ("ist[" in kind or (value and isinstance(value[0], list))):
            return [self._as_node("ListNode", item) for item in value]
        if "ListNode" in kind:
            first = None
            for item in reversed(value):
                first = self._made("ListNode", item, next=first)
            return first
        return self._tree(value) if "TreeNode" in kind else value

    def _node(self, name: str) -> Any:
        """The class of this name: the answer's own, or the one that it takes for granted."""
        return self.space.get(name, self.given.get(name))

    def _made(self, name: str, value: Any, **links: Any) -> Any:
        kind = self._node(name)
        try:
            return kind(value, *links.values())
        except TypeError:  # a class of the answer may take the value alone
            node = kind(value)
            for link, other in links.items():
                setattr(node, link, other)
            return node

    def _tree(self, values: list[Any]) -> Any:
        numbers = itertools.count(1)
        below = [(0, 0) if value is None else (next(numbers), next(numbers)) for value in values]
        nodes: dict[int, Any] = {}
        for number, value in reversed([*enumerate(values)]):
            if value is not None:
                left, right = map(nodes.get, below[number])
                nodes[number] = self._made("TreeNode", value, left=left, right=right)
        return nodes.get(0)

    def _nodes_out(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._nodes_out(item) for item in value]
        if isinstance(value, self._node("ListNode")):
            values: list[Any] = []
            while value is not None and len(values) < 100_000:
                values.append(value.val)
                value = value.next
            return values
        if not isinstance(value, self._node("TreeNode")):
            return value
        nodes: list[Any] = [value]
        found: list[Any] = []
        for node in nodes:
            found.append(None if node is None else node.val)
            if node is not None and len(nodes) < 100_000:
                nodes += [node.left, node.right]
        while found and found[-1] is None:
            found.pop()
        return found


class _Test:
    """A function of the tests, which runs in their jail."""

    def __init__(self, owner: Answer, number: int, name: str) -> None:
        self._owner, self._number = owner, number
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._owner.call_back(self._number, args, named)


def _await(value: Any) -> Any:
    import asyncio  # slow to import, and rarely needed

    async def whole() -> Any:
        return [item async for item in value] if hasattr(value, "__aiter__") else await value

    return asyncio.run(whole())


_OPERATIONS: dict[str, typing.Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in operator.__all__},
    **{f.__name__: f for f in (getattr, setattr, delattr, len, str, repr, format, hash, bool, int, float, iter, next)},
    **{f.__name__: f for f in (reversed, round, divmod, isinstance, issubclass, bytes, complex, dir)},
    "enter": lambda value: type(value).__enter__(value),
    "state": lambda value: dict(vars(value)),
    # What a container with methods of its own holds, as a plain one.
    "content": lambda value: next(kind for kind in CONTENT if isinstance(value, kind))(value),
    "await": _await,
}
