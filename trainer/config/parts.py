"""The named parts of the trainer: one line for each built-in part. What a part is, and its settings, stand beside its
code, which is imported when its name is asked for.

Other packages declare theirs as entry points of a kind's group; programs call ``register`` of the kind's registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from roll_envs.registry import Part, Registry
from trainer.config.algorithm import PartSection

__all__ = [
    "BACKENDS",
    "ENGINES",
    "ESTIMATORS",
    "LOSSES",
    "OPTIMIZERS",
    "PART_SECTIONS",
    "PartKind",
    "chosen_part",
    "part_settings",
    "readers",
]


def _part(name: str, found: object) -> Any:
    if not isinstance(found, Part):
        raise TypeError(f"it is a {type(found).__name__}; it must be a roll_envs.registry.Part")
    return found


ESTIMATORS: Registry[Any] = Registry("advantage estimator", "roll_envs.estimators", _part, built_in={})
LOSSES: Registry[Any] = Registry("policy loss", "roll_envs.losses", _part, built_in={})
ENGINES: Registry[Any] = Registry("engine", "roll_envs.engines", _part, built_in={"hf": "trainer.engines:HF"})
BACKENDS: Registry[Any] = Registry("learner backend", "roll_envs.learners", _part, built_in={})
OPTIMIZERS: Registry[Any] = Registry("optimizer", "roll_envs.optimizers", _part, built_in={})


class PartKind(NamedTuple):
    """A section of the configuration that chooses a part."""

    registry: Registry[Any]
    key: str
    """The key of the section that holds the name."""
    noun: str
    """The kind in one word, for messages."""


PART_SECTIONS: Mapping[str, PartKind] = {
    "advantage": PartKind(ESTIMATORS, "name", "estimator"),
    "loss": PartKind(LOSSES, "name", "loss"),
    "engine": PartKind(ENGINES, "name", "engine"),
    "learner": PartKind(BACKENDS, "backend", "backend"),
    "optimizer": PartKind(OPTIMIZERS, "name", "optimizer"),
}
"""By the name of the section."""


def chosen_part(section: str, values: PartSection) -> Part:
    """The part that ``values``, the configuration's ``section``, chooses. Raises as :meth:`Registry.find` does."""
    kind = PART_SECTIONS[section]
    part: Part = kind.registry.find(getattr(values, kind.key))
    return part


def part_settings(section: PartSection, part: Part) -> Any:
    """The settings of ``part`` as the configuration's ``section`` says them; defaults where it does not.

    Raises pydantic's ``ValidationError`` for a key that the part does not read, or a value that it does not take.
    """
    # Through JSON: strict about types, yet lists fill tuples and integers fill numbers.
    return part.settings.model_validate_json(json.dumps(section.model_extra or {}))


def readers(section: str, key: str) -> list[str]:
    """The built-in parts of a section that read ``key``, in order."""
    registry = PART_SECTIONS[section].registry
    return [name for name in registry.built_in() if key in registry.find(name).settings.model_fields]
