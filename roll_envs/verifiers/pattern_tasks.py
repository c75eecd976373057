"""Tasks of the workers of ``regex``."""

from __future__ import annotations

import functools
import re
from typing import Any


def find(pattern: str, flags: int, mode: str, text: str) -> str | None:
    """The first group of the match (the match itself without groups), or ``None``."""
    compiled = re.compile(pattern, flags)
    if mode == "last":
        # Keeps one match at a time in memory.
        match = functools.reduce(lambda _, later: later, compiled.finditer(text), None)
    else:
        match = getattr(compiled, mode)(text)
    if match is None:
        return None
    group = match.group(1) if compiled.groups else match.group()
    return group if group is not None else ""


TASKS: dict[str, Any] = {"find": find}
