"""Commands of other packages: entry points of the group ``roll_envs.commands``.

The name of an entry point is the command, its target a module with ``SUMMARY`` (one line of text),
``add_arguments(parser)`` and ``run(options) -> int``. Listing commands reads metadata and the text of their files; code
runs only when its command is used. A broken one is a :class:`~roll_envs.errors.PluginError` of its own command and
touches no other.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.metadata
import re
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from roll_envs.errors import PluginError, RollError
from roll_envs.locate import HUB_ROOT, hidden_by

__all__ = ["GROUP", "CommandModule", "PluginCommand", "find_commands"]

GROUP = "roll_envs.commands"
"""The entry-point group: name = command, target = a module that is a :class:`CommandModule`."""

_OURS = "roll-envs"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_PARTS = ("SUMMARY", "add_arguments", "run")


class CommandModule(Protocol):
    """What the module of a command has."""

    SUMMARY: str
    """One line for ``roll-envs --help``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments; ``--json`` is there already."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; the exit code. A :class:`~roll_envs.errors.RollError` ends as one line and exit code 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginCommand:
    """A command of an installed package, not imported yet."""

    name: str
    entry: importlib.metadata.EntryPoint
    reason: str = ""
    """Why it cannot be used, as far as metadata tell; empty otherwise."""

    @property
    def package(self) -> str:
        """Name and version of the package that declares it."""
        dist = self.entry.dist
        return f"{_normal(dist.name)} {dist.version}" if dist is not None else self.entry.value

    def summary(self) -> str:
        """Its ``SUMMARY`` where the file can be read without running it, else which package it is of."""
        if self.reason:
            return f"broken: {self.reason}"
        return _summary_in_file(self.entry.module) or f"a command of {self.package}"

    def load(self) -> CommandModule:
        """The module. Raises :class:`PluginError` that names the package and what is wrong with it."""
        if self.reason:
            raise PluginError(self._broken(self.reason))
        try:
            module = self.entry.load()
        except (Exception, SystemExit) as error:  # the import runs code of others
            raise PluginError(self._broken(self._why(error))) from error
        missing = [part for part in _PARTS if not hasattr(module, part)]
        if missing:
            raise PluginError(self._broken(f"{self.entry.value} lacks {', '.join(missing)}"))
        return cast(CommandModule, module)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Import the module and let it add its arguments. Raises as :meth:`load` does."""
        module = self.load()
        try:
            module.add_arguments(parser)
        except RollError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(self._broken(f"its arguments: {_said(error)}")) from error

    def run(self, options: argparse.Namespace) -> int:
        """Run it; an error that is not meant for users names the package and the line where it was raised."""
        try:
            code = self.load().run(options)
        except (RollError, BrokenPipeError):
            raise
        except Exception as error:
            raise PluginError(f"command {self.name!r} of {self.package} failed: {_said(error)}") from error
        if not isinstance(code, int):
            raise PluginError(self._broken(f"run returned {code!r}, not an exit code"))
        return code

    def _broken(self, why: str) -> str:
        return f"command {self.name!r} of {self.package} cannot be used: {why}"

    def _why(self, error: BaseException) -> str:
        said = _said(error)
        if not isinstance(error, ImportError | AttributeError):
            return said
        dist = self.entry.dist
        ours = dist is not None and _normal(dist.name) == _OURS
        roots = [HUB_ROOT] if ours else [Path(str(dist.locate_file("")))] if dist is not None else []
        hidden = hidden_by(self.entry.module, roots)
        return f"{said}. {hidden}" if hidden else said


def find_commands(taken: Collection[str]) -> dict[str, PluginCommand]:
    """The installed commands by name, those in ``taken`` left out; imports nothing and never raises."""
    by_name: dict[str, list[PluginCommand]] = {}
    for entry in _entry_points():
        if entry.name not in taken:
            by_name.setdefault(entry.name, []).append(PluginCommand(name=entry.name, entry=entry))
    return {name: _choose(found) for name, found in sorted(by_name.items())}


def _choose(found: list[PluginCommand]) -> PluginCommand:
    """The one that gets the name: ours before any other; of two strangers neither, since either would be a guess."""
    first = next((c for c in found if c.package.startswith(f"{_OURS} ")), found[0])
    packages = sorted({c.package for c in found})
    reason = ""
    if not _NAME.fullmatch(first.name):
        reason = f"the name {first.name!r} is not made of lower-case letters, digits and hyphens"
    elif len(packages) > 1 and not first.package.startswith(f"{_OURS} "):
        reason = f"it is declared by {len(packages)} packages ({', '.join(packages)}); uninstall all but one"
    return PluginCommand(name=first.name, entry=first.entry, reason=reason)


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Those of the group, of the first distribution of each name on the path; unreadable packages are left out."""
    seen = set()
    for dist in importlib.metadata.distributions():
        try:
            name = _normal(dist.name)
            if name not in seen:
                seen.add(name)
                yield from [e for e in dist.entry_points if e.group == GROUP]
        except Exception:  # metadata of others
            continue


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", str(name)).lower()


def _said(error: BaseException) -> str:
    """The error and, where it came from code, the place: ``ValueError: no (their_file.py, line 3)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    known = isinstance(error, ImportError) or not frames or frames[-1].filename.startswith("<")
    return f"{type(error).__name__}: {error}{'' if known else place}"


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
