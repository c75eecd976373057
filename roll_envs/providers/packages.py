"""Finding and importing the packages that providers bring in."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from pathlib import Path
from typing import Any

from roll_envs.errors import MissingExtraError

__all__ = ["folder_of", "imported"]


def folder_of(package: str) -> Path | None:
    """Where a package is installed, found without importing it; ``None`` where it is not."""
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def imported(package: str, name: str, extra: str) -> Any:
    """The package, which the environment ``name`` needs. Handlers that its import gives the root logger are taken back.

    Raises :class:`MissingExtraError`, which says how to install ``extra``, where it is not there.
    """
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtraError(f"{package}/{name}", extra) from error
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
