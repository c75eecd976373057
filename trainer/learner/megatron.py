"""The Megatron-Core backend as a part: its settings, and how it is made. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from roll_envs.errors import ConfigError
from trainer.config.parts import part_settings
from trainer.learner import BackendPart, ComputeSettings, Shares

if TYPE_CHECKING:
    from trainer.learner import Learner
    from trainer.model.network import LanguageModel


class MegatronSettings(ComputeSettings):
    """Settings of the Megatron-Core backend."""

    tensor_parallel: int = Field(1, ge=1)
    """Ranks over which each matrix is cut. Default: whole matrices."""
    pipeline_parallel: int = Field(1, ge=1)
    """Ranks over which the layers are dealt, one stage after the other; a multiple of it are the layers.
    Default: all layers on each rank."""
    context_parallel: int = Field(1, ge=1)
    """Ranks that run each micro-batch together, a slice of its tokens each; divides the attention heads of a rank.
    Default: whole micro-batches."""
    expert_parallel: int = Field(1, ge=1)
    """Ranks over which the experts are dealt, which send each other the tokens for them; divides their number.
    Default: all experts on each rank."""


def ranks_problems(settings: MegatronSettings, ranks: int) -> list[str]:
    """Why so many ranks cannot be divided as ``settings`` ask."""
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    return [
        f"learner.tensor_parallel {tensor} times learner.pipeline_parallel {pipeline} times learner.{key}_parallel "
        f"{other} is {tensor * pipeline * other}, and there are {ranks} ranks (placement.learner.ranks); allowed: what "
        "divides their number"
        for key, other in (("context", settings.context_parallel), ("expert", settings.expert_parallel))
        if ranks % (tensor * pipeline * other)
    ]


def check_cut(model: Any, settings: MegatronSettings) -> None:
    """Raise :class:`ConfigError` where a model of this Hugging Face configuration cannot be cut as ``settings`` ask."""
    from trainer.model.context import check_heads

    tensor, pipeline, expert = settings.tensor_parallel, settings.pipeline_parallel, settings.expert_parallel
    experts = getattr(model, "num_experts", None)
    if settings.context_parallel > 1:
        check_heads(model, settings.context_parallel, tensor=tensor)
    for key, by, parallel in (
        ("num_key_value_heads", tensor, "tensor"),
        ("intermediate_size", tensor, "tensor"),
        ("num_hidden_layers", pipeline, "pipeline"),
    ):
        if by > 1 and getattr(model, key) % by:
            raise ConfigError(
                f"learner.{parallel}_parallel {by} does not divide the model's {key}, {getattr(model, key)}; "
                "choose one that does"
            )
    if experts and tensor > 1:
        raise ConfigError(
            f"learner.tensor_parallel {tensor}: {model.model_type} has experts, which are not cut; allowed: 1"
        )
    if (experts or 1) % expert:
        raise ConfigError(
            f"learner.expert_parallel {expert} does not divide the model's experts, {experts or 'none'}; "
            "choose one that does"
        )


@dataclass(frozen=True, kw_only=True)
class _MegatronPart(BackendPart):
    def problems(self, config: Any) -> list[str]:
        settings: MegatronSettings = part_settings(config.learner, self)
        return super().problems(config) + ranks_problems(settings, config.placement.learner.ranks)

    def check_model(self, config: Any, model: Any) -> None:
        check_cut(model, part_settings(config.learner, self))


def _make_megatron(model: LanguageModel, **arguments: Any) -> Learner:
    from trainer.learner.megatron_learner import MegatronLearner

    return MegatronLearner(model, **arguments)


def _shares(settings: MegatronSettings, ranks: int) -> Shares:
    cut = 1 / (settings.tensor_parallel * settings.pipeline_parallel)
    return Shares(
        weights=cut,
        gradients=cut,
        optimizer=1 / ranks,
        tokens=1 / settings.context_parallel,
        experts=1 / settings.expert_parallel,
        gathers=False,
        stages=settings.pipeline_parallel,
    )


MEGATRON = _MegatronPart(
    settings=MegatronSettings,
    make=_make_megatron,
    needs="megatron.core",
    shares=_shares,
    fills=lambda settings: True,
    cuts=True,
)
"""Megatron-Core: matrices cut over ranks, layers in a pipeline, and replicas of both."""
