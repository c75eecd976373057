"""Environments of other packages, brought in by their ids when the package is installed.

A provider is a module that an entry point of the group ``roll_envs.providers`` names, with two functions: ``ids()``,
the ids that it has now, without importing the package, and ``card(id)``, the card of one of them; and ``DISTRIBUTION``
where the package is installed by another name than the entry point's.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roll_envs.env import EnvironmentCard
from roll_envs.registry import declared_in, error_and_place

__all__ = ["card_of", "problems", "provided", "source_of", "without_ids"]

_GROUP = "roll_envs.providers"
_problems: dict[str, str] = {}


@functools.lru_cache(maxsize=1)
def provided() -> Mapping[str, str]:
    """Every id that some provider has -> the provider's name. One that fails is in :func:`problems`."""
    found: dict[str, str] = {}
    for name in declared_in(_GROUP):
        try:
            found |= dict.fromkeys(_module(name).ids(), name)
        except (Exception, SystemExit) as error:  # code of others
            _problems[name] = error_and_place(error)
    return found


def problems() -> Mapping[str, str]:
    """Why providers could not say their ids, by name."""
    provided()
    return dict(_problems)


def without_ids() -> set[str]:
    """Providers that have no environment now, as a rule because their package is not installed."""
    return set(declared_in(_GROUP)) - set(provided().values())


def source_of(id: str) -> str:
    """The package that a provided id comes from, with its version."""
    name = provided()[id]
    distribution = getattr(_module(name), "DISTRIBUTION", name.replace("_", "-"))
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return name


def card_of(id: str) -> EnvironmentCard:
    """The card of a provided id."""
    found: EnvironmentCard = _module(provided()[id]).card(id)
    return found


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(declared_in(_GROUP)[name].value)
