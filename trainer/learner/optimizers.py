"""Learning-rate schedules, and optimisers as named parts: from trained weights and settings to torch optimisers.

Torch is imported by the functions that make an optimiser, so that a configuration is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

from roll_envs.errors import CheckpointError, UnknownNameError
from roll_envs.settings import Part, Settings
from trainer.config import OptimizerConfig
from trainer.config.parts import OPTIMIZERS, part_settings

if TYPE_CHECKING:
    import torch

FLOOR = 0.05
"""Share of the peak at which a decaying schedule ends, unless another is given."""
DECAY_SHARE = 0.2
"""Share of the steps in which 'wsd' decays, unless another is given."""

SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, decay_share: 1.0,
    "linear": lambda done, decay_share: 1.0 - done,
    "cosine": lambda done, decay_share: 0.5 * (1.0 + math.cos(math.pi * done)),
    "wsd": lambda done, decay_share: min(1.0, (1.0 - done) / decay_share) if decay_share else 1.0,
}
"""By the name that ``lr_schedule`` uses: (share of the steps after the warm-up, decay share) -> share of the way from
the floor to the peak. 'wsd' is warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395), with a linear decay."""


def learning_rate(
    name: str,
    peak: float,
    *,
    step: int,
    steps: int,
    warmup_steps: int,
    min_share: float = FLOOR,
    decay_share: float = DECAY_SHARE,
) -> float:
    """Rate of optimiser step ``step`` (from 0) of ``steps``: a linear warm-up, then ``name``'s decay.

    Decaying schedules end at ``min_share`` of the peak; ``decay_share`` is the part of the steps after the warm-up in
    which 'wsd' decays. With peak 1, 2 warm-up steps and a floor of 0.05, 'linear' over 4 steps: 0.5, 1, 1, 0.525; 'wsd'
    with a decay share of 0.5 over 6 steps: 0.5, 1, 1, 1, 1, 0.525.

    Raises :class:`UnknownNameError` for a name that is not in :data:`SCHEDULES`.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("learning-rate schedule", name, SCHEDULES)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    # The share of the steps after the warm-up that is done: 0 at its end, 1 after the last step.
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return peak * (min_share + (1.0 - min_share) * SCHEDULES[name](done, decay_share))


class TrainedWeight(NamedTuple):
    """A weight that is trained, as optimisers see it."""

    value: torch.nn.Parameter
    """What is stepped: the network's parameter, or its float32 copy."""
    outer: bool
    """Whether it belongs to the embedding or the head."""


@dataclass(frozen=True, kw_only=True)
class OptimizerPart(Part):
    """An optimiser that ``optimizer.name`` chooses."""

    make: Callable[[Sequence[TrainedWeight], float, Any], list[torch.optim.Optimizer]]
    """(weights, learning rate, settings) -> optimisers that together step every weight; the learner sets one learning
    rate for all of them before each step."""
    elementwise: bool = False
    """Whether each number of a weight is stepped by itself, so that a weight may be cut into shards."""


