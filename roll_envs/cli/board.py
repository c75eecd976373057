"""Colours for observations that are boards of symbols; any other text stays as it is.

What a symbol means is read from the environment's own instructions (``#: wall, _: empty``), so no environment needs
to be known here.
"""

from __future__ import annotations

import re

from roll_envs.cli.common import paint

__all__ = ["draw", "legend"]

_MEANING = re.compile(r"(?:^|[\s,])(\S): ([a-z][a-z ]*)", re.MULTILINE)
_STYLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("on target", ("green", "bold")),
    ("on goal", ("green", "bold")),
    ("hole", ("red",)),
    ("player", ("cyan", "bold")),
    ("wall", ("dim",)),
    ("box", ("yellow", "bold")),
    ("target", ("magenta", "bold")),
    ("goal", ("magenta", "bold")),
    ("empty", ("dim",)),
    ("floor", ("dim",)),
    ("frozen", ("blue",)),
)
"""The first word found in a symbol's meaning gives its style."""


def legend(instructions: str) -> dict[str, str]:
    """Symbols and their meanings, as far as the instructions list them in the form ``#: wall, _: empty``."""
    return dict(_MEANING.findall(instructions))


def draw(observation: str, meanings: dict[str, str], *, wide: bool, on: bool) -> str:
    """The board in colours, with a space between symbols when ``wide``; other text unchanged."""
    lines = observation.split("\n")
    symbols = {c for line in lines for c in line if not c.isspace()}
    if len(lines) < 2 or not symbols or not symbols <= set(meanings):
        return observation
    styles = {symbol: _style(meanings[symbol]) for symbol in symbols}
    spaced = wide and not any(c.isspace() for line in lines for c in line)
    gap = " " if spaced else ""
    return "\n".join(gap.join(paint(c, *styles[c], on=on) if c in styles else c for c in line) for line in lines)


def _style(meaning: str) -> tuple[str, ...]:
    return next((style for word, style in _STYLES if word in meaning), ("bold",))
