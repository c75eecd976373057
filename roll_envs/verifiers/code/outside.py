"""Test code evaluated outside the jail: ``assert f(2) == 4``, ``def check(candidate): ...``, loops, ``try``.

A small interpreter of Python's syntax tree. What calls the candidate is asked of the jail, with its arguments written
out; everything else (expected values, comparisons, built-in functions) is computed here, on plain values only. Nothing
of the test code is executed as Python, and what it may do is listed below; anything else raises :class:`Unjudgeable`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_envs.verifiers.code.jail import CandidateFault, Jail, Usage
from roll_envs.verifiers.code.values import Opaque, literal, same_value

__all__ = ["Check", "Outside", "Unjudgeable"]

MAX_STEPS = 1_000_000
MAX_SIZE = 1_000_000
"""Longest sequence, and most bits of a number, that test code may make."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
_FUNCTIONS = (
    "abs all any ascii bin bool bytes chr complex dict divmod enumerate filter float frozenset hex int isinstance len "
    "list map max min oct ord pow range repr reversed round set slice sorted str sum tuple type zip"
).split()
_MODULES: dict[str, dict[str, Any]] = {
    "math": {name: getattr(math, name) for name in dir(math) if not name.startswith("_") and name != "factorial"},
    "collections": {"Counter": Counter},
    "copy": {"deepcopy": copy.deepcopy, "copy": copy.copy},
}
"""What test code may use of the standard library; a module that is only imported is never touched."""
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.BitAnd: operator.and_,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARISON: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class Unjudgeable(Exception):
    """The test code does what cannot be done outside."""


class _TestFault(Exception):
    """An error in the test's own computation, such as ``len(5)``: the candidate gave what the test does not expect."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}"[:300])
        self.names = tuple(kind.__name__ for kind in type(error).__mro__)


class _AssertionFailed(Exception):
    """An assert inside ``try`` that does not hold."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """How one assert (or a statement that raised) came out."""

    source: str
    passed: bool
    status: str
    """``ok``, ``wrong``, or the :class:`CandidateFault` status."""
    detail: str
    usage: Usage
    inside: bool
    """Whether code of the candidate's took part in the comparison itself."""


@dataclass(frozen=True, slots=True)
class _Remote:
    """Something in the jail, by source text."""

    source: str


@dataclass(frozen=True, slots=True)
class _Function:
    node: ast.FunctionDef
    scope: _Scope


@dataclass(slots=True)
class _Scope:
    names: dict[str, Any] = field(default_factory=dict)
    outer: _Scope | None = None

    def find(self, name: str) -> Any:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise KeyError(name)


