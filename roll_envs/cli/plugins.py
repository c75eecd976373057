"""The commands of ``roll-envs``: built-in ones, and entry points of the group ``roll_envs.commands``.

The name of an entry point is the command, its target a module with ``SUMMARY`` (one line of text),
``add_arguments(parser)`` and ``run(options) -> int``. Listing commands reads metadata and the text of their files; code
runs only when its command is used. A broken one is a :class:`~roll_envs.errors.PluginError` of its own command and
touches no other.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from roll_envs.errors import PluginError, RollError
from roll_envs.registry import Registry, error_and_place

__all__ = ["COMMANDS", "CommandModule", "add_arguments", "run", "summary"]


class CommandModule(Protocol):
    """What the module of a command has."""

    SUMMARY: str
    """One line for ``roll-envs --help``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments; ``--json`` is there already."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; the exit code. A :class:`~roll_envs.errors.RollError` ends as one line and exit code 2."""


def _accept(name: str, found: object) -> CommandModule:
    missing = [needed for needed in ("SUMMARY", "add_arguments", "run") if not hasattr(found, needed)]
    if missing:
        raise TypeError(f"it lacks {', '.join(missing)}")
    return cast(CommandModule, found)


COMMANDS = Registry(
    "command",
    "roll_envs.commands",
    _accept,
    built_in={
        "list": "roll_envs.cli.listing",
        "show": "roll_envs.cli.show",
        "parts": "roll_envs.cli.parts",
        "play": "roll_envs.cli.play",
        "check": "roll_envs.cli.checking",
        "bench": "roll_envs.cli.bench",
    },
    name_pattern=r"[a-z][a-z0-9-]*",
)


def summary(name: str) -> str:
    """The ``SUMMARY`` of a command where the file can be read without running it, else which package it is of."""
    declared = COMMANDS.declared(name)
    if declared is None:
        return COMMANDS.find(name).SUMMARY
    broken = COMMANDS.unusable(name)
    return (
        f"broken: {broken}"
        if broken
        else _summary_in_file(declared.point.module) or f"a command of {COMMANDS.source(name)}"
    )


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """Import the command and let it add its arguments. Raises :class:`PluginError` that names the package."""
    with _blamed(name, lambda error: COMMANDS.broken(name, f"its arguments: {error_and_place(error)}")):
        COMMANDS.find(name).add_arguments(parser)


def run(name: str, options: argparse.Namespace) -> int:
    """Run it; an error that is not meant for users names the package and the line where it was raised."""
    with _blamed(name, lambda error: f"command {name!r} of {COMMANDS.source(name)} failed: {error_and_place(error)}"):
        code: Any = COMMANDS.find(name).run(options)
    if not isinstance(code, int):
        raise PluginError(COMMANDS.broken(name, f"run returned {code!r}, not an exit code"))
    return code


@contextmanager
def _blamed(name: str, message: Callable[[BaseException], str]) -> Iterator[None]:
    """Errors of another package's command become a :class:`PluginError`; those of built-in ones are left alone."""
    try:
        yield
    except (RollError, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:
        if COMMANDS.declared(name) is None:
            raise
        raise PluginError(message(error)) from error


def _summary_in_file(module: str) -> str:
    """The text assigned to ``SUMMARY`` in a module's file, found without importing anything; empty when it is not."""
    try:
        for node in ast.parse(_file_of(module).read_bytes()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "SUMMARY" for t in targets):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                assert node.value is not None
                return " ".join(str(ast.literal_eval(node.value)).split())
    except Exception:  # files of others; the caller has another line to show
        return ""
    return ""


def _file_of(module: str) -> Path:
    """The file of a module. ``importlib.util.find_spec`` would import the packages that it lies in."""
    names, folders = module.split("."), None
    for depth in range(1, len(names) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(names[:depth]), folders)
        if spec is None:
            break
        folders = spec.submodule_search_locations
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin)
