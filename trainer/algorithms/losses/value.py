"""The critic's loss: regression on returns, with values that may be kept near what they were."""

from __future__ import annotations

import torch

from trainer.algorithms.losses.types import TensorMetrics

__all__ = ["value_loss"]


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, TensorMetrics]:
    """Loss of each return [..., B, T], 0 where masked out; and sums of metrics. ``returns`` and ``mask`` may have
    leading dimensions that ``values`` [B, T] lack: several returns of one state.

    ``0.5 * max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2)`` (Schulman et al. 2017; without the second term where
    ``clip`` is None). V 1, V_old 0, G 2, c 0.2: 0.5 * max(1, 3.24) = 1.62.
    """
    values, old_values, returns = (torch.where(mask, v, 0.0) for v in (values, old_values, returns))
    error = (values - returns).square()
    metrics = {"critic/value": values.detach().sum(), "critic/return": returns.sum()}
    if clip is not None:
        near = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        bounded = (near - returns).square()
        metrics["critic/clip_fraction"] = (bounded > error).sum()
        error = torch.maximum(error, bounded)
    metrics["critic/squared_error"] = (values.detach() - returns).square().sum()
    return 0.5 * error, metrics
