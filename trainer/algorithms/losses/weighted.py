"""Losses in which the ratio is a constant weight of ``-A logp``, so that no token loses its gradient to a clip."""

from __future__ import annotations

import math

import torch

from trainer.algorithms.losses.types import (
    LOG_RATIO_BOUND,
    LossInputs,
    TensorMetrics,
    log_ratio,
    log_ratio_at,
    ratio_metrics,
    sum_over,
)
from trainer.config.algorithm import LossConfig

__all__ = ["cispo", "topr", "vespo"]

_SMALLEST_LOG_WEIGHT = math.log(1e-8)


def cispo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4-5): ``-sg(clip(r, 1 - clip_low, 1 + clip_high)) A logp``.

    (r 6, A 1, logp -0.5) with an upper bound of 5 -> 2.5, gradient -5; (r 0.3, A -1, logp -2) -> -0.6, gradient 0.3.

    Bounds are 1 and 4: none below, as in the paper, and a ratio of 5 above, as in SkyRL (high 4.0) and TRL (5.0, as a
    ratio). ROLL's 0.1 and 0.1 cut nearly everything.
    """
    log_r = log_ratio(inputs)
    low, high = config.bounds()
    with torch.no_grad():
        ratio = log_r.exp()
        weight = ratio.clamp(1.0 - low, 1.0 + high)
        metrics = {"loss/clip_fraction": (weight != ratio).sum(), **ratio_metrics(log_r, inputs.mask)}
    return _weighted(inputs, weight), metrics


def topr(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """TOPR: positives as they are, negatives with a ratio of at most 1 (Le Roux et al. 2025, arXiv:2503.14286, eq. 8).

    ``-positive_weight A logp`` where A > 0, else ``-negative_weight sg(min(r, 1)) A logp``. (A 1, r 7, logp -0.5) ->
    0.5; (A -1, r 0.3, logp -2) -> -0.6; (A -1, r 7, logp -2) -> -2.

    ``ratio: row-product`` is the paper's ratio, of the whole answer; the default, each token's own, is ROLL's.
    """
    log_r = log_ratio_at(inputs, config.ratio)
    positive = inputs.advantages > 0
    with torch.no_grad():
        ratio = log_r.exp()
        weight = torch.where(positive, config.positive_weight, config.negative_weight * ratio.clamp(max=1.0))
        cut = inputs.mask & ~positive & (ratio > 1.0)
        metrics = {"loss/clip_fraction": cut.sum(), **ratio_metrics(log_r, inputs.mask)}
    return _weighted(inputs, weight), metrics


def vespo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """VESPO: a smooth weight of the whole row's ratio (arXiv:2602.10693, as in TRL).

    ``-sg(phi(w)) A logp`` with ``phi(w) = w^k exp(decay (1 - w))``, k ``power_positive`` or ``power_negative`` by the
    sign of A, and w the product over the row of ``exp(logp - sampler_logp)``. phi(1) = 1; w = 2, A >= 0:
    4 exp(-3) = 0.199148; w = 2, A < 0: 8 exp(-2) = 1.082682.

    The ratio is to the sampler whatever ``proximal`` says, so that ``correction.name`` has to be ``none``.
    """
    mask = inputs.mask
    with torch.no_grad():
        moved = torch.where(mask, inputs.logp - inputs.sampler_logp, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        log_w = sum_over(moved, inputs, "row").clamp(_SMALLEST_LOG_WEIGHT, LOG_RATIO_BOUND)
        good = inputs.advantages >= 0
        power = torch.where(good, log_w.new_tensor(config.power_positive), log_w.new_tensor(config.power_negative))
        decay = torch.where(good, log_w.new_tensor(config.decay_positive), log_w.new_tensor(config.decay_negative))
        weight = (power * log_w + decay * (1.0 - log_w.exp())).exp()
        metrics = {"loss/row_weight": torch.where(mask, weight, 0.0).sum(), **ratio_metrics(moved, mask)}
    return _weighted(inputs, weight), metrics


def _weighted(inputs: LossInputs, weight: torch.Tensor) -> torch.Tensor:
    """``-weight A logp``; 0 without gradient where masked out."""
    factor = torch.where(inputs.mask, weight * inputs.advantages, 0.0)
    return -factor * torch.where(inputs.mask, inputs.logp, 0.0)
