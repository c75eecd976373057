"""Parses LaTeX expressions into SymPy and compares them. Runs in worker processes only: it may never end."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped,import-not-found,unused-ignore]
from antlr4 import PredictionMode  # type: ignore[import-untyped,import-not-found,unused-ignore]
from antlr4.error.ErrorStrategy import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    BailErrorStrategy,
)
from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    ConversionConfig,
    NormalizationConfig,
    _Latex2Sympy,
    normalize_latex,
)

from roll_envs.verifiers.mathematics.plain_numbers import plain_number

_CONFIG = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_PROBES = tuple(
    sympy.Rational(n, d) for n, d in ((7, 5), (3, 11), (29, 13), (-6, 7), (17, 4), (-23, 9), (5, 3), (1, 8))
)
"""Values of the variables at which two expressions are compared; both signs, below and above 1."""
_STEPS = (sympy.floor, sympy.ceiling, sympy.cos, sympy.sin)
_DIGITS = 40
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\{?\s*(\d+)\s*\}?")
BASED = re.compile(r"(?:\\text\s*)?[({]?([0-9A-F]+)[)}]?_\{?\s*\(?\s*(\d+)\s*\)?\s*\}?")
_CALL = re.compile(r"\\[A-Za-z]+|([A-Za-z]'*\s*\()")
# Not e, d as in a derivative, an index, or the name of a function: f^{2}(x).
_RAISED = re.compile(r"(\\[A-Za-z]+)|(?<![d_])([a-cf-zA-Z])(?=\s*\^\s*(?:\d|\{\s*\d+\s*\})(?!\s*[(_{]))")
_SPELLINGS = (
    (r"(\d+(?:\.\d+)?|\{\d+(?:\.\d+)?\})\s*°(?![CF])", r"(\1\\cdot\\frac{\\pi}{180})"),
    # The index before the exponent: v^2_0; combinations: C_6^2; derivatives by time.
    (r"([A-Za-z])\s*\^\s*(\{[^{}]*\}|\w)\s*_\s*(\{[^{}]*\}|\w)", r"\1_\3^\2"),
    (r"(?<![A-Za-z\\])C_(\{\d*[a-z]?\}|[2-9a-z])\s*\^\s*(\{[^{}]*\}|\w)", r"\\binom{\1}{\2}"),
    (r"\\ddot(?![A-Za-z])\s*\{?\s*(\\?[A-Za-z]+)\s*\}?(?:\(t\))?", r"\\frac{d^{2} \1}{d t^{2}}"),
    (r"\\dot(?![A-Za-z])\s*\{?\s*(\\?[A-Za-z]+)\s*\}?(?:\(t\))?", r"\\frac{d \1}{d t}"),
    # A derivative is a name of its own.
    (r"_\{?(\w{1,20})\}?'", r"_{\1p}"),
    (r"(\\[A-Za-z]+|[A-Za-z])'''", r"\1_{ppp}"),
    (r"(\\[A-Za-z]+|[A-Za-z])''", r"\1_{pp}"),
    (r"(\\[A-Za-z]+|[A-Za-z])'", r"\1_{p}"),
    # Functions in roman type, other names for them, and what the parser takes for a call: \gamma+1.
    (
        r"\\(?:operatorname\*?|text)\s*\{\s*"
        r"((?:arc?)?(?:sin|cos|tan|cot|sec|csc)h?|(?:arc)?c?tg|l[ng]|log|exp|gcd|lcm)\s*\}",
        r"\\\1 ",
    ),
    (r"\\text\s*\{\s*([A-Za-z])\s*\}", r"{\1}"),
    # The odd root of a negative number is the real one; (-8)^{1/3} is not.
    (r"\\sqrt\s*(\[\s*\d*[13579]\s*\])\s*\{\s*-((?:[\d.\s]|\\frac\{\d+\}\{\d+\})+)\}", r"{(-1)}\\cdot\\sqrt\1{\2}"),
    (r"\\lg(?![A-Za-z])", r"\\log_{10}"),
    (r"\\(arc)?tg(?![A-Za-z])", r"\\\1tan"),
    (r"\\(arc)?ctg(?![A-Za-z])", r"\\\1cot"),
    (r"\\var(?=(?:phi|epsilon|theta)(?![A-Za-z]))", r"\\"),
    (r"\\gamma(?![A-Za-z])", r"{\\gamma}"),
    (r"(?<!matrix\})\^\s*(?:T\b|\{\s*T\s*\})", r"^{(T)}"),
    (r"(\\(?:max|min|gcd))\s*⦃([^⦃⦄]*)⦄", r"\1(\2)"),
    # \sin x \cdot y, which the parser takes for the sine of the product.
    (r"(\\(?:sin|cos|tan|ln|log)(?:\^\{?\d\}?)?\s*(?:[a-zA-Z]|\d+)\s*)(?=\\(?:cdot|times)(?![a-z]))", r"{\1}"),
)
"""Patterns of notation and what the parser reads, in order."""


class Unparsed(Exception):
    """Not an expression that the parser knows."""


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The expression of a tidied LaTeX text, decimals as exact fractions. Raises :class:`Unparsed`."""
    if (number := plain_number(text)) is not None:
        return sympy.Rational(number.numerator, number.denominator)
    text = _REPEATING.sub(_repeating, text)
    if match := BASED.fullmatch(text):
        return _in_base(match[1], int(match[2]))
    for pattern, written in _SPELLINGS:
        text = re.sub(pattern, written, text)
    if re.search(r"'|\d_", text):
        raise Unparsed("a prime or an index of a number")  # minutes or a base, which the parser would leave out
    try:
        normal = normalize_latex(text, config=_CONFIG)
        found = _converted(normal)
    # These two are reported by worker_main in words of its own.
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the parser raises exceptions of any type for unknown input
        raise Unparsed(str(error)[:200]) from None
    if not isinstance(found, sympy.Basic | sympy.MatrixBase):
        raise Unparsed(f"a {type(found).__name__}")
    if "!!" in text:  # every other factor, which the parser takes for a factorial of a factorial
        once = sympy.Wild("once")
        found = found.replace(sympy.factorial(sympy.factorial(once)), sympy.factorial2(once))
    return _exact(found)


