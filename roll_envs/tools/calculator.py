"""The tool ``calculator``: one arithmetic expression, parsed by :mod:`ast` and computed exactly where that is possible.

Numbers are fractions (exact) or decimals of 50 digits (rounded). Beside Python's operators there are ``^`` for ``**``,
``!`` for factorials and the signs × ÷ −. Sizes are checked before the work is done: ``9 ** 9 ** 9`` is refused at once.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from typing import Any

from roll_envs.errors import did_you_mean
from roll_envs.tools.types import Tool, ToolResult, ToolSpec, object_schema

Number = Fraction | Decimal

MAX_EXPRESSION_CHARS = 2000
MAX_DIGITS = 1000
"""Digits of the largest number (numerator and denominator each)."""

_MOST_BITS = int(MAX_DIGITS * math.log2(10))
_MOST_DEPTH = 60
_CONTEXT = Context(prec=50, Emax=MAX_DIGITS, Emin=-MAX_DIGITS)
_SHOWN = Context(prec=15)
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "\n": " ", "\r": " ", "\t": " "})
_UNREADABLE = re.compile(r"[^\w\s.+*/%^!(),-]|[^\x00-\x7f]")
_NUMBER = re.compile(r"(?<![\w.])(?:0[0_]*)?((?:\d(?:_?\d)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
"""A number and zeros before it, which Python refuses."""
_FACTORIAL = "[0]"
"""What Python parses for ``!``: brackets cannot stand in an expression otherwise."""


class CalculatorError(Exception):
    """An error in an expression, with a message for its author."""


def calculate(expression: str) -> str:
    """The value as text: ``calculate("2 * 3.5") == "7"``, ``calculate("1 / 3")`` begins with ``about 0.333``.

    Raises :class:`CalculatorError` with what is wrong and what is allowed.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise CalculatorError(f"the expression has {len(expression)} characters; {MAX_EXPRESSION_CHARS} are allowed")
    text = expression.translate(_SAME).strip()
    if not text:
        raise CalculatorError("the expression is empty; write one such as 12 * (3 + 4)")
    if odd := _UNREADABLE.search(text):
        hint = "there are no variables and no equations here"
        if odd[0] != "=":
            hint = "write one expression of numbers, + - * / // % ** ! and functions"
        raise CalculatorError(f"{odd[0]!r} at character {odd.start()} cannot be read; {hint}")
    try:
        with localcontext(_CONTEXT):
            return _written(_value(_parsed(text)))
    except (Overflow, OverflowError):
        raise _too_large() from None
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except (InvalidOperation, ValueError):  # the latter of the module ``math``
        raise CalculatorError("the result is not a real number") from None


def _parsed(text: str) -> ast.expr:
    """The tree, with fractions for its numbers."""
    # Spaces around numbers: Python warns of words that follow at once, and reads "0x" and "j" as parts of them.
    source = _NUMBER.sub(r" \1 ", text).strip().replace("^", "**").replace("!", _FACTORIAL)
    try:
        tree = ast.parse(source, mode="eval").body
    except (RecursionError, MemoryError):
        raise CalculatorError(f"the expression is nested more than {_MOST_DEPTH} deep") from None
    except SyntaxError as error:
        rest = " ".join(source[max(0, (error.offset or 0) - 1) :].split())[:20].replace(_FACTORIAL, "!")
        if not rest or text[-1] in "+-*/%^(," or "was never closed" in str(error):
            raise CalculatorError(
                "the expression ends too early; a number or a closing parenthesis is missing"
            ) from None
        bare = next((n for n in re.findall(r"[a-z]+(?!\s*\(|[a-z])", text) if n in FUNCTIONS), None)
        if bare:
            raise CalculatorError(f"{bare} is a function; write {bare}(...)") from None
        said = str(error.args[0]).split(".")[0]
        raise CalculatorError(f"{said} before {rest!r}; an operator, a number or the end is missing") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            # A fraction is none of Python's literals.
            node.value = _number(source[node.col_offset : node.end_col_offset])  # type: ignore[assignment]
    return tree


def _number(written: str) -> Fraction:
    exponent = written.lower().partition("e")[2]
    if sum(map(str.isdigit, written)) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise CalculatorError(f"numbers may have up to {MAX_DIGITS} digits")
    # By way of Decimal, since Fraction does not read "5.".
    return Fraction(Decimal(written))


