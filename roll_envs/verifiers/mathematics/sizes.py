r"""Estimates what an expression costs from its text alone, before computer algebra is asked.

:func:`hopeless` finds powers, factorials and binomials with more than a million digits, such as ``2^{10^{10}}``. The
others only help to decide whose turn it is.
"""

from __future__ import annotations

import functools
import math
import re

_MOST_DIGITS = 1e6
_LETTER = 0.15
"""Digits of a variable: computer algebra compares functions at numbers such as 7/5."""
_TOKEN = re.compile(r"\d+(?:\.\d*)?|\\[A-Za-z]+|!!|\S")
_DIGITS = re.compile(r"\d+")
_GROWS = re.compile(r"\^|!|\\[dt]?binom|\\Gamma")
_COSTLY = re.compile(r"\\(?:sum|prod|int|lim|zeta)|\d{13}|\\sqrt\s*\[")
_COSTLY_DIGITS = 1e3
_CLOSING = {"{": "}", "(": ")", "[": "]", "⦃": "⦄"}


def shape_of(text: str) -> str:
    """A text with its numbers by their lengths only: answers of one kind have one shape."""
    return _DIGITS.sub(lambda match: f"#{len(match.group())}", text)


def looks_costly(text: str) -> bool:
    """Whether it has something that may take long: sums, numbers of a thousand digits, many characters."""
    return len(text) > 300 or _COSTLY.search(text) is not None or _digits(text) > _COSTLY_DIGITS


def hopeless(text: str) -> bool:
    """Whether a number in it is too large to be written out."""
    return _digits(text) > _MOST_DIGITS


@functools.lru_cache(maxsize=4096)
def _digits(text: str) -> float:
    """Digits of the largest number that arithmetic makes of it; 0 where that cannot be told."""
    if _GROWS.search(text) is None:
        return 0.0
    sizes = _Sizes(_TOKEN.findall(text))
    try:
        while sizes.tokens:
            sizes.group("")
    except RecursionError:
        return 0.0
    return sizes.largest


class _Sizes:
    """Reads tokens once. A size is the number of digits that a part may come to."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        self.largest = 0.0

    def group(self, closing: str) -> float:
        """The size of what stands before ``closing``, which is read as well."""
        total = term = last = 0.0
        factors, terms, bound = 0, 1, False
        while self.tokens:
            token = self.tokens.pop()
            if token == closing:
                break
            if token in ("+", "-", "±", ",", ";", "="):
                # A leading sign begins the first term.
                terms += factors > 0
                total, term, last, factors = max(total, term), 0.0, 0.0, 0
                continue
            factors, before = factors + 1, last
            if token == "_" or (token == "^" and bound):
                self.argument()
                continue
            if token == "^":
                last = self.grown(before * _value(self.argument()))
                term -= before
            elif token in ("!", "!!"):
                last = self.grown(_value(before) * max(before - 0.43, 0.0))
                term -= before
            elif token in (r"\binom", r"\dbinom", r"\tbinom"):
                above, below = self.argument(), self.argument()
                last = self.grown(min(_value(above) * 0.3, _value(below) * above))
            elif token == r"\Gamma":
                size = self.argument()
                last = self.grown(_value(size) * max(size - 0.43, 0.0))
            else:
                last = self.one(token)
            # Sums and the like have bounds where others have powers.
            bound = token in (r"\sum", r"\prod", r"\int", r"\lim")
            term += last
        return max(total, term) + math.log10(terms)

    def argument(self) -> float:
        """The size of the next token or group."""
        return self.one(self.tokens.pop()) if self.tokens else 0.0

    def one(self, token: str) -> float:
        if token in _CLOSING:
            return self.group(_CLOSING[token])
        if token[0].isdigit():
            number = float(token[:300])
            return abs(math.log10(number)) if number else 0.0
        return _LETTER if token.isalpha() else 0.0

    def grown(self, size: float) -> float:
        """Note a size that only arithmetic makes, from shorter texts."""
        self.largest = max(self.largest, size)
        return size


def _value(size: float) -> float:
    return float(10.0 ** min(size, 300.0))