class _Converter(_Latex2Sympy):  # type: ignore[misc]
    """The parser of latex2sympy with ANTLR's quick prediction (SLL), or its full one (LL)."""

    def __init__(self, mode: Any) -> None:
        # Variables are real, so that sqrt(x^2) equals |x|; R and r are two of them.
        super().__init__(is_real=True, config=ConversionConfig(lowercase_symbols=False))
        self._mode = mode

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self._mode
        parser._errHandler = BailErrorStrategy()  # an error ends it anyway, and so they are looked for less often
        return parser

    def parse_number(self, text: str) -> Any:
        # Given a text, sympy.Number would call a parser of its own, which takes longer than all else.
        digits = text.replace(",", "")
        return sympy.Integer(int(digits)) if digits.isdecimal() else super().parse_number(text)

    def handle_gcd_lcm(self, name: str, numbers: Any) -> Any:
        # Of letters SymPy gives the divisor as polynomials, which is 1 for m and n.
        if all(number.is_Integer for number in numbers):
            return super().handle_gcd_lcm(name, numbers)
        return sympy.Function(name)(*sorted(numbers, key=str))


def _converted(text: str) -> Any:
    """SLL gives the tree that LL would give, in a part of the time, or a syntax error (ANTLR's PredictionMode).

    Letters with an exponent get braces for it, where none is called as a function: SLL takes the exponent for a part of
    the name, as in ``x^{2}_{1}``.
    """
    calls = any(match[1] for match in _CALL.finditer(text))
    braced = text if calls else _RAISED.sub(lambda match: match[1] or f"{{{match[2]}}}", text)
    try:
        return _Converter(PredictionMode.SLL).parse(braced)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return _Converter(PredictionMode.LL).parse(text)


def _repeating(match: re.Match[str]) -> str:
    whole, before, period = match.groups()
    nines = (10 ** len(period) - 1) * 10 ** len(before)
    value = sympy.Rational(int(before + period) - int(before or 0), nines) + int(whole)
    return rf"\frac{{{value.p}}}{{{value.q}}}"


def _in_base(digits: str, base: int) -> Any:
    """A numeral with its base, as a symbol, which equals only the same value in the same base."""
    if not 2 <= base <= 16 or any(int(d, 16) >= base for d in digits):
        raise Unparsed("digits that the base does not have")
    return sympy.Symbol(f"{int(digits, base)} in base {base}")


def _exact(expression: Any) -> Any:
    """Replace floats by the exact fractions of the decimals that were written, ``i`` by the imaginary unit, and a
    derivative of a letter, which SymPy takes for 0, by a name."""
    floats = expression.atoms(sympy.Float) if isinstance(expression, sympy.Basic) else set()
    replaced = {f: sympy.Rational(str(f)) for f in floats}
    names = {s for s in expression.free_symbols if s.name == "i"}
    replaced |= dict.fromkeys(names, sympy.I)
    slopes = {d for d in expression.atoms(sympy.Derivative) if d.expr.is_Symbol and d.expr not in d.variables}
    replaced |= {d: sympy.Symbol(str(d), real=True) for d in slopes}
    return expression.xreplace(replaced) if replaced else expression


def equal(one: Any, other: Any) -> bool:
    """Whether two expressions have the same value wherever both have one."""
    if one == other:
        return True
    one, other = _evaluated(one), _evaluated(other)
    matrices = [isinstance(value, sympy.MatrixBase) for value in (one, other)]
    if any(matrices):
        return all(matrices) and one.shape == other.shape and all(map(equal, one, other))
    if not isinstance(one, sympy.Expr) or not isinstance(other, sympy.Expr):
        return False
    if not one.free_symbols and not other.free_symbols:
        return same_constant(one, other)
    return _same_function(one, other)