class AdamWSettings(Settings):
    """Settings of AdamW."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """AdamW betas. Default: 0.95 as in the training of most language models; torch's 0.999 is slow for short runs."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices; biases and norms have none. Default: off; verl's is 0.01."""
    decay_embeddings: bool = True
    """Weight decay of the embedding and the head too. Default: torch."""


def trained_weights(network: Any, values: Sequence[torch.nn.Parameter] | None = None) -> list[TrainedWeight]:
    """The parameters of ``network`` that have a gradient; ``values`` stand in for them, in their order."""
    get = getattr(network, "get_input_embeddings", None), getattr(network, "get_output_embeddings", None)
    outer = {id(p) for layer in (g() for g in get if g is not None) if layer is not None for p in layer.parameters()}
    parameters = [p for p in network.parameters() if p.requires_grad]
    pairs = zip(parameters, parameters if values is None else values, strict=True)
    return [TrainedWeight(value, id(parameter) in outer) for parameter, value in pairs]


def make_optimizers(config: OptimizerConfig, weights: Sequence[TrainedWeight]) -> list[torch.optim.Optimizer]:
    """The optimisers of ``config`` for ``weights``. Raises :class:`UnknownNameError` for an unknown name."""
    part: OptimizerPart = OPTIMIZERS.find(config.name)
    made = part.make(weights, config.lr, part_settings(config, part))

    def resumed(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "param_groups": resumed_groups(config, optimizer.param_groups, state["param_groups"])}

    for optimizer in made:
        optimizer.register_load_state_dict_pre_hook(resumed)
    return made


def saved_parts(state: Mapping[str, Any], count: int) -> list[Any]:
    """The states of so many optimisers in that of a learner. Raises :class:`CheckpointError` where others are there."""
    found: list[Any] = state["parts"]
    if len(found) != count:
        raise CheckpointError(
            f"the checkpoint has {len(found)} optimisers and the configured learner has {count}; resume with the "
            "optimizer.name it was saved with"
        )
    return found


def resumed_groups(
    config: OptimizerConfig, own: Sequence[dict[str, Any]], saved: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The ``saved`` groups of an optimiser of ``config`` with the settings of its ``own``: what a configuration says
    holds, and what an optimiser has counted goes on.

    Raises :class:`CheckpointError` for groups of other weights.
    """
    found, needed = ([len(group["params"]) for group in groups] for groups in (saved, own))
    if found != needed:
        raise CheckpointError(
            f"the checkpoint's optimiser has groups of {found} weights and the configured one of {needed}; resume with "
            "the model, the optimizer.name and the optimizer.decay_embeddings it was saved with"
        )
    # Kernels are those of the device, which may be another one.
    ours = {*OPTIMIZERS.find(config.name).settings.model_fields, "foreach", "fused"}
    return [
        {**theirs, **{name: value for name, value in mine.items() if name in ours}}
        for mine, theirs in zip(own, saved, strict=True)
    ]


def take_step(optimizers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    """A step of each at the learning rate ``lr``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()


def _adamw(weights: Sequence[TrainedWeight], lr: float, settings: AdamWSettings) -> list[torch.optim.Optimizer]:
    import torch

    def decays(weight: TrainedWeight) -> bool:
        return weight.value.ndim >= 2 and (settings.decay_embeddings or not weight.outer)

    groups = [
        {"params": [w.value for w in weights if decays(w)], "weight_decay": settings.weight_decay},
        {"params": [w.value for w in weights if not decays(w)], "weight_decay": 0.0},
    ]
    fused = all(w.value.is_cuda for w in weights)  # one pass over memory
    return [torch.optim.AdamW(groups, lr=lr, betas=settings.betas, foreach=not fused, fused=fused)]


def _muon(weights: Sequence[TrainedWeight], lr: float, settings: AdamWSettings) -> list[torch.optim.Optimizer]:
    from trainer.learner.muon import Muon

    inner = [w.value for w in weights if w.value.ndim == 2 and not w.outer]
    rest = [w for w in weights if w.value.ndim != 2 or w.outer]  # Muon's update is of matrices alone
    found: list[torch.optim.Optimizer] = []
    if inner:
        found.append(Muon(inner, lr=lr, weight_decay=settings.weight_decay))
    return found + (_adamw(rest, lr, settings) if rest else [])


ADAMW = OptimizerPart(settings=AdamWSettings, make=_adamw, elementwise=True)
"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) for all weights; vectors do not decay."""

MUON = OptimizerPart(settings=AdamWSettings, make=_muon)
"""Muon (Jordan et al. 2024) for the matrices between embedding and head, AdamW with the same settings for the rest.

Updates are scaled to AdamW's root mean square (Liu et al. 2025, arXiv:2502.16982), so that one learning rate serves
both.
"""
