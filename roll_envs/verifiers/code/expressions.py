"""Evaluates expressions of test code: calls of the candidate in the sandbox, the rest on plain values here."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from roll_envs.verifiers.code.exchange import ValueExchange
from roll_envs.verifiers.code.scope import (
    BUILT_IN,
    BUILT_IN_FUNCTIONS,
    FUNCTIONS,
    MODULES,
    PLAIN,
    Function,
    Lambda,
    Remote,
    Return,
    Scope,
    TestFault,
    Unjudgeable,
    is_type,
    short,
)
from roll_envs.verifiers.code.values import Opaque, literal, same_value

__all__ = ["Expressions"]

MAX_SIZE = 1_000_000
"""Longest sequence, and most bits of a number, that test code may make."""

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


class Expressions:
    """Evaluates expressions; ``run_body`` runs the statements of a function that the test code defines."""

    def __init__(
        self, exchange: ValueExchange, *, tolerance: float, run_body: Callable[[list[ast.stmt], Scope], None]
    ) -> None:
        self._exchange, self._tolerance, self._run_body = exchange, tolerance, run_body
        self._depth = self._sent = 0
        self.decided_inside = False
        """Whether code of the candidate took part in a comparison since this was last set to ``False``."""

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = list(self._exchange.iterate(value))
            if len(items) != len(target.elts) or any(isinstance(t, ast.Starred) for t in target.elts):
                raise TestFault(ValueError("cannot be unpacked"))
            for one, item in zip(target.elts, items, strict=True):
                self.bind(one, item, scope)
        elif isinstance(target, ast.Subscript):
            place, key = (
                self._exchange.plain(self.value(target.value, scope)),
                self._exchange.plain(self.value(target.slice, scope)),
            )
            self._exchange.guard(lambda: operator.setitem(place, key, self._exchange.plain(value)))
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            self._exchange.session.execute(
                f"{self._exchange.source(owner)}.{target.attr} = {self._exchange.source(value)}"
            )
        else:
            raise Unjudgeable(f"test code that assigns to {short(target)}")

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression: a plain value, a :class:`Remote`, a function, or the names of a module."""
        self._exchange.step()
        self._depth += 1
        try:
            # Each level here takes several frames of Python, whose recursion limit is 1000.
            if self._depth > 100:
                raise Unjudgeable("the test code is nested too deeply")
            run = getattr(self, f"_of_{type(node).__name__}", None)
            if run is None:
                raise Unjudgeable(f"test code with {type(node).__name__} in it: {short(node)}")
            return run(node, scope)
        finally:
            self._depth -= 1

    def _of_Constant(self, node: ast.Constant, scope: Scope) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name, scope: Scope) -> Any:
        try:
            return scope.find(node.id)
        except KeyError:
            return BUILT_IN.get(node.id, Remote(node.id))

    def _of_List(self, node: ast.List, scope: Scope) -> Any:
        return [self._exchange.plain(item) for item in self._elements(node.elts, scope)]

    def _of_Tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._exchange.plain(item) for item in self._elements(node.elts, scope))

    def _of_Set(self, node: ast.Set, scope: Scope) -> Any:
        return self._exchange.guard(lambda: {self._exchange.plain(item) for item in self._elements(node.elts, scope)})

    def _of_Dict(self, node: ast.Dict, scope: Scope) -> Any:
        if any(key is None for key in node.keys):
            raise Unjudgeable(f"test code with ** in {short(node)}")
        pairs = [
            (self._exchange.plain(self.value(key, scope)), self._exchange.plain(self.value(value, scope)))
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        ]
        return self._exchange.guard(lambda: dict(pairs))

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self._exchange.iterate(self.value(node.value, scope))
            else:
                yield self.value(node, scope)

    def _of_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self._exchange.plain(self.value(node.operand, scope))
        if isinstance(value, Opaque):
            raise TestFault(TypeError(f"a {value.kind} is not a plain value"))
        return self._exchange.guard(lambda: _UNARY[type(node.op)](value))

    def _of_BinOp(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        a, b = self._exchange.plain(left), self._exchange.plain(right)
        if isinstance(a, Opaque) or isinstance(b, Opaque):
            # Operators of the candidate's own classes run in the sandbox; only their result is compared here.
            return self._exchange.ask(
                f"({self._exchange.source(left)} {_sign(node.op)} {self._exchange.source(right)})"
            )
        if _too_large(node.op, a, b):
            self._exchange.refuse("the test code makes a value that is too large")
        return self._exchange.guard(lambda: _BINARY[type(node.op)](a, b))

    def _of_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part, scope)
            if self._exchange.truth(self._exchange.plain(value)) == stop_at:
                break
        return value

    def _of_IfExp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.value(
            node.body if self._exchange.truth(self._exchange.plain(self.value(node.test, scope))) else node.orelse,
            scope,
        )

    def _of_Compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other, scope)
            if not self._compare(sign, left, right):
                return False
            left = right
        return True

    def _compare(self, sign: ast.cmpop, left: Any, right: Any) -> bool:
        if is_type(left) and is_type(right):
            # == is not in the table, since values are compared with a tolerance below; types are not.
            return bool((_COMPARISON.get(type(sign)) or operator.eq)(left, right))
        a, b = self._exchange.plain(left), self._exchange.plain(right)
        if isinstance(a, Opaque) and isinstance(b, Opaque):
            # Two objects of the candidate's own classes can only be compared by its own code.
            self.decided_inside = True
            text = f"({self._exchange.source(left)} {_comparison_sign(sign)} {self._exchange.source(right)})"
            return self._exchange.plain(self._exchange.ask(text)) is True
        if isinstance(sign, ast.In | ast.NotIn) and isinstance(b, Opaque) and not isinstance(a, Opaque):
            found = any(same_value(item, a) or item == a for item in self._exchange.iterate(right))
            return found is isinstance(sign, ast.In)
        if isinstance(a, Opaque) or isinstance(b, Opaque):
            # An object of another class never equals a plain value, so its own __eq__ is not called.
            return isinstance(sign, ast.NotEq | ast.IsNot | ast.NotIn)
        if isinstance(sign, ast.Eq | ast.NotEq):
            equal = self._exchange.guard(lambda: bool(a == b))
            if not equal and self._tolerance:
                equal = same_value(a, b, tolerance=self._tolerance)
            return equal is isinstance(sign, ast.Eq)
        if isinstance(sign, ast.Is | ast.IsNot):
            # Identity is lost when values are encoded, except for the singletons None, True and False.
            same = a is b if a is None or isinstance(a, bool) else type(a) is type(b) and a == b
            return same is isinstance(sign, ast.Is)
        return bool(self._exchange.guard(lambda: _COMPARISON[type(sign)](a, b)))

    def _of_Subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner, key = self.value(node.value, scope), self.value(node.slice, scope)
        value = self._exchange.plain(owner)
        if isinstance(value, Opaque):
            return self._exchange.ask(f"{self._exchange.source(owner)}[{self._exchange.source(key)}]")
        return self._exchange.guard(lambda: value[self._exchange.plain(key)])

    def _of_Slice(self, node: ast.Slice, scope: Scope) -> Any:
        return slice(
            *(
                None if n is None else self._exchange.plain(self.value(n, scope))
                for n in (node.lower, node.upper, node.step)
            )
        )

    def _of_Attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(owner, dict) and any(owner is module for module in MODULES.values()):
            if node.attr not in owner:
                raise Unjudgeable(f"test code with {short(node)}")
            return owner[node.attr]
        if isinstance(owner, Remote):
            return Remote(f"{owner.source}.{node.attr}")
        if node.attr.startswith("_"):
            raise Unjudgeable(f"test code with {short(node)}")
        if type(owner) not in (*PLAIN, Counter):
            self._exchange.refuse(f"{short(node)} of what is no plain value")
        return self._exchange.guard(lambda: getattr(owner, node.attr))

    def _of_Call(self, node: ast.Call, scope: Scope) -> Any:
        function = self.value(node.func, scope)
        arguments = list(self._elements(node.args, scope))
        if any(keyword.arg is None for keyword in node.keywords):
            raise Unjudgeable(f"test code with ** in {short(node)}")
        named = {str(keyword.arg): self.value(keyword.value, scope) for keyword in node.keywords}
        if isinstance(function, Function):
            return self._call_own(function, arguments, named)
        if isinstance(function, Remote):
            return self._call_candidate(node, function, arguments, named)
        return self._call_built_in(node, function, arguments, named)

    def _call_candidate(self, node: ast.Call, function: Remote, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Call the candidate.

        Lists, dicts and sets in variables of the test are read back: the call may have changed them.
        """
        changeable = [
            (i, value)
            for i, (part, value) in enumerate(zip(node.args, arguments, strict=False))
            if isinstance(part, ast.Name) and type(value) in (list, dict, set, bytearray)
        ]
        given = list(arguments)
        for i, value in changeable:
            self._sent += 1
            given[i] = Remote(f"(_sent_{self._sent} := {literal(value)})")
        found = self._exchange.ask(f"{function.source}({self._exchange.arguments(given, named)})")
        for i, value in changeable:
            # The name in "(_sent_1 := ...)".
            _, now = self._exchange.session.evaluate(given[i].source[1:].partition(" ")[0])
            if type(now) is type(value) and now != value:
                value.clear()
                (value.extend if isinstance(value, list | bytearray) else value.update)(now)
        return found

    def _call_built_in(self, node: ast.Call, function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        if function is isinstance and len(arguments) == 2:
            kinds = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            if all(is_type(kind) for kind in kinds):
                return isinstance(self._exchange.plain(arguments[0]), kinds)
        plain = [self._unwrapped(a) for a in arguments]
        options = {name: self._unwrapped(value) for name, value in named.items()}
        if any(isinstance(value, Opaque) for value in (*plain, *options.values())):
            name = short(node.func)
            if name not in FUNCTIONS:
                raise TestFault(TypeError(f"{name} was given an object that is no plain value"))
            self.decided_inside = self.decided_inside or name == "isinstance"
            return self._exchange.ask(f"{name}({self._exchange.arguments(arguments, named)})")
        if not callable(function):
            raise TestFault(TypeError(f"{short(node.func)} cannot be called"))
        # These can take huge time or memory for large numbers, outside of the sandbox.
        if function in (pow, range, bytes, bytearray, math.comb, math.perm, math.pow) and any(
            isinstance(n, int) and abs(n) > MAX_SIZE for n in plain
        ):
            self._exchange.refuse(f"test code that computes {short(node)}")
        found = self._exchange.guard(lambda: function(*plain, **options))
        # Iterators are made into lists: the test code may use a value more than once.
        if isinstance(found, enumerate | filter | map | reversed | zip) or hasattr(found, "__next__"):
            return self._exchange.guard(lambda: list(found))
        return list(found) if type(found).__name__ in ("dict_keys", "dict_values", "dict_items") else found

    def _unwrapped(self, value: Any) -> Any:
        """A plain value, or a callable for a function of the test code that a built-in may call."""
        if isinstance(value, Function):
            return lambda *arguments: self._exchange.plain(self._call_own(value, list(arguments), {}))
        if isinstance(value, Lambda):
            return lambda *arguments: self._exchange.plain(self._call_lambda(value, arguments))
        return value if callable(value) and value in BUILT_IN_FUNCTIONS else self._exchange.plain(value)

    def _call_own(self, function: Function, arguments: list[Any], named: dict[str, Any]) -> Any:
        spec = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if spec.vararg or spec.kwarg or spec.kwonlyargs or len(arguments) > len(names):
            raise Unjudgeable(f"test code that calls {function.node.name} in this way")
        scope = Scope(outer=function.scope)
        for name, default in zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True):
            scope.names[name] = self.value(default, function.scope)
        scope.names |= dict(zip(names, arguments, strict=False)) | named
        if set(scope.names) != set(names):
            raise Unjudgeable(f"test code that calls {function.node.name} with other arguments than it has")
        # A call counts like ten nested expressions: the limit must be reached before Python's own recursion limit.
        self._depth += 10
        try:
            if self._depth > 100:
                raise Unjudgeable("the test code calls itself too often")
            self._run_body(function.node.body, scope)
        except Return as found:
            return found.value
        finally:
            self._depth -= 10
        return None

    def _of_Lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Lambda(node, scope)

    def _call_lambda(self, function: Lambda, arguments: tuple[Any, ...]) -> Any:
        names = [a.arg for a in function.node.args.args]
        if len(names) != len(arguments):
            raise TestFault(TypeError("a lambda was called with other arguments than it has"))
        return self.value(
            function.node.body, Scope(names=dict(zip(names, arguments, strict=True)), outer=function.scope)
        )

    def _of_ListComp(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
        return [self._exchange.plain(self.value(node.elt, inner)) for inner in self._loops(node.generators, scope)]

    _of_GeneratorExp = _of_ListComp

    def _of_SetComp(self, node: ast.SetComp, scope: Scope) -> Any:
        items = [self._exchange.plain(self.value(node.elt, inner)) for inner in self._loops(node.generators, scope)]
        return self._exchange.guard(lambda: set(items))

    def _of_DictComp(self, node: ast.DictComp, scope: Scope) -> Any:
        pairs = [
            (self._exchange.plain(self.value(node.key, inner)), self._exchange.plain(self.value(node.value, inner)))
            for inner in self._loops(node.generators, scope)
        ]
        return self._exchange.guard(lambda: dict(pairs))

    def _loops(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        first, *rest = generators
        for item in self._exchange.iterate(self.value(first.iter, scope)):
            inner = Scope(outer=scope)
            self.bind(first.target, item, inner)
            if all(self._exchange.truth(self._exchange.plain(self.value(test, inner))) for test in first.ifs):
                if rest:
                    yield from self._loops(rest, inner)
                else:
                    yield inner

    def _of_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and part.format_spec is None and part.conversion == -1:
                value = self._exchange.plain(self.value(part.value, scope))
                parts.append(self._exchange.guard(functools.partial(str, value)))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
            else:
                raise Unjudgeable(f"test code with the format in {short(node)}")
        return "".join(parts)


def _too_large(sign: ast.operator, a: Any, b: Any) -> bool:
    sizes = [len(x) if hasattr(x, "__len__") else abs(x) if isinstance(x, int) else 0 for x in (a, b)]
    if isinstance(sign, ast.Mult):
        return any(hasattr(x, "__len__") for x in (a, b)) and sizes[0] * sizes[1] > MAX_SIZE
    if isinstance(sign, ast.Pow):
        return isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > MAX_SIZE
    return isinstance(sign, ast.LShift) and sizes[1] > MAX_SIZE


def _sign(op: ast.operator) -> str:
    # The operator alone of "a + b".
    return ast.unparse(ast.BinOp(left=ast.Name("a"), op=op, right=ast.Name("b")))[2:-2]


def _comparison_sign(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(left=ast.Name("a"), ops=[op], comparators=[ast.Name("b")]))[2:-2]
