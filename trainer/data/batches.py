"""Packing sequences into micro-batches of tensors, and back; and dealing them over ranks. Tensors start here.

Shapes: B packed lines ("bins") of a micro-batch, T positions, V vocabulary; N sampled tokens of the step.

Convention, everywhere: tensors are aligned to the *predicting* position. Index t of ``labels``, ``label_mask``,
``advantages``, ``sampler_logp`` and all other columns of tokens concerns the prediction of the id that follows
``ids[t]`` in the same sequence. So a learner does ``logits_BTV -> log_softmax(logits / temperature) -> gather(labels)``
with no further shift. The first id of a sequence is never predicted, its last position predicts nothing.

A sequence is never split. How sequences are cut into bins and bins into micro-batches changes nothing but rounding,
because losses are divided by :class:`Denominators` of the whole optimiser step.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from roll_envs.errors import ConfigError
from trainer.data.table import FloatArray, IntArray, Tokens, TokenSequence


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One micro-batch; all but returns are [B, T]. Padding: segment, sequence, token and turn -1, False, else zeros.

    Columns of tokens are 0 where the mask is False, and None where the step has none.
    """

    ids: torch.Tensor
    """int64; the model's input."""
    positions: torch.Tensor
    """int64; restart at 0 in each sequence."""
    segments: torch.Tensor
    """int64; number of the sequence within its bin: a sequence sees itself only."""
    labels: torch.Tensor
    """int64; the id that follows in the same sequence, 0 where none does."""
    label_mask: torch.Tensor
    """bool; True exactly where the label was sampled by the policy and is trained on."""
    advantages: torch.Tensor
    """float32; of the label, its weight included."""
    sampler_logp: torch.Tensor
    """float32; of the label under the sampler."""
    old_logp: torch.Tensor
    """float32; of the label under the policy that the ratio is taken to; the sampler's where nothing else is known."""
    sequence: torch.Tensor
    """int64; place of the sequence in ``used``, what :func:`make_batches` was asked for."""
    turn: torch.Tensor
    """int64; turn of the label within its episode, -1 where the mask is False."""
    token: torch.Tensor
    """int64; line of the label in the table's tokens, -1 where the mask is False."""
    reference_logp: torch.Tensor | None = None
    """float32; of the label under the reference policy."""
    selected: torch.Tensor | None = None
    """bool; whether the label is among the tokens that the loss chose for the step."""
    values: torch.Tensor | None = None
    """float32; the critic's value before the step, of the state in which the label was sampled."""
    episode_return: torch.Tensor | None = None
    """float32; undiscounted return of the label's episode, as the environment paid it."""
    success: torch.Tensor | None = None
    """bool; of the label's episode."""
    truncated: torch.Tensor | None = None
    """bool; whether the label's episode ended at the turn limit."""
    weights: torch.Tensor | None = None
    """float32; the factor in the label's advantage."""
    returns: torch.Tensor | None = None
    """float32 [K, B, T]; what that value shall become, for each of up to K sequences with these ids."""
    return_mask: torch.Tensor | None = None
    """bool [K, B, T]; where ``returns`` holds one."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on ``device``."""
        present = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return Batch(**{name: column.to(device, non_blocking=True) for name, column in present.items()})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Denominators:
    """What the losses of one optimiser step are divided by, over all its sequences (on all ranks)."""

    tokens: int
    """Sampled ids that are predicted and trained on."""
    sequences: int
    """Sequences with at least one such id."""
    sequence_tokens: torch.Tensor
    """int64 [S]; such ids of each sequence, looked up by ``Batch.sequence``."""


def denominators_of(tokens: Tokens, used: Sequence[int]) -> Denominators:
    """The denominators of an optimiser step on the sequences ``used``; ids that have no loss are not counted."""
    counts = np.bincount(tokens.sequence[tokens.learnt], minlength=max(used, default=-1) + 1)[list(used)]
    return Denominators(
        tokens=int(counts.sum()), sequences=int((counts > 0).sum()), sequence_tokens=torch.from_numpy(counts)
    )


def pack(lengths: IntArray, pack_tokens: int) -> list[list[int]]:
    """Indices of sequences of ``lengths`` in bins of at most ``pack_tokens`` ids, first-fit decreasing; a longer one
    stands alone.

    Lengths 5, 4, 3, 2 with 7 tokens give bins [0, 3] and [1, 2].
    """
    bins: list[list[int]] = []
    room: list[int] = []
    first, last_length = 0, -1
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        if length != last_length:  # sequences of one length fit no earlier than the one before
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


_COLUMNS: tuple[tuple[str, str, type, int], ...] = (
    ("turn", "turn_number", np.int64, -1),
    ("sampler_logp", "sampler_logp", np.float32, 0),
    ("reference_logp", "reference_logp", np.float32, 0),
    ("selected", "selected", np.bool_, 0),
    ("values", "value", np.float32, 0),
    ("episode_return", "episode_return", np.float32, 0),
    ("success", "success", np.bool_, 0),
    ("truncated", "truncated", np.bool_, 0),
    ("weights", "weight", np.float32, 0),
)
"""Tensors of a batch that are a column of tokens, where there is one; and what stands where no token is."""


