"""The named parts of the trainer: one line for each built-in part, by kind. What a part is stands beside its code.

Other packages declare theirs as entry points of the group that a kind has; programs call ``register``.
"""

from __future__ import annotations

from typing import Any

from roll_envs.registry import Part, Registry

__all__ = ["ENGINES", "part_settings"]


def trainer_part(name: str, found: object) -> Any:
    """``found`` if it is a part, for a registry. Raises ``TypeError`` otherwise."""
    if not isinstance(found, Part):
        raise TypeError(f"it is a {type(found).__name__}; it must be a roll_envs.registry.Part")
    return found


ENGINES: Registry[Any] = Registry(
    "engine",
    "roll_envs.engines",
    trainer_part,
    built_in={
        "hf": "trainer.engines:HF",
    },
)
"""Inference engines (:class:`trainer.engines.EnginePart`), by the name that ``engine.name`` uses."""


def part_settings(section: Any, part: Part) -> Any:
    """The settings of ``part`` as the configuration's ``section`` says them."""
    names = part.settings.model_fields
    return part.settings(**{name: getattr(section, name) for name in names if getattr(section, name, None) is not None})
