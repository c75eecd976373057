"""Compares an answer with a reference by the kind of answer, expressions by SymPy. Runs in worker processes only."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped,import-not-found,unused-ignore]

from roll_envs.verifiers.mathematics import symbols
from roll_envs.verifiers.mathematics.plain_numbers import plain_number
from roll_envs.verifiers.mathematics.regions import region_of, same_inequality
from roll_envs.verifiers.mathematics.structure import (
    Brackets,
    Equation,
    Expression,
    Items,
    Matrix,
    Node,
    Region,
    Unreadable,
    Words,
    read,
)
from roll_envs.verifiers.mathematics.units import Unit

_DIMENSIONLESS = Unit()
_DEGREE = Unit(powers=(("degree", 1),))
_RADIAN = Unit(powers=(("radian", 1),))


def prepare() -> None:
    """Run once what imports and compiles at first use: parser, algebra, matrices, sets."""
    for gold, said in _PREPARED:
        grade(gold, said)
    _read.cache_clear()
    symbols.parse.cache_clear()


_PREPARED = (
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("(x+1)^{2}", "x^{2}+2x+1"),
    (r"\frac{2x}{(x+1)(x-3)}", "2x(x+1)^{-1}(x-3)^{-1}"),
    (r"e^{2}\cdot 3^{x+1}-\ln 2", r"3^{x+1}+e^{2}-\log_{2} 3"),
    (r"\frac{\pi}{4}", r"\arctan 1"),
    ("x>1", "2x+1>3"),
    ("(-1,2]∪[3,4)", "[3,4)∪(-1,2]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("y=2x", "2y=4x"),
    (r"\sum_{n=1}^{3} n", r"\int_0^1 x dx"),
    (r"\frac{22}{7}-\pi", r"\int_{0}^{1} \frac{x^4(1-x)^4}{1+x^2} dx"),
    ("(n+1)!", "(n+1)n!"),
    (r"\binom{5}{2}", "11"),
)


def grade(reference: str, answer: str) -> bool | str:
    """Whether two tidied texts are the same answer; where they are not, why the reference cannot be used, if so."""
    return compare(reference, answer) or check(reference) or False


def check(reference: str) -> str:
    """Parse and evaluate a tidied reference by itself; returns why it cannot be used, or an empty text."""
    readings = _read(reference)
    if not readings:
        return "there is nothing in it"
    for node in readings:
        _evaluate(node)
    # No answer could be right then, for example with nan.
    if not any(same(node, node) for node in readings):
        return "it is not equal to itself"
    return ""


def _evaluate(node: Node) -> None:
    """Evaluate a reference as a comparison would, to find out in advance whether that fails or takes too long."""
    if isinstance(node, Expression):
        _value_of(node.text)
    elif isinstance(node, Region):
        region_of(node)
    elif isinstance(node, Equation):
        for side in node.sides[:-1]:
            _value_of(side)
        _evaluate(node.right)
    elif isinstance(node, Items | Brackets | Matrix):
        for item in node.items:
            _evaluate(item)


def _value_of(text: str) -> None:
    try:
        symbols.probe(symbols.parse(text))
    except symbols.Unparsed:
        return


def compare(reference: str, answer: str) -> bool:
    """Whether two tidied texts are the same answer in one of their readings."""
    try:
        answers = _read(answer)
    except Unreadable:
        return False
    return any(same(gold, said) for gold in _read(reference) for said in answers)


@functools.lru_cache(maxsize=256)
def _read(text: str) -> tuple[Node, ...]:
    return tuple(read(text))


def same(gold: Node, said: Node) -> bool:
    """Whether ``said`` is the answer ``gold``.

    Not symmetric: the answer may leave out what the reference spells out.
    """
    if isinstance(gold, Words) or isinstance(said, Words):
        return _spelled(gold) == _spelled(said) != ""
    if isinstance(gold, Equation) or isinstance(said, Equation):
        return _same_with_equation(gold, said)
    if isinstance(gold, Region) or isinstance(said, Region):
        return _same_region(gold, said)
    if type(gold) is type(said):
        return _SAME[type(gold)](gold, said)
    if isinstance(gold, Brackets | Items) and isinstance(said, Brackets | Items):
        return _is_point(gold) and _is_point(said) and _in_order(gold.items, said.items)
    if isinstance(gold, Items) and isinstance(said, Expression):
        return gold.braces and len(gold.items) == 1 and same(gold.items[0], said)
    if isinstance(gold, Expression) and isinstance(said, Items):
        # "3/2, or 1.5 hours": each has the value.
        return (len(said.items) == 1 if said.braces else said.either) and all(same(gold, one) for one in said.items)
    if isinstance(gold, Matrix | Brackets) and isinstance(said, Matrix | Brackets):
        return _is_vector(gold) and _is_vector(said) and _in_order(gold.items, said.items)
    if isinstance(gold, Matrix | Expression) and isinstance(said, Matrix | Expression):
        return symbols.equal(_algebra(gold), _algebra(said))
    return False


_SYNONYMS = {
    "doesnotexist": "dne",
    "doesntexist": "dne",
    "true": "yes",
    "false": "no",
    "notpossible": "impossible",
    "infinitelymany": "infty",
    "infinitelymanysolutions": "infty",
    "infinite": "infty",
    "infinity": "infty",
    "converges": "convergent",
    "diverges": "divergent",
}


def _spelled(node: Node) -> str:
    """A node as words without case, spaces and punctuation; letters of all scripts are kept."""
    if not isinstance(node, Words | Expression) or (isinstance(node, Expression) and node.unit is not None):
        return ""
    said = re.sub(r"^\s*(?:an?|the)\s+|(?<=\d)(?:st|nd|rd|th)\b", "", node.text.replace(r"\text", "").casefold())
    words = re.sub(r"[^\w:]|_", "", said)
    return _SYNONYMS.get(words, words)


# -- expressions -------------------------------------------------------------------------------------------------------


def _same_expression(gold: Expression, said: Expression) -> bool:
    if (gold.maybe_variable or said.maybe_variable) and (
        gold.unit is None or said.unit is None or (gold.maybe_variable and said.maybe_variable)
    ):
        # A letter that may be a variable is a unit only where the other side names one.
        return False
    units = (gold.unit, said.unit)
    if _DEGREE in units and (_RADIAN in units or None in units):
        angle, other = (gold, said) if gold.unit == _DEGREE else (said, gold)
        # Radians are meant only where they or π are written: else 30° would be a number near 0.52.
        radians = rf"({angle.text})\cdot\frac{{\pi}}{{180}}" if other.unit or r"\pi" in other.text else ""
        same_text = other.unit is None and _same_value(angle.text, other.text)
        return same_text or bool(radians and _same_value(radians, other.text))
    if gold.unit is not None and said.unit is not None:
        return _same_quantity(gold, said, gold.unit, said.unit)
    if _same_value(gold.text, said.text):
        return True
    if gold.percent != said.percent:
        part, whole = (gold, said) if gold.percent else (said, gold)
        return whole.unit is None and _same_value(rf"\frac{{{part.text}}}{{100}}", whole.text)
    return False


def _same_quantity(gold: Expression, said: Expression, one: Unit, other: Unit) -> bool:
    if one.words or other.words:
        words, said_words = one.words.split(), other.words.split()
        alike = bool(words and said_words) and (set(words) <= set(said_words) or set(said_words) <= set(words))
        return (alike or _DIMENSIONLESS in (one, other)) and _same_value(gold.text, said.text)
    if _DIMENSIONLESS in (one, other):
        return _same_value(gold.text, said.text)
    if one.powers != other.powers:
        return False
    ratio = other.factor / one.factor
    if ratio == 1:
        return _same_value(gold.text, said.text)
    return _same_value(gold.text, rf"({said.text})\cdot\frac{{{ratio.numerator}}}{{{ratio.denominator}}}")


def _same_value(one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = plain_number(one), plain_number(other)
    if a is not None and b is not None:
        return a == b
    based = [symbols.BASED.fullmatch(text) for text in (one, other)]
    if (with_base := based[0] or based[1]) and None in based and re.fullmatch("[0-9A-F]+", other if based[0] else one):
        # The base may be left out where the question names it.
        return with_base[1] == (other if based[0] else one)
    try:
        if symbols.equal(_parsed(one, a), _parsed(other, b)):
            return True
    except symbols.Unparsed:
        return _bare(one) == _bare(other)
    # Beside "ln", "log" is the natural logarithm.
    natural = [_LOG.sub(r"\\ln", text) for text in (one, other)]
    return r"\ln" in one + other and natural != [one, other] and _same_value(*natural)


_LOG = re.compile(r"\\log(?![a-z]|\s*_)")


def _parsed(text: str, number: Fraction | None) -> Any:
    return symbols.parse(text) if number is None else sympy.Rational(number.numerator, number.denominator)


def _bare(text: str) -> str:
    return re.sub(r"[\s{}]|\\text", "", re.sub(r"\\[lc]?dots(?![a-z])|…", "...", text))


def _algebra(node: Matrix | Expression) -> Any:
    if isinstance(node, Expression):
        return symbols.parse(node.text)
    cells = [[_algebra(c) if isinstance(c, Matrix | Expression) else sympy.nan for c in row] for row in node.rows]
    return sympy.Matrix(cells)


# -- several -----------------------------------------------------------------------------------------------------------


def _same_items(gold: Items, said: Items) -> bool:
    wanted, given = list(gold.items), list(said.items)
    if gold.braces and said.braces:
        # In a set an element counts once.
        wanted, given = _distinct(wanted), _distinct(given)
    if len(wanted) != len(given):
        return False
    labels = {node.sides[0] for node in wanted if isinstance(node, Equation)}
    if len(labels) == len(wanted) > 1 and not any(isinstance(node, Equation) for node in given):
        return _in_order(wanted, given)  # "x=1, y=2" is not "2, 1"
    return _matched(wanted, given)


def _matched(wanted: Sequence[Node], given: Sequence[Node]) -> bool:
    """Whether the two match one to one in any order. Equality is transitive, so the first match found can be taken."""
    left = list(given)
    for node in wanted:
        partner = next((i for i, other in enumerate(left) if same(node, other)), None)
        if partner is None:
            return False
        del left[partner]
    return not left


def _distinct(nodes: Sequence[Node]) -> list[Node]:
    kept: list[Node] = []
    for node in nodes:
        if not any(same(other, node) for other in kept):
            kept.append(node)
    return kept


def _in_order(gold: Sequence[Node], said: Sequence[Node]) -> bool:
    return len(gold) == len(said) and all(same(a, b) for a, b in zip(gold, said, strict=True))


def _same_brackets(gold: Brackets, said: Brackets) -> bool:
    return (gold.left, gold.right) == (said.left, said.right) and _in_order(gold.items, said.items)


def _same_matrix(gold: Matrix, said: Matrix) -> bool:
    return len(gold.rows) == len(said.rows) and all(_in_order(a, b) for a, b in zip(gold.rows, said.rows, strict=True))


def _is_point(node: Brackets | Items) -> bool:
    return not node.braces if isinstance(node, Items) else (node.left, node.right) == ("(", ")")


def _is_vector(node: Matrix | Brackets) -> bool:
    return isinstance(node, Brackets) or len(node.rows) == 1 or all(len(row) == 1 for row in node.rows)


# -- equations and regions ---------------------------------------------------------------------------------------------


def _same_with_equation(gold: Node, said: Node) -> bool:
    if isinstance(gold, Equation) and isinstance(said, Equation):
        if _is_name(gold.sides[0]) and _function(gold.sides[0]) == _function(said.sides[0]):
            return same(gold.right, said.right)
        return _same_equation(gold, said)
    if isinstance(gold, Equation):
        return _is_name(gold.sides[0]) and not isinstance(said, Region) and same(gold.right, said)
    assert isinstance(said, Equation)
    if isinstance(gold, Region):
        return False
    # What stands before a matrix needs no name ("AB = ..."), nor does a formula without numbers ("-b/a = 3") or of
    # several letters ("a^2+b^2 = 5").
    left, letters = said.sides[0], set(re.findall(r"(?<![\\A-Za-z])[A-Za-z]", said.sides[0]))
    named = isinstance(said.right, Matrix) or _is_name(left) or len(letters) > 1 or not re.search(r"\d", left)
    return (named or _holds(said)) and same(gold, said.right)


def _is_name(side: str) -> bool:
    """A variable, a function of variables, or a point of variables."""
    name = (
        r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{?-1\}?)?|\\(?:text|vec|overrightarrow|overline)\s*\{[^{}]*\}|[A-Za-z]\w*"
        r"|\\(?:angle|det)\s*[A-Z]{1,3}|\\(?:sin|cos|tan|cot|sec|csc)\s*\\?[A-Za-z]+|\|[A-Za-z]{1,2}\||[A-Z]\[[A-Z]\]|\\frac\{d[a-z]?\}\{d[a-z]\})"
    )
    point = rf"\(\s*{name}(?:\s*,\s*{name})*\s*\)"
    return re.fullmatch(rf"{name}(?:\s*\(\s*-?\d+(?:\s*,\s*-?\d+)*\s*\)|\s*{point})?|{point}", side) is not None


def _function(name: str) -> str:
    """A name without the variable of a function: ``f`` of ``f(x)``."""
    return re.sub(r"\([a-z]\)$", "", _bare(name))


def _holds(said: Equation) -> bool:
    """Whether every side is equal to the last: "2+3=5" may stand for 5, "4=5" not."""
    return all(_same_value(side, said.sides[-1]) for side in said.sides[:-1])


def _same_equation(gold: Equation, said: Equation) -> bool:
    """Whether one is a multiple of the other."""
    if len(gold.sides) != 2 or len(said.sides) != 2:
        return False
    try:
        one, other = (symbols.parse(e.sides[0]) - symbols.parse(e.sides[1]) for e in (gold, said))
    except (symbols.Unparsed, TypeError):
        return [_bare(s) for s in gold.sides] == [_bare(s) for s in said.sides]
    if not one.free_symbols or one.free_symbols != other.free_symbols:
        return False
    # Two equations are equal if the numerator of one difference of sides is a constant multiple of the other's.
    one, other = (sympy.fraction(sympy.together(difference))[0] for difference in (one, other))
    there = symbols.first_point(one)
    a, b = one.subs(there), other.subs(there)
    return not symbols.same_constant(a * b, sympy.Integer(0)) and symbols.equal(one * b, other * a)


def _same_region(gold: Node, said: Node) -> bool:
    if isinstance(gold, Region) and isinstance(said, Region):
        found = same_inequality(gold, said)
        if found is not None:
            return found
    one, other = region_of(gold), region_of(said)
    if one is None or other is None:
        return gold == said  # not a set that can be evaluated, but perhaps the same text
    if one.variable and other.variable and one.variable != other.variable:
        return False
    return bool(one.set == other.set or sympy.SymmetricDifference(one.set, other.set).is_empty)


_SAME: dict[type[Any], Callable[[Any, Any], bool]] = {
    Expression: _same_expression,
    Items: _same_items,
    Brackets: _same_brackets,
    Matrix: _same_matrix,
}

TASKS: dict[str, Callable[..., Any]] = {"check": check, "compare": compare, "grade": grade}