def _evaluated(expression: Any) -> Any:
    """The value of sums, limits, integrals, and products of matrices."""
    done = expression.doit()
    return done.as_explicit() if isinstance(done, sympy.MatrixExpr) else done


def same_constant(one: Any, other: Any) -> bool:
    """Exactly the same number: 1/3 is not 0.3333333333."""
    if one == other:
        return True
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0)
    # Large integers cancel in the difference, so their digits are added to the precision.
    digits = _DIGITS + sum(len(str(n)) for n in itertools.chain(one.atoms(sympy.Rational), other.atoms(sympy.Rational)))
    # maxn bounds the working precision: for an exact zero N would otherwise go on increasing it.
    value = sympy.N(difference, digits, maxn=digits + 100)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    size = abs(sympy.N(one, 15))
    scale = max(size, 1) if size.is_comparable else 1
    return bool(abs(value) < scale * sympy.Float(10) ** (10 - digits))


def _same_function(one: Any, other: Any) -> bool:
    """Whether two functions agree at the points of comparison. Those where one has no real value are skipped, unless
    ``I`` occurs.

    With fewer than three usable points ``simplify`` decides.
    """
    if one.free_symbols != other.free_symbols:
        one, other = _with_constants(one), _with_constants(other)
    names = sorted(one.free_symbols | other.free_symbols, key=lambda s: s.name)
    complex_ = one.has(sympy.I) or other.has(sympy.I)
    usable = 0
    for point in _points(one - other, names):
        a, b = _value(one, point), _value(other, point)
        if a is None or b is None or (not complex_ and not (a.is_real and b.is_real)):
            continue
        usable += 1
        # Far above the rounding of 40 digits, far below a real difference.
        if abs(a - b) > sympy.Float(10) ** -25 * max(abs(a), abs(b), 1):
            return False
    if usable >= 3:
        return True
    difference = sympy.simplify(one - other)
    return difference.is_zero is True


def _with_constants(expression: Any) -> Any:
    """A constant of integration is written ``C`` or ``c``."""
    names = {s: sympy.Symbol(re.sub("^c(?=_|$)", "C", s.name), real=True) for s in expression.free_symbols}
    return expression if any(s.name[0] == "C" for s in names) else expression.xreplace(names)


def _points(expression: Any, names: Sequence[Any]) -> list[dict[Any, Any]]:
    """Values of the variables: whole numbers where they are meant (``\\lfloor n/2 \\rfloor``, ``(-1)^n``), unless a
    rounded fraction has a denominator that so few may miss."""
    meant = expression.has(sympy.factorial2) or (
        all(s.name in "nmkNMK" for s in names)
        and (expression.has(*_STEPS) or any(p.base.is_negative for p in expression.atoms(sympy.Pow)))
    )
    if meant and all(r.q <= 12 for r in expression.atoms(sympy.Rational)):
        return [{s: sympy.Integer((5 * k + 1) * n % 29) for k, s in enumerate(names)} for n in range(1, 27)]
    # A different value for each variable, also beyond eight variables: otherwise swapped variables look equal.
    return [
        {s: _PROBES[(shift + 3 * k) % len(_PROBES)] + sympy.Rational(k, 97) for k, s in enumerate(names)}
        for shift in range(len(_PROBES))
    ]


def probe(expression: Any) -> None:
    """Evaluate an expression as a comparison would. Raises :class:`ValueError` where it has no value (1/0)."""
    if not isinstance(expression, sympy.Expr):
        return
    expression = expression.doit()
    if expression.has(sympy.nan, sympy.zoo):
        raise ValueError("it has no value")
    _value(expression, first_point(expression))


def first_point(expression: Any) -> dict[Any, Any]:
    """A value for each variable of an expression."""
    names = sorted(expression.free_symbols, key=lambda s: s.name)
    return dict(zip(names, itertools.cycle(_PROBES), strict=False))


def _value(expression: Any, point: dict[Any, Any]) -> Any:
    # A variable of an integral or a sum must stay; for others this is several times quicker.
    bound = expression.atoms(sympy.Symbol) - expression.free_symbols
    there = expression.subs(point) if bound else expression.xreplace(point)
    if there.is_Rational and max(there.p.bit_length(), there.q.bit_length()) < 4000:
        return there  # exact, and quicker
    value = sympy.N(there, _DIGITS, maxn=_DIGITS + 100)
    if not value.is_number or not value.is_finite:
        return None
    # Rounding can leave a tiny imaginary part on real values.
    real, imaginary = value.as_real_imag()
    return real if abs(imaginary) < sympy.Float(10) ** -25 * max(abs(real), 1) else value
