"""The clipped losses of the PPO family, and the plain policy gradient."""

from __future__ import annotations

import torch

from trainer.algorithm_config import LossConfig
from trainer.losses.types import LossInputs, TensorMetrics, log_ratio

__all__ = ["clip", "reinforce"]


def clip(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347, eq. 7), asymmetric as in DAPO (arXiv:2503.14476).

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logp - old_logp)``; where A < 0 and
    ``dual_clip`` is c, at most ``-c A`` (Ye et al. 2020, arXiv:1912.09729). With 0.2, 0.28 and c = 3: (r 1.5, A 1) ->
    -1.28, (1.5, -1) -> 1.5, (0.5, 1) -> -0.5, (0.5, -1) -> 0.8, (5, -1) -> 3.
    """
    log_r = log_ratio(inputs)
    mask = inputs.mask
    advantages = torch.where(mask, inputs.advantages, 0.0)
    ratio = log_r.exp()
    plain = -ratio * advantages
    cut = -ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    loss = torch.maximum(plain, cut)
    with torch.no_grad():
        metrics = {
            "loss/clip_fraction": (cut > plain).sum(),
            "loss/ratio": torch.where(mask, ratio, 0.0).sum(),
            "loss/old_kl": (ratio - 1.0 - log_r).sum(),
        }
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantages
        with torch.no_grad():
            metrics["loss/dual_clip_fraction"] = ((advantages < 0) & (loss > bound)).sum()
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)
    return loss, metrics


def reinforce(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """Plain policy gradient, ``-A logp`` (Williams 1992); advantages of 1 make it supervised learning."""
    return -torch.where(inputs.mask, inputs.advantages, 0.0) * torch.where(inputs.mask, inputs.logp, 0.0), {}
