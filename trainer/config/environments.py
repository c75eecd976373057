"""The sections of a run's configuration that say what is played: one environment, or a mix of several.

Part of the tree in :mod:`trainer.config`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trainer.config.algorithm import NonNegative, Positive, Section, Share

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def checked_template(key: str, value: str | None) -> str | None:
    if value is not None and "{observation}" not in value:
        raise ValueError(f"{key} is {value!r}; it must have {{observation}} in it")
    return value


class EnvConfig(Section):
    """Which environment is played."""

    id: str
    """Registered environment id, e.g. roll/FrozenLake-v0."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""


class FilterOverrides(Section):
    """Keys of the section filter that are different for one environment; null is as there."""

    zero_variance: bool | None = None
    """Instead of filter.zero_variance."""
    top_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of filter.top_share."""
    success_low: Share | None = None
    """Instead of filter.success_low."""
    success_high: Share | None = None
    """Instead of filter.success_high."""


class MixedEnvConfig(EnvConfig):
    """One entry of the list that stands instead of env for a mix of environments; docs/mixes.md."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """What its metrics are called; null is the id without namespace and version. No two are alike."""
    weight: NonNegative = 1.0
    """Its share of the groups is this over the sum of all; 0 is evaluated only."""
    split: str = "train"
    """Where its training tasks come from, if it has splits."""
    system_prompt: str | None = None
    """Instead of context.system_prompt; null is as there."""
    observation_template: str | None = None
    """Instead of context.observation_template; null is as there."""
    max_new_tokens: Positive | None = None
    """Instead of sampling.max_new_tokens; null is as there."""
    evaluation_tasks: Positive | None = None
    """Instead of evaluation.tasks; null is as there."""
    filter: FilterOverrides = Field(default_factory=FilterOverrides)

    @property
    def short_name(self) -> str:
        """The name, given or not: 'FrozenLake' of roll/FrozenLake-v0."""
        return self.name or re.sub(r"-v\d+$", "", self.id.rpartition("/")[2])

    @field_validator("observation_template")
    @classmethod
    def _template_shows_the_observation(cls, value: str | None) -> str | None:
        return checked_template("envs[].observation_template", value)

    @field_validator("split")
    @classmethod
    def _split_is_for_training(cls, value: str) -> str:
        if value in ("held-out", "test", "demonstrations"):
            raise ValueError(
                f"envs[].split is {value!r}, which "
                + ("the warm start plays" if value == "demonstrations" else "evaluation plays")
                + "; allowed: 'train', or another split of the environment"
            )
        return value


class CurriculumConfig(Section):
    """How the weights of a mix follow what is being learnt."""

    by: Literal["none", "success"] = "none"
    """success: each weight is multiplied with 4p(1-p), with p a running share of successes, so that what is always or
    never solved is played less (ProCuRL, arXiv:2304.12877; as learnability for language models in arXiv:2502.12272).
    Default: ours."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The least that a weight is multiplied with. Default: ours."""
    memory: Positive = 32
    """Groups of an environment that its share of successes looks back on. Default: ours."""


def check_environments(env: object, envs: Sequence[MixedEnvConfig]) -> None:
    """Raise ValueError where not exactly one of ``env`` and ``envs`` is given, or entries of ``envs`` cannot be told
    apart. An ``env`` that is wrong itself may be any object but None."""
    if env is None and not envs:
        raise ValueError("the section 'env' is missing; it needs env.id (or write a list 'envs', for a mix)")
    if isinstance(env, EnvConfig) and envs:
        raise ValueError("both env and envs are set; keep one: 'env' for one environment, 'envs' for a mix")
    for i, entry in enumerate(envs):
        if any(other.short_name == entry.short_name for other in envs[:i]):
            raise ValueError(f"two of envs are called {entry.short_name!r}; give each a 'name' of its own")
        if any((other.id, other.kwargs) == (entry.id, entry.kwargs) for other in envs[:i]):
            raise ValueError(f"{entry.short_name!r} of envs has the id and the kwargs of another; join their weights")
    if envs and not any(entry.weight for entry in envs):
        raise ValueError("every weight of envs is 0; at least one must be above 0")
