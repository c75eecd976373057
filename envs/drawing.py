"""Observations as pictures for people: grids of cells as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import NamedTuple

__all__ = ["Look", "grid"]

_SIDE = 26


class Look(NamedTuple):
    """How a cell is drawn: the colour of its ground, and marks on it (``ring``, ``box``, ``disc``) with theirs."""

    name: str
    ground: str
    marks: tuple[tuple[str, str], ...] = ()


_MARKS = {
    "ring": '<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="{colour}" stroke-width="3"/>',
    "box": '<rect x="{left}" y="{top}" width="18" height="18" rx="2" fill="{colour}" stroke="#0006"/>',
    "disc": '<circle cx="{x}" cy="{y}" r="7" fill="{colour}" stroke="#0006"/>',
}


def grid(observation: str, looks: Mapping[str, Look]) -> str | None:
    """A text of rows of cells as SVG, by how each text of a cell looks; ``None`` where it is no such grid."""
    cell = re.compile("|".join(map(re.escape, sorted(looks, key=len, reverse=True))))
    rows = []
    for line in observation.split("\n"):
        found = cell.findall(line)
        if "".join(found) != line:
            return None
        rows.append(found)
    width = len(rows[0])
    if not width or any(len(row) != width for row in rows):
        return None
    parts = []
    for i, row in enumerate(rows):
        for j, text in enumerate(row):
            look, left, top = looks[text], j * _SIDE, i * _SIDE
            parts.append(
                f'<rect x="{left}" y="{top}" width="{_SIDE}" height="{_SIDE}" fill="{look.ground}" stroke="#0002">'
            )
            parts.append(f"<title>{escape(look.name)}</title></rect>")
            middle = {"x": left + _SIDE // 2, "y": top + _SIDE // 2, "left": left + 4, "top": top + 4}
            parts += [_MARKS[mark].format(colour=colour, **middle) for mark, colour in look.marks]
    size = f'width="{width * _SIDE}" height="{len(rows) * _SIDE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{"".join(parts)}</svg>'
