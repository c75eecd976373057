"""Named parts of this and of other packages: one registry class for every kind of part.

A name leads to a part by one of three ways, in this order: registered in this process (:meth:`Registry.register`), in
the kind's built-in table (name -> ``module:attribute``), or declared by an installed package as an entry point of the
kind's group. Nothing of a part is imported before its name is asked for, so that a broken package is met only by those
who use it. Left out: how a part declares its settings (:mod:`roll_envs.settings`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from roll_envs.errors import ConfigError, MissingExtraError, PluginError, RollError, UnknownNameError, nearest

T = TypeVar("T")

OUR_PACKAGE = "roll-envs"
IN_PROCESS = "registered in this process"
HUB_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds ``roll_envs``; ``envs`` and ``trainer`` of the same package stand beside it."""

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
        """``kind`` is for messages ("verifier"), ``group`` the entry-point group, whose name starts with ``roll_envs``.
        ``accept`` takes a name and what was found under it, and returns the part or raises ``TypeError`` with what it
        must be."""
        self.kind, self.group = kind, group
        self._accept, self._pattern = accept, re.compile(name_pattern)
        self._built_in = dict(built_in or {})
        self._registered: dict[str, T] = {}
        self._loaded: dict[Declared, T] = {}
        self._failed: dict[str, str] = {}
        """Why parts that were tried could not be loaded, by name."""

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
        # Registering an equal part again is no mistake: notebooks run a cell twice.
        taken = self._registered[name] != part if name in self._registered else name in self
        if taken and not replace:
            raise ConfigError(
                f"{self.kind} {name!r} exists already ({self.source(name)}); choose another name, or pass replace=True"
            )
        self._registered[name] = part
        self._failed.pop(name, None)

    def unregister(self, name: str) -> None:
        """Forget a part that was registered in this process. Raises :class:`UnknownNameError`."""
        if name not in self._registered:
            raise UnknownNameError(f"{self.kind} {IN_PROCESS}:", name, self._registered)
        del self._registered[name]
        self._failed.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Every known name, in order; imports nothing."""
        return tuple(sorted({*self._registered, *self._built_in, *_installed(again=True).entries.get(self.group, {})}))

    def __contains__(self, name: str) -> bool:
        return name in self._registered or name in self._built_in or bool(self._declarations(name))

    def built_in(self) -> tuple[str, ...]:
        """The names of this package's own table, in order."""
        return tuple(sorted(self._built_in))

    def source(self, name: str) -> str:
        """Which package a known name comes from, or that it was registered in this process."""
        declared = self.declared(name)
        return declared.source if declared is not None else IN_PROCESS if name in self._registered else OUR_PACKAGE

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
            known = self.names()
            hint = "" if nearest(name, known) else f"(a package adds its own by entry points of {self.group!r})"
            raise UnknownNameError(self.kind, name, known, hint)
        if declared not in self._loaded:
            if reason := self.unusable(name):
                raise PluginError(self.broken(name, reason))
            found = self.load(name, declared.point)
            try:
                self._loaded[declared] = self._accept(name, found)
            except TypeError as error:
                self._failed[name] = f"{declared.point.value}: {error}"
                raise PluginError(self.broken(name, self._failed[name])) from error
        return self._loaded[declared]

    def load(self, name: str, point: EntryPoint) -> Any:
        """What ``point`` leads to, imported for the part ``name``. Raises :class:`PluginError` that names the package
        and the cause, the error of the import itself where it is meant for users, or :class:`MissingExtraError` where
        a module of others is missing and ``point`` names the extra that brings it (``name = module:NAME [extra]``)."""
        declared = self.declared(name)
        if not point.pattern.match(point.value):
            self._failed[name] = f"its entry point {point.value!r} is not of the form module:NAME"
            raise PluginError(self.broken(name, self._failed[name]))
        try:
            found = point.load()
        except (Exception, SystemExit) as error:  # the import runs code of others
            reason = error_and_place(error)
            why: str | None = None
            if isinstance(error, ImportError | AttributeError):
                # A folder of the user's that has the package's name may be the cause.
                why = why_not_found(point.module, [] if declared is None else [declared.root])
                reason += f". {why}" if why else ""
            self._failed[name] = reason
            if isinstance(error, RollError):
                raise
            absent = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            if point.extras and declared and not why and absent not in ("", point.module.partition(".")[0]):
                what = f"{self.kind} {name!r} of {declared.source} (no module {absent!r})"
                raise MissingExtraError(what, point.extras[0], declared.package) from error
            raise PluginError(self.broken(name, reason)) from error
        self._failed.pop(name, None)
        return found

    def broken(self, name: str, reason: str) -> str:
        """The message about a part that cannot be used."""
        return f"{self.kind} {name!r} of {self.source(name)} cannot be loaded: {reason}"

    def declared(self, name: str) -> Declared | None:
        """What a package declares under a name; None where it is built in or registered in this process."""
        own = name in self._registered or name in self._built_in
        return None if own else next(iter(self._declarations(name)), None)

    def registrations(self, *, load: bool = False) -> tuple[Registration, ...]:
        """Every known name in order, with its state; ``load=True`` imports the parts to find out which are broken.

        Packages that declare a name of another one, and those whose metadata cannot be read, are listed too.
        """
        unreadable = _installed(again=True).unreadable
        found = [Registration(id=path, source=path, state="broken", reason=why) for path, why in unreadable.items()]
        for name in self.names():
            if load:
                with contextlib.suppress(RollError):
                    self.find(name)
            source, declared = self.source(name), self.declared(name)
            reason = self.unusable(name) or self._failed.get(name, "")
            ready = declared is None or declared in self._loaded
            state: State = "broken" if reason else "ready" if ready else "not loaded"
            found.append(Registration(id=name, source=source, state=state, reason=reason))
            if declared is not None:
                for other in sorted({each.source for each in self._declarations(name)} - {source}):
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
        if name.startswith("roll/") and declared.package != OUR_PACKAGE:
            return "the namespace 'roll' is that of roll-envs; the package needs one of its own"
        packages = sorted({each.source for each in self._declarations(name)})
        if len(packages) > 1 and declared.package != OUR_PACKAGE:
            # Either of the two would be a guess.
            return f"it is declared by {len(packages)} packages ({', '.join(packages)}); uninstall all but one"
        return ""

    def _declarations(self, name: str) -> list[Declared]:
        """What packages declare under a name, this package's first."""
        # Folders on the path are looked at again only for a name that is not known: that takes a call per folder.
        known = _installed().entries.get(self.group, {}).get(name)
        return known or _installed(again=True).entries.get(self.group, {}).get(name, [])


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
        try:
            arguments = checked_arguments(f"{self.kind} {name!r}", make, settings)
        except UnknownNameError as error:
            raise UnknownNameError(error.kind, error.name, error.known, self._readers(error.name)) from None
        return make(**arguments)

    def _readers(self, key: str) -> str:
        """Which parts of the kind read a setting; empty where none does."""
        from roll_envs.settings import accepted_names

        readers = []
        for name in self.names():
            with contextlib.suppress(RollError):  # a broken part reads nothing
                if key in (accepted_names(self.find(name)) or ()):
                    readers.append(name)
        return f"({key!r} is read by {', '.join(map(repr, readers))})" if readers else ""


