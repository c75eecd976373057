"""The registry of environments: entry points of the group ``roll_envs``, over Gymnasium's own registry.

:func:`discover` reads package metadata only; a package's code is imported when one of its ids is made or shown. A
package that cannot be used is recorded with the reason and breaks nothing else. Left out: everything about playing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from roll_envs.card import EnvironmentCard
from roll_envs.env import TextEnv
from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from roll_envs.locate import HUB_ROOT, hidden_by

__all__ = [
    "GROUP",
    "Registration",
    "accepted_kwargs",
    "build",
    "card",
    "discover",
    "environment_class",
    "environments",
    "make",
    "register",
    "unregister",
]

GROUP = "roll_envs"
"""The entry-point group: name = environment id, target = its EnvironmentCard."""

_OURS = "roll-envs"
_IN_PROCESS = "registered in this process"
_ID = re.compile(r"[\w-]+/[\w.-]+-v\d+")

State = Literal["not loaded", "ready", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One known id: where it comes from, and whether its card could be loaded."""

    id: str
    source: str
    """``package version``, or that it was registered in this process."""
    state: State
    reason: str = ""
    """Why it is broken; empty otherwise."""


@dataclass(slots=True, eq=False)
class _Record:
    """What the registry holds per id: an entry point to load, or a card, or the reason why there is none."""

    id: str
    entry: importlib.metadata.EntryPoint | None = None
    card: EnvironmentCard | None = None
    reason: str = ""

    @property
    def package(self) -> str:
        """Name of the distribution that declares it, normalised; empty when there is none."""
        dist = self.entry.dist if self.entry is not None else None
        return re.sub(r"[-_.]+", "-", str(dist.name)).lower() if dist is not None else ""

    @property
    def source(self) -> str:
        if self.entry is None:
            return _IN_PROCESS
        return f"{self.package} {self.entry.dist.version}" if self.entry.dist is not None else self.entry.value

    def registration(self) -> Registration:
        state: State = "broken" if self.reason else "ready" if self.card is not None else "not loaded"
        return Registration(id=self.id, source=self.source, state=state, reason=self.reason)


_records: dict[str, _Record] = {}
_rejected: list[_Record] = []
"""Entry points that share an id with one that stands, and packages whose metadata cannot be read."""


def discover() -> None:
    """Read the installed packages' entry points anew; ids that are known already stay as they are.

    Called once when ``roll_envs`` is imported; imports nothing of any package and never raises for a broken one.
    """
    by_id: dict[str, list[_Record]] = {}
    _rejected.clear()
    for entry in _entry_points():
        by_id.setdefault(entry.name, []).append(_Record(entry.name, entry))
    for env_id, found in by_id.items():
        known = _records.get(env_id)
        if known is not None and known.entry is None:
            continue
        kept = known if known is not None else _choose(found)
        if known is None:
            _add(kept)
        for other in found:
            if other is not kept and other.package != kept.package:
                other.reason = f"{kept.source} registers the same id; uninstall one of the two packages"
                _rejected.append(other)


def _choose(found: list[_Record]) -> _Record:
    """The record that gets the id: ours before any other; of two strangers neither, since either would be a guess."""
    packages = sorted({record.source for record in found}) if len(found) > 1 else []
    if len(packages) < 2:
        return found[0]
    ours = [record for record in found if record.package == _OURS]
    if ours:
        return ours[0]
    found[0].reason = f"registered by {len(packages)} packages ({', '.join(packages)}); uninstall all but one"
    return found[0]


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    try:
        return importlib.metadata.entry_points(group=GROUP)
    except Exception:  # metadata of others: one unreadable package makes the whole call raise, so take them one by one
        entries: list[importlib.metadata.EntryPoint] = []
        for dist in importlib.metadata.distributions():
            try:
                entries.extend(e for e in dist.entry_points if e.group == GROUP)
            except Exception as error:
                place = getattr(dist, "_path", dist)
                reason = f"its package metadata cannot be read: {type(error).__name__}: {error}; reinstall the package"
                _rejected.append(_Record(str(place), reason=reason))
        return entries


def _add(record: _Record) -> None:
    if not _ID.fullmatch(record.id):
        record.reason = f"{record.id!r} is not of the form 'namespace/Name-v0'"
    _records[record.id] = record
    if record.id in gymnasium.registry or not _ID.fullmatch(record.id):
        return
    try:
        gymnasium.register(record.id, entry_point=f"roll_envs.creators:{record.id}")
    except gymnasium.error.Error as error:  # an unversioned id of the same name stands in Gymnasium's registry
        record.reason = str(error)


def register(card: EnvironmentCard, *, replace: bool = False) -> None:
    """Register an environment in this process: for tests, notebooks and modules that are not a package.

    Raises :class:`ConfigError` for a malformed id, or one that is taken unless ``replace`` (or the card is equal).
    """
    if not _ID.fullmatch(card.id):
        raise ConfigError(f"environment id {card.id!r} is not of the form 'namespace/Name-v0'")
    known = _records.get(card.id)
    if known is not None and known.card != card and not replace:
        raise ConfigError(
            f"environment id {card.id!r} is taken ({known.source}); choose another id or version, or pass replace=True"
        )
    _add(_Record(card.id, card=card))


