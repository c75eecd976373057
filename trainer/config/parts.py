"""The named parts of the trainer: one line for each built-in part, by kind. What a part is stands beside its code.

Other packages declare theirs as entry points of the group that a kind has; programs call ``register``. Nothing here
imports a part before its name is looked up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from roll_envs.registry import Part, Registry

__all__ = ["ESTIMATORS", "LOSSES", "part_settings"]


def trainer_part(name: str, found: object) -> Any:
    """``found`` if it is a part, for a registry. Raises ``TypeError`` otherwise."""
    if not isinstance(found, Part):
        raise TypeError(f"it is a {type(found).__name__}; it must be a roll_envs.registry.Part")
    return found


def _part_or_function(place: str, field: str) -> Callable[[str, object], Any]:
    """Accept a part of the class at ``place`` (``module:Class``), or a bare function, which becomes the ``field`` of
    one without settings."""

    def accept(name: str, found: object) -> Any:
        module, _, attribute = place.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        if isinstance(found, kind):
            return found
        if callable(found) and not isinstance(found, type):
            return kind(**{field: found})
        raise TypeError(f"it is {found!r}; it must be of {module}.{attribute}, or a function")

    return accept


ESTIMATORS: Registry[Any] = Registry(
    "advantage estimator",
    "roll_envs.estimators",
    _part_or_function("trainer.algorithms.estimators.types:Estimator", "estimate"),
    built_in={
        "bi_level_gae": "trainer.algorithms.estimators.gae:BI_LEVEL_GAE",
        "dr_grpo": "trainer.algorithms.estimators.group_relative:DR_GRPO",
        "gae": "trainer.algorithms.estimators.gae:GAE",
        "gigpo": "trainer.algorithms.estimators.states:GIGPO",
        "gpg": "trainer.algorithms.estimators.group_relative:GPG",
        "grpo": "trainer.algorithms.estimators.group_relative:GRPO",
        "hgpo": "trainer.algorithms.estimators.states:HGPO",
        "lite_ppo": "trainer.algorithms.estimators.group_relative:LITE_PPO",
        "maxrl": "trainer.algorithms.estimators.group_relative:MAXRL",
        "opo": "trainer.algorithms.estimators.group_relative:OPO",
        "pass_at_k": "trainer.algorithms.estimators.group_relative:PASS_AT_K",
        "reinforce": "trainer.algorithms.estimators.returns:REINFORCE",
        "reinforce_pp": "trainer.algorithms.estimators.returns:REINFORCE_PP",
        "reinforce_pp_baseline": "trainer.algorithms.estimators.group_relative:REINFORCE_PP_BASELINE",
        "reinforce_token": "trainer.algorithms.estimators.returns:REINFORCE_TOKEN",
        "remax": "trainer.algorithms.estimators.returns:REMAX",
        "rloo": "trainer.algorithms.estimators.group_relative:RLOO",
        "step_reinforce": "trainer.algorithms.estimators.returns:STEP_REINFORCE",
    },
)
"""Advantage estimators by the name that ``advantage.name`` uses."""

LOSSES: Registry[Any] = Registry(
    "policy loss",
    "roll_envs.losses",
    _part_or_function("trainer.algorithms.losses.types:Loss", "loss"),
    built_in={
        "cispo": "trainer.algorithms.losses.weighted:CISPO",
        "clip": "trainer.algorithms.losses.clipped:CLIP",
        "clip_cov": "trainer.algorithms.losses.covariance:CLIP_COV",
        "dppo": "trainer.algorithms.losses.weighted:DPPO",
        "gmpo": "trainer.algorithms.losses.clipped:GMPO",
        "gspo": "trainer.algorithms.losses.clipped:GSPO",
        "gspo_token": "trainer.algorithms.losses.clipped:GSPO_TOKEN",
        "kimi": "trainer.algorithms.losses.weighted:KIMI",
        "kl_cov": "trainer.algorithms.losses.covariance:KL_COV",
        "raft_pp": "trainer.algorithms.losses.clipped:RAFT_PP",
        "reinforce": "trainer.algorithms.losses.weighted:REINFORCE",
        "sapo": "trainer.algorithms.losses.weighted:SAPO",
        "topr": "trainer.algorithms.losses.weighted:TOPR",
        "vespo": "trainer.algorithms.losses.weighted:VESPO",
    },
)
"""Policy losses by the name that ``loss.name`` uses."""


def part_settings(section: Any, part: Part) -> Any:
    """The settings of ``part`` as the configuration's ``section`` says them."""
    names = part.settings.model_fields
    given = {name: getattr(section, name) for name in names if getattr(section, name, None) is not None}
    return part.settings(**{**given, **getattr(section, "kwargs", {})})