def _value(node: ast.expr, depth: int = 0) -> Number:
    if depth > _MOST_DEPTH:
        raise CalculatorError(f"the expression is nested more than {_MOST_DEPTH} deep")
    pending: list[tuple[type[ast.operator], ast.expr]] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:  # a long sum is not nested
        pending.append((type(node.op), node.right))
        node = node.left
    value = _operand(node, depth + 1)
    for sign, right in reversed(pending):
        value = _bounded(_applied(_OPERATORS[sign], value, _value(right, depth + 1)))
    return value


def _operand(node: ast.expr, depth: int) -> Number:
    match node:
        case ast.Constant(value=Fraction() as number):
            return number
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Name(id=name) if name in FUNCTIONS:
            raise CalculatorError(f"{name} is a function; write {name}(...)")
        case ast.Name(id=name):
            known = f"there are no variables; constants: {', '.join(CONSTANTS)}"
            raise CalculatorError(f"there is no constant {name[:40]!r}, and {known}")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, depth)
            return -value if isinstance(sign, ast.USub) else value
        case ast.Subscript(value=operand):
            return _bounded(_factorial(_value(operand, depth)))
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]):
            if name not in FUNCTIONS:
                known = f"{did_you_mean(name, FUNCTIONS)}; functions: {', '.join(FUNCTIONS)}"
                raise CalculatorError(f"there is no function {name[:40]!r}{known}")
            fewest, most, function = FUNCTIONS[name]
            if not fewest <= len(operands) <= most:
                wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise CalculatorError(f"{name} takes {wanted} arguments, not {len(operands)}")
            return _bounded(function(*(_value(each, depth) for each in operands)))
        case ast.Tuple():
            raise CalculatorError("there is more than one expression; numbers are written without commas")
        case ast.Call():
            raise CalculatorError("a parenthesis follows a number or another one; write * between them")
    raise CalculatorError("this is no sum of numbers; write numbers, + - * / // % ** !, parentheses and functions")


def _too_large() -> CalculatorError:
    return CalculatorError(f"the result would have more than {MAX_DIGITS} digits")


def _bounded(value: Number) -> Number:
    # Bits are counted in no time; the decimal digits of a long number are not.
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
        raise _too_large()
    return value


def _rounded(value: Number) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value.numerator) / Decimal(value.denominator)


def _applied(operation: Callable[[Any, Any], Any], a: Number, b: Number) -> Number:
    """Computed on fractions, so that ``%`` has the sign that it has in Python; rounded where an operand was."""
    if operation is operator.pow:
        return _power(a, b)
    found = operation(Fraction(a), Fraction(b))
    exact = isinstance(found, int) or (isinstance(a, Fraction) and isinstance(b, Fraction))
    return Fraction(found) if exact else _rounded(found)


