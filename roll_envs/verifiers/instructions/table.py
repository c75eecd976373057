"""Every kind of instruction by its public id."""

from __future__ import annotations

from roll_envs.verifiers.instructions.given import MakeCheck
from roll_envs.verifiers.instructions.keywords import CASES, KEYWORDS, LANGUAGE, LENGTHS
from roll_envs.verifiers.instructions.layout import LAYOUT
from roll_envs.verifiers.instructions.newer import NEWER

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS: dict[str, MakeCheck] = {**KEYWORDS, **LANGUAGE, **LENGTHS, **LAYOUT, **CASES, **NEWER}
"""A program may add its own."""
