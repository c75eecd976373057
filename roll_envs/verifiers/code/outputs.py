"""Compares the output of a program with the expected one: exactly, or up to whitespace and rounding."""

from __future__ import annotations

import math
import re

__all__ = ["same_output"]

_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def same_output(said: str, wanted: str, *, exact: bool = False, tolerance: float = 1e-6) -> bool:
    """``exact``: the same text but for one newline at the end. Else the same words in order, where words with a decimal
    point or exponent on either side may differ by ``tolerance`` (relative to the larger, absolute below 1)."""
    if exact:
        return said.removesuffix("\n") == wanted.removesuffix("\n")
    words, others = said.split(), wanted.split()
    return len(words) == len(others) and all(
        a == b or _close(a, b, tolerance) for a, b in zip(words, others, strict=True)
    )


def _close(one: str, other: str, tolerance: float) -> bool:
    if not (_FLOAT.fullmatch(one) and _FLOAT.fullmatch(other)) or (_is_int(one) and _is_int(other)):
        return False
    a, b = float(one), float(other)
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(abs(a), abs(b), 1.0)


def _is_int(word: str) -> bool:
    return word.lstrip("+-").isdecimal()
