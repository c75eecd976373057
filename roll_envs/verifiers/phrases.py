"""Patterns from tables of phrases, in which ``{NAME}`` stands for a part that several of them share."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"\{([A-Z]+)\}")


def patterns(
    table: Mapping[str, str | tuple[str, ...]],
    *,
    parts: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
    opening: str = "",
) -> dict[str, re.Pattern[str]]:
    """A pattern of each entry of ``table``: ``opening``, then one of its phrases.

    ``words``: parts that are one of several words, written with spaces between them; ``_`` is a space within a word.
    Parts may hold other parts. Raises KeyError for a part that there is not.
    """
    known = dict(parts or {})
    for name, listed in (words or {}).items():
        known[name] = f"(?:{'|'.join(listed.split())})".replace("_", " ")

    def whole(text: str) -> str:
        return _NAME.sub(lambda name: whole(known[name[1]]), text)

    found = {}
    for kind, phrases in table.items():
        either = phrases if isinstance(phrases, str) else f"(?:{'|'.join(phrases)})"
        found[kind] = re.compile(whole(opening + either))
    return found
