"""Losses with one ratio for a whole row: the geometric mean of its tokens' ratios."""

from __future__ import annotations

import torch

from trainer.algorithms.losses.ppo import clipped
from trainer.algorithms.losses.types import LossInputs, TensorMetrics, log_ratio, log_ratio_at, mean_over, ratio_metrics
from trainer.config.algorithm import LossConfig

__all__ = ["gmpo", "gspo", "gspo_token"]


def gspo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """GSPO: the clipped loss with one ratio per row (Zheng et al. 2025, arXiv:2507.18071, eq. 5-7).

    ``-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)`` with ``s = exp(mean over the row of (logp - old_logp))``,
    whose gradient reaches every token of the row through the mean. Log-ratios 0.1, -0.2, 0.3: s = 1.068939; A = 1
    without a clip: each token's loss is -1.068939, and the row's mean has the gradient -0.356313 in each of the three.

    Bounds are the paper's 3e-4 and 4e-4; ROLL's and verl's 0.2 would never bite. Aggregate with
    ``seq-mean-token-mean``; with ``seq-mean-token-sum`` it is LUSPO (arXiv:2602.05261), which weighs rows by their
    length.
    """
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    return clipped(log_ratio_at(inputs, "row"), advantages, inputs.mask, *config.bounds())


def gspo_token(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """GSPO-token: GSPO's ratio, with a gradient for each token of its own (arXiv:2507.18071, eq. 13-14).

    The ratio ``s_t = sg(s) exp(logp - sg(logp))`` has GSPO's value everywhere, and d s_t / d logp = s at its own token
    alone. Where all advantages of a row are equal, the row's value and gradient are GSPO's; where they differ by token
    or turn, each moves its own tokens. What verl calls ``gspo`` is this.
    """
    own = torch.where(inputs.mask, inputs.logp, 0.0)
    log_s = log_ratio_at(inputs, "row").detach() + (own - own.detach())
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    return clipped(log_s, advantages, inputs.mask, *config.bounds())


def gmpo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """GMPO: the geometric mean of a row's clipped ratios (Zhao et al. 2025, arXiv:2507.20673, eq. 4).

    ``-A exp(mean over the row of l)`` with ``l = min(logp - old_logp, clip_high)`` where A > 0 and
    ``max(logp - old_logp, -clip_low)`` where A < 0. Log-ratios 0.1, -0.2, 0.9 with 0.4 and A = 1: l = 0.1, -0.2, 0.4,
    loss -exp(0.1) = -1.105171; with A = -1: exp(0.8 / 3) = 1.305605.

    Bounds are of the log-ratio; 0.4 and 0.4 are the paper's. Tokens without advantage are not clipped.
    """
    mask = inputs.mask
    advantages = torch.where(mask, inputs.advantages, 0.0)
    low, high = config.bounds()
    log_r = log_ratio(inputs)
    held = torch.where(advantages > 0, log_r.clamp(max=high), log_r)
    held = torch.where(advantages < 0, log_r.clamp(min=-low), held)
    metrics = {"loss/clip_fraction": (held != log_r).sum(), **ratio_metrics(log_r, mask)}
    return -advantages * mean_over(held, inputs, "row").exp(), metrics
