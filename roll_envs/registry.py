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
from dataclasses import dataclass, field
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
        self._tried: dict[tuple[str, str], str] = {}
        """(name, source) of entry points that were loaded -> why that failed, empty where it did not."""

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
        return OUR_PACKAGE if name in self._built_in else source_of(_chosen(self._declared()[name]))

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
        entry = self.entry(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.names())
        reason = self.unusable(name)
        if reason:
            raise PluginError(self.broken(name, reason))
        return self._load(name, entry)

    def broken(self, name: str, reason: str) -> str:
        """The message about a part that cannot be used."""
        return f"{self.kind} {name!r} of {self.source(name)} cannot be loaded: {reason}"

    def entry(self, name: str) -> EntryPoint | None:
        """The entry point behind a name; None where it is built in or registered in this process."""
        own = name in self._registered or name in self._built_in
        return None if own or name not in self._declared() else _chosen(self._declared()[name])

    def registrations(self, *, load: bool = False) -> tuple[Registration, ...]:
        """Every known name in order, with its state; ``load=True`` imports the parts to find out which are broken.

        Packages that declare a name of another one, and those whose metadata cannot be read, are listed too.
        """
        found = [Registration(id=path, source=path, state="broken", reason=why) for path, why in _unreadable().items()]
        for name in self.names():
            if load:
                with contextlib.suppress(RollError):
                    self.find(name)
            source, entry = self.source(name), self.entry(name)
            reason = self.unusable(name) or self._tried.get((name, source), "")
            loaded = entry is None or (name, source) in self._tried
            state: State = "broken" if reason else "ready" if loaded else "not loaded"
            found.append(Registration(id=name, source=source, state=state, reason=reason))
            if entry is not None:
                for other in sorted({source_of(each) for each in self._declared()[name]} - {source}):
                    why = f"{source} declares the same name; uninstall one of the two packages"
                    found.append(Registration(id=name, source=other, state="broken", reason=why))
        return tuple(sorted(found, key=lambda registration: registration.id))

    def unusable(self, name: str) -> str:
        """Why a known name cannot be used, as far as metadata tell; empty where they say nothing against it."""
        entry = self.entry(name)
        if entry is None:
            return ""
        if not self._pattern.fullmatch(name):
            return f"the name {name!r} does not fit; allowed: {self._pattern.pattern}"
        packages = sorted({source_of(each) for each in self._declared()[name]})
        if len(packages) > 1 and package_of(entry) != OUR_PACKAGE:
            # Either of the two would be a guess.
            return f"it is declared by {len(packages)} packages ({', '.join(packages)}); uninstall all but one"
        return ""

    def _load(self, name: str, entry: EntryPoint) -> T:
        tried = (name, source_of(entry))
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # the import runs code of others
            self._tried[tried] = why_not_loaded(error, entry.module, entry)
            if isinstance(error, RollError):
                raise
            raise PluginError(self.broken(name, self._tried[tried])) from error
        try:
            part = self._accept(name, loaded)
        except TypeError as error:
            self._tried[tried] = f"{entry.value}: {error}"
            raise PluginError(self.broken(name, self._tried[tried])) from error
        self._tried[tried] = ""
        return part

    def _declared(self) -> Mapping[str, list[EntryPoint]]:
        return _installed(_path_state()).entries.get(self.group, {})


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Installed:
    """What the metadata of all installed packages say."""

    entries: dict[str, dict[str, list[EntryPoint]]] = field(default_factory=dict)
    """Group -> name -> entry points of that name."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Path of metadata -> why they cannot be read."""


def _path_state() -> tuple[tuple[str, int], ...]:
    """The folders on ``sys.path`` with their times of change: equal states have the same packages installed."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found.append((folder, os.stat(folder or ".").st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _installed(path_state: tuple[tuple[str, int], ...]) -> _Installed:
    """Read all metadata; of two distributions with one name the first on the path counts, as for imports."""
    found, seen = _Installed(), set()
    for dist in importlib.metadata.distributions():
        try:
            package = _normal(dist.name)
            if package in seen:
                continue
            seen.add(package)
            points = list(dist.entry_points)
        except Exception as error:  # metadata of others
            reason = f"its package metadata cannot be read: {type(error).__name__}: {error}; reinstall the package"
            found.unreadable[str(getattr(dist, "_path", dist))] = reason
            continue
        for point in points:
            found.entries.setdefault(point.group, {}).setdefault(point.name, []).append(point)
    return found


def _unreadable() -> Mapping[str, str]:
    return _installed(_path_state()).unreadable


def _chosen(entries: list[EntryPoint]) -> EntryPoint:
    """Of entry points with one name, this package's before any other."""
    return next((entry for entry in entries if package_of(entry) == OUR_PACKAGE), entries[0])


def _normal(name: object) -> str:
    return re.sub(r"[-_.]+", "-", str(name)).lower()


def package_of(entry: EntryPoint) -> str:
    """Normalised name of the distribution that declares an entry point; empty when there is none."""
    return _normal(entry.dist.name) if entry.dist is not None else ""


def source_of(entry: EntryPoint) -> str:
    """``package version`` of the distribution that declares an entry point, else its target."""
    return f"{package_of(entry)} {entry.dist.version}" if entry.dist is not None else entry.value


def error_and_place(error: BaseException) -> str:
    """The error and, where it came from code, the place: ``ValueError: no (their_file.py, line 3)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    known = isinstance(error, ImportError) or not frames or "importlib" in frames[-1].filename
    return f"{type(error).__name__}: {error}{'' if known else place}"


def why_not_loaded(error: BaseException, module: str, entry: EntryPoint | None) -> str:
    """The error of importing ``module`` for a part, and which folder hides the package's own when that is the cause."""
    said = error_and_place(error)
    if not isinstance(error, ImportError | AttributeError):
        return said
    dist = None if entry is None else entry.dist
    ours = entry is not None and package_of(entry) == OUR_PACKAGE
    roots = [HUB_ROOT] if ours else [Path(str(dist.locate_file("")))] if dist is not None else []
    hidden = hidden_by(module, roots)
    return f"{said}. {hidden}" if hidden else said
