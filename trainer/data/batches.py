"""Packing rows into micro-batches of tensors, and back. Tensors start here.

Shapes: B packed rows ("bins") of a micro-batch, T positions, V vocabulary.

Convention, everywhere: tensors are aligned to the *predicting* position. Index t of ``labels``, ``label_mask``,
``advantages``, ``sampler_logprobs`` and ``old_logprobs`` concerns the prediction of the id that follows ``ids[t]`` in
the same row. So a learner does ``logits_BTV -> log_softmax(logits / temperature) -> gather(labels)`` with no further
shift. The first id of a row is never predicted, the last position of a row predicts nothing.

A row is never split. How rows are cut into bins and bins into micro-batches changes nothing but rounding, because
losses are divided by :class:`Denominators` of the whole optimiser step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.sequences import TokenSequence

__all__ = [
    "Batch",
    "Denominators",
    "denominators_of",
    "make_batches",
    "pack",
    "padding_share",
    "scatter_back",
    "split_minibatches",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One micro-batch; all but returns are [B, T]. Padding: segment -1, row index -1, mask False, else zeros."""

    ids: torch.Tensor
    """int64; the model's input."""
    positions: torch.Tensor
    """int64; restart at 0 in each row."""
    segments: torch.Tensor
    """int64; number of the row within its bin: a row sees itself only."""
    labels: torch.Tensor
    """int64; the id that follows in the same row, 0 where none does."""
    label_mask: torch.Tensor
    """bool; True exactly where the label was sampled by the policy."""
    advantages: torch.Tensor
    """float32; of the label, 0 where the mask is False."""
    sampler_logprobs: torch.Tensor
    """float32; of the label under the sampler, 0 where the mask is False."""
    old_logprobs: torch.Tensor
    """float32; of the label under the policy that the ratio is taken to, 0 where the mask is False."""
    row_index: torch.Tensor
    """int64; index of the row in the list given to :func:`make_batches`."""
    turns: torch.Tensor
    """int64; turn of the label within its episode, -1 where it was not sampled."""
    reference_logprobs: torch.Tensor | None = None
    """float32; of the label under the reference policy, 0 where the mask is False; None without one."""
    selected: torch.Tensor | None = None
    """bool; whether the label is among the tokens that the loss chose for the step; None where it chooses none."""
    values: torch.Tensor | None = None
    """float32; the critic's value before the step, of the state in which the label was sampled; None without one."""
    returns: torch.Tensor | None = None
    """float32 [K, B, T]; what that value shall become, for each of up to K rows with these ids; None without one."""
    return_mask: torch.Tensor | None = None
    """bool [K, B, T]; where ``returns`` holds one."""

    def with_old_logprobs(self, old_logprobs: torch.Tensor) -> Batch:
        """The same batch with the ratio taken to ``old_logprobs`` [B, T]."""
        return replace(self, old_logprobs=old_logprobs)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on ``device``."""
        present = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return Batch(**{name: column.to(device, non_blocking=True) for name, column in present.items()})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Denominators:
    """What the losses of one optimiser step are divided by, over all its rows (of all ranks, in parallel training)."""

    tokens: int
    """Predicted sampled ids."""
    rows: int
    """Rows with at least one such id."""
    row_tokens: torch.Tensor
    """int64 [R]; predicted sampled ids of each row, looked up by ``Batch.row_index``."""


def _lengths(rows: Sequence[TokenSequence]) -> IntArray:
    return np.fromiter((len(row.ids) for row in rows), dtype=np.int64, count=len(rows))


def denominators_of(rows: Sequence[TokenSequence]) -> Denominators:
    """The denominators of an optimiser step on ``rows``; the first id of a row is not predicted, not counted."""
    counts = torch.tensor([sum(row.mask[1:]) for row in rows], dtype=torch.int64)
    return Denominators(tokens=int(counts.sum()), rows=int((counts > 0).sum()), row_tokens=counts)


def pack(rows: Sequence[TokenSequence], pack_tokens: int) -> list[list[int]]:
    """Indices of ``rows`` in bins of at most ``pack_tokens`` ids, first-fit decreasing; a longer row stands alone.

    Lengths 5, 4, 3, 2 with 7 tokens give bins [0, 3] and [1, 2].
    """
    lengths = _lengths(rows)
    bins: list[list[int]] = []
    room: list[int] = []
    first, last_length = 0, -1
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        if length != last_length:  # rows of one length fit no earlier than the one before
            first, last_length = 0, length
        while first < len(bins) and room[first] < length:
            first += 1
        if first == len(bins):
            bins.append([])
            room.append(max(pack_tokens, length))
        bins[first].append(index)
        room[first] -= length
    return bins


def _microbatches(widths: IntArray, tokens_per_microbatch: int) -> list[list[int]]:
    """Bins in runs of falling width, so that count * widest stays within the limit (a single bin may exceed it)."""
    batches: list[list[int]] = []
    widest = 0
    for index in np.argsort(-widths, kind="stable").tolist():
        if not batches or (len(batches[-1]) + 1) * widest > tokens_per_microbatch:
            batches.append([])
            widest = int(widths[index])
        batches[-1].append(index)
    return batches


def make_batches(
    rows: Sequence[TokenSequence],
    advantages: Sequence[NDArray[Any]] | None = None,
    *,
    pack_tokens: int,
    tokens_per_microbatch: int,
    old_logprobs: Sequence[NDArray[Any]] | None = None,
    reference_logprobs: Sequence[NDArray[Any]] | None = None,
    selected: Sequence[NDArray[Any]] | None = None,
    values: Sequence[NDArray[Any]] | None = None,
    returns: Sequence[NDArray[Any]] | None = None,
) -> list[Batch]:
    """Rows as micro-batches of at most ``tokens_per_microbatch`` positions, padding included (one long row may pass).

    Args:
        rows: Rows of one optimiser step; ``Batch.row_index`` counts through them.
        advantages: Per row, one number per id; None (scoring only) gives zeros.
        pack_tokens: Length of a bin.
        tokens_per_microbatch: Positions B * T of a micro-batch.
        old_logprobs: Per row, one number per id, as :func:`scatter_back` returns them; None takes the sampler's.
        reference_logprobs: The same under the reference policy.
        selected: Per row, one bool per id.
        values: Per row, the critic's value for each id.
        returns: Per row [k, ids], what the critic shall predict for each id, in each of the k rows that this one stands
            for: rows with the same ids are run once.
    """
    if not rows:
        return []
    lengths = _lengths(rows)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    bins = pack(rows, pack_tokens)
    widths = np.array([lengths[members].sum() for members in bins], dtype=np.int64)
    shapes: list[tuple[int, int]] = []
    targets = np.empty(len(rows), dtype=np.int64)  # where each row starts in the flat buffer of all batches
    segments = np.empty(len(rows), dtype=np.int64)
    offset = 0
    for batch in _microbatches(widths, tokens_per_microbatch):
        width = int(widths[batch].max())
        for b, bin_index in enumerate(batch):
            members = bins[bin_index]
            targets[members] = offset + b * width + np.cumsum(lengths[members]) - lengths[members]
            segments[members] = np.arange(len(members))
        shapes.append((len(batch), width))
        offset += len(batch) * width

    index_in_row = np.arange(total) - np.repeat(starts, lengths)
    target = np.repeat(targets, lengths) + index_in_row
    has_label = index_in_row < np.repeat(lengths - 1, lengths)

    def flat(get: Callable[[TokenSequence], tuple[Any, ...]], dtype: type) -> NDArray[Any]:
        return np.fromiter(chain.from_iterable(map(get, rows)), dtype=dtype, count=total)

    def joined(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if len(values) != len(rows) or any(len(v) != len(r.ids) for v, r in zip(values, rows, strict=True)):
            raise ValueError("advantages, log-probs and values need one array per row and one number per id")
        return np.concatenate(values)

    def shifted(values: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
        return np.where(keep, np.roll(values, -1), values.dtype.type(0))

    def place(values: NDArray[Any], dtype: type, padding: int = 0) -> list[torch.Tensor]:
        buffer: NDArray[Any] = np.full(offset, padding, dtype=dtype)
        buffer[target] = values
        ends = np.cumsum([b * t for b, t in shapes])
        return [torch.from_numpy(buffer[e - b * t : e].reshape(b, t)) for e, (b, t) in zip(ends, shapes, strict=True)]

    def stacked(slices: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [torch.stack(parts) for parts in zip(*slices, strict=True)]

    ids = flat(lambda row: row.ids, np.int64)
    label_mask = shifted(flat(lambda row: row.mask, np.bool_), has_label)
    sampler = flat(lambda row: row.logprobs, np.float64)
    old = sampler if old_logprobs is None else joined(old_logprobs)
    credit = np.zeros(total) if advantages is None else joined(advantages)
    columns = {
        "ids": place(ids, np.int64),
        "positions": place(index_in_row, np.int64),
        "segments": place(np.repeat(segments, lengths), np.int64, -1),
        "labels": place(shifted(ids, has_label), np.int64),
        "label_mask": place(label_mask, np.bool_),
        "advantages": place(shifted(credit, label_mask), np.float32),
        "sampler_logprobs": place(shifted(sampler, label_mask), np.float32),
        "old_logprobs": place(shifted(old, label_mask), np.float32),
        "row_index": place(np.repeat(np.arange(len(rows)), lengths), np.int64, -1),
        "turns": place(np.where(label_mask, np.roll(flat(lambda row: row.turns, np.int64), -1), -1), np.int64, -1),
    }
    for name, given, kind in (
        ("reference_logprobs", reference_logprobs, np.float32),
        ("selected", selected, np.bool_),
        ("values", values, np.float32),
    ):
        if given is not None:
            columns[name] = place(shifted(joined(given), label_mask), kind)
    if returns is not None:
        slices = range(max(map(len, returns)))
        nothing = [np.zeros(length) for length in lengths]
        found = [joined([r[k] if k < len(r) else n for r, n in zip(returns, nothing, strict=True)]) for k in slices]
        there = [np.repeat([k < len(r) for r in returns], lengths) for k in slices]
        columns["returns"] = stacked([place(shifted(values, label_mask), np.float32) for values in found])
        columns["return_mask"] = stacked([place(label_mask & held, np.bool_) for held in there])
    return [Batch(**{name: column[i] for name, column in columns.items()}) for i in range(len(shapes))]


def padding_share(batches: Sequence[Batch]) -> float:
    """Share of the positions of ``batches`` that hold padding."""
    positions = sum(b.ids.numel() for b in batches)
    return sum(int((b.segments < 0).sum()) for b in batches) / positions if positions else 0.0


def split_minibatches(rows: Sequence[TokenSequence], n: int, rng: np.random.Generator) -> list[list[int]]:
    """Indices of ``rows`` dealt into ``n`` optimiser steps with near-equal numbers of rows; a group stays whole.

    Groups are shuffled by ``rng``, then dealt largest first to the least full minibatch, so that the result depends on
    the rows and the generator's state alone. Fewer groups than ``n`` give fewer, never empty, minibatches.
    """
    members: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(row.group, []).append(index)
    groups = [members[g] for g in sorted(members)]
    shuffled = [groups[i] for i in rng.permutation(len(groups)).tolist()]
    dealt: list[list[int]] = [[] for _ in range(min(n, len(groups)))]
    for group in sorted(shuffled, key=len, reverse=True):
        min(dealt, key=len).extend(group)
    return dealt


def scatter_back(batches: Sequence[Batch], values: Sequence[torch.Tensor]) -> list[FloatArray]:
    """Per-position outputs (``values[i]`` [B, T] of ``batches[i]``) as one array per row, aligned with the row's ids.

    ``batches`` are all those of one :func:`make_batches`. The value of the position that predicts an id lands on that
    id; ids that were not sampled, or not predicted, get 0.0, as in ``TokenSequence.logprobs``.
    """
    if not batches:
        return []
    used = [(b.row_index >= 0).numpy(force=True) for b in batches]

    def flat(tensors: Sequence[torch.Tensor]) -> NDArray[Any]:
        return np.concatenate([t.detach().numpy(force=True)[u] for t, u in zip(tensors, used, strict=True)])

    row_index = flat([b.row_index for b in batches])
    order = np.argsort(row_index, kind="stable")  # a row's positions stand in order within its bin
    numbers = flat([v.double() for v in values])
    kept = np.where(flat([b.label_mask for b in batches]), numbers, 0.0)[order]
    aligned = np.concatenate([np.zeros(1), kept[:-1]])  # the last position of a row predicts nothing: a 0 for the next
    return np.split(aligned, np.cumsum(np.bincount(row_index))[:-1])
