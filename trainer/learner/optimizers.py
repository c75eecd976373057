"""Optimisers by name: from trained weights and their settings to the torch optimisers that share one learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from trainer.config import OptimizerConfig

__all__ = ["OPTIMIZERS", "TrainedWeight", "adamw", "muon", "trained_weights"]


class TrainedWeight(NamedTuple):
    """A number that is learnt, as optimisers see it."""

    value: torch.nn.Parameter
    """What is stepped: the network's parameter, or its float32 copy."""
    outer: bool
    """Whether it belongs to the embedding or the head."""


def trained_weights(network: Any, values: Sequence[torch.nn.Parameter] | None = None) -> list[TrainedWeight]:
    """The parameters of ``network`` that have a gradient; ``values`` stand in for them, in their order."""
    get = getattr(network, "get_input_embeddings", None), getattr(network, "get_output_embeddings", None)
    outer = {id(p) for layer in (g() for g in get if g is not None) if layer is not None for p in layer.parameters()}
    parameters = [p for p in network.parameters() if p.requires_grad]
    pairs = zip(parameters, parameters if values is None else values, strict=True)
    return [TrainedWeight(value, id(parameter) in outer) for parameter, value in pairs]


def _adamw(weights: Sequence[TrainedWeight], config: OptimizerConfig) -> torch.optim.Optimizer:
    def decays(weight: TrainedWeight) -> bool:
        return weight.value.ndim >= 2 and (config.decay_embeddings or not weight.outer)

    groups = [
        {"params": [w.value for w in weights if decays(w)], "weight_decay": config.weight_decay},
        {"params": [w.value for w in weights if not decays(w)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, foreach=True)


def adamw(weights: Sequence[TrainedWeight], config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) for all weights; vectors do not decay."""
    return [_adamw(weights, config)]


def muon(weights: Sequence[TrainedWeight], config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices between embedding and head, AdamW for the rest.

    Updates are scaled to AdamW's root mean square (Liu et al. 2025, arXiv:2502.16982), so that one learning rate serves
    both.
    """
    inner = [w.value for w in weights if w.value.ndim == 2 and not w.outer]
    rest = [w for w in weights if w.value.ndim != 2 or w.outer]
    parts: list[torch.optim.Optimizer] = []
    if inner:
        parts.append(
            torch.optim.Muon(inner, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    if rest:
        parts.append(_adamw(rest, config))
    return parts


OPTIMIZERS: dict[str, Callable[[Sequence[TrainedWeight], OptimizerConfig], list[torch.optim.Optimizer]]] = {
    "adamw": adamw,
    "muon": muon,
}
"""Optimisers by the name that ``optimizer.name`` uses."""
