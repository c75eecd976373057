"""Muon, with products in a precision that the processor is quick at.

``torch.optim.Muon`` computes its Newton-Schulz products in bfloat16 everywhere. On CPUs without instructions for it
they take ten times as long as in float32: for the 106 million inner weights of SmolLM2-135M more than a minute of one
core a step, where float32 takes a quarter of that. This is torch's update, to the bit where it takes bfloat16 too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of x, x^3 and x^5 in the polynomial that brings singular values near 1 (Jordan et al. 2024)."""
ITERATIONS = 5
MOMENTUM = 0.95
EPS = 1e-7


def precision_of_products(device: torch.device) -> torch.dtype:
    """bfloat16 on accelerators and on CPUs that have instructions for it (AVX512-BF16, AMX), else float32."""
    quick = device.type != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if quick else torch.float32


def orthogonalized(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``matrix`` [m, n] with singular values between about 0.7 and 1.2, by products in ``dtype``."""
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.to(dtype, copy=True)
    x = x.T if tall else x
    x.div_(x.norm().clamp(min=EPS))  # no singular value is then above 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum 0.95 (Jordan et al. 2024) for matrices, decoupled weight decay, updates of AdamW's
    root mean square: 0.2 * sqrt(longer side) times the orthogonalised momentum (Liu et al. 2025, arXiv:2502.16982)."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient; ``closure`` is not called."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonalized(weight.grad.lerp(momentum, MOMENTUM), precision_of_products(weight.device))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))
