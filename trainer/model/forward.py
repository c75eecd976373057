"""A language model over the rows of a micro-batch, in plain PyTorch: hidden states, log-probs and entropies of labels.

Rows are run end to end without their padding (:mod:`trainer.model.attention`), and only positions that have a label
reach the head, a chunk at a time (:mod:`trainer.model.logprobs`). What rows share (:mod:`trainer.model.prefixes`)
is run once, and so is a label that several of them have in the same place.
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.data.batches import Batch
from trainer.model.attention import Kind, rows_of_positions, rows_of_tree
from trainer.model.logprobs import Head, linear_logprobs, rows_within
from trainer.model.prefixes import share_prefixes

__all__ = ["label_scores", "label_states", "spread", "up_to_the_last_label"]


def label_states(body: Any, batch: Batch, attention: Kind = "sdpa") -> torch.Tensor:
    """Hidden states [n, D] at the n positions that have a label; ``body`` is the model without its head."""
    hidden, labelled = _states(body, batch, attention)
    return hidden.index_select(0, labelled)


def _states(body: Any, batch: Batch, attention: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [M, D] of the tokens that are run, and which of them stand before the n labels, int64 [n]. With
    SDPA, beginnings that rows of the micro-batch share are run once."""
    present = batch.segments >= 0
    ids, positions, mask = batch.ids[present], batch.positions[present], batch.label_mask[present]
    needed = up_to_the_last_label(positions, mask)
    ids, positions, labelled = ids[needed], positions[needed], mask[needed].nonzero()[:, 0]
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
    return hidden, labelled


def up_to_the_last_label(positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """bool [N]: the tokens of each row up to its last label; nothing that is asked for depends on those behind it. All
    of them where there is no label at all."""
    row = (positions == 0).cumsum(0) - 1
    places = torch.arange(len(positions), device=positions.device)
    last = torch.full_like(places, -1).scatter_reduce(0, row[mask], places[mask], "amax")
    needed = places <= last[row]
    return needed if bool(mask.any()) else torch.ones_like(mask)


def label_scores(
    body: Any, head: Head, batch: Batch, *, temperature: float, attention: Kind, logits_mib: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels and entropies of their distributions at the sampling temperature, [B, T]; 0 elsewhere."""
    hidden, labelled = _states(body, batch, attention)
    vocabulary = head.weight.shape[0]
    # A label after one state is one number, however many rows have it.
    pairs, which = torch.unique(labelled * vocabulary + batch.labels[batch.label_mask], return_inverse=True)
    scores = linear_logprobs(
        hidden.index_select(0, pairs // vocabulary),
        pairs % vocabulary,
        head,
        temperature=temperature,
        chunk=rows_within(logits_mib, vocabulary),
    )
    logp, entropy = (spread(score.index_select(0, which), batch.label_mask) for score in scores)
    return logp, entropy


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``values`` [n] at the n places where ``mask`` [B, T] is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
