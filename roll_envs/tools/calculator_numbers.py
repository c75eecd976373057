"""The calculator's numbers: exact fractions where possible, else decimals of 50 digits; never more than a bounded size.

Sizes are checked before the work is done: ``9 ** 9 ** 9`` is refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation, Overflow
from fractions import Fraction

__all__ = [
    "CONSTANTS",
    "FUNCTIONS",
    "MAX_DIGITS",
    "CalculatorError",
    "Number",
    "add",
    "divide",
    "factorial",
    "floored",
    "modulo",
    "multiply",
    "negate",
    "power",
    "written",
]

Number = Fraction | Decimal
"""A Decimal is rounded; a Fraction is exact."""

MAX_DIGITS = 1000
"""Digits of the largest number (numerator and denominator each)."""

_MOST_BITS = int(MAX_DIGITS * math.log2(10))
_CONTEXT = Context(prec=50, Emax=MAX_DIGITS, Emin=-MAX_DIGITS)
_SHOWN_DIGITS = 15


class CalculatorError(Exception):
    """An error in an expression, with a message for its author."""


def _too_large() -> CalculatorError:
    return CalculatorError(f"the result would have more than {MAX_DIGITS} digits")


def bounded(value: Number) -> Number:
    """``value``. Raises :class:`CalculatorError` where it is larger than the limits of this module."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise _too_large()
        return value
    # Bits are counted in no time; decimal digits of a long number take long.
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
        raise _too_large()
    return value


