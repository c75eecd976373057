"""Verifiers by name: the built-in ones, those of installed packages, and those registered in this process.

A package adds its own with an entry point of the group ``roll_envs.verifiers``: name -> a class or function that takes
its settings as keyword arguments and gives a verifier. Nothing is imported before its name is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roll_envs.errors import ConfigError, PluginError
from roll_envs.registry import MakerRegistry
from roll_envs.verifiers.types import Verifier

BUILT_IN: dict[str, str] = {
    "all": "roll_envs.verifiers.compose:AllOf",
    "any": "roll_envs.verifiers.compose:AnyOf",
    "choice": "roll_envs.verifiers.choice:ChoiceVerifier",
    "code": "roll_envs.verifiers.code.verifier:CodeVerifier",
    "em": "roll_envs.verifiers.matching:ExactMatchVerifier",
    "exact": "roll_envs.verifiers.matching:ExactVerifier",
    "f1": "roll_envs.verifiers.matching:F1Verifier",
    "fence": "roll_envs.verifiers.formats:FenceVerifier",
    "gate": "roll_envs.verifiers.compose:Gate",
    "instructions": "roll_envs.verifiers.instructions:InstructionsVerifier",
    "json": "roll_envs.verifiers.formats:JsonVerifier",
    "language": "roll_envs.verifiers.language:LanguageVerifier",
    "llm_judge": "roll_envs.verifiers.judge_llm:LlmJudge",
    "math": "roll_envs.verifiers.mathematics.verifier:MathVerifier",
    "length": "roll_envs.verifiers.penalties:LengthPenalty",
    "normalized": "roll_envs.verifiers.matching:NormalizedVerifier",
    "regex": "roll_envs.verifiers.formats:RegexVerifier",
    "repetition": "roll_envs.verifiers.penalties:RepetitionPenalty",
    "tags": "roll_envs.verifiers.formats:TagsVerifier",
    "tool_calls": "roll_envs.verifiers.formats:ToolCallsVerifier",
    "weighted": "roll_envs.verifiers.compose:WeightedSum",
}
"""Name -> ``module:attribute``."""

VERIFIERS: MakerRegistry[Verifier] = MakerRegistry("verifier", "roll_envs.verifiers", built_in=BUILT_IN)


def register_verifier(name: str, make: Callable[..., Verifier], *, replace: bool = False) -> None:
    """Register a verifier in this process; ``make(**settings)`` gives one.

    Raises :class:`ConfigError` for a name that is taken unless ``replace``.
    """
    VERIFIERS.register(name, make, replace=replace)


def verifier_names() -> tuple[str, ...]:
    """Every known name, in order; imports nothing."""
    return VERIFIERS.names()


def make_verifier(name: str, **settings: Any) -> Verifier:
    """Make a verifier by name.

    Raises :class:`UnknownNameError` for a name or setting that does not exist, :class:`PluginError` when the package
    behind the name is broken, and what the verifier raises (:class:`ConfigError`, :class:`MissingExtraError`).
    """
    # May be a function of another package, so what it makes is checked.
    made = VERIFIERS.make(name, settings)
    if not callable(made):
        raise PluginError(f"verifier {name!r} made a {type(made).__name__}, which cannot be called")
    return made


def as_verifier(spec: str | Mapping[str, Any] | Verifier) -> Verifier:
    """A verifier from its name, from ``{"name": ..., **settings}``, or the verifier itself.

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