def _callable(name: str, found: object) -> Callable[..., Any]:
    if not callable(found):
        raise TypeError(f"it must be a class or function that makes one; {found!r} cannot be called")
    return found


class _Metadata(NamedTuple):
    """What the metadata of the installed packages say."""

    entries: dict[str, dict[str, list[Declared]]]
    """Group -> name -> what packages declare, this package's first."""
    unreadable: dict[str, str]
    """Path of metadata -> why they cannot be read."""
    times: tuple[int, ...]
    """When the folders on the path were last changed."""


def declared_in(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name, of packages whose metadata can be read."""
    return {name: each[0].point for name, each in _installed(again=True).entries.get(group, {}).items()}


def _installed(*, again: bool = False) -> _Metadata:
    """The metadata, read once for a ``sys.path``; with ``again`` once more if a folder on it has changed since."""
    found = _read_metadata(tuple(sys.path))
    if again and found.times != _times():
        _read_metadata.cache_clear()
        found = _read_metadata(tuple(sys.path))
    return found


def _times() -> tuple[int, ...]:
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found.append(os.stat(folder or ".").st_mtime_ns)
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _read_metadata(path: tuple[str, ...]) -> _Metadata:
    """Read the metadata on ``sys.path``. Of two distributions with one name the first counts, as for imports."""
    metadata = _Metadata({}, {}, _times())
    seen: set[str] = set()
    for dist in importlib.metadata.distributions():
        try:
            # The name as importlib.metadata has it from the file's: reading METADATA takes most of the time.
            package = re.sub(r"[-_.]+", "-", getattr(dist, "_normalized_name", "") or dist.name).lower()
            ours = [point for point in dist.entry_points if point.group.startswith("roll_envs")]
            first, seen = package not in seen, seen | {package}
            if not first or not ours:
                continue
            root = HUB_ROOT if package == OUR_PACKAGE else Path(str(dist.locate_file("")))
            source = f"{package} {dist.version}"
        except Exception as error:  # metadata of others
            reason = f"its package metadata cannot be read: {type(error).__name__}: {error}; reinstall the package"
            metadata.unreadable[str(getattr(dist, "_path", dist))] = reason
            continue
        for point in ours:
            same_name = metadata.entries.setdefault(point.group, {}).setdefault(point.name, [])
            declared = Declared(point=point, package=package, source=source, root=root)
            same_name.insert(0 if package == OUR_PACKAGE else len(same_name), declared)
    return metadata


def error_and_place(error: BaseException) -> str:
    """The error and, where it came from code, the place: ``ValueError: no (their_file.py, line 3)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    known = isinstance(error, ImportError) or not frames or "importlib" in frames[-1].filename
    return f"{type(error).__name__}: {error}{'' if known else place}"


def why_not_found(module: str, roots: Sequence[Path] = ()) -> str | None:
    """One sentence that says why Python does not find ``module``, and what to do. It names the folder found in its
    place and where the wanted one should be: ``envs`` and ``trainer`` are common names of users' own folders, and
    Python takes the first one on its path. Or it says how a module of the current folder is found, where commands do
    not look.

    ``roots`` are folders that should hold the module's top package; ``sys.path`` is searched after them. ``None`` when
    the module is simply not there, or is found where it should be.
    """
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
        if spec is None and (Path(top).is_dir() or Path(f"{top}.py").is_file()):
            return f"{top!r} is in the current folder, which is not on Python's path; set PYTHONPATH=."
        if PathFinder.find_spec(top) is None:  # found by the finder of an editable installation, or not at all
            return None
    except (ImportError, ValueError):
        return None
    # The folder of a package, or the file of a module.
    place = next(iter(spec.submodule_search_locations or ()), spec.origin) if spec is not None else None
    holding = located(module, roots)
    wanted = holding[0] if holding else next(iter(roots), None)
    if place in (None, "built-in", "frozen") or wanted is None:
        return None
    found = Path(place)
    if os.path.realpath(found.parent) == os.path.realpath(wanted):
        return None
    return (
        f"Python found {top!r} at {found}, which hides the one that is meant, at {wanted / top}"
        f"{'' if holding else ' (which does not exist)'}; rename your {found.name!r}, or take {found.parent} off the "
        f"start of sys.path (current folder or PYTHONPATH)"
    )


def located(module: str, roots: Sequence[Path] = ()) -> tuple[Path, Path] | None:
    """The first of ``roots`` and ``sys.path`` that holds a module, and the module's file; imports nothing."""
    for root in [*roots, *map(Path, sys.path)]:
        target = root.joinpath(*module.split("."))
        for file in (target / "__init__.py", target.with_name(target.name + ".py")):
            if file.is_file():
                return root, file
    return None
