"""Numbers that need no computer algebra: ``-1,234.50``, ``3/4``, ``.5``, ``2e3``; exact, as fractions."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["grouped", "plain_number"]

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
