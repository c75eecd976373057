"""Environments of other packages, brought in by their ids when the package is installed.

A provider is a module that an entry point of the group ``roll_envs.providers`` names, with two functions: ``ids()``,
the ids that it has now, without importing the package, and ``card(id)``, the card of one of them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from roll_envs.env import EnvironmentCard
from roll_envs.registry import error_and_place

__all__ = ["card_of", "problems", "provided", "source_of"]

_problems: dict[str, str] = {}


@functools.lru_cache(maxsize=1)
def provided() -> Mapping[str, str]:
    """Every id that some provider has -> the provider's name. One that fails is in :func:`problems`."""
    found: dict[str, str] = {}
    for point in entry_points(group="roll_envs.providers"):
        try:
            found |= dict.fromkeys(_module(point.name).ids(), point.name)
        except (Exception, SystemExit) as error:  # code of others
            _problems[point.name] = error_and_place(error)
    return found


def problems() -> Mapping[str, str]:
    """Why providers could not say their ids, by name."""
    provided()
    return dict(_problems)


def source_of(id: str) -> str:
    """The package that a provided id comes from, with its version."""
    name = provided()[id]
    try:
        return f"{name.replace('_', '-')} {version(name)}"
    except PackageNotFoundError:
        return name


def card_of(id: str) -> EnvironmentCard:
    """The card of a provided id."""
    found: EnvironmentCard = _module(provided()[id]).card(id)
    return found


@functools.cache
def _module(name: str) -> Any:
    (point,) = entry_points(group="roll_envs.providers", name=name)
    return importlib.import_module(point.value)
