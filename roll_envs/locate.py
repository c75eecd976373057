"""Why a module cannot be imported: says when a folder of the same name, earlier on ``sys.path``, hides it.

``envs`` and ``trainer`` are common names of users' own folders. Python takes the first one on its path; this module
finds out which one that was and where the wanted one stands.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["HUB_ROOT", "hidden_by"]

HUB_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds ``roll_envs``; ``envs`` and ``trainer`` of the same package stand beside it."""


def hidden_by(module: str, roots: Iterable[Path] = ()) -> str | None:
    """One sentence that names the folder found in place of ``module``'s and where the wanted one should be.

    ``roots`` are folders that should hold the module's top package; ``sys.path`` is searched after them. ``None`` when
    the module is simply not there, or is found where it should be.
    """
    top = module.partition(".")[0]
    found = _location(top)
    if found is None:
        return None
    expected = list(roots)
    wanted = next((root / top for root in [*expected, *map(Path, sys.path)] if _holds(root, module)), None)
    state = ""
    if wanted is None:
        if not expected:
            return None
        wanted, state = expected[0] / top, " (which does not exist)"
    if _same(found, wanted):
        return None
    return (
        f"Python found {top!r} at {found}, which hides the one that is meant, at {wanted}{state}; "
        f"rename your {found.name!r}, or take {found.parent} off the start of sys.path "
        f"(current folder or PYTHONPATH)"
    )


def _holds(root: Path, module: str) -> bool:
    target = root.joinpath(*module.split("."))
    return (target / "__init__.py").is_file() or target.with_name(target.name + ".py").is_file()


def _location(top: str) -> Path | None:
    """The folder (of a package) or file (of a module) that ``import top`` gives."""
    loaded = sys.modules.get(top)
    try:
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place) if place and place not in ("built-in", "frozen") else None


def _same(a: Path, b: Path) -> bool:
    try:
        return a.resolve() == b.resolve()
    except OSError:
        return a == b
