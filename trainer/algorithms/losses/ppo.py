"""The clipped losses of the PPO family with one ratio per token, and the plain policy gradient."""

from __future__ import annotations

import torch

from trainer.algorithms.losses.types import LossInputs, TensorMetrics, log_ratio, log_ratio_at, ratio_metrics
from trainer.config.algorithm import LossConfig

__all__ = ["clip", "clipped", "raft_pp", "reinforce"]


def clipped(
    log_r: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, TensorMetrics]:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)`` of each token, from the logarithm of r; both 0 where masked out."""
    ratio = log_r.exp()
    plain = -ratio * advantages
    cut = -ratio.clamp(1.0 - low, 1.0 + high) * advantages
    metrics = {"loss/clip_fraction": (cut > plain).sum(), **ratio_metrics(log_r, mask)}
    return torch.maximum(plain, cut), metrics


def clip(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347, eq. 7), asymmetric as in DAPO (arXiv:2503.14476).

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logp - old_logp)``, or as ``ratio`` says; where
    A < 0 and ``dual_clip`` is c, at most ``-c A`` (Ye et al. 2020, arXiv:1912.09729; INTELLECT-2's two-sided clip and
    TRL's ``delta`` are the same). With 0.2, 0.28 and c = 3: (r 1.5, A 1) -> -1.28, (1.5, -1) -> 1.5, (0.5, 1) -> -0.5,
    (0.5, -1) -> 0.8, (5, -1) -> 3.

    Bounds are DAPO's 0.2 and 0.28 (PPO's own: 0.2 and 0.2). ``dual_clip`` is off, as in AReaL, slime and TRL; verl
    always takes 3, ROLL 1.4. ``ratio: turn`` is what ROLL calls segments; its bounds need to be far smaller.
    """
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    loss, metrics = clipped(log_ratio_at(inputs, config.ratio), advantages, inputs.mask, *config.bounds())
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantages
        with torch.no_grad():
            metrics["loss/dual_clip_fraction"] = ((advantages < 0) & (loss > bound)).sum()
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)
    return loss, metrics


def raft_pp(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """RAFT++: the clipped loss on positive episodes alone (Xiong et al. 2025, arXiv:2504.11343, section 3).

    ``-min(r, 1 + clip_high) A`` where A > 0, else 0. (r 1.5, A 1) with 0.2 -> -1.2; (1.5, -1) -> 0; (0.5, 1) -> -0.5.
    A lower bound never binds where A > 0. The paper weighs every correct answer by 1: ``advantage.name: reinforce``
    with rewards of 0 and 1 and ``advantage.gamma`` 1. ROLL's recipe of this name is GRPO.
    """
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0).clamp(min=0.0)
    return clipped(log_ratio(inputs), advantages, inputs.mask, 0.0, config.bounds()[1])


def reinforce(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """Plain policy gradient, ``-A logp`` (Williams 1992); advantages of 1 make it supervised learning.

    (logp -0.5, A 3) -> 1.5, with gradient -3. No ratio: off policy it is biased, unless ``correction`` weighs it.
    """
    return -torch.where(inputs.mask, inputs.advantages, 0.0) * torch.where(inputs.mask, inputs.logp, 0.0), {}