class _Layout(NamedTuple):
    """Where sequences stand in one flat buffer that holds all micro-batches, one after the other."""

    lengths: IntArray
    """Of each sequence, in ids."""
    starts: IntArray
    """Of each sequence."""
    segments: IntArray
    """Number of each sequence within its bin."""
    shapes: list[tuple[int, int]]
    """(B, T) of each micro-batch."""

    def place(self, values: Any, at: IntArray, dtype: type, padding: int = 0) -> list[torch.Tensor]:
        """``values`` [..., n] at the flat positions ``at`` [n], cut into micro-batches [..., B, T]."""
        values = np.asarray(values)
        ends = np.cumsum([b * t for b, t in self.shapes])
        buffer: NDArray[Any] = np.full((*values.shape[:-1], ends[-1]), padding, dtype=dtype)
        buffer[..., at] = values
        return [
            torch.from_numpy(buffer[..., end - b * t : end].reshape(*values.shape[:-1], b, t))
            for end, (b, t) in zip(ends, self.shapes, strict=True)
        ]


def _layout(lengths: IntArray, pack_tokens: int, tokens_per_microbatch: int) -> _Layout:
    """Sequences of these lengths in bins, and the bins in micro-batches as wide as their widest bin."""
    bins = pack(lengths, pack_tokens)
    widths = np.array([lengths[members].sum() for members in bins], dtype=np.int64)
    starts, segments = np.empty_like(lengths), np.empty_like(lengths)
    shapes: list[tuple[int, int]] = []
    size = 0
    for batch in _microbatches(widths, tokens_per_microbatch):
        width = int(widths[batch].max())
        for b, bin_index in enumerate(batch):
            members = bins[bin_index]
            starts[members] = size + b * width + np.cumsum(lengths[members]) - lengths[members]
            segments[members] = np.arange(len(members))
        shapes.append((len(batch), width))
        size += len(batch) * width
    return _Layout(lengths, starts, segments, shapes)


def make_batches(
    sequences: Sequence[TokenSequence],
    tokens: Tokens,
    used: Sequence[int],
    *,
    pack_tokens: int,
    tokens_per_microbatch: int,
    returns: FloatArray | None = None,
) -> list[Batch]:
    """Sequences as micro-batches of at most ``tokens_per_microbatch`` positions, padding included (one long sequence
    may pass).

    Args:
        sequences: All of the training step.
        tokens: Their sampled tokens; without a column of advantages (scoring only) those are 0.
        used: Indices of the sequences of this optimiser step; ``Batch.sequence`` counts through them.
        pack_tokens: Length of a bin.
        tokens_per_microbatch: Positions B * T of a micro-batch.
        returns: [K, N], what the critic shall predict for each token, in each of the up to K sequences that a used one
            stands for (those with the same ids are run once); NaN where there is none.
    """
    if not used:
        return []
    chosen = [sequences[i] for i in used]
    lengths = np.fromiter((len(s) for s in chosen), dtype=np.int64, count=len(chosen))
    layout = _layout(lengths, pack_tokens, tokens_per_microbatch)
    lines = tokens.of(used)
    lines = lines[tokens.learnt[lines]]
    starts = np.zeros(len(sequences), dtype=np.int64)
    starts[list(used)] = layout.starts
    # A token of the table stands where it is predicted, one position before its own.
    predicting = starts[tokens.sequence[lines]] + tokens.position[lines] - 1
    columns = {**_of_ids(chosen, layout), **_of_labels(tokens, lines, predicting, layout)}
    if returns is not None:
        there = ~np.isnan(returns[:, lines])
        columns["returns"] = layout.place(np.where(there, returns[:, lines], 0.0), predicting, np.float32)
        columns["return_mask"] = layout.place(there, predicting, np.bool_)
    return [Batch(**{name: column[i] for name, column in columns.items()}) for i in range(len(layout.shapes))]


def _of_ids(chosen: Sequence[TokenSequence], layout: _Layout) -> dict[str, list[torch.Tensor]]:
    """The tensors that say something of every id, sampled or not, by their names in :class:`Batch`."""
    place, lengths = layout.place, layout.lengths
    total = int(lengths.sum())
    position = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    everywhere = np.repeat(layout.starts, lengths) + position
    ids = np.fromiter(chain.from_iterable(s.ids for s in chosen), dtype=np.int64, count=total)
    return {
        "ids": place(ids, everywhere, np.int64),
        "positions": place(position, everywhere, np.int64),
        "segments": place(np.repeat(layout.segments, lengths), everywhere, np.int64, -1),
        "sequence": place(np.repeat(np.arange(len(chosen)), lengths), everywhere, np.int64, -1),
        "labels": place(ids[position > 0], everywhere[position > 0] - 1, np.int64),
    }


