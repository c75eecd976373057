"""The named parts of the trainer: one line for each built-in part, by kind. What a part is stands beside its code.

Other packages declare theirs as entry points of the group that a kind has; programs call ``register``.
"""

from __future__ import annotations

from typing import Any

from roll_envs.registry import Part, Registry

__all__ = ["BACKENDS", "OPTIMIZERS", "part_settings"]


def trainer_part(name: str, found: object) -> Any:
    """``found`` if it is a part, for a registry. Raises ``TypeError`` otherwise."""
    if not isinstance(found, Part):
        raise TypeError(f"it is a {type(found).__name__}; it must be a roll_envs.registry.Part")
    return found


def part_settings(section: Any, part: Part) -> Any:
    """The settings of ``part`` as the configuration's ``section`` says them."""
    names = part.settings.model_fields
    return part.settings(**{name: getattr(section, name) for name in names if getattr(section, name, None) is not None})


BACKENDS: Registry[Any] = Registry(
    "learner backend", "roll_envs.learners", trainer_part, built_in={"torch": "trainer.learner:TORCH"}
)
"""By the name that ``learner.backend`` uses."""

OPTIMIZERS: Registry[Any] = Registry(
    "optimiser",
    "roll_envs.optimizers",
    trainer_part,
    built_in={"adamw": "trainer.learner.optimizers:ADAMW", "muon": "trainer.learner.optimizers:MUON"},
)
"""By the name that ``optimizer.name`` uses."""