class Outside:
    """Runs test code against a jail and collects its checks; floats that ``==`` compares may be ``tolerance`` apart."""

    def __init__(
        self,
        jail: Jail,
        *,
        tolerance: float = 0.0,
        names: Mapping[str, str] | None = None,
        until: float = math.inf,
    ) -> None:
        self._jail, self._tolerance, self._until = jail, tolerance, until
        self._top = _Scope(names={name: _Remote(source) for name, source in (names or {}).items()})
        self._steps = self._trying = self._depth = self._sent = 0
        self._inside = False
        self.checks: list[Check] = []

    def defines(self, name: str) -> bool:
        """Whether the test code has defined a function of that name."""
        return isinstance(self._top.names.get(name), _Function)

    def run(self, source: str) -> None:
        """Run test code; every assert adds a check, and so does every statement that raises.

        A failed assert does not stop what follows it. Raises :class:`Unjudgeable`.
        """
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unjudgeable(f"the test code cannot be parsed: {error}") from None
        self._block(tree.body, self._top)

    # -- statements ----------------------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            if self._trying:
                self._statement(statement, scope)
                continue
            try:
                self._statement(statement, scope)
            except (CandidateFault, _TestFault, _AssertionFailed) as error:
                self._add(statement, error=error)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        self._step()
        run = getattr(self, f"_do_{type(node).__name__}", None)
        if run is None:
            raise Unjudgeable(f"test code with {type(node).__name__} in it: {_short(node)}")
        run(node, scope)

    def _add(self, node: ast.stmt, *, error: Exception | None = None) -> None:
        status = error.status if isinstance(error, CandidateFault) else "wrong" if error is not None else "ok"
        self.checks.append(
            Check(
                source=_short(node),
                passed=error is None,
                status=status,
                detail=str(error) if error is not None else "",
                usage=self._jail.take_usage(),
                inside=self._inside,
            )
        )
        self._inside = False

    def _do_Assert(self, node: ast.Assert, scope: _Scope) -> None:
        if not self._truth(self._plain(self._value(node.test, scope))):
            raise _AssertionFailed("the assertion does not hold")
        self._add(node)

    def _do_Expr(self, node: ast.Expr, scope: _Scope) -> None:
        self._value(node.value, scope)

    def _do_Assign(self, node: ast.Assign, scope: _Scope) -> None:
        value = self._value(node.value, scope)
        for target in node.targets:
            self._bind(target, value, scope)

    def _do_AnnAssign(self, node: ast.AnnAssign, scope: _Scope) -> None:
        if node.value is not None:
            self._bind(node.target, self._value(node.value, scope), scope)

    def _do_AugAssign(self, node: ast.AugAssign, scope: _Scope) -> None:
        if not isinstance(node.target, ast.Name):
            raise Unjudgeable(f"test code with {_short(node)}")
        now = ast.Name(id=node.target.id, ctx=ast.Load())
        scope.names[node.target.id] = self._value(ast.BinOp(left=now, op=node.op, right=node.value), scope)

    def _do_If(self, node: ast.If, scope: _Scope) -> None:
        if isinstance(node.test, ast.Compare) and _short(node.test).startswith("__name__ =="):
            return self._block(node.body, scope)
        return self._block(node.body if self._truth(self._plain(self._value(node.test, scope))) else node.orelse, scope)

    def _do_For(self, node: ast.For, scope: _Scope) -> None:
        for item in self._iterate(self._value(node.iter, scope)):
            self._bind(node.target, item, scope)
            try:
                self._block(node.body, scope)
            except _Continue:
                continue
            except _Break:
                return
        self._block(node.orelse, scope)

    def _do_While(self, node: ast.While, scope: _Scope) -> None:
        while self._truth(self._plain(self._value(node.test, scope))):
            self._step()
            try:
                self._block(node.body, scope)
            except _Continue:
                continue
            except _Break:
                return

    def _do_Try(self, node: ast.Try, scope: _Scope) -> None:
        self._trying += 1
        try:
            self._block(node.body, scope)
        except (CandidateFault, _TestFault, _AssertionFailed) as error:
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

    def _handle(self, node: ast.Try, error: Exception, scope: _Scope) -> None:
        names = _names_of(error)
        for handler in node.handlers:
            if handler.type is None or set(_exception_names(handler.type)) & set(names):
                if handler.name is not None:
                    scope.names[handler.name] = str(error)
                had = len(self.checks)
                self._block(handler.body, scope)
                if len(self.checks) == had:
                    self._add(node)  # the error was what the test waited for
                return
        raise error

    def _do_With(self, node: ast.With, scope: _Scope) -> None:
        call = node.items[0].context_expr
        raises = isinstance(call, ast.Call) and _short(call.func).split(".")[-1] in ("raises", "assertRaises")
        if len(node.items) != 1 or not raises or not isinstance(call, ast.Call) or not call.args:
            raise Unjudgeable(f"test code with {_short(call)}")
        self._trying += 1
        try:
            self._block(node.body, scope)
        except (CandidateFault, _TestFault, _AssertionFailed) as error:
            if not set(_exception_names(call.args[0])) & set(_names_of(error)):
                raise
        else:
            raise _AssertionFailed("nothing was raised")
        finally:
            self._trying -= 1
        self._add(node)

    def _do_FunctionDef(self, node: ast.FunctionDef, scope: _Scope) -> None:
        if node.decorator_list:
            raise Unjudgeable(f"test code with the decorated function {node.name}")
        scope.names[node.name] = _Function(node, scope)

    def _do_Return(self, node: ast.Return, scope: _Scope) -> None:
        raise _Return(None if node.value is None else self._value(node.value, scope))

    def _do_Import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        """Names of modules that are known here; others stay in the jail, for calls like ``f(datetime(2020, 1, 1))``."""
        module = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if module is None and alias.name in _MODULES:
                scope.names[name] = _MODULES[alias.name]
            elif module in _MODULES and alias.name in _MODULES[module]:
                scope.names[name] = _MODULES[module][alias.name]
            elif module != "answer" and (module or alias.name) not in ("pytest", "unittest"):
                self._jail.execute(ast.unparse(node))
                scope.names[name] = _Remote(name)

    _do_ImportFrom = _do_Import

    def _do_Pass(self, node: ast.Pass, scope: _Scope) -> None:
        return

    _do_Global = _do_Nonlocal = _do_Pass

    def _do_Break(self, node: ast.Break, scope: _Scope) -> None:
        raise _Break

    def _do_Continue(self, node: ast.Continue, scope: _Scope) -> None:
        raise _Continue

    def _bind(self, target: ast.expr, value: Any, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = list(self._iterate(value))
            if len(items) != len(target.elts) or any(isinstance(t, ast.Starred) for t in target.elts):
                raise _TestFault(ValueError("cannot be unpacked"))
            for one, item in zip(target.elts, items, strict=True):
                self._bind(one, item, scope)
        elif isinstance(target, ast.Subscript):
            place, key = self._plain(self._value(target.value, scope)), self._plain(self._value(target.slice, scope))
            self._guard(lambda: operator.setitem(place, key, self._plain(value)))
        elif isinstance(target, ast.Attribute):
            owner = self._value(target.value, scope)
            self._jail.execute(f"{self._source(owner)}.{target.attr} = {self._source(value)}")
        else:
            raise Unjudgeable(f"test code that assigns to {_short(target)}")

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, scope: _Scope) -> Any:
        """A plain value, something remote, a function or a module's names."""
        self._step()
        self._depth += 1
        try:
            if self._depth > 100:
                raise Unjudgeable("the test code is nested too deeply")
            run = getattr(self, f"_of_{type(node).__name__}", None)
            if run is None:
                raise Unjudgeable(f"test code with {type(node).__name__} in it: {_short(node)}")
            return run(node, scope)
        finally:
            self._depth -= 1

    def _of_Constant(self, node: ast.Constant, scope: _Scope) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name, scope: _Scope) -> Any:
        try:
            return scope.find(node.id)
        except KeyError:
            return _BUILT_IN.get(node.id, _Remote(node.id))

    def _of_List(self, node: ast.List, scope: _Scope) -> Any:
        return [self._plain(item) for item in self._elements(node.elts, scope)]

    def _of_Tuple(self, node: ast.Tuple, scope: _Scope) -> Any:
        return tuple(self._plain(item) for item in self._elements(node.elts, scope))

    def _of_Set(self, node: ast.Set, scope: _Scope) -> Any:
        return self._guard(lambda: {self._plain(item) for item in self._elements(node.elts, scope)})

    def _of_Dict(self, node: ast.Dict, scope: _Scope) -> Any:
        if any(key is None for key in node.keys):
            raise Unjudgeable(f"test code with ** in {_short(node)}")
        pairs = [
            (self._plain(self._value(key, scope)), self._plain(self._value(value, scope)))
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        ]
        return self._guard(lambda: dict(pairs))

    def _elements(self, nodes: list[ast.expr], scope: _Scope) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self._iterate(self._value(node.value, scope))
            else:
                yield self._value(node, scope)

    def _of_UnaryOp(self, node: ast.UnaryOp, scope: _Scope) -> Any:
        value = self._plain(self._value(node.operand, scope))
        if isinstance(value, Opaque):
            raise _TestFault(TypeError(f"a {value.kind} is not a plain value"))
        return self._guard(lambda: _UNARY[type(node.op)](value))

    def _of_BinOp(self, node: ast.BinOp, scope: _Scope) -> Any:
        left, right = self._value(node.left, scope), self._value(node.right, scope)
        a, b = self._plain(left), self._plain(right)
        if isinstance(a, Opaque) or isinstance(b, Opaque):
            # Objects of the candidate's own classes are added by its own code: what comes out is compared here.
            return self._ask(f"({self._source(left)} {_sign(node.op)} {self._source(right)})")
        _check_size(node.op, a, b)
        return self._guard(lambda: _BINARY[type(node.op)](a, b))

    def _of_BoolOp(self, node: ast.BoolOp, scope: _Scope) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self._value(part, scope)
            if self._truth(self._plain(value)) == stop_at:
                break
        return value

    def _of_IfExp(self, node: ast.IfExp, scope: _Scope) -> Any:
        return self._value(node.body if self._truth(self._plain(self._value(node.test, scope))) else node.orelse, scope)

    def _of_Compare(self, node: ast.Compare, scope: _Scope) -> Any:
        left = self._value(node.left, scope)
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self._value(other, scope)
            if not self._compare(sign, left, right):
                return False
            left = right
        return True

    def _compare(self, sign: ast.cmpop, left: Any, right: Any) -> bool:
        if _is_type(left) and _is_type(right):
            return bool((_COMPARISON.get(type(sign)) or operator.eq)(left, right))
        a, b = self._plain(left), self._plain(right)
        if isinstance(a, Opaque) and isinstance(b, Opaque):
            # Two objects of the candidate's own making can be compared by nothing but its own code.
            self._inside = True
            text = f"({self._source(left)} {_sign_of_comparison(sign)} {self._source(right)})"
            return self._plain(self._ask(text)) is True
        if isinstance(sign, ast.In | ast.NotIn) and isinstance(b, Opaque) and not isinstance(a, Opaque):
            found = any(same_value(item, a) or item == a for item in self._iterate(right))
            return found is isinstance(sign, ast.In)
        if isinstance(a, Opaque) or isinstance(b, Opaque):
            # An object is none of the plain values, whatever its own __eq__ says.
            return isinstance(sign, ast.NotEq | ast.IsNot | ast.NotIn)
        if isinstance(sign, ast.Eq | ast.NotEq):
            equal = self._guard(lambda: bool(a == b))
            if not equal and self._tolerance:
                equal = same_value(a, b, tolerance=self._tolerance)
            return equal is isinstance(sign, ast.Eq)
        if isinstance(sign, ast.Is | ast.IsNot):
            # Identity of plain values does not cross the wall: only the singletons have one.
            same = a is b if a is None or isinstance(a, bool) else type(a) is type(b) and a == b
            return same is isinstance(sign, ast.Is)
        return bool(self._guard(lambda: _COMPARISON[type(sign)](a, b)))

    def _of_Subscript(self, node: ast.Subscript, scope: _Scope) -> Any:
        owner, key = self._value(node.value, scope), self._value(node.slice, scope)
        value = self._plain(owner)
        if isinstance(value, Opaque):
            return self._ask(f"{self._source(owner)}[{self._source(key)}]")
        return self._guard(lambda: value[self._plain(key)])

    def _of_Slice(self, node: ast.Slice, scope: _Scope) -> Any:
        return slice(
            *(None if n is None else self._plain(self._value(n, scope)) for n in (node.lower, node.upper, node.step))
        )

    def _of_Attribute(self, node: ast.Attribute, scope: _Scope) -> Any:
        owner = self._value(node.value, scope)
        if isinstance(owner, dict) and any(owner is module for module in _MODULES.values()):
            if node.attr not in owner:
                raise Unjudgeable(f"test code with {_short(node)}")
            return owner[node.attr]
        if isinstance(owner, _Remote):
            return _Remote(f"{owner.source}.{node.attr}")
        if node.attr.startswith("_") or type(owner) not in (*_PLAIN, Counter):
            raise Unjudgeable(f"test code with {_short(node)}")
        return self._guard(lambda: getattr(owner, node.attr))

    def _of_Call(self, node: ast.Call, scope: _Scope) -> Any:
        function = self._value(node.func, scope)
        arguments = list(self._elements(node.args, scope))
        if any(keyword.arg is None for keyword in node.keywords):
            raise Unjudgeable(f"test code with ** in {_short(node)}")
        named = {str(keyword.arg): self._value(keyword.value, scope) for keyword in node.keywords}
        if isinstance(function, _Function):
            return self._call_own(function, arguments, named)
        if isinstance(function, _Remote):
            return self._call_candidate(node, function, arguments, named)
        return self._call_built_in(node, function, arguments, named)

    def _call_candidate(self, node: ast.Call, function: _Remote, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Variables of the test that hold lists, dicts or sets are brought back: the call may have changed them."""
        changeable = [
            (i, value)
            for i, (part, value) in enumerate(zip(node.args, arguments, strict=False))
            if isinstance(part, ast.Name) and type(value) in (list, dict, set, bytearray)
        ]
        given = list(arguments)
        for i, value in changeable:
            self._sent += 1
            given[i] = _Remote(f"(_sent_{self._sent} := {literal(value)})")
        found = self._ask(f"{function.source}({self._arguments(given, named)})")
        for i, value in changeable:
            _, now = self._jail.evaluate(given[i].source[1:].partition(" ")[0])
            if type(now) is type(value) and now != value:
                value.clear()
                (value.extend if isinstance(value, list | bytearray) else value.update)(now)
        return found

    def _call_built_in(self, node: ast.Call, function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        if function is isinstance and len(arguments) == 2:
            kinds = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            if all(_is_type(kind) for kind in kinds):
                return isinstance(self._plain(arguments[0]), kinds)
        plain = [self._unwrapped(a) for a in arguments]
        options = {name: self._unwrapped(value) for name, value in named.items()}
        if any(isinstance(value, Opaque) for value in (*plain, *options.values())):
            name = _short(node.func)
            if name not in _FUNCTIONS:
                raise _TestFault(TypeError(f"{name} was given an object that is no plain value"))
            self._inside = self._inside or name == "isinstance"
            return self._ask(f"{name}({self._arguments(arguments, named)})")
        if not callable(function):
            raise _TestFault(TypeError(f"{_short(node.func)} cannot be called"))
        if function in (pow, range, math.comb, math.perm, math.pow) and any(
            isinstance(n, int) and abs(n) > MAX_SIZE for n in plain
        ):
            raise Unjudgeable(f"test code that computes {_short(node)}")
        found = self._guard(lambda: function(*plain, **options))
        if isinstance(found, enumerate | filter | map | reversed | zip) or hasattr(found, "__next__"):
            return self._guard(lambda: list(found))
        return list(found) if type(found).__name__ in ("dict_keys", "dict_values", "dict_items") else found

    def _unwrapped(self, value: Any) -> Any:
        """A plain value, or a function of the test's that a built-in may call back."""
        if isinstance(value, _Function):
            return lambda *arguments: self._plain(self._call_own(value, list(arguments), {}))
        if isinstance(value, _Lambda):
            return lambda *arguments: self._plain(self._call_lambda(value, arguments))
        return value if callable(value) and value in _BUILT_IN_FUNCTIONS else self._plain(value)

    def _call_own(self, function: _Function, arguments: list[Any], named: dict[str, Any]) -> Any:
        spec = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if spec.vararg or spec.kwarg or spec.kwonlyargs or len(arguments) > len(names):
            raise Unjudgeable(f"test code that calls {function.node.name} in this way")
        scope = _Scope(outer=function.scope)
        for name, default in zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True):
            scope.names[name] = self._value(default, function.scope)
        scope.names |= dict(zip(names, arguments, strict=False)) | named
        if set(scope.names) != set(names):
            raise Unjudgeable(f"test code that calls {function.node.name} with other arguments than it has")
        self._depth += 10
        try:
            if self._depth > 100:
                raise Unjudgeable("the test code calls itself too often")
            self._block(function.node.body, scope)
        except _Return as found:
            return found.value
        finally:
            self._depth -= 10
        return None

    def _of_Lambda(self, node: ast.Lambda, scope: _Scope) -> Any:
        return _Lambda(node, scope)

    def _call_lambda(self, function: _Lambda, arguments: tuple[Any, ...]) -> Any:
        names = [a.arg for a in function.node.args.args]
        if len(names) != len(arguments):
            raise _TestFault(TypeError("a lambda was called with other arguments than it has"))
        return self._value(
            function.node.body, _Scope(names=dict(zip(names, arguments, strict=True)), outer=function.scope)
        )

    def _of_ListComp(self, node: ast.ListComp | ast.GeneratorExp, scope: _Scope) -> Any:
        return [self._plain(self._value(node.elt, inner)) for inner in self._loops(node.generators, scope)]

    _of_GeneratorExp = _of_ListComp

    def _of_SetComp(self, node: ast.SetComp, scope: _Scope) -> Any:
        items = [self._plain(self._value(node.elt, inner)) for inner in self._loops(node.generators, scope)]
        return self._guard(lambda: set(items))

    def _of_DictComp(self, node: ast.DictComp, scope: _Scope) -> Any:
        pairs = [
            (self._plain(self._value(node.key, inner)), self._plain(self._value(node.value, inner)))
            for inner in self._loops(node.generators, scope)
        ]
        return self._guard(lambda: dict(pairs))

    def _loops(self, generators: list[ast.comprehension], scope: _Scope) -> Iterator[_Scope]:
        first, *rest = generators
        for item in self._iterate(self._value(first.iter, scope)):
            inner = _Scope(outer=scope)
            self._bind(first.target, item, inner)
            if all(self._truth(self._plain(self._value(test, inner))) for test in first.ifs):
                if rest:
                    yield from self._loops(rest, inner)
                else:
                    yield inner

    def _of_JoinedStr(self, node: ast.JoinedStr, scope: _Scope) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and part.format_spec is None and part.conversion == -1:
                parts.append(str(self._plain(self._value(part.value, scope))))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
            else:
                raise Unjudgeable(f"test code with the format in {_short(node)}")
        return "".join(parts)

    # -- between the two worlds ----------------------------------------------------------------------------------------

    def _ask(self, source: str) -> Any:
        self._in_time()
        store, value = self._jail.evaluate(source)
        return _Remote(store) if isinstance(value, Opaque) else value

    def _plain(self, value: Any) -> Any:
        """The plain value; :class:`Opaque` for what has none."""
        if isinstance(value, _Remote):
            self._in_time()
            return self._jail.evaluate(value.source)[1]
        if isinstance(value, Opaque) or type(value) in (*_PLAIN, Counter, slice):
            return value
        if type(value).__module__ in ("fractions", "decimal") or _is_type(value):
            return value
        raise Unjudgeable(f"test code that uses {value!r} as a value")

    def _source(self, value: Any) -> str:
        """Source text that gives the value inside."""
        if isinstance(value, _Remote):
            return value.source
        if isinstance(value, _Lambda):
            return f"({self._closed(value)})"
        if isinstance(value, _Function):
            raise Unjudgeable(f"test code that hands its function {value.node.name} to the candidate")
        for name, known in _BUILT_IN.items():
            if value is known:
                return name
        try:
            return literal(dict(value) if type(value) is Counter else value)
        except TypeError as error:
            raise Unjudgeable(str(error)) from None

    def _closed(self, function: _Lambda) -> str:
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
                return ast.parse(outer._source(value), mode="eval").body

        tree = ast.parse(ast.unparse(function.node), mode="eval")
        return ast.unparse(Fill().visit(tree))

    def _arguments(self, arguments: list[Any], named: dict[str, Any]) -> str:
        return ", ".join([*map(self._source, arguments), *(f"{k}={self._source(v)}" for k, v in named.items())])

    def _in_time(self) -> None:
        if time.monotonic() > self._until:
            raise CandidateFault("skipped", "the time for all tests was over")

    def _iterate(self, value: Any) -> Iterator[Any]:
        plain = self._plain(value)
        if isinstance(plain, Opaque):
            plain = self._plain(self._ask(f"list({self._source(value)})"))
        items = self._guard(lambda: list(plain))
        for item in items:
            self._step()
            yield item

    def _truth(self, value: Any) -> bool:
        if isinstance(value, Opaque):
            raise _TestFault(TypeError(f"a {value.kind} where the test expects a plain value"))
        return bool(value)

    def _guard(self, compute: Callable[[], Any]) -> Any:
        """What Python makes of plain values, with its errors as the test's."""
        try:
            return compute()
        except (Unjudgeable, CandidateFault, _TestFault, _AssertionFailed):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _TestFault(error) from None

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Unjudgeable(f"the test code takes more than {MAX_STEPS} steps")


