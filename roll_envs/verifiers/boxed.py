r"""The answer in ``\boxed{...}``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b\s*")
# The first alternative passes over escaped braces.
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_STOPPED = re.compile(r"\{\s*(-?\d[\d.,/]*|[A-J])\s*\Z")
"""A number or a letter, where generation stopped at the closing brace."""
_WORD = re.compile(r"[^\s${}\\]+|\\[a-zA-Z]+")
# What may stand between two boxes that are one answer: "and", "or", a comma, a semicolon, delimiters of mathematics,
# and the name of the second one.
_JOIN = re.compile(r"(?:[\s$,;.\\()\[\]{}]|\\q?quad|\\text|\b(?:and|or)\b)*(?:[a-z](?:_\d)? ?= ?)?", re.IGNORECASE)


def boxed(text: str) -> list[str]:
    r"""What stands in the last ``\boxed{...}``, and in those that stand directly before it (``\boxed{1}`` and
    ``\boxed{2}``), in order; empty when there is none. ``\boxed 5`` is read as ``\boxed{5}``."""
    found: list[tuple[int, int, str]] = []
    closed_by = _closing(text)
    for match in _BOX.finditer(text):
        if found and match.start() < found[-1][1]:
            continue  # a box within a box
        content, end = _argument(text, match.end(), closed_by)
        if content is not None:
            found.append((match.start(), end, content))
    chosen = found[-1:]
    for before in reversed(found[:-1]):
        between = text[before[1] : chosen[0][0]]
        # More text between two boxes separates two answers.
        if len(between) > 30 or not _JOIN.fullmatch(between) or not re.search(r"and|or|,|;", between):
            break
        chosen.insert(0, before)
    return [content.strip() for _, _, content in chosen]


def _closing(text: str) -> dict[int, int]:
    """Where each brace that is closed opens and closes; one pass, so that many open ones cost no more."""
    closed_by: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACES.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closed_by[opened.pop()] = match.start()
    return closed_by


def _argument(text: str, start: int, closed_by: Mapping[int, int]) -> tuple[str | None, int]:
    """The group in braces at ``start`` (``None`` when it never closes), or the one word there; and where it ends."""
    if text.startswith("{", start):
        end = closed_by.get(start)
        if end is not None:
            return text[start + 1 : end], end + 1
        stopped = _STOPPED.match(text, start)
        return (stopped[1], len(text)) if stopped else (None, start)
    word = _WORD.match(text, start)
    return (word.group().rstrip(".,;"), word.end()) if word else (None, start)
