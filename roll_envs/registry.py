"""Named parts of this and of other packages: one registry class for every kind of part.

A name leads to a part by one of three ways, in this order: registered in this process (:meth:`Registry.register`), in
the kind's built-in table (name -> ``module:attribute``), or declared by an installed package as an entry point of the
kind's group. Nothing of a part is imported before its name is asked for, so that a broken package is met only by those
who use it. Left out: how a part declares its settings (:mod:`roll_envs.settings`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from roll_envs.errors import ConfigError, PluginError, RollError, UnknownNameError
from roll_envs.locate import HUB_ROOT, hidden_by

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["MakerRegistry", "Registration", "Registry", "error_and_place"]

T = TypeVar("T")

OUR_PACKAGE = "roll-envs"
IN_PROCESS = "registered in this process"

State = Literal["not loaded", "ready", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One known name: where it comes from, and whether its part could be loaded."""

    id: str
    """The part's name; for a package whose metadata cannot be read, the path of these."""
    source: str
    """``package version``, or that it was registered in this process."""
    state: State
    reason: str = ""
    """Why it is broken; empty otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Declared:
    """An entry point of an installed package. Metadata are parsed once for it, since that takes milliseconds."""

    point: EntryPoint
    package: str
    """Normalised name of the distribution."""
    source: str
    """``package version``."""
    root: Path
    """The folder that the package is installed in."""


class Registry(Generic[T]):
    """Parts of one kind by name."""

    def __init__(
        self,
        kind: str,
        group: str,
        accept: Callable[[str, object], T],
        *,
        built_in: Mapping[str, str] | None = None,
        name_pattern: str = r"[A-Za-z_][\w.:-]{0,63}",
    ) -> None:
        """``kind`` is for messages ("verifier"), ``group`` the entry-point group. ``accept`` takes a name and what was
        found under it, and returns the part or raises ``TypeError`` with what it must be."""
        self.kind, self.group = kind, group
        self._accept, self._pattern = accept, re.compile(name_pattern)
        self._built_in = dict(built_in or {})
        self._registered: dict[str, T] = {}
        self._loaded: dict[Declared, T] = {}
        self._failed: dict[Declared, str] = {}
        """Why those that were tried could not be loaded."""

    def register(self, name: str, part: T, *, replace: bool = False) -> None:
        """Make ``part`` available in this process. The same part may be registered again.

        Raises :class:`ConfigError` for a malformed name, one that is taken unless ``replace``, or a wrong part.
        """
        if not self._pattern.fullmatch(name):
            raise ConfigError(f"{self.kind} name {name!r} does not fit; allowed: {self._pattern.pattern}")
        try:
            part = self._accept(name, part)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {name!r}: {error}") from error
        taken = self._registered[name] != part if name in self._registered else name in self
        if taken and not replace:
            raise ConfigError(
                f"{self.kind} {name!r} exists already ({self.source(name)}); choose another name, or pass replace=True"
            )
        self._registered[name] = part

    def unregister(self, name: str) -> None:
        """Forget a part that was registered in this process. Raises :class:`UnknownNameError`."""
        if name not in self._registered:
            raise UnknownNameError(f"{self.kind} {IN_PROCESS}:", name, self._registered)
        del self._registered[name]

    def names(self) -> tuple[str, ...]:
        """Every known name, in order; imports nothing."""
        return tuple(sorted({*self._registered, *self._built_in, *self._declared()}))

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._built_in or name in self._declared()

    def built_in(self) -> tuple[str, ...]:
        """The names of this package's own table, in order."""
        return tuple(sorted(self._built_in))

    def source(self, name: str) -> str:
        """Which package a known name comes from, or that it was registered in this process."""
        if name in self._registered:
            return IN_PROCESS
        return OUR_PACKAGE if name in self._built_in else _chosen(self._declared()[name]).source

    def find(self, name: str) -> T:
        """The part of this name, imported if need be.

        Raises:
            UnknownNameError: Nobody has a part of this name; the message tells the nearest.
            PluginError: The package that declares it cannot be imported or declares something else, or two packages
                declare the name.
        """
        if name in self._registered:
            return self._registered[name]
        if name in self._built_in:
            return self._accept(name, EntryPoint(name, self._built_in[name], self.group).load())
        declared = self.declared(name)
        if declared is None:
            raise UnknownNameError(self.kind, name, self.names())
        if declared in self._loaded:
            return self._loaded[declared]
        reason = self.unusable(name)
        if reason:
            raise PluginError(self.broken(name, reason))
        return self._load(name, declared)

    def broken(self, name: str, reason: str) -> str:
        """The message about a part that cannot be used."""
        return f"{self.kind} {name!r} of {self.source(name)} cannot be loaded: {reason}"

    def declared(self, name: str) -> Declared | None:
        """What a package declares under a name; None where it is built in or registered in this process."""
        own = name in self._registered or name in self._built_in
        found = None if own else self._declared().get(name)
        return None if found is None else _chosen(found)

    def registrations(self, *, load: bool = False) -> tuple[Registration, ...]:
        """Every known name in order, with its state; ``load=True`` imports the parts to find out which are broken.

        Packages that declare a name of another one, and those whose metadata cannot be read, are listed too.
        """
        _, unreadable = _installed(_path_state())
        found = [Registration(id=path, source=path, state="broken", reason=why) for path, why in unreadable.items()]
        for name in self.names():
            if load:
                with contextlib.suppress(RollError):
                    self.find(name)
            source, declared = self.source(name), self.declared(name)
            reason = self.unusable(name) or (self._failed.get(declared, "") if declared is not None else "")
            ready = declared is None or declared in self._loaded
            state: State = "broken" if reason else "ready" if ready else "not loaded"
            found.append(Registration(id=name, source=source, state=state, reason=reason))
            if declared is not None:
                for other in sorted({each.source for each in self._declared()[name]} - {source}):
                    why = f"{source} declares the same name; uninstall one of the two packages"
                    found.append(Registration(id=name, source=other, state="broken", reason=why))
        return tuple(sorted(found, key=lambda registration: registration.id))

    def unusable(self, name: str) -> str:
        """Why a known name cannot be used, as far as metadata tell; empty where they say nothing against it."""
        declared = self.declared(name)
        if declared is None:
            return ""
        if not self._pattern.fullmatch(name):
            return f"the name {name!r} does not fit; allowed: {self._pattern.pattern}"
        packages = sorted({each.source for each in self._declared()[name]})
        if len(packages) > 1 and declared.package != OUR_PACKAGE:
            # Either of the two would be a guess.
            return f"it is declared by {len(packages)} packages ({', '.join(packages)}); uninstall all but one"
        return ""

    def _load(self, name: str, declared: Declared) -> T:
        try:
            loaded = declared.point.load()
        except (Exception, SystemExit) as error:  # the import runs code of others
            self._failed[declared] = why_not_loaded(error, declared.point.module, declared)
            if isinstance(error, RollError):
                raise
            raise PluginError(self.broken(name, self._failed[declared])) from error
        try:
            part = self._accept(name, loaded)
        except TypeError as error:
            self._failed[declared] = f"{declared.point.value}: {error}"
            raise PluginError(self.broken(name, self._failed[declared])) from error
        self._failed.pop(declared, None)
        self._loaded[declared] = part
        return part

    def _declared(self) -> Mapping[str, list[Declared]]:
        return _installed(_path_state())[0].get(self.group, {})


