"""What stands in for the answer's jail: a control that allows everything, or the answer beside the tests."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from roll_envs.verifiers.code.inside.proxies import Fault
from roll_envs.verifiers.code.inside.reading import ANSWER_MODULES


class Control:
    """In place of the answer's jail: an answer that has every name and whose values allow everything.

    An error in a statement that did nothing with such a value is an error of the tests.
    """

    def __init__(self) -> None:
        self.asked = self.inside = self.touched = 0
        self.time_s = self.memory_mb = 0.0
        self.anything = _anything(self)

    @property
    def untouched(self) -> bool:
        return not self.touched

    def names(self, names: list[str]) -> dict[str, Any]:
        return dict.fromkeys(names)

    def name(self, name: str, data: Any) -> Any:
        if name[:1].isupper():  # a class, perhaps of an exception
            return _Whatever(name, (Exception,), vars(type(self.anything)) | {"_control": self})
        # A function, or a plain value.
        return type("Named", (type(self.anything),), {"__call__": lambda _, *args, **named: self.call()})()

    def call(self, *args: Any, **named: Any) -> Any:
        self.asked += 1
        return self.anything


class _Whatever(type):
    def __getattr__(cls, name: str) -> Any:
        control = type.__getattribute__(cls, "_control")
        control.touched += 1
        return control.anything


class Beside:
    """In place of the answer's jail: the answer's module beside the tests, which it can then cheat."""

    untouched = True

    def __init__(self, source: str) -> None:
        self.inside, self.asked = 1, 1
        self.time_s = self.memory_mb = 0.0
        self._source = source
        self._module: Any = None

    def names(self, names: list[str]) -> dict[str, Any]:
        if self._module is None:
            self._module = types.ModuleType("solution")
            sys.modules.update(dict.fromkeys(ANSWER_MODULES - {"__main__"}, self._module))
            try:
                exec(compile(self._source, "<answer>", "exec", dont_inherit=True), self._module.__dict__)
            except BaseException as error:
                raise Fault("error", f"{type(error).__name__}: {error}") from None
        return {name: None for name in names if hasattr(self._module, name)}

    def name(self, name: str, data: Any) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise Fault("error", f"NameError: the answer defines no {name!r}") from None


def _anything(control: Control) -> Any:
    def method(result: Callable[[Any], Any]) -> Any:
        def touched(self: Any, *args: Any, **named: Any) -> Any:
            control.touched += 1
            return result(self)

        return touched

    own: dict[str, Any] = {}
    binary = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul divmod".split()
    for name in [*binary, *(f"r{each}" for each in binary), *"call getattr getitem neg pos abs invert enter".split()]:
        own[f"__{name}__"] = method(lambda self: self)
    for name in "eq ne lt le gt ge bool contains instancecheck".split():
        own[f"__{name}__"] = method(lambda self: True)
    for name in "setattr setitem delitem delattr exit".split():
        own[f"__{name}__"] = method(lambda self: None)
    simple = {
        "len": 1,
        "int": 1,
        "index": 1,
        "hash": 1,
        "float": 1.0,
        "bytes": b"1",
        "str": "1",
        "repr": "1",
        "format": "1",
    }
    for name, value in simple.items():
        own[f"__{name}__"] = method(lambda self, value=value: value)  # type: ignore[misc]
    own["__iter__"] = method(lambda self: iter([self]))
    return type("Anything", (), own)()
