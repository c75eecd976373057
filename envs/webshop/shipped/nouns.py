"""Nouns of the shipped titles: their words are known, so those that are no nouns are listed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["OTHER_WORDS", "nouns_of_title"]

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

OTHER_WORDS = frozenset(
    """
    a an and by for in of on s to up with
    """.split()
)
"""Words of titles that are no nouns."""


def nouns_of_title(record: Mapping[str, Any]) -> list[str]:
    """The nouns of a shipped product's title in lower case, in order (numbers and adjectives left out)."""
    return [word for word in _WORD.findall(record["name"].lower()) if word not in OTHER_WORDS]