class MakerRegistry(Registry[Callable[..., T]]):
    """Classes and functions that make a part, called with its settings as keyword arguments.

    The settings are declared by the parameters of the class or function: their names, annotations and defaults, or by
    one parameter ``settings`` annotated with a :class:`~roll_envs.settings.Settings` model.
    """

    def __init__(self, kind: str, group: str, *, built_in: Mapping[str, str] | None = None) -> None:
        """``kind`` is for messages ("verifier"), ``group`` the entry-point group."""
        super().__init__(kind, group, _callable, built_in=built_in)

    def make(self, name: str, settings: Mapping[str, Any]) -> T:
        """The part ``name`` with these settings, checked before it is made.

        Raises what :meth:`find` raises, :class:`UnknownNameError` for a setting that the part does not read (with the
        nearest, and the parts of the kind that do read it), :class:`ConfigError` for one that is missing or of another
        type, and whatever the part itself raises.
        """
        from roll_envs.settings import checked_arguments  # imports pydantic, which importing the hub must not

        make = self.find(name)
        return make(**checked_arguments(f"{self.kind} {name!r}", make, settings, self._readers(name)))

    def settings(self, name: str) -> type[BaseModel]:
        """The model of the settings that a part reads. Raises as :meth:`find`."""
        from roll_envs.settings import settings_model

        return settings_model(self.find(name))

    def _readers(self, but: str) -> Callable[[str], str]:
        """A function that says which other parts of the kind read a setting; empty where none does."""

        from roll_envs.settings import accepted_names

        def say(key: str) -> str:
            others = []
            for name in self.names():
                with contextlib.suppress(RollError):  # a broken part reads nothing
                    if name != but and key in (accepted_names(self.find(name)) or ()):
                        others.append(name)
            return f"({key!r} is read by {', '.join(map(repr, others))})" if others else ""

        return say


