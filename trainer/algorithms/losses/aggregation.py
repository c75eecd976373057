"""The one function that makes a number of the losses of tokens: always masked, with global denominators."""

from __future__ import annotations

import torch

from roll_envs.errors import UnknownNameError
from trainer.data.batches import Denominators

__all__ = ["MODES", "aggregate"]

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant")


def aggregate(
    loss: torch.Tensor,
    mask: torch.Tensor,
    rows: torch.Tensor,
    mode: str,
    denominators: Denominators,
    *,
    constant_tokens: int = 1,
) -> torch.Tensor:
    """Losses of the tokens of one micro-batch [B, T] as its share of the step's scalar loss.

    The shares of all micro-batches of a step add up to the loss of the step, however it was cut. ``rows`` is
    ``Batch.row_index``. Losses 2, 2 in one row and 1, 1, 1, 1 in another: token-mean 1.3333,
    seq-mean-token-mean 1.5, seq-mean-token-sum 4, constant (Dr. GRPO) with 4 tokens 1.0.

    Raises:
        UnknownNameError: ``mode`` is none of these.
    """
    kept = torch.where(mask, loss, 0.0)
    if mode == "token-mean":
        return kept.sum() / max(denominators.tokens, 1)
    if mode == "seq-mean-token-sum":
        return kept.sum() / max(denominators.rows, 1)
    if mode == "seq-mean-token-mean":
        counts = denominators.row_tokens.to(loss.device)[rows.clamp(min=0)].clamp(min=1)
        return (kept / counts).sum() / max(denominators.rows, 1)
    if mode == "constant":
        return kept.sum() / (max(denominators.rows, 1) * constant_tokens)
    raise UnknownNameError("loss aggregation", mode, MODES)
