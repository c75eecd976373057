"""Data of the interpreter of test code: scopes, functions, allowed built-ins and modules, and its exceptions."""

from __future__ import annotations

import ast
import builtins
import copy
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BUILT_IN",
    "BUILT_IN_FUNCTIONS",
    "FUNCTIONS",
    "MODULES",
    "PLAIN",
    "AssertionFailed",
    "Break",
    "Continue",
    "Function",
    "Lambda",
    "Remote",
    "Return",
    "Scope",
    "TestFault",
    "Unjudgeable",
    "is_type",
    "short",
]

PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
FUNCTIONS = (
    "abs all any ascii bin bool bytes chr complex dict divmod enumerate filter float frozenset hex int isinstance len "
    "list map max min oct ord pow range repr reversed round set slice sorted str sum tuple type zip"
).split()
MODULES: dict[str, dict[str, Any]] = {
    # The factorial of a large number would take very long here, outside of the sandbox and its limits.
    "math": {name: getattr(math, name) for name in dir(math) if not name.startswith("_") and name != "factorial"},
    "collections": {"Counter": Counter},
    "copy": {"deepcopy": copy.deepcopy, "copy": copy.copy},
}
"""What test code may use of the standard library here; other modules are imported in the sandbox."""


class Unjudgeable(Exception):
    """The test code uses what the interpreter does not implement, so the tests cannot be used."""


class TestFault(Exception):
    """An error in the computation of the test, such as ``len(5)``: the candidate returned a value of a wrong type."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}"[:300])
        # Of all base classes too, so that `except Exception` matches.
        self.names = tuple(kind.__name__ for kind in type(error).__mro__)


class AssertionFailed(Exception):
    """An assert inside ``try`` that does not hold."""


class Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Break(Exception):
    pass


class Continue(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Remote:
    """A value in the sandbox, given by the source text that evaluates to it."""

    source: str


@dataclass(frozen=True, slots=True)
class Function:
    node: ast.FunctionDef
    scope: Scope


@dataclass(slots=True)
class Scope:
    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Lambda:
    node: ast.Lambda
    scope: Scope


BUILT_IN: dict[str, Any] = {name: getattr(builtins, name) for name in FUNCTIONS}
BUILT_IN_FUNCTIONS = frozenset(BUILT_IN.values())


def is_type(value: Any) -> bool:
    return isinstance(value, type)


def short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 200 else text[:197] + "..."
