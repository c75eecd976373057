"""Subsets of the real line as SymPy sets: intervals, unions, inequalities. Runs in worker processes only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped,import-not-found,unused-ignore]
from sympy.solvers.inequalities import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    solve_poly_inequality,
)

from roll_envs.verifiers.mathematics import symbols
from roll_envs.verifiers.mathematics.structure import Brackets, Expression, Items, Node, Region, read, split

_SIGN = re.compile(r"([<>≤≥≠=])")
_RELATIONS: dict[str, Any] = {
    "<": sympy.StrictLessThan,
    ">": sympy.StrictGreaterThan,
    "≤": sympy.LessThan,
    "≥": sympy.GreaterThan,
    "≠": sympy.Unequality,
    "=": sympy.Equality,
}
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RealSet:
    """A subset of the real line, and the variable that was named for it."""

    set: Any
    variable: str


def region_of(node: Node) -> RealSet | None:
    """The subset of the real line that a node describes; ``None`` when it describes none."""
    try:
        if isinstance(node, Region):
            return _inequalities(node) if node.kind == "inequalities" else _sets(node)
        found = _piece(node)
    except (symbols.Unparsed, TypeError, NotImplementedError, ValueError):
        return None
    return None if found is None else RealSet(set=found, variable="")


def _sets(region: Region) -> RealSet | None:
    pieces = [_named(text) for text in region.pieces]
    if None in pieces:
        return None
    found = pieces[0]
    for operator, piece in zip(region.operators, pieces[1:], strict=True):
        found = {"∪": sympy.Union, "∩": sympy.Intersection, "∖": sympy.Complement}[operator](found, piece)
    return RealSet(set=found, variable=region.variable)


def _named(text: str) -> Any:
    if text in ("ℝ", r"\text{R}"):
        return sympy.S.Reals
    if text == "∅":
        return sympy.S.EmptySet
    if text.startswith("(") and split(text[1:-1], "∪∩∖")[1:]:
        inner = region_of(read(text[1:-1])[0])
        return inner.set if inner is not None else None
    readings = read(text)
    return _piece(readings[0]) if readings else None


def _piece(node: Node) -> Any:
    if isinstance(node, Region):
        inner = region_of(node)
        return inner.set if inner is not None else None
    if isinstance(node, Brackets) and len(node.items) == 2 and all(isinstance(e, Expression) for e in node.items):
        start, end = (_number(e) for e in node.items)
        if start is None or end is None:
            return None
        return sympy.Interval(start, end, node.left == "(", node.right == ")")
    if isinstance(node, Items) and node.braces:
        numbers = [_number(e) for e in node.items]
        return None if None in numbers else sympy.FiniteSet(*numbers)
    return None


def _number(node: Node) -> Any:
    if not isinstance(node, Expression) or node.unit is not None:
        return None
    value = symbols.parse(node.text.lstrip("+")).doit()
    return value if value.is_extended_real and not value.free_symbols else None


def _inequalities(region: Region) -> RealSet | None:
    chains = [_chain(text) for text in region.pieces]
    variables = {chain and chain[0] for chain in chains}
    if None in variables or len(variables) > 1:
        return None
    (variable,), (found, *others) = variables, (chain[1] for chain in chains if chain is not None)
    for operator, piece in zip(region.operators, others, strict=True):
        # A comma means "and" where the intersection is not empty, else "or".
        either = operator == "∨" or (operator == "," and sympy.Intersection(found, piece).is_empty)
        found = (sympy.Union if either else sympy.Intersection)(found, piece)
    return RealSet(set=found, variable=str(variable))


def _chain(text: str) -> tuple[Any, Any] | None:
    """``1 < x ≤ 2`` as its variable and its set."""
    tokens = _SIGN.split(text)
    # Two to five sides.
    if len(tokens) < 3 or len(tokens) > 9:
        return None
    sides, signs = [symbols.parse(t.strip()).doit() for t in tokens[::2]], tokens[1::2]
    names = set().union(*(side.free_symbols for side in sides))
    if len(names) != 1:
        return None
    (name,) = names
    found: Any = sympy.S.Reals
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        found = sympy.Intersection(found, _solved(left, sign, right, name))
    return sympy.Symbol(name.name), found


def _solved(left: Any, sign: str, right: Any, name: Any) -> Any:
    if right == name and not left.free_symbols:
        # = and ≠ are the same from either side.
        left, sign, right = right, _FLIPPED.get(sign, sign), left
    if left == name and not right.free_symbols:
        below, above = sympy.Interval.open(-sympy.oo, right), sympy.Interval.open(right, sympy.oo)
        parts = (("<≤≠", below), ("≤≥=", sympy.FiniteSet(right)), (">≥≠", above))
        return sympy.Union(*(part for signs, part in parts if sign in signs))
    real = sympy.Symbol(name.name, real=True)
    relation = _RELATIONS[sign](left.subs(name, real), right.subs(name, real))
    # SymPy has decided it for all values of the variable.
    if relation in (sympy.true, sympy.false):
        return sympy.S.Reals if relation == sympy.true else sympy.S.EmptySet
    difference = relation.lhs - relation.rhs
    if difference.is_polynomial(real) and all(c.is_Rational for c in sympy.Poly(difference, real).coeffs()):
        # What as_set does, without its search for periods, which takes most of its time.
        return sympy.Union(*solve_poly_inequality(sympy.Poly(difference, real), relation.rel_op))
    return relation.as_set()


def same_inequality(gold: Region, said: Region) -> bool | None:
    """Whether one inequality in several variables is a positive multiple of the other; ``None`` for other regions."""
    first, second = _difference(gold), _difference(said)
    if first is None or second is None:
        return None
    (one, sign), (other, other_sign) = first, second
    if len(one.free_symbols) < 2 and len(other.free_symbols) < 2:
        return None
    if one.free_symbols != other.free_symbols or sign != other_sign:
        return False
    ratio = sympy.cancel(sympy.together(one / other))
    if ratio.free_symbols:
        return False
    return bool(ratio.is_positive) if sign != "≠" else ratio.is_zero is False


def _difference(region: Region) -> tuple[Any, str] | None:
    """Difference of the sides of a single inequality, turned so that the relation is > or ≥ (or ≠, =)."""
    if region.kind != "inequalities" or len(region.pieces) != 1:
        return None
    tokens = _SIGN.split(region.pieces[0])
    if len(tokens) != 3:
        return None
    try:
        left, right = (symbols.parse(t.strip()) for t in tokens[::2])
        return (right - left, _FLIPPED[tokens[1]]) if tokens[1] in "<≤" else (left - right, tokens[1])
    except (symbols.Unparsed, TypeError):
        return None
