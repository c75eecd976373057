"""Parts of the algorithm that other installed packages bring along: entry points of one group, loaded by name.

A package declares ``name = module:attribute`` under ``roll_envs.estimators`` or ``roll_envs.losses``. Nothing of it is
imported before its name is asked for, so that a broken package is met by those who use it only.
"""

from __future__ import annotations

import importlib.metadata

from roll_envs.errors import PluginError, RollError

__all__ = ["load_plugin", "plugin_names"]


def plugin_names(group: str) -> tuple[str, ...]:
    """Every name that installed packages declare under ``group``, in order; imports nothing."""
    return tuple(sorted({point.name for point in importlib.metadata.entry_points(group=group)}))


def load_plugin(group: str, name: str, kind: str) -> object | None:
    """What a package declares as ``name`` under ``group``; None when none does. ``kind`` is for messages.

    Raises:
        PluginError: The package cannot be imported, or two packages declare the same name.
        RollError: As the package raises it.
    """
    points = list(importlib.metadata.entry_points(group=group, name=name))
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        found = ", ".join(sorted(f"{point.dist.name if point.dist else '?'} ({point.value})" for point in points))
        raise PluginError(f"{kind} {name!r} is declared by more than one package: {found}; uninstall all but one")
    try:
        loaded: object = points[0].load()
    except RollError:
        raise
    except Exception as error:  # the import runs code of others
        raise PluginError(
            f"{kind} {name!r} ({points[0].value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return loaded
