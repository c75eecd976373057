"""Subsets of the real line as SymPy sets: intervals, unions, inequalities. Runs in worker processes only."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped,import-not-found,unused-ignore]
from sympy.solvers.inequalities import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    solve_poly_inequality,
)

from roll_envs.verifiers.mathematics import symbols
from roll_envs.verifiers.mathematics.structure import NUMBERS, Expression, Group, Node, Region, read, split

_SIGN = re.compile(r"([<>≤≥≠=])")
_RELATIONS: dict[str, Any] = {
    "<": sympy.StrictLessThan,
    ">": sympy.StrictGreaterThan,
    "≤": sympy.LessThan,
    "≥": sympy.GreaterThan,
    "≠": sympy.Unequality,
    "=": sympy.Equality,
}
_SETS = {
    **dict.fromkeys(("ℝ", r"\text{R}"), sympy.S.Reals),
    "∅": sympy.S.EmptySet,
    **dict.fromkeys(("Z", "ℤ"), sympy.S.Integers),
    **dict.fromkeys(("N", "ℕ"), sympy.S.Naturals0),
    **dict.fromkeys(("Q", "ℚ"), sympy.S.Rationals),
    **dict.fromkeys(("N*", "ℕ*", "N+", "ℕ+", "Z+", "ℤ+"), sympy.S.Naturals),
}
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}


class RealSet(NamedTuple):
    """A subset of the real line, and the variable that was named for it."""

    set: Any
    variable: str = ""


NO_REGION = (symbols.Unparsed, TypeError, NotImplementedError, ValueError)
"""What is raised for a node that describes no subset of the real line."""


def region_of(node: Node) -> RealSet:
    """The subset of the real line that a node describes. Raises one of :data:`NO_REGION` when it describes none."""
    if isinstance(node, Region):
        return _inequalities(node) if node.kind == "inequalities" else _sets(node)
    if isinstance(node, Group) and node.brackets == "{}":
        return RealSet(sympy.FiniteSet(*map(_number, node.items)))
    if isinstance(node, Group) and node.brackets and len(node.items) == 2:
        start, end = map(_number, node.items)
        return RealSet(sympy.Interval(start, end, node.brackets[0] == "(", node.brackets[1] == ")"))
    raise ValueError("neither an interval nor a set")


def _sets(region: Region) -> RealSet:
    found, *others = map(_named, region.pieces)
    for operator, piece in zip(region.operators, others, strict=True):
        found = {"∪": sympy.Union, "∩": sympy.Intersection, "∖": sympy.Complement}[operator](found, piece)
    return RealSet(found, region.variable)


def _named(text: str) -> Any:
    numbers = re.fullmatch(NUMBERS, text)
    name = numbers[1] + (numbers[2] or "") if numbers else text
    if name in _SETS:
        return _SETS[name]
    if text.startswith("(") and split(text[1:-1], "∪∩∖")[1:]:
        text = text[1:-1]
    (node, *_) = read(text)
    return region_of(node).set


def _number(node: Node) -> Any:
    if isinstance(node, Expression) and node.unit is None:
        value = symbols.parse(node.text.lstrip("+")).doit()
        if value.is_extended_real and not value.free_symbols:
            return value
    raise ValueError("no real number")


def _inequalities(region: Region) -> RealSet:
    chains = [_chain(text) for text in region.pieces]
    (variable,) = {name for name, _ in chains}
    found, *others = (solved for _, solved in chains)
    for operator, piece in zip(region.operators, others, strict=True):
        # A comma means "and" where the intersection is not empty, else "or".
        either = operator == "∨" or (operator == "," and sympy.Intersection(found, piece).is_empty)
        found = (sympy.Union if either else sympy.Intersection)(found, piece)
    return RealSet(found, variable)


def _chain(text: str) -> tuple[str, Any]:
    """``1 < x ≤ 2`` as its variable and its set. Raises ValueError unless there is one variable."""
    if member := re.fullmatch(r"([A-Za-z]|\\[a-z]+)\s*∈\s*(\S.*)", text):
        return symbols.parse(member[1]).name, _named(member[2])
    tokens = _SIGN.split(text)
    if not 3 <= len(tokens) <= 9:
        raise ValueError("not two to five sides")
    sides, signs = [symbols.parse(t.strip()).doit() for t in tokens[::2]], tokens[1::2]
    (name,) = set().union(*(side.free_symbols for side in sides))
    solved = (_solved(left, sign, right, name) for left, sign, right in zip(sides, signs, sides[1:], strict=False))
    return name.name, sympy.Intersection(*solved)


def _solved(left: Any, sign: str, right: Any, name: Any) -> Any:
    if right == name and not left.free_symbols:
        # = and ≠ are the same from either side.
        left, sign, right = right, _FLIPPED.get(sign, sign), left
    if left == name and not right.free_symbols:
        below, above = sympy.Interval.open(-sympy.oo, right), sympy.Interval.open(right, sympy.oo)
        parts = (("<≤≠", below), ("≤≥=", sympy.FiniteSet(right)), (">≥≠", above))
        return sympy.Union(*(part for signs, part in parts if sign in signs))
    real = sympy.Symbol(name.name, real=True)
    left, right = left.subs(name, real), right.subs(name, real)
    difference = left - right
    if difference.is_polynomial(real) and all(c.is_Rational for c in sympy.Poly(difference, real).coeffs()):
        # What as_set does, without its search for periods, which takes most of its time.
        return sympy.Union(*solve_poly_inequality(sympy.Poly(difference, real), _RELATIONS[sign].rel_op))
    relation = _RELATIONS[sign](left, right)
    # SymPy has decided it for all values of the variable.
    if relation in (sympy.true, sympy.false):
        return sympy.S.Reals if relation == sympy.true else sympy.S.EmptySet
    return relation.as_set()


def same_inequality(gold: Region, said: Region) -> bool | None:
    """Whether one inequality in several variables is a positive multiple of the other; ``None`` for other regions."""
    try:
        (one, sign), (other, other_sign) = _difference(gold), _difference(said)
    except NO_REGION:
        return None
    if len(one.free_symbols) < 2 and len(other.free_symbols) < 2:
        return None
    if one.free_symbols != other.free_symbols or sign != other_sign:
        return False
    ratio = sympy.cancel(sympy.together(one / other))
    return not ratio.free_symbols and (ratio.is_zero is False if sign == "≠" else bool(ratio.is_positive))


def _difference(region: Region) -> tuple[Any, str]:
    """Difference of the sides of a single inequality, turned so that the relation is > or ≥ (or ≠, =).

    Raises ValueError for other regions.
    """
    (piece,) = region.pieces
    one, sign, other = _SIGN.split(piece)
    left, right = symbols.parse(one.strip()), symbols.parse(other.strip())
    return (right - left, _FLIPPED[sign]) if sign in "<≤" else (left - right, sign)
