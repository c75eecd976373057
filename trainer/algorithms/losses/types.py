"""What policy losses are given and what they give: the contract between the learner and every loss.

All tensors are [B, T], aligned to the predicting position (see :mod:`trainer.data.batches`). A row stands whole in one
micro-batch, so that what is taken over a row or a turn does not depend on how a step was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.config.algorithm import LossConfig

__all__ = [
    "LOG_RATIO_BOUND",
    "LossInputs",
    "LossSpec",
    "PolicyLoss",
    "Select",
    "StepTokens",
    "TensorMetrics",
    "log_ratio",
    "log_ratio_at",
    "mean_over",
    "ratio_metrics",
    "sum_over",
]

TensorMetrics = dict[str, torch.Tensor]
"""Sums over masked-in tokens: add them up over the micro-batches of a step, then divide by the number of tokens."""

LOG_RATIO_BOUND = 20.0
"""Log-ratios are cut to +-20, as in verl, so that the exponential stays finite."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """One micro-batch as a loss sees it; what is masked out may hold anything."""

    logp: torch.Tensor
    """Log-probs of the labels under the policy being trained, at the sampling temperature; has the gradient."""
    old_logp: torch.Tensor
    """Under the proximal policy, the one the ratio is taken to; constant."""
    sampler_logp: torch.Tensor
    """Under the policy and engine that sampled; constant."""
    advantages: torch.Tensor
    mask: torch.Tensor
    """bool; True exactly where the label was sampled and is learnt from."""
    rows: torch.Tensor
    """int64; index of the row within the step, -1 for padding."""
    turns: torch.Tensor
    """int64; turn within the episode of the label, -1 where none was sampled."""
    reference_logp: torch.Tensor | None = None
    """Under the reference policy; None without a KL term."""
    selected: torch.Tensor | None = None
    """bool; what :data:`Select` chose; None where the loss has none."""


PolicyLoss = Callable[[LossInputs, LossConfig], tuple[torch.Tensor, TensorMetrics]]
"""(inputs, config) -> (loss of each token [B, T], sums of metrics); exactly 0 without gradient where masked out."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTokens:
    """All predicted sampled tokens of one optimiser step, row after row [N], for choices over the whole step."""

    old_logp: NDArray[np.float64]
    advantages: NDArray[np.float64]


Select = Callable[[StepTokens, LossConfig, np.random.Generator], NDArray[np.bool_]]
"""Chooses tokens [N] before the step, from the proximal log-probs, so that no cut into micro-batches matters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSpec:
    """A loss and what may be done with its rows."""

    loss: PolicyLoss
    select: Select | None = None
    only_advantages: bool = False
    """Rows whose advantages are all 0 have no gradient, so that they need not be run."""
    linear_on_policy: bool = False
    """Where the ratio is 1 the gradient is linear in the advantages, so that rows of the same ids can be run as one."""
    keys: frozenset[str] | None = None
    """The keys of ``loss`` that it reads, of those that not every loss does; None: not known, nothing is checked."""


def log_ratio(inputs: LossInputs) -> torch.Tensor:
    """``logp - old_logp``, cut to +-20; 0 where masked out."""
    return torch.where(inputs.mask, inputs.logp - inputs.old_logp, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def log_ratio_at(inputs: LossInputs, level: str) -> torch.Tensor:
    """The logarithm of ``loss.ratio``'s ratio for each token [B, T]; 0 where masked out.

    ``token``: its own; ``turn`` and ``row``: the geometric mean over the masked-in tokens of its turn or row;
    ``row-product``: their product over the row, cut to +-20. Ratios whose logarithms are 0.1, -0.2 and 0.3 in one row:
    row 0.0667, row-product 0.2.
    """
    log_r = log_ratio(inputs)
    if level == "token":
        return log_r
    if level == "row-product":
        return sum_over(log_r, inputs, "row").clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return mean_over(log_r, inputs, level)


def ratio_metrics(log_r: torch.Tensor, mask: torch.Tensor) -> TensorMetrics:
    """``loss/ratio`` and ``loss/old_kl`` (k3 of the ratio) from the logarithms of ratios, 0 where masked out."""
    with torch.no_grad():
        ratio = log_r.exp()
        return {"loss/ratio": torch.where(mask, ratio, 0.0).sum(), "loss/old_kl": (ratio - 1.0 - log_r).sum()}


def sum_over(values: torch.Tensor, inputs: LossInputs, level: str) -> torch.Tensor:
    """Sum of ``values`` [B, T] over the masked-in tokens of each token's row (``level`` "row") or turn ("turn") [B, T].

    0 where masked out. Turns of one row are told apart by their number.
    """
    keys = _keys(inputs, level)
    kept = torch.where(inputs.mask, values, 0.0).flatten()
    sums = torch.zeros(int(keys.max()) + 1, dtype=values.dtype, device=values.device).index_add(0, keys, kept)
    return torch.where(inputs.mask, sums[keys].view(values.shape), 0.0)


def mean_over(values: torch.Tensor, inputs: LossInputs, level: str) -> torch.Tensor:
    """Mean of ``values`` over the masked-in tokens of each token's row or turn, as :func:`sum_over`."""
    counts = sum_over(torch.ones_like(values), inputs, level)
    return sum_over(values, inputs, level) / counts.clamp(min=1.0)


def _keys(inputs: LossInputs, level: str) -> torch.Tensor:
    """A number per position [B * T]: the same exactly where row (and turn) are."""
    rows = inputs.rows.flatten() + 1
    if level == "row":
        return rows
    turns = inputs.turns.flatten() + 1
    return rows * (turns.max() + 1) + turns
