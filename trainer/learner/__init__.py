"""Learner backends: what turns batches into new weights, and the critic and reference beside it.

Looking a backend up loads nothing; making a learner loads what it needs. A new backend is one file with a
:class:`BackendPart` and a line in :mod:`trainer.config.parts`, or an entry point of the group ``roll_envs.learners``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from roll_envs.errors import MissingExtraError
from roll_envs.settings import Part, Settings
from roll_envs.types import Metrics
from trainer.config import CorrectionConfig, CriticConfig, LearnerConfig, LossConfig, OptimizerConfig
from trainer.config.parts import BACKENDS, OPTIMIZERS, part_settings

if TYPE_CHECKING:
    import torch

    from trainer.data.batches import Batch, Denominators
    from trainer.learner.gradients import Ranks
    from trainer.learner.snapshot import Keep
    from trainer.model.network import LanguageModel

__all__ = [
    "DEEPSPEED",
    "FSDP2",
    "TORCH",
    "BackendPart",
    "ComputeSettings",
    "Critic",
    "DeepSpeedSettings",
    "FSDP2Settings",
    "Learner",
    "NetworkSettings",
    "Offloads",
    "Scorer",
    "Shares",
    "TorchSettings",
    "make_learner",
]


@runtime_checkable
class Offloads(Protocol):
    """A learner, critic or reference that can leave its device between steps: ``learner.offload``."""

    def offload(self) -> None:
        """Give the device's memory back. Weights and states can be read and replaced meanwhile; scores and steps wait
        for :meth:`reload`."""
        ...

    def reload(self) -> None:
        """Take the device's memory again."""
        ...


class Scorer(Protocol):
    """Scores sequences under weights that may be replaced but are not trained."""

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """One number for each label, [B, T] per batch."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None: ...


class Critic(Scorer, Protocol):
    """Predicts the return of the state in which each label was sampled; ``score`` gives its values."""

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics: ...

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]: ...

    def load_optimizer_state(self, state: dict[str, Any]) -> None: ...


class Learner(Protocol):
    """Scores sequences, takes optimiser steps, gives weights; knows nothing of algorithms or environments."""

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights, [B, T] per batch."""
        ...

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step; metrics, and the log-probs before it."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights in Hugging Face form, one at a time, so that no second copy of the model ever exists.

        A weight with several names comes once. To be used before the next step: they may be views.
        """
        ...

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """Everything beside the weights that the next step depends on: tensors and plain values, whole on rank 0.

        With ``keep``, which is asked for each whole tensor on all ranks in the same order, every rank has the same tree
        of copies on the CPU, where those that it does not keep are on the meta device.
        """
        ...

    def load_optimizer_state(self, state: dict[str, Any]) -> None: ...

    def reference(self, *, fixed: bool = True) -> Scorer:
        """A scorer with the weights from which training starts. ``fixed``: it is never given other weights, so that
        with adapters the base model serves."""
        ...

    def critic(self, config: CriticConfig) -> Critic:
        """A critic that begins with a copy of the current weights and a head of its own."""
        ...


class MakeLearner(Protocol):
    """What a backend implements: a learner that trains ``model`` in place.

    Every one of ``ranks`` makes a learner of the same weights and calls the same methods in the same order, each with
    batches of its own. What comes out (metrics, weights, states) is the same on all of them, but for the log-probs.
    """

    def __call__(
        self,
        model: LanguageModel,
        *,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        temperature: float,
        correction: CorrectionConfig,
        settings: Any,
        threads: int,
        device: str,
        ranks: Ranks | None,
    ) -> Learner: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Which share of the whole each rank holds, for plans of memory."""

    weights: float = 1.0
    gradients: float = 1.0
    optimizer: float = 1.0
    """State of the optimiser, and float32 copies of weights."""
    tokens: float = 1.0
    """Tokens of a micro-batch that are run at once."""
    gathers: bool = True
    """Whether a rank that holds a share of the weights puts those of a layer together to run it."""
    rounds: bool = False
    """Whether the one network that there is has the trained weights in float32, adapters too, and rounds what it puts
    together of them."""
    stages: int = 1
    """Of a pipeline: the first and the last have the embedding and the head whole, or their shares of matrices."""
    flat: bool = False
    """Whether the optimiser steps flat float32 copies of weights and gradients, where those are in float32 too."""
    bucket: int = 0
    """Numbers at most of a buffer in which gradients are summed over the ranks; 0: none that counts."""
    keeps_gradients: bool = True
    """Whether gradients, and their bucket, in float32, stay between steps; else each backward pass makes its own."""
    experts: float = 1.0
    """Of those weights that are experts, and their gradients: the share of what ``weights`` and ``gradients`` say."""
    in_cpu: frozenset[str] = frozenset()
    """``weights``, ``gradients``, ``optimizer``: which of them are in the memory of the CPU wherever it is computed."""


def _everything(settings: Any, ranks: int) -> Shares:
    return Shares()


