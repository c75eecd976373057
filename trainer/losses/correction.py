"""Weights that correct for rows sampled by another policy or engine than the proximal one; constant in the loss."""

from __future__ import annotations

import torch

from trainer.algorithm_config import CorrectionConfig
from trainer.losses.types import LossInputs, TensorMetrics

__all__ = ["correction_weights"]


def correction_weights(inputs: LossInputs, config: CorrectionConfig) -> tuple[torch.Tensor | None, TensorMetrics]:
    """The weight of each token's policy loss [B, T], or None where nothing is configured; and sums of metrics."""
    if config.name == "none" and config.row_delta is None and not config.veto:
        return None, {}
    raise NotImplementedError
