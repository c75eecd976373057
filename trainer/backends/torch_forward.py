"""A language model over the rows of a micro-batch, in plain PyTorch: hidden states, log-probs and entropies of labels.

Rows are run end to end without their padding (:mod:`trainer.attention`), and only positions that have a label reach
the head, a chunk at a time (:mod:`trainer.linear_logprobs`).
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.attention import Kind, rows_of_positions, rows_of_tree
from trainer.batching import Batch
from trainer.linear_logprobs import Head, linear_logprobs, rows_within
from trainer.prefixes import share_prefixes

__all__ = ["label_scores", "label_states", "spread"]


def label_states(body: Any, batch: Batch, attention: Kind = "sdpa") -> torch.Tensor:
    """Hidden states [n, D] at the n positions that have a label; ``body`` is the model without its head. With SDPA,
    beginnings that rows of the micro-batch share are run once."""
    present = batch.segments >= 0
    ids, positions = batch.ids[present], batch.positions[present]
    labelled = batch.label_mask[present].nonzero()[:, 0]
    tree = share_prefixes(ids, positions) if attention == "sdpa" else None
    if tree is None:
        rows = rows_of_positions(positions, attention)
    else:
        rows, labelled = rows_of_tree(tree), tree.homes[labelled]
        ids, positions = ids[tree.kept], positions[tree.kept]
    hidden = body(
        input_ids=ids[None],
        position_ids=positions[None],
        # Not read: where there is a mask of four dimensions, the model makes none of its own.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.ids.device),
        rows=rows,
        use_cache=False,
    ).last_hidden_state[0]
    return hidden.index_select(0, labelled)  # type: ignore[no-any-return]


def label_scores(
    body: Any, head: Head, batch: Batch, *, temperature: float, attention: Kind, logits_mib: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels and entropies of their distributions at the sampling temperature, [B, T]; 0 elsewhere."""
    logp, entropy = linear_logprobs(
        label_states(body, batch, attention),
        batch.labels[batch.label_mask],
        head,
        temperature=temperature,
        chunk=rows_within(logits_mib, head.weight.shape[0]),
    )
    return spread(logp, batch.label_mask), spread(entropy, batch.label_mask)


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``values`` [n] at the n places where ``mask`` [B, T] is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
