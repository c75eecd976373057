"""Published recipes by name, as ``recipes.yaml`` beside this file has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roll_envs.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A recipe."""

    summary: str
    source: str
    settings: Mapping[str, Any]
    """Dotted key -> value."""


_READ = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PRESETS: dict[str, Preset] = {name: Preset(**recipe) for name, recipe in _READ.items()}
"""Recipes by the name that ``algorithm`` uses."""


def find_preset(name: str) -> Preset:
    """The recipe ``name``. Raises :class:`UnknownNameError` for a name that is not known."""
    if name not in PRESETS:
        raise UnknownNameError("algorithm", name, PRESETS)
    return PRESETS[name]
