"""Lakes as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.drawing import Look, grid
from envs.frozenlake.env import MEANINGS, SYMBOLS

__all__ = ["draw"]

_ICE, _WATER, _GOAL, _PLAYER = "#dff0fa", "#123a56", ("box", "#2f9e58"), ("disc", "#d9480f")
_LOOKS = (
    Look(MEANINGS[0], _ICE, (_PLAYER,)),
    Look(MEANINGS[1], _ICE),
    Look(MEANINGS[2], _WATER),
    Look(MEANINGS[3], _ICE, (_GOAL,)),
    Look(MEANINGS[4], _WATER, (_PLAYER,)),
    Look(MEANINGS[5], _ICE, (_GOAL, _PLAYER)),
)


def draw(observation: str, arguments: Mapping[str, Any]) -> str | None:
    """A lake as SVG, with the symbols of ``arguments``."""
    return grid(observation, dict(zip(arguments.get("symbols", SYMBOLS), _LOOKS, strict=True)))
