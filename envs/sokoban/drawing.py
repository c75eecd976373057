"""Rooms as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.drawing import Look, grid
from envs.sokoban.arguments import MEANINGS, STYLES, SYMBOLS

__all__ = ["draw"]

_FLOOR, _TARGET, _PLAYER = "#ece6d9", ("ring", "#c0392b"), ("disc", "#1a63c4")
_LOOKS = (
    Look(MEANINGS[0], "#59626e"),
    Look(MEANINGS[1], _FLOOR),
    Look(MEANINGS[2], _FLOOR, (_TARGET,)),
    Look(MEANINGS[3], _FLOOR, (("box", "#2f9e58"), _TARGET)),
    Look(MEANINGS[4], _FLOOR, (("box", "#b07a3c"),)),
    Look(MEANINGS[5], _FLOOR, (_PLAYER,)),
    Look(MEANINGS[6], _FLOOR, (_TARGET, _PLAYER)),
)


def draw(observation: str, arguments: Mapping[str, Any]) -> str | None:
    """A room as SVG, with the symbols and the style of ``arguments``."""
    style = STYLES[arguments.get("observation_style", "plain")]
    symbols = [style.format(symbol) for symbol in arguments.get("symbols", SYMBOLS)]
    return grid(observation, dict(zip(symbols, _LOOKS, strict=True)))
