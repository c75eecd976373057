"""The named parts of the trainer: one line for each built-in part. What a part is, and its settings, stand beside its
code, which is imported when its name is asked for.

Other packages declare theirs as entry points of a kind's group; programs call ``register`` of the kind's registry.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from roll_envs.registry import Registry
from roll_envs.settings import Part
from trainer.config.algorithm import PartSection


def _part(name: str, found: object) -> Any:
    if not isinstance(found, Part):
        raise TypeError(f"it is a {type(found).__name__}; it must be a roll_envs.settings.Part")
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
    _part_or_function("trainer.algorithms.estimators:Estimator", "estimate"),
    built_in={
        "bi_level_gae": "trainer.algorithms.estimators.returns:BI_LEVEL_GAE",
        "dr_grpo": "trainer.algorithms.estimators.group_relative:DR_GRPO",
        "gae": "trainer.algorithms.estimators.returns:GAE",
        "gigpo": "trainer.algorithms.estimators.group_relative:GIGPO",
        "gpg": "trainer.algorithms.estimators.group_relative:GPG",
        "grpo": "trainer.algorithms.estimators.group_relative:GRPO",
        "hgpo": "trainer.algorithms.estimators.group_relative:HGPO",
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
    _part_or_function("trainer.algorithms.losses.objective:Loss", "loss"),
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

ENGINES: Registry[Any] = Registry(
    "engine",
    "roll_envs.engines",
    _part,
    built_in={
        "hf": "trainer.engines:HF",
        "openai": "trainer.engines.openai:OPENAI",
        "scripted": "trainer.engines.scripted:SCRIPTED",
        "sglang": "trainer.engines.sglang:SGLANG",
        "vllm": "trainer.engines.vllm:VLLM",
    },
)
BACKENDS: Registry[Any] = Registry(
    "learner backend",
    "roll_envs.learners",
    _part,
    built_in={
        "deepspeed": "trainer.learner:DEEPSPEED",
        "fsdp2": "trainer.learner:FSDP2",
        "megatron": "trainer.learner.megatron:MEGATRON",
        "torch": "trainer.learner:TORCH",
    },
)
"""Learner backends by the name that ``learner.backend`` uses."""

OPTIMIZERS: Registry[Any] = Registry(
    "optimiser",
    "roll_envs.optimizers",
    _part,
    built_in={"adamw": "trainer.learner.optimizers:ADAMW", "muon": "trainer.learner.optimizers:MUON"},
)
"""Optimisers by the name that ``optimizer.name`` uses."""


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


def part_settings(section: PartSection, part: Part) -> Any:
    """The settings of ``part`` as the configuration's ``section`` says them; defaults where it does not.

    Raises pydantic's ``ValidationError`` for a key that the part does not read, or a value that it does not take.
    """
    # Through JSON: strict about types, yet lists fill tuples and integers fill numbers.
    given = section.model_dump(
        mode="json", exclude=set(section.__class__.model_fields) - set(part.settings.model_fields)
    )
    return part.settings.model_validate_json(json.dumps(given))


def readers(section: str, key: str) -> list[str]:
    """The built-in parts of a section that read ``key``, in order."""
    registry = PART_SECTIONS[section].registry
    return [name for name in registry.built_in() if key in registry.find(name).settings.model_fields]