def _never(settings: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class BackendPart(Part):
    """A learner backend that ``learner.backend`` chooses."""

    make: MakeLearner
    """Its ``settings`` are an instance of the part's own settings."""
    needs: str = ""
    """The package that it is made with; the extra of the backend's name installs it."""
    shares: Callable[[Any, int], Shares] = _everything
    """What each of so many ranks holds with these settings."""
    fills: Callable[[Any], bool] = _never
    """Whether its learner can be made of a network whose weights have no memory (the meta device), and has a
    ``load_weights`` that takes them as a stream: then no rank holds the whole model, not at the start either."""
    cuts: bool = False
    """Whether its ranks step shares of a weight, as only optimisers can that step each number by itself."""

    def problems(self, config: Any) -> list[str]:
        named = {"optimizer.name": config.optimizer.name, "warm_start.optimizer": config.warm_start.optimizer}
        return [
            f"the {config.learner.backend} backend cannot step shares of weights with {key} {name!r}, which needs "
            "whole matrices; use 'adamw', or learner.backend: torch"
            for key, name in named.items()
            if self.cuts and name is not None and not OPTIMIZERS.find(name).elementwise
        ]

    def check_model(self, config: Any, model: Any) -> None:
        """Raise :class:`ConfigError` where a model of this Hugging Face configuration cannot be divided over the ranks
        as ``config`` asks: what its learner would find when the weights are there."""

    def check_package(self, key: str, name: str) -> None:
        """Raise :class:`MissingExtraError` where ``key`` of the configuration says ``name``, this backend, and its
        package is not there."""
        if self.needs and not _importable(self.needs):
            raise MissingExtraError(f"{key} {name!r}", name)

    def check_machine(self, config: Any) -> None:
        self.check_package("learner.backend", config.learner.backend)
        if getattr(config.learner, "lora_rank", 0) and not _importable("peft"):
            raise MissingExtraError("learner.lora_rank", "lora")
        if (attention := getattr(config.learner, "attention", "auto")) != "auto":
            import torch

            from trainer.model.attention import choose_attention
            from trainer.model.network import choose_device

            precision = getattr(torch, getattr(config.learner, "precision", "float32"))
            choose_attention(attention, choose_device(config.learner.device), precision)


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package that it would lie in
        return False


def make_learner(
    model: LanguageModel,
    *,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    temperature: float,
    correction: CorrectionConfig | None = None,
    settings: LearnerConfig | None = None,
    threads: int = 1,
    device: str = "auto",
    ranks: Ranks | None = None,
) -> Learner:
    """The learner that ``settings.backend`` names. Raises :class:`UnknownNameError` for an unknown name."""
    settings = settings or LearnerConfig()
    part: BackendPart = BACKENDS.find(settings.backend)
    return part.make(
        model,
        loss=loss,
        optimizer=optimizer,
        temperature=temperature,
        correction=correction or CorrectionConfig(),
        settings=part_settings(settings, part),
        threads=threads,
        device=device,
        ranks=ranks,
    )


class ComputeSettings(Settings):
    """Settings that all our backends have."""

    attention: Literal["auto", "sdpa", "flash", "flex"] = "auto"
    """Kernel for packed sequences; flash and flex need CUDA, auto is flash where it runs, else sdpa.
    Default: speed alone."""
    logits_mib: float = Field(256.0, gt=0)
    """Memory for logits per micro-batch, in MiB; more are computed in pieces, and twice.
    Default: memory alone; changes nothing else."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers, the critic's too, and compute the rest twice: less memory, more time.
    Default: off: memory against time."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; bfloat16 has float32 master copies in the optimiser.
    Default: exact; bfloat16 is for GPUs, and CPUs that compute in it."""


class NetworkSettings(ComputeSettings):
    """Settings of backends that train the Hugging Face network itself."""

    lora_rank: int = Field(0, ge=0)
    """Rank of the adapters that are trained instead of the weights; 0 trains the weights.
    Default: off: all weights are trained."""
    lora_alpha: float = Field(32.0, gt=0)
    """Adapters are scaled by lora_alpha / lora_rank. Default: peft's examples."""
    lora_targets: tuple[str, ...] = ()
    """Adapted layers by the ends of their names, e.g. q_proj; none: all linear layers but the head.
    Default: all linear layers, as QLoRA's paper."""


class TorchSettings(NetworkSettings):
    """Settings of the plain PyTorch backend."""

    compile: bool = False
    """Compile the layers and what is done with logits (torch.compile); needs a C++ compiler where there is no GPU.
    Default: off: it takes a minute or two at the first step, and sums are rounded otherwise than the engine's."""
    threads: int = Field(0, ge=0)
    """Micro-batches side by side, and torch threads of the engine; 0 chooses by size.
    Default: speed alone; changes nothing else."""
    offload: Literal["never", "between_steps"] = "never"
    """between_steps: weights, optimiser state, critic and reference are in the CPU's memory except while a step learns,
    so that an engine can use the GPU's; nothing happens where the learner computes on the processor.
    Default: off: memory of the device against time."""


def _make_torch(model: LanguageModel, **arguments: Any) -> Learner:
    from trainer.learner.torch import TorchLearner

    return TorchLearner(model, **arguments)


TORCH = BackendPart(settings=TorchSettings, make=_make_torch)
"""Plain PyTorch on one device. Declared here because looking a part up must not load torch."""


ZERO_BUCKET = 500_000_000
"""Numbers of a bucket of gradients at most; DeepSpeed's default."""


class DeepSpeedSettings(ComputeSettings):
    """Settings of the DeepSpeed backend. ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054."""

    stage: Literal[1, 2, 3] = 2
    """What each rank holds but a share of: 1 the optimiser's state and float32 weights, 2 gradients too, 3 weights too.
    Default: 2, the most that costs no more communication than 1."""
    offload_optimizer: bool = False
    """Keep the optimiser's state and float32 weights in the memory of the CPU, and step them there.
    Default: off: memory of the device against time."""
    offload_param: bool = False
    """Keep each rank's share of the weights in the memory of the CPU; stage 3 only.
    Default: off: memory of the device against time."""
    param_persistence_threshold: int = Field(100_000, ge=0)
    """Weights of at most so many numbers stay whole on every rank; stage 3 only. Default: DeepSpeed's."""

    @model_validator(mode="after")
    def _check_offload(self) -> DeepSpeedSettings:
        if self.offload_param and self.stage != 3:
            raise ValueError(
                f"offload_param needs stage 3, where ranks hold a share of the weights each; stage is {self.stage}"
            )
        return self


def _make_deepspeed(model: LanguageModel, **arguments: Any) -> Learner:
    from trainer.learner.deepspeed import DeepSpeedLearner

    return DeepSpeedLearner(model, **arguments)


def _shares_of_zero(settings: DeepSpeedSettings, ranks: int) -> Shares:
    return Shares(
        weights=1 / ranks if settings.stage == 3 else 1.0,
        gradients=1 / ranks if settings.stage >= 2 else 1.0,
        optimizer=1 / ranks,
        flat=True,
        bucket=ZERO_BUCKET,
        keeps_gradients=settings.stage == 3,
        in_cpu=frozenset(
            ["weights"] * settings.offload_param + ["gradients", "optimizer"] * settings.offload_optimizer
        ),
    )


def _stage_3(settings: DeepSpeedSettings) -> bool:
    return settings.stage == 3


DEEPSPEED = BackendPart(
    settings=DeepSpeedSettings,
    make=_make_deepspeed,
    needs="deepspeed",
    shares=_shares_of_zero,
    fills=_stage_3,
    cuts=True,
)
"""ZeRO by the DeepSpeed library (extra ``deepspeed``)."""


class FSDP2Settings(NetworkSettings):
    """Settings of the backend whose ranks hold a share of every weight each (PyTorch FSDP2)."""

    context_parallel: int = Field(1, ge=1)
    """Ranks that run each micro-batch together, a slice of its tokens each; divides ranks and attention heads.
    Default: whole micro-batches."""
    cpu_offload: bool = False
    """Keep shards and the state of the optimiser in the CPU's memory, and step there; needs CUDA.
    Default: off: memory against time."""


@dataclass(frozen=True, kw_only=True)
class _ShardedPart(BackendPart):
    def problems(self, config: Any) -> list[str]:
        found = super().problems(config)
        parallel, ranks = part_settings(config.learner, self).context_parallel, config.placement.learner.ranks
        if ranks % parallel:
            found.append(
                f"learner.context_parallel {parallel} does not divide placement.learner.ranks, {ranks}; choose one "
                "that does"
            )
        return found

    def check_machine(self, config: Any) -> None:
        super().check_machine(config)
        if part_settings(config.learner, self).cpu_offload:
            from trainer.learner.fsdp2 import check_offload
            from trainer.model.network import choose_device

            check_offload(choose_device(config.learner.device))

    def check_model(self, config: Any, model: Any) -> None:
        if (ranks := part_settings(config.learner, self).context_parallel) > 1:
            from trainer.model.context import check_heads

            check_heads(model, ranks)


def _make_fsdp2(model: LanguageModel, **arguments: Any) -> Learner:
    from trainer.learner.fsdp2 import ShardedLearner

    return ShardedLearner(model, **arguments)


def _shares_of_shards(settings: FSDP2Settings, ranks: int) -> Shares:
    share, tokens = 1 / ranks, 1 / settings.context_parallel
    in_cpu = frozenset(["weights", "gradients", "optimizer"] * settings.cpu_offload)
    return Shares(weights=share, gradients=share, optimizer=share, tokens=tokens, rounds=True, in_cpu=in_cpu)


FSDP2 = _ShardedPart(
    settings=FSDP2Settings, make=_make_fsdp2, shares=_shares_of_shards, fills=lambda settings: True, cuts=True
)
"""PyTorch FSDP2: weights, gradients and the state of the optimiser are cut into one shard for each rank."""
