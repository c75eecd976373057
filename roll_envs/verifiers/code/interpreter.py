"""Interprets test code outside the sandbox: ``assert f(2) == 4``, ``def check(candidate): ...``, loops, ``try``.

It walks Python's syntax tree. Calls of the candidate are evaluated in the sandbox, with their arguments written as
source; everything else (expected values, comparisons, built-in functions) is computed here, on plain values only. Test
code is never executed by Python itself; a construct that is not implemented below raises :class:`Unjudgeable`.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from roll_envs.verifiers.code.exchange import ValueExchange
from roll_envs.verifiers.code.expressions import Expressions
from roll_envs.verifiers.code.scope import (
    MODULES,
    AssertionFailed,
    Break,
    Continue,
    Function,
    Remote,
    Return,
    Scope,
    TestFault,
    Unjudgeable,
    short,
)
from roll_envs.verifiers.code.session import CandidateFault, CandidateSession, Usage

__all__ = ["AssertInterpreter", "Check"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one assert, or of a statement that raised."""

    source: str
    passed: bool
    status: str
    """``ok``, ``wrong``, or the :class:`CandidateFault` status."""
    detail: str
    usage: Usage
    inside: bool
    """Whether code of the candidate took part in the comparison itself."""


class AssertInterpreter:
    """Runs test code against a candidate and collects its checks; ``==`` compares floats with ``tolerance``."""

    def __init__(
        self,
        session: CandidateSession,
        *,
        tolerance: float = 0.0,
        names: Mapping[str, str] | None = None,
        until: float = math.inf,
    ) -> None:
        self._exchange = ValueExchange(session, until=until)
        self._expressions = Expressions(self._exchange, tolerance=tolerance, run_body=self._block)
        self._top = Scope(names={name: Remote(source) for name, source in (names or {}).items()})
        self._trying = 0
        self.checks: list[Check] = []

    def defines(self, name: str) -> bool:
        """Whether the test code has defined a function of that name."""
        return isinstance(self._top.names.get(name), Function)

    def run(self, source: str) -> None:
        """Run test code; every assert adds a check, and so does every statement that raises.

        A failed assert does not stop what follows it. Raises :class:`Unjudgeable`.
        """
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unjudgeable(f"the test code cannot be parsed: {error}") from None
        self._compute_constants(tree)
        self._block(tree.body, self._top)

    def _compute_constants(self, tree: ast.Module) -> None:
        """Evaluate constant arithmetic before any call of the candidate: what fails is an error of the tests."""
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and not any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node)):
                with contextlib.suppress(TestFault):
                    self._expressions.value(node, self._top)

    # -- statements ----------------------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            # Within try an error goes to its handler instead of becoming a check.
            if self._trying:
                self._statement(statement, scope)
                continue
            try:
                self._statement(statement, scope)
            except (CandidateFault, TestFault, AssertionFailed) as error:
                self._add(statement, error=error)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self._exchange.step()
        run = getattr(self, f"_do_{type(node).__name__}", None)
        if run is None:
            raise Unjudgeable(f"test code with {type(node).__name__} in it: {short(node)}")
        run(node, scope)

    def _add(self, node: ast.stmt, *, error: Exception | None = None) -> None:
        status = error.status if isinstance(error, CandidateFault) else "wrong" if error is not None else "ok"
        self.checks.append(
            Check(
                source=short(node),
                passed=error is None,
                status=status,
                detail=str(error) if error is not None else "",
                usage=self._exchange.session.take_usage(),
                inside=self._expressions.decided_inside,
            )
        )
        self._expressions.decided_inside = False

    def _do_Assert(self, node: ast.Assert, scope: Scope) -> None:
        if not self._exchange.truth(self._exchange.plain(self._expressions.value(node.test, scope))):
            raise AssertionFailed("the assertion does not hold")
        self._add(node)

    def _do_Expr(self, node: ast.Expr, scope: Scope) -> None:
        self._expressions.value(node.value, scope)

    def _do_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self._expressions.value(node.value, scope)
        for target in node.targets:
            self._expressions.bind(target, value, scope)

    def _do_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._expressions.bind(node.target, self._expressions.value(node.value, scope), scope)

    def _do_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        if not isinstance(node.target, ast.Name):
            raise Unjudgeable(f"test code with {short(node)}")
        now = ast.Name(id=node.target.id, ctx=ast.Load())
        scope.names[node.target.id] = self._expressions.value(ast.BinOp(left=now, op=node.op, right=node.value), scope)

    def _do_If(self, node: ast.If, scope: Scope) -> None:
        # Test code is run as a main program.
        if isinstance(node.test, ast.Compare) and short(node.test).startswith("__name__ =="):
            return self._block(node.body, scope)
        return self._block(
            node.body
            if self._exchange.truth(self._exchange.plain(self._expressions.value(node.test, scope)))
            else node.orelse,
            scope,
        )

    def _do_For(self, node: ast.For, scope: Scope) -> None:
        for item in self._exchange.iterate(self._expressions.value(node.iter, scope)):
            self._expressions.bind(node.target, item, scope)
            try:
                self._block(node.body, scope)
            except Continue:
                continue
            except Break:
                return
        self._block(node.orelse, scope)

    def _do_While(self, node: ast.While, scope: Scope) -> None:
        while self._exchange.truth(self._exchange.plain(self._expressions.value(node.test, scope))):
            self._exchange.step()
            try:
                self._block(node.body, scope)
            except Continue:
                continue
            except Break:
                return

    def _do_Try(self, node: ast.Try, scope: Scope) -> None:
        self._trying += 1
        try:
            self._block(node.body, scope)
        except (CandidateFault, TestFault, AssertionFailed) as error:
            # The handler itself stands outside of the try.
            self._trying -= 1
            try:
                self._handle(node, error, scope)
            finally:
                self._trying += 1
        else:
            self._block(node.orelse, scope)
        finally:
            self._trying -= 1
            self._block(node.finalbody, scope)

    def _handle(self, node: ast.Try, error: Exception, scope: Scope) -> None:
        names = _names_of(error)
        for handler in node.handlers:
            if handler.type is None or set(_exception_names(handler.type)) & set(names):
                if handler.name is not None:
                    scope.names[handler.name] = str(error)
                had = len(self.checks)
                self._block(handler.body, scope)
                # A handler without asserts of its own passes.
                if len(self.checks) == had:
                    self._add(node)  # the test expected this error
                return
        raise error

    def _do_With(self, node: ast.With, scope: Scope) -> None:
        call = node.items[0].context_expr
        raises = isinstance(call, ast.Call) and short(call.func).split(".")[-1] in ("raises", "assertRaises")
        if len(node.items) != 1 or not raises or not isinstance(call, ast.Call) or not call.args:
            raise Unjudgeable(f"test code with {short(call)}")
        self._trying += 1
        try:
            self._block(node.body, scope)
        except (CandidateFault, TestFault, AssertionFailed) as error:
            if not set(_exception_names(call.args[0])) & set(_names_of(error)):
                raise
        else:
            raise AssertionFailed("nothing was raised")
        finally:
            self._trying -= 1
        self._add(node)

    def _do_FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        if node.decorator_list:
            raise Unjudgeable(f"test code with the decorated function {node.name}")
        scope.names[node.name] = Function(node, scope)

    def _do_Return(self, node: ast.Return, scope: Scope) -> None:
        raise Return(None if node.value is None else self._expressions.value(node.value, scope))

    def _do_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Bind names of modules known here; import others in the sandbox, for calls like ``f(date(2020, 1, 1))``."""
        module = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if module is None and alias.name in MODULES:
                scope.names[name] = MODULES[alias.name]
            elif module in MODULES and alias.name in MODULES[module]:
                scope.names[name] = MODULES[module][alias.name]
            # "answer" is the candidate's own module, whose names are known in the sandbox anyway.
            elif module != "answer" and (module or alias.name) not in ("pytest", "unittest"):
                self._exchange.session.execute(ast.unparse(node))
                scope.names[name] = Remote(name)

    _do_ImportFrom = _do_Import

    def _do_Pass(self, node: ast.Pass, scope: Scope) -> None:
        return

    _do_Global = _do_Nonlocal = _do_Pass

    def _do_Break(self, node: ast.Break, scope: Scope) -> None:
        raise Break

    def _do_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise Continue


def _names_of(error: Exception) -> tuple[str, ...]:
    if isinstance(error, CandidateFault | TestFault):
        return error.names
    return ("AssertionError", "Exception", "BaseException")


def _exception_names(node: ast.expr) -> list[str]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [short(n).split(".")[-1] for n in nodes]