def rounded(value: Number) -> Decimal:
    """``value`` with 50 digits."""
    if isinstance(value, Decimal):
        return value
    return _decimal(lambda: _CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _decimal(work: Callable[[], Decimal]) -> Decimal:
    try:
        return work()
    except Overflow:
        raise _too_large() from None
    except InvalidOperation:
        raise CalculatorError("the result is not a real number") from None


def _both(
    a: Number,
    b: Number,
    exact: Callable[[Fraction, Fraction], Fraction],
    inexact: Callable[[Decimal, Decimal], Decimal],
) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return bounded(exact(a, b))
    return bounded(_decimal(lambda: inexact(rounded(a), rounded(b))))


def add(a: Number, b: Number) -> Number:
    """``a + b``."""
    return _both(a, b, lambda x, y: x + y, _CONTEXT.add)


def negate(a: Number) -> Number:
    """``-a``."""
    return -a if isinstance(a, Fraction) else _CONTEXT.minus(a)


def multiply(a: Number, b: Number) -> Number:
    """``a * b``."""
    return _both(a, b, lambda x, y: x * y, _CONTEXT.multiply)


def divide(a: Number, b: Number) -> Number:
    """``a / b``."""
    if b == 0:
        raise CalculatorError("division by zero")
    return _both(a, b, lambda x, y: x / y, _CONTEXT.divide)


def floored(a: Number, b: Number) -> Number:
    """``a // b``, rounded down."""
    if b == 0:
        raise CalculatorError("division by zero")
    return bounded(Fraction(math.floor(divide(a, b))))


def modulo(a: Number, b: Number) -> Number:
    """``a - b * (a // b)``: the sign is that of ``b``, as in Python."""
    return add(a, negate(multiply(b, floored(a, b))))


def power(a: Number, b: Number) -> Number:
    """``a ** b``; exact for whole exponents, and for roots that come out even."""
    if a == 0 and b < 0:
        raise CalculatorError("division by zero (0 to a negative power)")
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if b.denominator == 1:
            return _whole_power(a, b.numerator)
        root = _exact_root(a, b.denominator)
        if root is not None:
            return _whole_power(root, b.numerator)
    if a < 0:
        raise CalculatorError("a negative number to a broken power is not a real number")
    return bounded(_decimal(lambda: _CONTEXT.power(rounded(a), rounded(b))))


def _whole_power(a: Fraction, n: int) -> Number:
    # 0, 1 and -1 keep their size, however large the exponent.
    if abs(a.numerator) <= 1 and a.denominator == 1:
        return Fraction(a.numerator ** (2 if n % 2 == 0 else 1)) if n else Fraction(1)
    bits = max(a.numerator.bit_length(), a.denominator.bit_length()) - 1
    if bits * abs(n) <= _MOST_BITS:
        return bounded(a**n)
    if a.denominator == 1:
        raise _too_large()
    return bounded(_decimal(lambda: _CONTEXT.power(rounded(a), Decimal(n))))


def _exact_root(a: Fraction, k: int) -> Fraction | None:
    """The k-th root where it is a fraction."""
    if a < 0 or k > 64:
        return None
    parts = [_integer_root(n, k) for n in (a.numerator, a.denominator)]
    return None if None in parts else Fraction(parts[0] or 0, parts[1] or 1)


def _integer_root(n: int, k: int) -> int | None:
    if n < 2:
        return n
    # Bisection: the k-th root has at most one k-th of the bits, and one more.
    low, high = 1, 1 << (n.bit_length() // k + 1)
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**k <= n else (low, middle)
    return low if low**k == n else None


def factorial(a: Number) -> Number:
    """``a!``."""
    n = _whole(a, "factorial")
    if n < 0:
        raise CalculatorError("the factorial of a negative number does not exist")
    if n > MAX_DIGITS or math.lgamma(n + 1) / math.log(10) > MAX_DIGITS:
        raise _too_large()
    return Fraction(math.factorial(n))


def _whole(a: Number, name: str) -> int:
    if isinstance(a, Decimal) and a == a.to_integral_value():
        return int(a)
    if isinstance(a, Decimal) or a.denominator != 1:
        raise CalculatorError(f"{name} needs a whole number, not {written(a)}")
    return a.numerator


def _root(a: Number) -> Number:
    if a < 0:
        raise CalculatorError("the square root of a negative number is not a real number")
    return power(a, Fraction(1, 2))


def _exp(a: Number) -> Number:
    return bounded(_decimal(lambda: _CONTEXT.exp(rounded(a))))


def _ln(a: Number) -> Number:
    if a <= 0:
        raise CalculatorError("a logarithm needs a number above 0")
    return bounded(_CONTEXT.ln(rounded(a)))


def _log(a: Number, base: Number = Fraction(10)) -> Number:
    if base <= 0 or base == 1:
        raise CalculatorError("the base of a logarithm must be above 0 and not 1")
    if a <= 0:
        raise CalculatorError("a logarithm needs a number above 0")
    if base == 10:
        return bounded(_CONTEXT.log10(rounded(a)))
    return divide(_ln(a), _ln(base))


def _circular(function: Callable[[float], float]) -> Callable[[Number], Number]:
    def apply(a: Number) -> Number:
        # A float of this size has hardly any digits left for the part of a turn.
        if not -(10**15) <= a <= 10**15:
            raise CalculatorError("angles (in radians) may be up to 10^15")
        try:
            return Decimal(function(float(a)))
        except ValueError:
            raise CalculatorError("the result is not a real number") from None

    return apply


def _round(a: Number, digits: Number = Fraction(0)) -> Number:
    """Round halves away from zero."""
    places = _whole(digits, "round")
    if abs(places) > MAX_DIGITS:
        raise CalculatorError(f"round takes up to {MAX_DIGITS} digits")
    # Decimals are made exact first, so that a half is seen as a half.
    exact = Fraction(a) * Fraction(10) ** places
    return bounded(
        Fraction(math.floor(abs(exact) + Fraction(1, 2)) * (1 if exact >= 0 else -1)) / Fraction(10) ** places
    )


def _choose(n: Number, k: Number) -> Number:
    return _counted(n, k, math.comb, "comb")


def _arrange(n: Number, k: Number) -> Number:
    return _counted(n, k, math.perm, "perm")


def _counted(n: Number, k: Number, function: Callable[[int, int], int], name: str) -> Number:
    a, b = _whole(n, name), _whole(k, name)
    if a < 0 or b < 0:
        raise CalculatorError(f"{name} needs numbers of 0 or more")
    if b <= a:
        small = min(b, a - b) if name == "comb" else b
        # Bounds each result from above: comb(n, k) <= n^k / k!, perm(n, k) <= n^k.
        digits = small * math.log10(max(a, 1)) - (math.lgamma(small + 1) / math.log(10) if name == "comb" else 0)
        if small > 10 * MAX_DIGITS or digits > 2 * MAX_DIGITS:
            raise _too_large()
    return bounded(Fraction(function(a, b)))


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number]]] = {
    "abs": (1, 1, abs),
    "sqrt": (1, 1, _root),
    "exp": (1, 1, _exp),
    "ln": (1, 1, _ln),
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
    "lcm": (1, 100, lambda *a: _lcm(a)),
    "factorial": (1, 1, factorial),
    "comb": (2, 2, _choose),
    "perm": (2, 2, _arrange),
}
"""Name -> fewest and most arguments, and what it does. ``log(x)`` has the base 10, ``log(x, b)`` the base b."""


def _lcm(numbers: tuple[Number, ...]) -> Number:
    found: Number = Fraction(1)
    for number in numbers:
        found = bounded(Fraction(math.lcm(int(found), _whole(number, "lcm"))))
    return found


CONSTANTS: dict[str, Number] = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470936999"),
}


def written(value: Number) -> str:
    """A number as text: whole and finite decimals exact, other fractions with ``about``, 15 digits."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        exact = _finite_decimal(value)
        if exact is not None:
            return exact
        ratio = f"{value.numerator!s}/{value.denominator!s}"
        return f"about {_about(rounded(value))}" + (f" (exactly {ratio})" if len(ratio) <= 60 else "")
    return f"about {_about(value)}"


def _finite_decimal(value: Fraction) -> str | None:
    """All digits where they end, and are no more than 60."""
    places, rest = 0, value.denominator
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1 or places > 60:
        return None
    scaled = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{scaled[:-places]}.{scaled[-places:]}"


def _about(value: Decimal) -> str:
    short = Context(prec=_SHOWN_DIGITS).create_decimal(value)
    if short == 0:
        return "0"
    text = format(short, "f") if -7 <= short.adjusted() <= 20 else format(short, "E")
    if "." in text and "E" not in text:
        text = text.rstrip("0").rstrip(".")
    return text
