"""Collects the calls of simple tests ahead, so that the judge makes them all between two exchanges with this jail.

Simple tests (calls with expected values; asserts, loops and functions that change nothing outside their own module) are
run twice in the process of the cells: with a :class:`Recorder` that notes what they call, and with the replies. The
answer still sees each call only when it has replied to the one before. Where the two runs differ, as when a test works
with an object of the answer, the tests are run again as all others are: in a fork that asks call by call.
"""

from __future__ import annotations

import builtins
import json
from collections import deque
from typing import Any

from roll_envs.verifiers.code.inside.compare import plain_value, readings
from roll_envs.verifiers.code.inside.proxies import Link
from roll_envs.verifiers.code.inside.reading import prepared
from roll_envs.verifiers.code.inside.stand_ins import Control
from roll_envs.verifiers.code.inside.values import encode

MOST_BYTES = 1 << 20
"""Of the calls of a batch together; the output of a cell is limited."""


def is_simple(plan: dict[str, Any]) -> bool:
    """Whether the tests can be run twice in one process."""
    if plan["calls"]:
        return all(not call["loose"] or len(list(readings(plain_value(call["args"])))) == 1 for call in plan["calls"])
    return prepared(tuple(plan["asserts"]), plan["entry_point"]).harmless


class Diverged(BaseException):
    """The tests do not call what they called before, or what cannot be collected."""


class Recorder(Control):
    """Notes the requests of the tests; its values allow everything."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.diverged = False
        """Also where the tests catch the exception."""
        self._left = MOST_BYTES

    def names(self, names: list[str]) -> dict[str, Any]:
        # A class may make objects, which live in the jail of the answer; a built-in name may be the answer's or not.
        if any((name[:1].isupper() and "." not in name) or hasattr(builtins, name) for name in names):
            raise self._diverge()
        self._note("names", names)
        return super().names(names)

    def name(self, name: str, data: Any) -> Any:
        return lambda *args, **named: self.call(name, args, named)

    def call(self, target: Any, args: Any, named: dict[str, Any], *, lists: bool = False) -> Any:
        try:
            sent = [encode(arg, self._refuse) for arg in args]
            self._note("call", target, sent, {key: encode(value, self._refuse) for key, value in named.items()}, lists)
        except ValueError:
            raise self._diverge() from None
        return super().call()

    def _note(self, do: str, *arguments: Any) -> None:
        text = json.dumps({"do": do, "with": arguments})
        self._left -= len(text)
        if self._left < 0:
            raise self._diverge()
        self.requests.append(text)

    def _refuse(self, value: Any) -> Any:
        raise self._diverge()

    def _diverge(self) -> Diverged:
        self.diverged = True
        return Diverged()


class Replay(Link):
    """Answers from the replies to recorded requests; those that the tests leave out are passed over."""

    def __init__(self, requests: list[str], replies: list[str]) -> None:
        super().__init__(None)
        self.diverged = False
        self._ahead = deque(zip(requests, replies))  # noqa: B905  the judge stops where replies are too long

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        wanted = json.dumps(message)
        while self._ahead:
            request, reply = self._ahead.popleft()
            if request == wanted:
                return self._read(reply)
        self.diverged = True
        raise Diverged