@dataclass(frozen=True, slots=True)
class _Lambda:
    node: ast.Lambda
    scope: _Scope


_BUILT_IN: dict[str, Any] = {name: getattr(builtins, name) for name in _FUNCTIONS}
_BUILT_IN_FUNCTIONS = frozenset(_BUILT_IN.values())


def _is_type(value: Any) -> bool:
    return isinstance(value, type)


def _check_size(sign: ast.operator, a: Any, b: Any) -> None:
    sizes = [len(x) if hasattr(x, "__len__") else abs(x) if isinstance(x, int) else 0 for x in (a, b)]
    grows = isinstance(sign, ast.Mult) and any(hasattr(x, "__len__") for x in (a, b)) and sizes[0] * sizes[1] > MAX_SIZE
    power = (
        isinstance(sign, ast.Pow) and isinstance(b, int) and isinstance(a, int) and a.bit_length() * abs(b) > MAX_SIZE
    )
    if grows or power or (isinstance(sign, ast.LShift) and sizes[1] > MAX_SIZE):
        raise Unjudgeable("the test code makes a value that is too large")


def _sign(op: ast.operator) -> str:
    return ast.unparse(ast.BinOp(left=ast.Name("a"), op=op, right=ast.Name("b")))[2:-2]


def _sign_of_comparison(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(left=ast.Name("a"), ops=[op], comparators=[ast.Name("b")]))[2:-2]


def _names_of(error: Exception) -> tuple[str, ...]:
    if isinstance(error, CandidateFault | _TestFault):
        return error.names
    return ("AssertionError", "Exception", "BaseException")


def _exception_names(node: ast.expr) -> list[str]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [_short(n).split(".")[-1] for n in nodes]


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 200 else text[:197] + "..."
