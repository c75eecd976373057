"""Named parts of this and of other packages: one registry for every kind of part, and how a part declares its settings.

A name leads to a part by one of three ways, in this order: registered in this process (:meth:`Registry.register`), in
the kind's built-in table (name -> ``module:attribute``), or declared by an installed package as an entry point of the
kind's group. Nothing of a part is imported before its name is asked for, so that a broken package is met only by those
who use it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from roll_envs.errors import ConfigError, PluginError, RollError, UnknownNameError
from roll_envs.locate import HUB_ROOT, hidden_by

__all__ = ["Part", "Registry", "Settings", "setting"]

T = TypeVar("T")

OUR_PACKAGE = "roll-envs"


class Settings(BaseModel):
    """Settings of a part, declared beside its code: frozen, strict about types, without unknown keys.

    A part without settings of its own uses this class as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def setting(default: Any, description: str, *, origin: str = "", **limits: Any) -> Any:
    """A field of a :class:`Settings` class: its default, one sentence for the reference, and where the default is from
    (a paper, another trainer, "off"), which ``roll-train explain`` shows. ``limits`` are pydantic's (``gt``, ``ge``,
    ``le``, ...)."""
    return Field(default, description=description, json_schema_extra={"origin": origin} if origin else None, **limits)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that a configuration chooses by name. Each kind of part is a subclass with what it needs."""

    settings: type[Settings] = Settings
    """The model of the settings that this part reads."""

    def problems(self, config: Any) -> list[str]:
        """What the part asks of other sections of a run's configuration and does not find, a sentence each."""
        return []


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
        self._loaded: dict[str, T] = {}
        """Of entry points that were asked for: to look for them again is slow."""

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
        if not replace and self._registered.get(name, part) != part:
            raise ConfigError(f"{self.kind} {name!r} exists already; choose another name, or pass replace=True")
        if not replace and name not in self._registered and name in self.names():
            raise ConfigError(f"{self.kind} {name!r} exists already; choose another name, or pass replace=True")
        self._registered[name] = part

    def unregister(self, name: str) -> None:
        """Forget a part that was registered in this process. Raises :class:`UnknownNameError`."""
        if name not in self._registered:
            raise UnknownNameError(f"{self.kind} registered in this process", name, self._registered)
        del self._registered[name]

    def names(self) -> tuple[str, ...]:
        """Every known name, in order; imports nothing."""
        return tuple(sorted({*self._registered, *self._built_in, *self._declared()}))

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._built_in or name in self._declared()

    def built_in(self) -> tuple[str, ...]:
        """The names of this package's own table, in order."""
        return tuple(sorted(self._built_in))

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
            module, _, attribute = self._built_in[name].partition(":")
            return self._accept(name, getattr(importlib.import_module(module), attribute))
        if name not in self._loaded:
            entries = self._declared().get(name)
            if entries is None:
                raise UnknownNameError(self.kind, name, self.names())
            self._loaded[name] = self._load(name, chosen(entries, self.kind))
        return self._loaded[name]

    def _load(self, name: str, entry: importlib.metadata.EntryPoint) -> T:
        what = f"{self.kind} {name!r} of {source_of(entry)}"
        try:
            loaded = entry.load()
        except RollError:
            raise
        except (Exception, SystemExit) as error:  # the import runs code of others
            raise PluginError(f"{what} cannot be loaded: {why_not_loaded(error, entry)}") from error
        try:
            return self._accept(name, loaded)
        except TypeError as error:
            raise PluginError(f"{what} ({entry.value}): {error}") from error

    def _declared(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        found: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for entry in entry_points(self.group):
            found.setdefault(entry.name, []).append(entry)
        return found


def entry_points(group: str) -> Iterable[importlib.metadata.EntryPoint]:
    """The entry points of ``group``; packages whose metadata cannot be read are left out."""
    try:
        return importlib.metadata.entry_points(group=group)
    except Exception:  # metadata of others: one unreadable package makes the whole call raise, so take them one by one
        found: list[importlib.metadata.EntryPoint] = []
        for dist in importlib.metadata.distributions():
            try:
                found.extend(entry for entry in dist.entry_points if entry.group == group)
            except Exception:
                continue
        return found


def chosen(entries: list[importlib.metadata.EntryPoint], kind: str) -> importlib.metadata.EntryPoint:
    """Of entry points with one name, ours before any other. Raises :class:`PluginError` when two strangers declare it:
    either would be a guess."""
    ours = [entry for entry in entries if package_of(entry) == OUR_PACKAGE]
    packages = sorted({source_of(entry) for entry in entries})
    if ours or len(packages) == 1:
        return (ours or entries)[0]
    raise PluginError(
        f"{kind} {entries[0].name!r} is declared by {len(packages)} packages ({', '.join(packages)}); "
        "uninstall all but one"
    )


def package_of(entry: importlib.metadata.EntryPoint) -> str:
    """Normalised name of the distribution that declares an entry point; empty when there is none."""
    return re.sub(r"[-_.]+", "-", str(entry.dist.name)).lower() if entry.dist is not None else ""


def source_of(entry: importlib.metadata.EntryPoint) -> str:
    """``package version`` of the distribution that declares an entry point, else its target."""
    return f"{package_of(entry)} {entry.dist.version}" if entry.dist is not None else entry.value


def why_not_loaded(error: BaseException, entry: importlib.metadata.EntryPoint) -> str:
    """The error, and which folder hides the package's own when that is the cause."""
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, ImportError | AttributeError):
        return said
    ours = package_of(entry) == OUR_PACKAGE
    roots = [HUB_ROOT] if ours else [Path(str(entry.dist.locate_file("")))] if entry.dist is not None else []
    hidden = hidden_by(entry.module, roots)
    return f"{said}. {hidden}" if hidden else said
