"""Numbers that need no computer algebra, exact, as fractions: ``-1,234.50``, ``3/4``, ``.5``, ``2e3``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_SIGN = r"([+-]?)\s*"
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,3}(?: \d{3})+(?:\.\d*)?", re.ASCII)
# At most 400 digits, far below the 4300 that int() takes.
_DECIMAL = re.compile(_SIGN + r"(\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})", re.ASCII)
_RATIO = re.compile(_SIGN + r"(\d{1,400})\s*/\s*(\d{1,400})", re.ASCII)
_FRACTION = re.compile(_SIGN + r"\\frac\s*\{\s*([+-]?)\s*(\d{1,400})\s*\}\s*\{\s*([+-]?)\s*(\d{1,400})\s*\}", re.ASCII)
# 2\frac{1}{3} or 2 1/3.
_MIXED = re.compile(
    _SIGN + r"(\d{1,400})(?:\s*\\frac\s*\{\s*(\d{1,400})\s*\}\s*\{\s*(\d{1,400})\s*\}|\s+(\d{1,400})/(\d{1,400}))",
    re.ASCII,
)
_POWER = re.compile(
    _SIGN
    + r"(?:(\d{1,400}(?:\.\d{1,400})?)\s*(?:\\times|\\cdot|\*|x)\s*)?10\s*\^\s*(?:\{\s*([+-]?\d{1,3})\s*\}|([+-]?\d))",
    re.ASCII,
)
# 3, \sqrt{2}, 3\sqrt{2}\pi: whole number, radicand in two forms, pi.
_FACTOR = r"\s*(\d{1,400})?\s*(?:\\sqrt\s*(?:\{\s*(\d{1,400})\s*\}|(\d)))?\s*(\\pi(?![a-zA-Z]))?\s*"
_PRODUCT = re.compile(
    rf"{_SIGN}(?:\\frac\s*\{{(\d{{1,400}})\}}\s*\{{(\d{{1,400}})\}})?{_FACTOR}(?:/\s*(\d{{1,400}}))?", re.ASCII
)
_QUOTIENT = re.compile(rf"{_SIGN}\\frac\s*\{{{_FACTOR}\}}\s*\{{{_FACTOR}\}}", re.ASCII)


def plain_root(text: str) -> tuple[int, Fraction, int] | None:
    """The exact value of a tidied text such as ``-3\\sqrt{2}``, ``\\frac{\\sqrt{3}}{2}`` or ``2\\pi``, as its sign, its
    square without pi, and the power of pi; ``None`` for all others. Equal numbers have equal values and only they."""
    text = text.strip()
    if len(text) > 1000:
        return None
    if match := _PRODUCT.fullmatch(text):
        sign, above, below, *factor, over = match.groups()
        top, bottom = _square(factor), Fraction(int(over or 1) ** 2)
        if above is not None:
            # A number behind a fraction may be another factor or a slip.
            top = None if factor[0] else int(above) ** 2 * (Fraction(1) if top is None else top)
            bottom *= int(below) ** 2
        power = int(bool(factor[3]))
    elif match := _QUOTIENT.fullmatch(text):
        sign, *factors = match.groups()
        top, found = _square(factors[:4]), _square(factors[4:])
        bottom, power = found or Fraction(0), int(bool(factors[3])) - int(bool(factors[7]))
    else:
        return None
    if top is None or not bottom:
        return None
    return (-1 if sign == "-" else 1, top / bottom, power) if top else (0, top, 0)


def _square(factor: Sequence[str | None]) -> Fraction | None:
    """The square of a factor, without its pi; ``None`` of an empty one."""
    whole, radicand, digit, _ = factor
    return Fraction(int(whole or 1) ** 2 * int(radicand or digit or 1)) if any(factor) else None


def grouped(text: str) -> bool:
    """Whether it is digits in groups of three: ``1,234`` or ``1 234 567.5``."""
    return _GROUPED.fullmatch(text) is not None


def plain_number(text: str) -> Fraction | None:
    """The exact value of a tidied text that is just a number; ``None`` for all others."""
    text = text.strip()
    if len(text) > 1000:
        return None
    unsigned = text.lstrip("+-").strip()
    if grouped(unsigned):
        text = text.replace(",", "").replace(" ", "")
    if match := _DECIMAL.fullmatch(text):
        return _signed(match[1], Fraction(match[2].rstrip(".") if match[2] != "." else "0"))
    if match := _RATIO.fullmatch(text):
        return _divided(match[1], match[2], match[3])
    if match := _FRACTION.fullmatch(text):
        found = _divided(match[1], match[3], match[5])
        return found if found is None or match[2] == match[4] or "-" not in match[2] + match[4] else -found
    if match := _MIXED.fullmatch(text):
        above, below = match[3] or match[5], match[4] or match[6]
        # "2 7/3" is no mixed number.
        if int(above) < int(below):
            return _signed(match[1], int(match[2]) + Fraction(int(above), int(below)))
        return None
    if match := _POWER.fullmatch(text):
        exponent = int(match[3] if match[3] is not None else match[4])
        return _signed(match[1], Fraction(match[2] or "1") * Fraction(10) ** exponent)
    return None


def _divided(sign: str, above: str, below: str) -> Fraction | None:
    return None if int(below) == 0 else _signed(sign, Fraction(int(above), int(below)))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


_NAMES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5,
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15,
    "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19,
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_PARTS = {"half": 2, "quarter": 4, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
SPELLED = re.compile(  # "one" is often no number
    rf"(?<!\bthe )(?<!\bno )(?<!this )(?<!that )\b(?:(minus|negative) )?(?:"
    rf"(?:({'|'.join([*_NAMES][1:10])}) hundred (?:and )?)?(?:({'|'.join([*_NAMES][20:])})[ -])?"
    rf"({'|'.join(_NAMES)})(?:[ -]({'|'.join(_PARTS)})s?)?\b(?! (?:another|that|who|which)\b)"
    r"|an?(?= (?:dozen|hundred|thousand|.illion)))",
    re.IGNORECASE,
)


def in_digits(text: str) -> str:
    """A text with its spelled numbers in digits, up to the hundreds: ``in_digits("Twenty-one")`` is ``"21"``."""
    return SPELLED.sub(_digits, text)


def _digits(spelled: re.Match[str]) -> str:
    sign, hundreds, tens, ones, part = ((group or "").casefold() for group in spelled.groups())
    number = 100 * _NAMES.get(hundreds, 0) + _NAMES.get(tens, 0) + _NAMES.get(ones, 1)
    return f"{'-' if sign else ''}{number}" + (f"/{_PARTS[part]}" if part else "")
