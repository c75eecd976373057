"""Exchange of values with the candidate in the sandbox: fetches plain values, and writes values as source text.

Left out: how test code is evaluated, see ``expressions`` and ``interpreter``.
"""

from __future__ import annotations

import ast
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

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
from roll_envs.verifiers.code.session import CandidateFault, CandidateSession
from roll_envs.verifiers.code.values import Opaque, literal

__all__ = ["ValueExchange"]

MAX_STEPS = 1_000_000


class ValueExchange:
    """Converts values between test code and one candidate, up to a point in time and a number of steps."""

    def __init__(self, session: CandidateSession, *, until: float = math.inf) -> None:
        self.session, self._until, self._steps = session, until, 0
        self._asked = False

    def refuse(self, why: str) -> NoReturn:
        """Raise for what cannot be computed here: :class:`Unjudgeable`, an error of the tests, as long as no value of
        the candidate was used; afterwards :class:`TestFault`, since a candidate must not be able to prevent a verdict
        by returning an unusual value."""
        raise TestFault(ValueError(why)) if self._asked else Unjudgeable(why)

    def ask(self, source: str) -> Any:
        self.in_time()
        store, value = self.session.evaluate(source)
        return Remote(store) if isinstance(value, Opaque) else value

    def plain(self, value: Any) -> Any:
        """The value as plain Python data; :class:`Opaque` where it has no such form."""
        if isinstance(value, Remote):
            self.in_time()
            return self.session.evaluate(value.source)[1]
        if isinstance(value, Opaque) or type(value) in (*PLAIN, Counter, slice):
            return value
        if type(value).__module__ in ("fractions", "decimal") or is_type(value):
            return value
        raise Unjudgeable(f"test code that uses {value!r} as a value")

    def source(self, value: Any) -> str:
        """Source text that evaluates to the value inside the sandbox."""
        if isinstance(value, Remote):
            return value.source
        if isinstance(value, Lambda):
            return f"({self._closed(value)})"
        if isinstance(value, Function):
            raise Unjudgeable(f"test code that hands its function {value.node.name} to the candidate")
        # A built-in function, as in key=len, goes by its name.
        for name, known in BUILT_IN.items():
            if value is known:
                return name
        try:
            return literal(dict(value) if type(value) is Counter else value)
        except TypeError as error:
            self.refuse(str(error))

    def _closed(self, function: Lambda) -> str:
        """The source of a lambda, with variables of the test code replaced by their values."""
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
            # An iterator or container of the candidate's own is read out in the sandbox.
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
        """Compute on plain values; errors of Python become :class:`TestFault`."""
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
