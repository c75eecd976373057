"""What tests patch with ``unittest.mock``, patched in the answer's process too, with stand-ins for the mocks.

A mock stays with the tests. The answer can use it as the code under test would: call and enter it, iterate, read and
set items and attributes, but none by which a mock is told what to do or asked what it was called with.
"""

from __future__ import annotations

import builtins
import itertools
import pkgutil
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from roll_envs.verifiers.code.inside.values import Unusable

_MOST_ITEMS = 10_000
_ABSENT = object()


class Patches:
    """The targets that the tests have patched; ``mock``: ``unittest.mock``, which the answer's jail does without."""

    def __init__(self, mock: Any) -> None:
        self._active: list[tuple[Any, str]] = []
        self._changed = False
        kind: Any = mock._patch
        enter, leave = kind.__enter__, kind.__exit__

        def entered(patch: Any) -> Any:
            value = enter(patch)
            self._active.append((patch.target, patch.attribute))
            self._changed = True
            return value

        def left(patch: Any, *error: Any) -> Any:
            self._active.remove((patch.target, patch.attribute))
            self._changed = True
            return leave(patch, *error)

        kind.__enter__, kind.__exit__ = entered, left

    def forget(self) -> None:
        """The answer has lost everything."""
        self._changed = True

    def news(self, encode: Callable[[Any], Any]) -> list[list[Any]] | None:
        """Owner, attribute and value of each; ``None`` where they are as they were. Raises :class:`Unusable`."""
        if not self._changed:
            return None
        self._changed = False
        # What the answer prints comes with each reply, and is printed here.
        told = [(owner, name) for owner, name in self._active if (owner, name) != (sys, "stdout")]
        return [[_name(owner), name, encode(getattr(owner, name))] for owner, name in told]


def _name(owner: Any) -> str:
    if type(owner) is types.ModuleType:
        return str(owner.__name__)
    if type(owner) is type and owner.__module__ != "tests":
        return f"{owner.__module__}:{owner.__qualname__}"
    raise Unusable(f"the tests patch a {type(owner).__name__}")


def is_mock(value: Any) -> bool:
    """Raises :class:`Unusable` for one that would run functions of a library with what the answer gives it."""
    library: Any = sys.modules.get("unittest.mock")
    if library is None or not isinstance(value, library.NonCallableMock):
        return False
    effect = value.side_effect if isinstance(value, library.CallableMixin) else None
    own = isinstance(effect, type) or getattr(effect, "__module__", None) in (None, "tests", "unittest.mock")
    if value._mock_wraps is not None or (callable(effect) and not own):
        raise Unusable("the tests have a mock that calls a function of a library")
    return True


def use(mock: Any, how: str, /, *args: Any, **named: Any) -> Any:
    """What the mock gives the answer."""
    if not is_mock(mock) or how not in _USES:
        raise TypeError("not a use of a mock")
    if how in ("getattr", "setattr"):
        name = args[0]
        own = {*dir(sys.modules["unittest.mock"].AsyncMock), "method_calls"}
        if not isinstance(name, str) or name.startswith("_") or name in own:
            raise AttributeError(name)
        return getattr(builtins, how)(mock, *args)
    method = getattr(mock, f"__{how}__", None)
    if method is None:
        raise TypeError(f"{type(mock).__name__!r} object has no {how}")
    value = method(*args, **named)
    return [*itertools.islice(value, _MOST_ITEMS)] if how == "iter" else value


_USES = frozenset("getattr setattr call enter exit iter next getitem setitem delitem contains len".split())


class StandIn:
    """A mock of the tests, in the answer's process; ``ask`` says how it is used."""

    def __init__(self, number: int, ask: Callable[..., Any]) -> None:
        vars(self).update(_number=number, _ask=ask)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask(self._number, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # as matplotlib notes the __signature__ of what it shows figures with
            vars(self)[name] = value
        else:
            self._ask(self._number, "setattr", name, value)

    def __exit__(self, *error: object) -> bool:
        return bool(self._ask(self._number, "exit", None, None, None))

    def __iter__(self) -> Any:
        return iter(self._ask(self._number, "iter"))

    def __bool__(self) -> bool:
        return True


def _define(how: str) -> None:
    def used(self: StandIn, /, *args: Any, **named: Any) -> Any:
        return self._ask(self._number, how, *args, **named)

    setattr(StandIn, f"__{how}__", used)


for _how in _USES - {"getattr", "setattr", "exit", "iter"}:
    _define(_how)


class Patched:
    """What is patched in the answer's process while it runs, for what runs between may need it as it is; ``below``: the
    answer's built-in names."""

    def __init__(self, below: dict[str, Any]) -> None:
        self._below = below
        self._values: list[tuple[Any, str, Any]] = []
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, patches: list[list[Any]], decode: Callable[[Any], Any]) -> None:
        self._values = []
        for path, name, data in patches:
            with suppress(ImportError, AttributeError):
                self._values.append((pkgutil.resolve_name(path), name, decode(data)))

    def enter(self) -> None:
        for owner, name, value in self._values:
            self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        self._below.update(vars(builtins) if self._values else {})

    def leave(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._below.update(vars(builtins) if self._values else {})
