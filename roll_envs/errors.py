"""The one exception tree of the project.

Every error that a user can meet derives from :class:`RollError`, survives pickling (so that it crosses threads,
processes and Ray actors unchanged), and says three things: the value, what was allowed, what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from typing import Any


class RollError(Exception):
    """Base of all errors raised on purpose by this project; the message is meant for the user."""


class ConfigError(RollError):
    """A configuration that cannot be used: unknown key, wrong type, value out of range, another version."""


class CheckpointError(RollError):
    """A checkpoint that is missing, incomplete, corrupt or of another format version."""


class EngineError(RollError):
    """The inference engine could not answer a request (it died, was closed, or refused the request)."""


class EnvironmentFaultError(RollError):
    """Code of an environment raised; the episode becomes ``failed``, never a reward of 0."""


class WorkerLostError(RollError):
    """The worker that held an environment died or was replaced; it says nothing about the call that was under way."""


class SandboxError(RollError):
    """A sandbox failed at its own work (a worker died, the host refused); it says nothing about the program."""


class DeadlineExceededError(RollError):
    """A wait ran past its deadline; the message names what was waited for."""

    def __init__(self, waited_for: str, timeout_s: float) -> None:
        super().__init__(waited_for, timeout_s)
        self.waited_for = waited_for
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return f"gave up waiting for {self.waited_for} after {self.timeout_s:g} s"


class PluginError(RollError):
    """An entry point of another installed package could not be loaded."""


_SHOWN = 40
"""Names that a message lists."""


class UnknownNameError(RollError):
    """A name that is not registered; carries the nearest registered ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(kind, name, tuple(known), hint)
        self.kind, self.name, self.known, self.hint = kind, name, self.args[2], hint

    def __str__(self) -> str:
        near = nearest(self.name, self.known)
        if near:
            advice = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            names = sorted(self.known)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            advice = "known: " + (", ".join(map(repr, names[:_SHOWN])) or "none") + more
        return f"no {self.kind} {self.name!r}; {advice}" + (f" {self.hint}" if self.hint else "")


class MissingExtraError(RollError, ImportError):
    """An optional part is not installed; the message is the pip command that installs it."""

    def __init__(self, what: str, extra: str, package: str = "roll-envs") -> None:
        super().__init__(what, extra, package)
        self.what, self.extra, self.package = what, extra, package

    def __str__(self) -> str:
        return f"{self.what} needs the optional part {self.extra!r}: pip install '{self.package}[{self.extra}]'"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The up to ``count`` registered names closest to ``name``, best first (case is ignored)."""
    by_lower = {k.lower(): k for k in known}
    return [by_lower[m] for m in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.55)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'the nearest name'?``, or nothing where none is near."""
    return "".join(f"; did you mean {near!r}?" for near in nearest(name, known, 1))


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of {least} or more, not {value!r}")


def check_number(name: str, value: Any, usable: Callable[[float], bool], what: str) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a number that is ``usable``; ``what`` says which are."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not usable(value):
        raise ConfigError(f"{name} must be {what}, not {value!r}")


def check_one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise :class:`ConfigError` unless ``value`` is one of the texts of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