def _callable(name: str, found: object) -> Callable[..., Any]:
    if not callable(found):
        raise TypeError(f"it must be a class or function that makes one; {found!r} cannot be called")
    return found


def _path_state() -> tuple[tuple[str, int], ...]:
    """The folders on ``sys.path`` with their times of change: equal states have the same packages installed."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found.append((folder, os.stat(folder or ".").st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _installed(
    path_state: tuple[tuple[str, int], ...],
) -> tuple[dict[str, dict[str, list[Declared]]], dict[str, str]]:
    """Group -> name -> what packages declare, and path of metadata -> why they cannot be read.

    Of two distributions with one name the first on the path counts, as for imports.
    """
    entries: dict[str, dict[str, list[Declared]]] = {}
    unreadable: dict[str, str] = {}
    seen = set()
    for dist in importlib.metadata.distributions():
        try:
            metadata = dist.metadata
            package = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
            if package in seen:
                continue
            seen.add(package)
            source, root = f"{package} {metadata['Version']}", Path(str(dist.locate_file("")))
            found = [Declared(point=p, package=package, source=source, root=root) for p in dist.entry_points]
        except Exception as error:  # metadata of others
            reason = f"its package metadata cannot be read: {type(error).__name__}: {error}; reinstall the package"
            unreadable[str(getattr(dist, "_path", dist))] = reason
            continue
        for each in found:
            entries.setdefault(each.point.group, {}).setdefault(each.point.name, []).append(each)
    return entries, unreadable


def _chosen(found: list[Declared]) -> Declared:
    """Of what is declared under one name, this package's before any other."""
    return next((each for each in found if each.package == OUR_PACKAGE), found[0])


def error_and_place(error: BaseException) -> str:
    """The error and, where it came from code, the place: ``ValueError: no (their_file.py, line 3)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    known = isinstance(error, ImportError) or not frames or "importlib" in frames[-1].filename
    return f"{type(error).__name__}: {error}{'' if known else place}"


def why_not_loaded(error: BaseException, module: str, declared: Declared | None) -> str:
    """The error of importing ``module`` for a part, and which folder hides the package's own when that is the cause."""
    said = error_and_place(error)
    if not isinstance(error, ImportError | AttributeError):
        return said
    ours = declared is not None and declared.package == OUR_PACKAGE
    hidden = hidden_by(module, [HUB_ROOT] if ours else [declared.root] if declared is not None else [])
    return f"{said}. {hidden}" if hidden else said
