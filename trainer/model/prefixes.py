"""Rows of a micro-batch that begin alike: what they share is run through the model once, and it changes no number.

The state of a token depends on the ids up to it alone, so two rows with the same beginning have the same states there.
The rows of a group share their first prompt, the turns of one state their whole prompt. Sorted by their ids, rows form
a tree: each shares its beginning with the row before it, and is new from there on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["LEAST_SHARED", "SharedRows", "share_prefixes"]

LEAST_SHARED = 4
"""Rows that share fewer tokens than this are run apart: a tree costs more than it saves."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedRows:
    """A run of N tokens of R rows of which M tokens are computed."""

    kept: torch.Tensor
    """int64 [M]; the tokens that are computed, in their order."""
    homes: torch.Tensor
    """int64 [N]; for each token the place among ``kept`` of the one that stands for it."""
    lengths: torch.Tensor
    """int64 [R]; tokens of each row."""
    shared: torch.Tensor
    """int64 [R]; how many of them, from the row's start on, are computed with another row; the others are its own."""


def share_prefixes(ids: torch.Tensor, positions: torch.Tensor) -> SharedRows | None:
    """The tree of the rows of ``ids`` [N], ``positions`` [N] being 0 where a row starts; None where nothing is shared.

    Rows 1 2 3 4 5 and 1 2 3 4 6 keep the tokens 0 to 4 and 9; the second shares 4.
    """
    numbers, places = ids.numpy(force=True), positions.numpy(force=True)
    starts = np.flatnonzero(places == 0)
    lengths = np.diff(np.append(starts, len(places)))
    if len(starts) < 2:
        return None
    width = int(lengths.max())
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    table = np.where(inside, numbers[np.minimum(starts[:, None] + columns, len(numbers) - 1)], -1)
    keys = [row.tobytes() for row in table.astype(">i8")]  # bytes that sort as the ids do
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    table, inside = table[order], inside[order]
    shared = np.zeros(len(starts), dtype=np.int64)
    alike = (table[1:] == table[:-1]) & inside[1:]
    shared[1:] = np.logical_and.accumulate(alike, axis=1).sum(1)
    shared[shared < LEAST_SHARED] = 0
    if not shared.any():
        return None
    # Where a row is not new, the last row before it that was new there stands for it.
    own = np.where(columns >= shared[:, None], np.arange(len(order))[:, None], 0)
    source = order[np.maximum.accumulate(own, axis=0)]
    stands = (starts[source] + columns)[inside]
    here = (starts[order][:, None] + columns)[inside]
    representative = np.empty(len(places), dtype=np.int64)
    representative[here] = stands
    stays = representative == np.arange(len(places))
    kept, rank = np.flatnonzero(stays), np.cumsum(stays) - 1
    in_order = np.empty_like(shared)
    in_order[order] = shared
    given = (kept, rank[representative], lengths, in_order)
    kept_t, homes_t, lengths_t, shared_t = (torch.from_numpy(x).to(ids.device) for x in given)
    return SharedRows(kept=kept_t, homes=homes_t, lengths=lengths_t, shared=shared_t)
