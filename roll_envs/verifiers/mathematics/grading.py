"""Compares an answer with a reference by the kind of answer, expressions by SymPy. Runs in worker processes only."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped,import-not-found,unused-ignore]

from roll_envs.verifiers.mathematics import symbols
from roll_envs.verifiers.mathematics.regions import NO_REGION, region_of, same_inequality
from roll_envs.verifiers.mathematics.structure import (
    Equation,
    Expression,
    Group,
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
        with contextlib.suppress(symbols.Unparsed):
            symbols.probe(symbols.parse(node.text))
    elif isinstance(node, Region):
        with contextlib.suppress(*NO_REGION):
            region_of(node)
    elif isinstance(node, Equation):
        for part in (*(Expression(text=side) for side in node.sides[:-1]), node.right):
            _evaluate(part)
    elif isinstance(node, Group | Matrix):
        for part in node.items:
            _evaluate(part)


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
    if isinstance(gold, Expression) and isinstance(said, Expression):
        return _same_expression(gold, said)
    if isinstance(gold, Group) and _one_value(gold, said):
        return all(same(one, said) for one in gold.items)
    if isinstance(said, Group) and _one_value(said, gold):
        return all(same(gold, one) for one in said.items)
    if isinstance(gold, Group) and isinstance(said, Group):
        return _same_groups(gold, said)
    if isinstance(gold, Matrix) and isinstance(said, Matrix):
        return [*map(len, gold.rows)] == [*map(len, said.rows)] and _in_order(gold.items, said.items)
    if isinstance(gold, Matrix | Group) and isinstance(said, Matrix | Group):
        return _is_vector(gold) and _is_vector(said) and _in_order(gold.items, said.items)
    if isinstance(gold, Matrix | Expression) and isinstance(said, Matrix | Expression):
        return symbols.equal(_algebra(gold), _algebra(said))
    return False


def _one_value(group: Group, other: Node) -> bool:
    """Whether it may stand for one value: the only element of a set, or each of "3/2, or 1.5 hours"."""
    if group.either:
        return isinstance(other, Expression)
    return group.brackets == "{}" and len(group.items) == 1 and getattr(other, "brackets", "") != "{}"


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
    for one, other in ((gold, said), (said, gold)):
        # A letter that may be a variable is a unit only where the other side names one.
        if one.maybe_variable and (other.unit is None or other.maybe_variable):
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
    text = said.text
    if _DIMENSIONLESS not in (one, other):
        words, said_words = set(one.words.split()), set(other.words.split())
        alike = words <= said_words or said_words <= words
        if one.powers != other.powers or bool(words) != bool(said_words) or not alike:
            return False
        ratio = other.factor / one.factor
        text = text if ratio == 1 else rf"({text})\cdot\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
    return _same_value(gold.text, text)


def _same_value(one: str, other: str) -> bool:
    if one == other:
        return True
    for text, bare in ((one, other), (other, one)):
        # The base may be left out where the question names it.
        if (based := symbols.BASED.fullmatch(text)) and re.fullmatch("[0-9A-F]+", bare):
            return based[1] == bare
    try:
        if symbols.equal(symbols.parse(one), symbols.parse(other)):
            return True
    except symbols.Unparsed:
        return _bare(one) == _bare(other)
    # Beside "ln", "log" is the natural logarithm.
    natural = [_LOG.sub(r"\\ln", text) for text in (one, other)]
    return r"\ln" in one + other and natural != [one, other] and _same_value(*natural)


_LOG = re.compile(r"\\log(?![a-z]|\s*_)")


def _bare(text: str) -> str:
    return re.sub(r"[\s{}]|\\text", "", re.sub(r"\\[lc]?dots(?![a-z])|…", "...", text))


def _algebra(node: Matrix | Expression) -> Any:
    if isinstance(node, Expression):
        return symbols.parse(node.text)
    cells = [[_algebra(c) if isinstance(c, Matrix | Expression) else sympy.nan for c in row] for row in node.rows]
    return sympy.Matrix(cells)


# -- several -----------------------------------------------------------------------------------------------------------


def _same_groups(gold: Group, said: Group) -> bool:
    """Points and intervals entry by entry; sets and lists without brackets in any order."""
    kinds = {gold.brackets, said.brackets}
    if not kinds <= {"", "{}"}:
        # A list without brackets may be a point, and three numbers are no interval.
        point = kinds <= {"", "()", *(("[]",) if len(gold.items) > 2 else ())}
        return (len(kinds) == 1 or point) and _in_order(gold.items, said.items)
    wanted, given = list(gold.items), list(said.items)
    if kinds == {"{}"}:
        # In a set an element counts once.
        wanted, given = _distinct(wanted), _distinct(given)
    if len(wanted) != len(given):
        return False
    # Roots are x_1 and x_2 in no order.
    labels = {re.sub(r"^x_\d$", "x", _function(node.sides[0])) for node in wanted if isinstance(node, Equation)}
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


def _is_vector(node: Matrix | Group) -> bool:
    if isinstance(node, Group):
        return node.brackets not in ("", "{}")
    return len(node.rows) == 1 or all(len(row) == 1 for row in node.rows)


# -- equations and regions ---------------------------------------------------------------------------------------------


def _same_with_equation(gold: Node, said: Node) -> bool:
    if isinstance(gold, Equation) and isinstance(said, Equation):
        names = [_function(each.sides[0]) for each in (gold, said)]
        root = "x" in names and {name.partition("_")[0] for name in names} == {"x"}
        if _is_name(gold.sides[0]) and (names[0] == names[1] or root):
            return same(gold.right, said.right)
        return _same_equation(gold, said)
    if isinstance(gold, Equation):
        return same(gold.right, said) and (_is_name(gold.sides[0]) or _holds(gold))
    assert isinstance(said, Equation)
    # What stands before a matrix needs no name ("AB = ..."), nor does a formula without numbers but in indices
    # ("-b/a = 3"), of several letters ("a^2+b^2 = 5", "\pi r^2 = 3"), or the square of a Greek letter.
    left = said.sides[0]
    letters = set(re.findall(rf"(?<![\\A-Za-z])[A-Za-z]|{_GREEK}", left))
    numbers = re.search(r"\d", re.sub(rf"(?:_|\\angle)\s*(?:\{{\w+\}}|\w)|({_GREEK})\s*\^\s*\{{?2\}}?", "", left))
    named = isinstance(said.right, Matrix) or _is_name(left) or len(letters) > 1 or not numbers
    return (named or _holds(said)) and same(gold, said.right)


_GREEK = (
    r"\\(?:(?:var)?(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|phi|pi|rho|sigma|tau|omega)|Delta)(?![A-Za-z])"
)
_NAME = "|".join((
    r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{?-1\}?)?",
    r"\\(?:text|vec|overrightarrow|overline)\s*\{[^{}]*\}",
    r"[A-Za-z]\w*",
    r"(?:\\(?:angle|det)\s*)?(?:[A-Z](?:_\{?\d\}?)?\s?){1,3}",
    r"\\(?:sin|cos|tan|cot|sec|csc)\s*\\?[A-Za-z]+",
    r"\|[A-Za-z]{1,2}\|",
    r"[A-Z]\[[A-Z]\])",
))  # fmt: skip
_POINT = rf"\(\s*{_NAME}(?:\s*[,|]\s*{_NAME})*\s*\)"
_RATIO = rf"\\frac\{{(?:d )?{_NAME}\}}\{{(?:d )?{_NAME}\}}|{_NAME}(?:\s*[:/∩∪]\s*{_NAME})+"
_NAMED = re.compile(rf"{_NAME}(?:\s*\(\s*-?\d+(?:\s*,\s*-?\d+)*\s*\)|\s*{_POINT})?|{_POINT}|{_RATIO}")


def _is_name(side: str) -> bool:
    """A variable, a function of variables, a point of variables, or a ratio or union of two."""
    return _NAMED.fullmatch(side) is not None


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
    if not one.free_symbols:
        return _holds(gold) and _holds(said) and same(gold.right, said.right)
    if one.free_symbols != other.free_symbols:
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
    try:
        one, other = region_of(gold), region_of(said)
    except NO_REGION:
        # Not a set that can be evaluated, but perhaps the same text.
        texts = [(n.operators, [*map(_bare, n.pieces)]) for n in (gold, said) if isinstance(n, Region)]
        return len(texts) == 2 and texts[0] == texts[1]
    if one.variable and other.variable and one.variable != other.variable:
        return False
    return bool(one.set == other.set or sympy.SymmetricDifference(one.set, other.set).is_empty)


TASKS: dict[str, Callable[..., Any]] = {"check": check, "compare": compare, "grade": grade}
