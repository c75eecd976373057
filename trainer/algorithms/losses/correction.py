"""Correction for rows that another policy or engine sampled than the proximal one: weights, constant in the loss.

A weight of 0 takes a token's policy loss out; it still counts in every denominator, so that nothing depends on how a
step was cut. Entropy bonus and KL term are not weighed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.algorithms.losses.types import LOG_RATIO_BOUND, LossInputs, TensorMetrics, mean_over, sum_over
from trainer.config.algorithm import CorrectionConfig

__all__ = ["correction_weights", "within_second_moment"]


@torch.no_grad()
def correction_weights(inputs: LossInputs, config: CorrectionConfig) -> tuple[torch.Tensor | None, TensorMetrics]:
    """The weight of each token's policy loss [B, T], or None where nothing is configured; and sums of metrics.

    With ``w = exp(old_logp - sampler_logp)``, of ``level``: a token's own, the product over its turn or row, or the
    geometric mean over its row.

    - ``tis`` (Yao et al. 2025, truncated importance sampling): ``min(w, high)``.
    - ``mis``, ``icepop`` (per token: arXiv:2510.18855): w where ``low <= w <= high``, else 0.

    Each of these then makes the weight 0 on its own: ``reject``, the same ratio at a level of its own outside
    ``[reject_low, reject_high]``; ``veto``, a row with any token's ratio below it; ``row_delta`` (OPSM, DeepSeek-V3.2,
    arXiv:2512.02556), a token of negative advantage in a row where the mean of ``sampler_logp - logp`` is above it.

    Log-ratios 0.5, -0.25 in one row: token weights 1.648721, 0.778801; row 1.284025; geometric 1.133148; tis with
    high 1.2: 1.2, 0.778801; mis in [0.8, 2]: 1.648721, 0.
    """
    if not config.weighs:
        return None, {}
    mask = inputs.mask
    log_w = torch.where(mask, inputs.old_logp - inputs.sampler_logp, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    weights = mask.to(log_w.dtype)
    metrics: TensorMetrics = {}
    if config.name != "none":
        ratio = _ratio_at(log_w, inputs, config.level)
        outside = mask & (ratio > config.high)
        if config.name != "tis":
            outside |= mask & (ratio < config.low)
        held = ratio.clamp(max=config.high) if config.name == "tis" else torch.where(outside, 0.0, ratio)
        weights = torch.where(mask, held, 0.0)
        metrics["correction/cut_share"] = outside.sum()
    for name, dropped in _dropped(inputs, log_w, config):
        metrics[f"correction/{name}_share"] = dropped.sum()
        weights = torch.where(dropped, 0.0, weights)
    metrics["correction/weight"] = weights.sum()
    metrics["correction/dropped_share"] = (mask & (weights == 0)).sum()
    return weights, metrics


def _dropped(inputs: LossInputs, log_w: torch.Tensor, config: CorrectionConfig) -> list[tuple[str, torch.Tensor]]:
    """What is taken out whatever its weight, under the name of its metric."""
    mask = inputs.mask
    found = []
    if config.reject != "none" and config.reject_low is not None and config.reject_high is not None:
        ratio = _ratio_at(log_w, inputs, config.reject)
        found.append(("rejected", mask & ((ratio < config.reject_low) | (ratio > config.reject_high))))
    if config.veto:
        tiny = (mask & (log_w.exp() < config.veto)).to(log_w.dtype)
        found.append(("vetoed", mask & (sum_over(tiny, inputs, "row") > 0)))
    if config.row_delta is not None:
        fallen = torch.where(mask, inputs.sampler_logp - inputs.logp.detach(), 0.0)
        far = mean_over(fallen, inputs, "row") > config.row_delta
        found.append(("off_policy", mask & (inputs.advantages < 0) & far))
    return found


def _ratio_at(log_w: torch.Tensor, inputs: LossInputs, level: str) -> torch.Tensor:
    if level == "token":
        return log_w.exp()
    if level == "geometric":
        return mean_over(log_w, inputs, "row").exp()
    return sum_over(log_w, inputs, level).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def within_second_moment(log_ratios: NDArray[np.float64], limit: float) -> NDArray[np.bool_]:
    """M2PO's mask over the tokens of a training step [N] (arXiv:2510.01161, as in AReaL): True on those that are kept.

    The fewest tokens with the largest squared log-ratio are left out for the mean square of the rest to be at most
    ``limit``; all, when no token alone is (AReaL keeps the last one then). 1, 0.1, -0.2 with 0.04: 1 goes, and
    (0.01 + 0.04) / 2 = 0.025 stays.
    """
    count = log_ratios.size
    squares = np.square(log_ratios)
    order = np.argsort(-squares, kind="stable")
    means = np.cumsum(squares[order][::-1])[::-1] / np.arange(count, 0, -1)
    fine = np.flatnonzero(means <= limit)
    kept = np.ones(count, dtype=np.bool_)
    kept[order[: fine[0] if fine.size else count]] = False
    return kept
