"""Every kind of instruction by its public id."""

from __future__ import annotations

from roll_envs.verifiers.instructions.given import MakeCheck
from roll_envs.verifiers.instructions.keywords import CASES, KEYWORDS, LANGUAGE, LENGTHS
from roll_envs.verifiers.instructions.layout import LAYOUT

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS: dict[str, MakeCheck] = {**KEYWORDS, **LANGUAGE, **LENGTHS, **LAYOUT, **CASES}
"""A program may add its own."""
