"""Numbers that need no computer algebra, exact, as fractions: ``-1,234.50``, ``3/4``, ``.5``, ``2e3``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_GROUPED = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d*)?", re.ASCII)
# At most 400 digits, far below the 4300 that int() takes.
_DECIMAL = re.compile(r"\d{1,400}(?:\.\d{0,400}|\s*/\s*\d{1,400})?|\.\d{1,400}", re.ASCII)
_FRACTION = re.compile(r"\\frac\s*\{\s*([+-]?)\s*(\d{1,400})\s*\}\s*\{\s*([+-]?)\s*(\d{1,400})\s*\}", re.ASCII)
# 2\frac{1}{3} or 2 1/3.
_MIXED = re.compile(
    r"(\d{1,400})(?:\s*\\frac\s*\{\s*(\d{1,400})\s*\}\s*\{\s*(\d{1,400})\s*\}|\s+(\d{1,400})/(\d{1,400}))", re.ASCII
)
_POWER = re.compile(
    r"(?:(\d{1,400}(?:\.\d{1,400})?)\s*(?:\\times|\\cdot|\*|x)\s*)?10\s*\^\s*(?:\{\s*([+-]?\d{1,3})\s*\}|([+-]?\d))",
    re.ASCII,
)
# 3, \sqrt{2}, 3\sqrt{2}\pi: whole number, radicand in two forms, pi.
_FACTOR = r"\s*(\d{1,400})?\s*(?:\\sqrt\s*(?:\{\s*(\d{1,400})\s*\}|(\d)))?\s*(\\pi(?![a-zA-Z]))?\s*"
_PRODUCT = re.compile(
    rf"([+-]?)\s*(?:\\frac\s*\{{(?!\s*\}}){_FACTOR}\}}\s*\{{(?!\s*\}}){_FACTOR}\}})?{_FACTOR}(?:/\s*(\d{{1,400}}))?",
    re.ASCII,
)


def plain_root(text: str) -> tuple[int, Fraction, int] | None:
    """The exact value of a tidied text such as ``-3\\sqrt{2}``, ``\\frac{\\sqrt{3}}{2}`` or ``2\\pi``, as its sign, its
    square without pi, and the power of pi; ``None`` for all others. Equal numbers have equal values and only they."""
    match = _PRODUCT.fullmatch(" ".join(text.split())) if len(text) <= 1000 else None
    if match is None:
        return None
    sign, *factors, over = match.groups()
    above, below, behind = factors[:4], factors[4:8], factors[8:]
    top, bottom = _square(above) * _square(behind), _square(below) * int(over or 1) ** 2
    # A number behind a fraction may be another factor or a slip.
    if not any(above + behind) or (any(above) and behind[0]) or not bottom:
        return None
    power = bool(above[3]) + bool(behind[3]) - bool(below[3])
    return (-1 if sign == "-" else 1, top / bottom, power) if top else (0, top, 0)


def _square(factor: Sequence[str | None]) -> Fraction:
    """The square of a factor, without its pi."""
    whole, radicand, digit, _ = factor
    return Fraction(int(whole or 1) ** 2 * int(radicand or digit or 1))


def grouped(text: str) -> bool:
    """Whether it is digits in groups of three: ``1,234`` or ``1 234 567.5``."""
    return _GROUPED.fullmatch(text) is not None


def plain_number(text: str) -> Fraction | None:
    """The exact value of a tidied text that is just a number; ``None`` for all others."""
    text = text.strip()
    try:
        value = _unsigned(re.sub(r"^[+-]\s*", "", text)) if len(text) <= 1000 else None
    except ZeroDivisionError:
        return None
    return -value if value and text[0] == "-" else value


def _unsigned(text: str) -> Fraction | None:
    if grouped(text):
        text = text.replace(",", "").replace(" ", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(re.sub(r"\s", "", text))
    if match := _FRACTION.fullmatch(text):
        return Fraction(int(match[1] + match[2]), int(match[3] + match[4]))
    if match := _MIXED.fullmatch(text):
        part = Fraction(int(match[2] or match[4]), int(match[3] or match[5]))
        return int(match[1]) + part if part < 1 else None  # "2 7/3" is no mixed number
    if match := _POWER.fullmatch(text):
        return Fraction(match[1] or "1") * Fraction(10) ** int(match[2] or match[3])
    return None


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
