"""Between test code and the jail: values that are asked for, and values that are written out as arguments."""

from __future__ import annotations

import ast
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from roll_envs.verifiers.code.jail import CandidateFault, Jail
from roll_envs.verifiers.code.scope import (
    BUILT_IN,
    PLAIN,
    AssertionFailed,
    Function,
    Lambda,
    Remote,
    TestFault,
    Unjudgeable,
    is_type,
)
from roll_envs.verifiers.code.values import Opaque, literal

__all__ = ["Border"]

MAX_STEPS = 1_000_000


class Border:
    """What test code gets to see of one candidate, until a moment in time."""

    def __init__(self, jail: Jail, *, until: float = math.inf) -> None:
        self.jail, self._until, self._steps = jail, until, 0
        self._asked = False

    def refuse(self, why: str) -> NoReturn:
        """What cannot be computed here is the test code's fault until the candidate's values are in play, then theirs:
        a value must not be able to turn a wrong answer into no verdict."""
        raise TestFault(ValueError(why)) if self._asked else Unjudgeable(why)

    def ask(self, source: str) -> Any:
        self.in_time()
        store, value = self.jail.evaluate(source)
        return Remote(store) if isinstance(value, Opaque) else value

    def plain(self, value: Any) -> Any:
        """The plain value; :class:`Opaque` for what has none."""
        if isinstance(value, Remote):
            self.in_time()
            return self.jail.evaluate(value.source)[1]
        if isinstance(value, Opaque) or type(value) in (*PLAIN, Counter, slice):
            return value
        if type(value).__module__ in ("fractions", "decimal") or is_type(value):
            return value
        raise Unjudgeable(f"test code that uses {value!r} as a value")

    def source(self, value: Any) -> str:
        """Source text that gives the value inside."""
        if isinstance(value, Remote):
            return value.source
        if isinstance(value, Lambda):
            return f"({self._closed(value)})"
        if isinstance(value, Function):
            raise Unjudgeable(f"test code that hands its function {value.node.name} to the candidate")
        for name, known in BUILT_IN.items():
            if value is known:
                return name
        try:
            return literal(dict(value) if type(value) is Counter else value)
        except TypeError as error:
            self.refuse(str(error))

    def _closed(self, function: Lambda) -> str:
        """A lambda's text with the test's own variables written out."""
        own = {a.arg for a in function.node.args.args}
        outer = self

        class Fill(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                if node.id in own:
                    return node
                try:
                    value = function.scope.find(node.id)
                except KeyError:
                    return node
                return ast.parse(outer.source(value), mode="eval").body

        tree = ast.parse(ast.unparse(function.node), mode="eval")
        return ast.unparse(Fill().visit(tree))

    def arguments(self, arguments: list[Any], named: dict[str, Any]) -> str:
        return ", ".join([*map(self.source, arguments), *(f"{k}={self.source(v)}" for k, v in named.items())])

    def in_time(self) -> None:
        if time.monotonic() > self._until:
            raise CandidateFault("skipped", "the time for all tests was over")
        self._asked = True

    def iterate(self, value: Any) -> Iterator[Any]:
        plain = self.plain(value)
        if isinstance(plain, Opaque):
            plain = self.plain(self.ask(f"list({self.source(value)})"))
        items = self.guard(lambda: list(plain))
        for item in items:
            self.step()
            yield item

    def truth(self, value: Any) -> bool:
        if isinstance(value, Opaque):
            raise TestFault(TypeError(f"a {value.kind} where the test expects a plain value"))
        return bool(value)

    def guard(self, compute: Callable[[], Any]) -> Any:
        """What Python makes of plain values, with its errors as the test's."""
        try:
            return compute()
        except (Unjudgeable, CandidateFault, TestFault, AssertionFailed):
            raise
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
            MemoryError,
        ) as error:
            raise TestFault(error) from None

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self.refuse(f"the test code takes more than {MAX_STEPS} steps")