def unregister(id: str) -> None:
    """Forget an id, here and in Gymnasium. Raises :class:`UnknownNameError`."""
    del _records[_record(id).id]
    gymnasium.registry.pop(id, None)


def environments(*, load: bool = False) -> tuple[Registration, ...]:
    """Every known id in order, with its state; ``load=True`` imports the packages to find out which are broken."""
    if load:
        for record in list(_records.values()):
            _load(record)
    return tuple(r.registration() for r in sorted([*_records.values(), *_rejected], key=lambda r: r.id))


def card(id: str) -> EnvironmentCard:
    """The card of an id. Raises :class:`UnknownNameError`, or :class:`PluginError` with the reason."""
    record = _record(id)
    loaded = _load(record)
    if loaded is None:
        raise PluginError(f"environment {record.id!r} of {record.source} cannot be used: {record.reason}")
    return loaded


def make(id: str, **kwargs: Any) -> TextEnv:
    """The bare environment, without Gymnasium's wrappers; ``module:id`` imports the module first.

    Raises :class:`UnknownNameError` for an id or argument that does not exist, :class:`PluginError` when the package
    that registers it is broken or the environment is no :class:`~roll_envs.env.TextEnv`.
    """
    env = build(id, kwargs)
    if not isinstance(env, TextEnv):
        raise PluginError(
            f"environment {id!r} is a {type(env).__name__}, not a roll_envs.TextEnv; use gymnasium.make({id!r})"
        )
    return env


def build(id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Like :func:`make`, for any ``gymnasium.Env`` class."""
    cls, found = environment_class(id), card(id)
    given = {**found.kwargs, **kwargs}
    accepted = accepted_kwargs(cls)
    render_mode = None if accepted is None or "render_mode" in accepted else given.pop("render_mode", None)
    for name in given:
        if accepted is not None and name not in accepted:
            raise UnknownNameError(f"argument of {found.id}", name, accepted)
    env = cls(**given)
    if not isinstance(env, gymnasium.Env):
        raise PluginError(f"environment {found.id!r}: {found.entry_point} made a {type(env).__name__}, not an Env")
    if render_mode is not None:
        env.render_mode = render_mode
    if env.spec is None:
        env.spec = gymnasium.envs.registration.EnvSpec(
            id=found.id,
            entry_point=f"roll_envs.creators:{found.id}",
            kwargs=dict(kwargs),
            order_enforce=False,
            disable_env_checker=True,
        )
    return env


def environment_class(id: str) -> type[gymnasium.Env[Any, Any]]:
    """The class behind an id, imported. Raises as :func:`card` does."""
    found, record = card(id), _record(id)
    module, _, name = found.entry_point.partition(":")
    try:
        cls: type[gymnasium.Env[Any, Any]] = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the import runs code of others
        raise PluginError(
            f"environment {found.id!r} of {record.source} cannot be made: {_why(error, module, record)}"
        ) from error
    return cls


def accepted_kwargs(cls: type) -> dict[str, inspect.Parameter] | None:
    """Arguments of a constructor by name; ``None`` when it takes any."""
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return {name: p for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def _record(id: str) -> _Record:
    module, _, name = id.rpartition(":")
    if module and module != __package__:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise PluginError(f"cannot import {module!r} of {id!r}: {hidden_by(module) or error}") from error
    record = _records.get(name)
    if record is not None:
        return record
    hint = "" if re.search(r"-v\d+$", name) else "(ids end in a version, such as -v0)"
    raise UnknownNameError("environment", name, _records, hint)


def _load(record: _Record) -> EnvironmentCard | None:
    """The record's card, imported at the first call; ``None`` with the reason in the record when that fails."""
    if record.card is not None or record.reason or record.entry is None:
        return record.card
    try:
        loaded = record.entry.load()
    except (Exception, SystemExit) as error:  # the import runs code of others
        record.reason = _why(error, record.entry.module, record)
        return None
    if not isinstance(loaded, EnvironmentCard):
        record.reason = f"{record.entry.value} is a {type(loaded).__name__}, not an EnvironmentCard"
    elif loaded.id != record.id:
        record.reason = f"the card {record.entry.value} has the id {loaded.id!r}; entry point and card must agree"
    else:
        record.card = loaded
    return record.card


def _why(error: BaseException, module: str, record: _Record) -> str:
    """Name of the error, and which folder hides the package's own when that is the cause."""
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, ImportError | AttributeError):
        return said
    dist = record.entry.dist if record.entry is not None else None
    roots = [HUB_ROOT] if record.package == _OURS else [Path(str(dist.locate_file("")))] if dist is not None else []
    hidden = hidden_by(module, roots)
    return f"{said}. {hidden}" if hidden else said
