"""Optimiser steps, written plainly: minibatches, learning rate, AdamW and Muon. A part of the oracle."""

from __future__ import annotations

import math

import numpy as np
import torch
from oracle_rewards import Settings
from oracle_sequences import TokenSequence, Weights
from torch import Tensor


def minibatches(
    sequences: list[TokenSequence], number: int, epochs: int, rng: np.random.Generator
) -> list[list[TokenSequence]]:
    """Groups are shuffled in every epoch, then dealt largest first to the minibatch with the fewest sequences."""
    result = []
    for _ in range(epochs):
        groups = [[q for q in sequences if q.group == g] for g in sorted({q.group for q in sequences})]
        shuffled = [groups[i] for i in rng.permutation(len(groups))]
        dealt: list[list[TokenSequence]] = [[] for _ in range(min(number, len(groups)))]
        for group in sorted(shuffled, key=len, reverse=True):
            min(dealt, key=len).extend(group)
        result += dealt
    return result


def learning_rate(s: Settings, step: int) -> float:
    """Linear warm-up that reaches the peak in its last step; then from the peak to its smallest share."""
    peak, warmup = s["optimizer.lr"], s["optimizer.lr_warmup_steps"]
    if step < warmup:
        return float(peak * (step + 1) / warmup)
    done = min(1.0, (step - warmup) / max(1, s["steps"] - warmup))
    share = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "wsd": min(1.0, (1 - done) / s["optimizer.lr_decay_share"]) if s["optimizer.lr_decay_share"] else 1.0,
    }[s["optimizer.lr_schedule"]]
    least = s["optimizer.lr_min_share"]
    return float(peak * (least + (1 - least) * share))


def optimizers(s: Settings, weights: Weights) -> list[torch.optim.Optimizer]:
    for value in weights.values():
        value.requires_grad_()
    inner = [w for name, w in weights.items() if w.ndim == 2 and "embed" not in name]
    embedding = [w for name, w in weights.items() if "embed" in name]
    vectors = [w for w in weights.values() if w.ndim < 2]
    decay = s["optimizer.weight_decay"]
    muon = s["optimizer.name"] == "muon"
    groups = [
        {"params": [] if muon else inner, "weight_decay": decay},
        {"params": embedding, "weight_decay": decay if s["optimizer.decay_embeddings"] else 0.0},
        {"params": vectors, "weight_decay": 0.0},
    ]
    result: list[torch.optim.Optimizer] = []
    if any(g["params"] for g in groups):
        result.append(torch.optim.AdamW(groups, betas=s["optimizer.betas"], foreach=False))
    if muon:
        result.append(torch.optim.Muon(inner, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return result


def optimizer_step(
    loss: Tensor,
    weights: list[Tensor],
    optimizers: list[torch.optim.Optimizer],
    lr: float,
    max_norm: float,
    skip_norm: float | None = None,
) -> float:
    """One optimiser step down the gradient, cut to ``max_norm``, unless its norm is above ``skip_norm``; the norm."""
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    found = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
    norm = math.sqrt(sum(float(g.square().sum()) for g in found))
    if skip_norm is not None and norm > skip_norm:
        return norm
    for weight, gradient in zip(weights, found, strict=True):
        weight.grad = gradient * min(1.0, max_norm / (norm + 1e-6))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return norm