def _of_labels(tokens: Tokens, lines: IntArray, at: IntArray, layout: _Layout) -> dict[str, list[torch.Tensor]]:
    """The tensors that say something of the labels: the ``lines`` of the table that have a loss."""
    place = layout.place
    advantage = np.zeros(len(tokens.sequence)) if tokens.advantage is None else tokens.advantage
    old = tokens.sampler_logp if tokens.proximal_logp is None else tokens.proximal_logp
    given = [(name, getattr(tokens, column), dtype, padding) for name, column, dtype, padding in _COLUMNS]
    return {
        "label_mask": place(np.ones(len(lines)), at, np.bool_),
        "token": place(lines, at, np.int64, -1),
        "advantages": place(advantage[lines], at, np.float32),
        "old_logp": place(old[lines], at, np.float32),
        **{n: place(column[lines], at, dtype, padding) for n, column, dtype, padding in given if column is not None},
    }


def scatter_back(batches: Sequence[Batch], values: Sequence[torch.Tensor], tokens: Tokens) -> FloatArray:
    """Per-position outputs (``values[i]`` [B, T] of ``batches[i]``) as a column of ``tokens`` [N].

    Tokens that are not predicted, or in none of the batches, get 0.0.
    """
    column = np.zeros(len(tokens.sequence))
    for batch, given in zip(batches, values, strict=True):
        lines = batch.token.numpy(force=True)
        column[lines[lines >= 0]] = given.detach().double().numpy(force=True)[lines >= 0]
    return column


def padding_share(batches: Sequence[Batch]) -> float:
    """Share of the positions of ``batches`` that hold padding."""
    positions = sum(b.ids.numel() for b in batches)
    return sum(int((b.segments < 0).sum()) for b in batches) / positions if positions else 0.0


def split_minibatches(sequences: Sequence[TokenSequence], n: int, rng: np.random.Generator) -> list[list[int]]:
    """Indices of ``sequences`` dealt into ``n`` optimiser steps with near-equal numbers of them; a group stays whole.

    Groups are shuffled by ``rng``, then dealt largest first to the least full minibatch, so that the result depends on
    the sequences and the generator's state alone. Fewer groups than ``n`` give fewer, never empty, minibatches.
    """
    members: dict[int, list[int]] = {}
    for index, sequence in enumerate(sequences):
        members.setdefault(sequence.group, []).append(index)
    groups = [members[g] for g in sorted(members)]
    shuffled = [groups[i] for i in rng.permutation(len(groups)).tolist()]
    dealt: list[list[int]] = [[] for _ in range(min(n, len(groups)))]
    for group in sorted(shuffled, key=len, reverse=True):
        min(dealt, key=len).extend(group)
    return dealt


# -- ranks -------------------------------------------------------------------------------------------------------------

QUADRATIC = 1.0 / 24_000
"""Work of attention over that of all else, per token of a sequence: with a causal kernel about 1 / (12 D), D 2048."""


def cost(length: int, quadratic: float = QUADRATIC) -> float:
    """Work of a sequence in tokens: ``length * (1 + quadratic * length)``. With 0.001, 1000 tokens cost 2000."""
    return length * (1.0 + quadratic * length)


def balance(lengths: Sequence[int], ranks: int, *, quadratic: float = QUADRATIC) -> list[list[int]]:
    """Indices of the sequences of each rank, in rising order; their numbers may differ, and a rank may have none.

    Largest differencing (Karmarkar and Karp 1982) over ``ranks`` ways: the two partial solutions that are furthest
    apart are merged, the heaviest rank of one with the lightest of the other. The busiest rank has at most the load of
    the largest sequence more than any other.

    Lengths 8, 7, 6, 5, 4 on 2 ranks with ``quadratic=0`` give sequences [0, 2] and [1, 3, 4], loads 14 and 16; dealing
    the largest first would give 17 and 13.

    Raises:
        ConfigError: ``ranks`` is not positive.
    """
    if ranks < 1:
        raise ConfigError(f"sequences cannot be dealt to {ranks} ranks; allowed: 1 or more")
    # A partial solution is (load, indices) for each rank, lightest first. The heap gives the largest difference; the
    # counter makes the order of equals a function of the lengths.
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, length in enumerate(lengths):
        load = cost(length, quadratic)
        heap.append((-load, index, [*((0.0, []) for _ in range(ranks - 1)), (load, [index])]))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        merged = [(x[0] + y[0], x[1] + y[1]) for x, y in zip(a, reversed(b), strict=True)]
        merged.sort(key=lambda rank: (rank[0], rank[1]))
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], number, merged))
        number += 1
    shares = [sorted(indices) for _, indices in heap[0][2]] if heap else [[] for _ in range(ranks)]
    return sorted(shares, key=lambda share: share or [len(lengths)])
