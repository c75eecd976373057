"""Verifiers by name: the built-in ones, those of installed packages, and those registered in this process.

A package adds its own with an entry point of the group ``roll_envs.verifiers``: name -> a class or function that takes
keyword arguments and gives a verifier. Nothing is imported before its name is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from roll_envs.errors import ConfigError, PluginError, RollError, UnknownNameError
from roll_envs.verifiers.types import Verifier

__all__ = ["BUILT_IN", "as_verifier", "make_verifier", "register_verifier", "verifier_names"]

GROUP = "roll_envs.verifiers"

MakeVerifier = Callable[..., Verifier]

BUILT_IN: dict[str, str] = {
    "all": "roll_envs.verifiers.compose:AllOf",
    "any": "roll_envs.verifiers.compose:AnyOf",
    "choice": "roll_envs.verifiers.choice:ChoiceVerifier",
    "code": "roll_envs.verifiers.code.verifier:CodeVerifier",
    "em": "roll_envs.verifiers.qa:ExactMatchVerifier",
    "exact": "roll_envs.verifiers.matching:ExactVerifier",
    "f1": "roll_envs.verifiers.qa:F1Verifier",
    "fence": "roll_envs.verifiers.formats:FenceVerifier",
    "gate": "roll_envs.verifiers.compose:Gate",
    "instructions": "roll_envs.verifiers.instructions:InstructionsVerifier",
    "json": "roll_envs.verifiers.formats:JsonVerifier",
    "language": "roll_envs.verifiers.language:LanguageVerifier",
    "llm_judge": "roll_envs.verifiers.judge_llm:LlmJudge",
    "math": "roll_envs.verifiers.mathematics.verifier:MathVerifier",
    "length": "roll_envs.verifiers.penalties:LengthPenalty",
    "normalized": "roll_envs.verifiers.matching:NormalizedVerifier",
    "regex": "roll_envs.verifiers.patterns:RegexVerifier",
    "repetition": "roll_envs.verifiers.penalties:RepetitionPenalty",
    "tags": "roll_envs.verifiers.formats:TagsVerifier",
    "tool_calls": "roll_envs.verifiers.formats:ToolCallsVerifier",
    "weighted": "roll_envs.verifiers.compose:WeightedSum",
}
"""Name -> ``module:attribute``."""

_registered: dict[str, MakeVerifier] = {}


def register_verifier(name: str, make: MakeVerifier, *, replace: bool = False) -> None:
    """Register a verifier in this process; ``make(**kwargs)`` gives one.

    Raises :class:`ConfigError` for a name that is taken unless ``replace``.
    """
    if not callable(make):
        raise ConfigError(f"verifier {name!r} must be a class or function that makes one, not {make!r}")
    taken = name in _registered or name in BUILT_IN
    if taken and not replace and _registered.get(name) is not make:
        raise ConfigError(f"verifier {name!r} exists already; choose another name, or pass replace=True")
    _registered[name] = make


def verifier_names() -> tuple[str, ...]:
    """Every known name, in order; imports nothing."""
    return tuple(sorted({*_registered, *BUILT_IN, *_entry_points()}))


def make_verifier(name: str, **kwargs: Any) -> Verifier:
    """Make a verifier by name.

    Raises :class:`UnknownNameError` for a name or argument that does not exist, :class:`PluginError` when the package
    behind the name is broken, and what the verifier raises (:class:`ConfigError`, :class:`MissingExtraError`).
    """
    make = _find(name)
    accepted = _accepted(make)
    for key in kwargs:
        if accepted is not None and key not in accepted:
            raise UnknownNameError(f"argument of verifier {name!r}:", key, accepted)
    made = make(**kwargs)
    if not callable(made):
        raise PluginError(f"verifier {name!r} made a {type(made).__name__}, which cannot be called")
    return made


def as_verifier(spec: str | Mapping[str, Any] | Verifier) -> Verifier:
    """A verifier from its name, from ``{"name": ..., **arguments}``, or the verifier itself.

    Raises :class:`ConfigError` for anything else, and what :func:`make_verifier` raises.
    """
    if isinstance(spec, str):
        return make_verifier(spec)
    if isinstance(spec, Mapping):
        name = spec.get("name")
        if not isinstance(name, str):
            raise ConfigError(f"a verifier given as a mapping needs 'name', such as {{'name': 'exact'}}, not {spec!r}")
        return make_verifier(name, **{key: value for key, value in spec.items() if key != "name"})
    if not callable(spec):
        raise ConfigError(f"a verifier is a name, a mapping with 'name', or something to call, not {spec!r}")
    return spec


def _find(name: str) -> MakeVerifier:
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        made: MakeVerifier = getattr(importlib.import_module(module), attribute)
        return made
    points = _entry_points()
    if name not in points:
        raise UnknownNameError("verifier", name, {*_registered, *BUILT_IN, *points})
    try:
        loaded = points[name].load()
    except RollError:
        raise
    except Exception as error:  # the import runs code of others
        raise PluginError(f"verifier {name!r} ({points[name].value}) cannot be loaded: {error}") from error
    if not callable(loaded):
        raise PluginError(f"verifier {name!r} ({points[name].value}) is a {type(loaded).__name__}; it cannot be called")
    found: MakeVerifier = loaded
    return found


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _accepted(make: MakeVerifier) -> list[str] | None:
    """Names of keyword arguments; ``None`` when any is taken, or nobody can tell."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
