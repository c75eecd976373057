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
_JOINTS = ("+", "-", "±", ",", ";", "=")
_BOUNDED = (r"\sum", r"\prod", r"\int", r"\lim")
"""They have bounds where others have powers."""
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
        largest, terms, factors, bound = 0.0, 1, [0.0], False
        while self.tokens and (token := self.tokens.pop()) != closing:
            if token in _JOINTS:
                terms += len(factors) > 1  # a leading sign begins the first term
                largest, factors = max(largest, sum(factors)), [0.0]
            elif token == "_" or (token == "^" and bound):
                self.argument()
            else:
                factors.append(self.factor(token, factors))
                bound = token in _BOUNDED
        return max(largest, sum(factors)) + math.log10(terms)

    def factor(self, token: str, factors: list[float]) -> float:
        """The size of the next factor; a power or a factorial takes the place of the last one."""
        if token == "^":
            return self.grown(factors.pop() * _value(self.argument()))
        if token in ("!", "!!"):
            return self.grown(_factorial(factors.pop()))
        if token == r"\Gamma":
            return self.grown(_factorial(self.argument()))
        if token in (r"\binom", r"\dbinom", r"\tbinom"):
            above, below = self.argument(), self.argument()
            return self.grown(min(_value(above) * 0.3, _value(below) * above))
        return self.one(token)

    def argument(self) -> float:
        """The size of the next token or group."""
        return self.one(self.tokens.pop()) if self.tokens else 0.0

    def one(self, token: str) -> float:
        if token in _CLOSING:
            return self.group(_CLOSING[token])
        if token[0].isdecimal():
            number = float(token[:300])
            return abs(math.log10(number)) if number else 0.0
        return _LETTER if token.isalpha() else 0.0

    def grown(self, size: float) -> float:
        """Note a size that only arithmetic makes, from shorter texts."""
        self.largest = max(self.largest, size)
        return size


def _value(size: float) -> float:
    return float(10.0 ** min(size, 300.0))


def _factorial(size: float) -> float:
    return _value(size) * max(size - 0.43, 0.0)
