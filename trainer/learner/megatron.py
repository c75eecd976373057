"""The Megatron-Core backend as a part: its settings, and how it is made. Loads nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

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


MEGATRON = BackendPart(
    settings=MegatronSettings,
    make=_make_megatron,
    needs="megatron.core",
    shares=_shares,
    fills=lambda settings: True,
    cuts=True,
)
"""Megatron-Core: matrices cut over ranks, layers in a pipeline, and replicas of both."""