def _power(a: Number, b: Number) -> Number:
    """Exact for whole exponents, and for roots that come out even."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        root = a if b.denominator == 1 else _exact_root(a, b.denominator)
        if root is not None:
            return _whole_power(root, b.numerator)
    if a < 0:
        raise CalculatorError("a root or a broken power of a negative number is not a real number")
    if a == 0 and b < 0:  # a Decimal would be infinite
        raise ZeroDivisionError
    return _rounded(a) ** _rounded(b)


def _whole_power(a: Fraction, n: int) -> Number:
    # 0 for 0, 1 and -1, which keep their size, however large the exponent.
    bits = max(a.numerator.bit_length(), a.denominator.bit_length()) - 1
    if bits * abs(n) <= _MOST_BITS:
        return a**n
    if a.denominator == 1:
        raise _too_large()
    return _rounded(a) ** n


def _exact_root(a: Fraction, k: int) -> Fraction | None:
    """The k-th root where it is a fraction; looked for among those that 50 digits can tell, and by ``isqrt``."""
    if a < 0 or k > 64:
        return None

    def root(n: int) -> int:
        return math.isqrt(n) if k == 2 else int((Decimal(n) ** (1 / Decimal(k))).to_integral_value())

    found = Fraction(root(a.numerator), root(a.denominator))
    return found if found**k == a else None


def _whole(a: Number, name: str) -> int:
    if a != int(a):
        raise CalculatorError(f"{name} needs a whole number, not {_written(a)}")
    return int(a)


def _log(a: Number, base: Number = Fraction(10)) -> Number:
    if a <= 0 or base <= 0 or base == 1:
        raise CalculatorError("a logarithm needs a number above 0, and a base above 0 that is not 1")
    return _rounded(a).log10() if base == 10 else _rounded(a).ln() / _rounded(base).ln()


def _circular(function: Callable[[float], float]) -> Callable[[Number], Number]:
    def apply(a: Number) -> Number:
        # A float of this size has hardly any digits left for the part of a turn.
        if not -(10**15) <= a <= 10**15:
            raise CalculatorError("angles (in radians) may be up to 10^15")
        return Decimal(function(float(a)))

    return apply


def _round(a: Number, digits: Number = Fraction(0)) -> Number:
    """Round halves away from zero."""
    places = _whole(digits, "round")
    if abs(places) > MAX_DIGITS:
        raise CalculatorError(f"round takes up to {MAX_DIGITS} digits")
    # Decimals are made exact first, so that a half is seen as a half.
    shifted = Fraction(a) * Fraction(10) ** places
    rounded = math.floor(abs(shifted) + Fraction(1, 2))
    return (rounded if shifted >= 0 else -rounded) / Fraction(10) ** places


def _counted(function: Callable[[int, int], int], name: str) -> Callable[..., Number]:
    def apply(n: Number, k: Number | None = None) -> Number:
        a = _whole(n, name)
        b = a if k is None else _whole(k, name)
        if a < 0 or b < 0:
            raise CalculatorError(f"{name} of a negative number does not exist")
        # Told before the work is done: comb(n, k) >= (n / k)^k of the smaller k, perm(n, k) >= (n / e)^k.
        small = min(b, a - b) if name == "comb" else b
        part = small if name == "comb" else math.e
        if 0 < small <= a and small * (math.log10(a) - math.log10(part)) > MAX_DIGITS:
            raise _too_large()
        return Fraction(function(a, b))

    return apply


_factorial = _counted(math.perm, "factorial")
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "abs": (1, 1, abs),
    "sqrt": (1, 1, lambda a: _power(a, Fraction(1, 2))),
    "exp": (1, 1, lambda a: _rounded(a).exp()),
    "ln": (1, 1, lambda a: _log(a, CONSTANTS["e"])),
    "log": (1, 2, _log),
    "sin": (1, 1, _circular(math.sin)),
    "cos": (1, 1, _circular(math.cos)),
    "tan": (1, 1, _circular(math.tan)),
    "asin": (1, 1, _circular(math.asin)),
    "acos": (1, 1, _circular(math.acos)),
    "atan": (1, 1, _circular(math.atan)),
    "round": (1, 2, _round),
    "floor": (1, 1, lambda a: Fraction(math.floor(a))),
    "ceil": (1, 1, lambda a: Fraction(math.ceil(a))),
    "min": (1, 100, lambda *a: min(a, key=Fraction)),
    "max": (1, 100, lambda *a: max(a, key=Fraction)),
    "gcd": (1, 100, lambda *a: Fraction(math.gcd(*(_whole(x, "gcd") for x in a)))),
    "lcm": (1, 100, lambda *a: Fraction(math.lcm(*(_whole(x, "lcm") for x in a)))),
    "factorial": (1, 1, _factorial),
    "comb": (2, 2, _counted(math.comb, "comb")),
    "perm": (2, 2, _counted(math.perm, "perm")),
}
"""Name -> fewest and most arguments, and what it does. ``log(x)`` has the base 10, ``log(x, b)`` the base b."""
CONSTANTS: dict[str, Number] = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470936999"),
}


def _written(value: Number) -> str:
    """A number as text: whole and finite decimals exact, other fractions with ``about``, 15 digits."""
    if isinstance(value, Decimal):
        return f"about {_about(value)}"
    if value.denominator == 1:
        return str(value.numerator)
    try:
        exact = Context(prec=60, traps=[Inexact])
        return format(exact.normalize(exact.divide(Decimal(value.numerator), Decimal(value.denominator))), "f")
    except Inexact:
        ratio = f"{value.numerator}/{value.denominator}"
        return f"about {_about(_rounded(value))}" + (f" (exactly {ratio})" if len(ratio) <= 60 else "")


def _about(value: Decimal) -> str:
    short = _SHOWN.create_decimal(value).normalize(_SHOWN)
    return "0" if short == 0 else format(short, "f" if -7 <= short.adjusted() <= 20 else "E")


class CalculatorTool(Tool):
    """One expression in, its value out; keeps nothing."""

    quick = True

    def __init__(self) -> None:
        self.spec = ToolSpec(
            name="calculator",
            description=(
                "Computes one arithmetic expression exactly: numbers, + - * / // % ** !, parentheses, pi, e, and "
                f"the functions {', '.join(FUNCTIONS)}."
            ),
            parameters=object_schema(
                "expression", expression={"type": "string", "description": "Such as 12 * (3 + 4) or sqrt(2) / 3."}
            ),
        )

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        try:
            return ToolResult(text=calculate(arguments["expression"]))
        except CalculatorError as error:
            return ToolResult(text=f"Error: {error}", ok=False)
