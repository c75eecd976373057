"""References of rows as texts: one text, a number, or a list of them of which any will do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def texts_of(reference: Any) -> tuple[str, ...] | str:
    """The references as texts, or the reason (a ``str``) why they cannot be used."""
    if isinstance(reference, bool) or reference is None:
        return f"the reference must be a text, a number or a list of them, not {reference!r}"
    if isinstance(reference, str | int | float):
        return (str(reference),)
    if isinstance(reference, Iterable) and not isinstance(reference, bytes | dict):
        found: list[str] = []
        for item in reference:
            inner = texts_of(item)
            if isinstance(inner, str):
                return inner
            found += inner
        if found:
            return tuple(found)
    return f"the reference must be a text, a number or a list of them, not {str(reference)[:100]!r}"
