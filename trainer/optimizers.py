"""Optimisers by name: from a network and its settings to the torch optimisers that share one learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer.config import OptimizerConfig

__all__ = ["OPTIMIZERS", "adamw", "muon"]


def _adamw(parameters: list[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, foreach=True)


def adamw(network: Any, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) for all parameters; no decay of vectors."""
    return [_adamw([p for p in network.parameters() if p.requires_grad], config)]


def muon(network: Any, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices between embedding and head, AdamW for the rest.

    Updates are scaled to AdamW's root mean square (Liu et al. 2025, arXiv:2502.16982), so that one learning rate serves
    both.
    """
    outer = {id(p) for m in (network.get_input_embeddings(), network.get_output_embeddings()) for p in m.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad]
    inner = [p for p in trained if p.ndim == 2 and id(p) not in outer]
    rest = [p for p in trained if p.ndim != 2 or id(p) in outer]
    orthogonal = torch.optim.Muon(inner, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [orthogonal, _adamw(rest, config)]


OPTIMIZERS: dict[str, Callable[[Any, OptimizerConfig], list[torch.optim.Optimizer]]] = {"adamw": adamw, "muon": muon}
"""Optimisers by the name that ``optimizer.name`` uses."""
