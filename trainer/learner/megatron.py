"""The Megatron-Core backend as a part: its settings, and how it is made. Loads nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from roll_envs.settings import Settings
from trainer.learner import BackendPart, Shares

if TYPE_CHECKING:
    from trainer.learner import Learner
    from trainer.model.network import LanguageModel


class MegatronSettings(Settings):
    """Settings of the Megatron-Core backend."""

    tensor_parallel: int = Field(1, ge=1)
    """Ranks over which each matrix is cut. Default: whole matrices."""
    pipeline_parallel: int = Field(1, ge=1)
    """Ranks over which the layers are dealt, one stage after the other; a multiple of it are the layers.
    Default: all layers on each rank."""
    attention: Literal["auto", "sdpa", "flash", "flex"] = "auto"
    """Kernel for packed sequences; flash and flex need CUDA, auto is flash where it runs, else sdpa.
    Default: speed alone."""
    logits_mib: float = Field(256.0, gt=0)
    """Memory for logits per micro-batch, in MiB; more are computed in pieces, and twice.
    Default: memory alone; changes nothing else."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers and compute the rest twice: less memory, more time.
    Default: off: memory against time."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; bfloat16 has float32 master copies in the optimiser.
    Default: exact; bfloat16 is for GPUs, and CPUs that compute in it."""


def _make_megatron(model: LanguageModel, **arguments: Any) -> Learner:
    from trainer.learner.megatron_learner import MegatronLearner

    return MegatronLearner(model, **arguments)


def _shares(settings: MegatronSettings, ranks: int) -> Shares:
    # Replicas of the cut model do not share their optimiser's state.
    cut = 1 / (settings.tensor_parallel * settings.pipeline_parallel)
    return Shares(weights=cut, gradients=cut, optimizer=cut)


MEGATRON = BackendPart(settings=MegatronSettings, make=_make_megatron, shares=_shares)
"""Megatron-Core: matrices cut over ranks, layers in a pipeline, and replicas of both."""
