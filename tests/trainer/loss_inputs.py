"""Sequences as losses see them, packed by hand in any precision, and the same as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.algorithms.losses import LossInputs
from trainer.algorithms.losses.objective import token_losses
from trainer.config.parts import LOSSES
from trainer.data.batches import Batch, Denominators

Numbers = NDArray[np.float64]


def losses_of(name: str, inputs: LossInputs, **settings: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of each token by the loss ``name`` with ``settings`` of its own, and the sums of its metrics."""
    part = LOSSES.find(name)
    return token_losses(part, inputs.masked(), part.settings(**settings))


def label_logprobs(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of ``labels`` [B, T] at the sampling temperature from logits [B, T, V]."""
    scaled = logits / temperature
    return scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def entropy(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Entropy in nats of the sampling distribution at each position [B, T], from logits [B, T, V]."""
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return -(logp.exp() * logp).sum(-1)


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """One row; every array has one number per position, also where nothing was sampled (turn -1)."""

    turns: NDArray[np.int64]
    logp: Numbers
    old: Numbers
    sampler: Numbers
    advantages: Numbers
    reference: Numbers
    selected: NDArray[np.bool_]

    @property
    def mask(self) -> NDArray[np.bool_]:
        return self.turns >= 0


def random_rows(seed: int, count: int = 5, spread: float = 0.4) -> list[LossRow]:
    """Rows of up to three turns with observations between them; the first has one sampled token, one has none."""
    rng = np.random.default_rng(seed)
    rows = []
    for place in range(count):
        pattern: list[int] = []
        for turn in range(1 if place == 0 else int(rng.integers(1, 4))):
            pattern += [-1] * int(rng.integers(0, 3)) + [turn] * (1 if place == 0 else int(rng.integers(1, 4)))
        if place == count - 1:
            pattern = [-1, -1]
        n = len(pattern)
        old = rng.uniform(-2.5, -0.3, n)
        rows.append(
            LossRow(
                turns=np.array(pattern),
                logp=np.minimum(old + rng.normal(0, spread, n), -0.01),
                old=old,
                sampler=np.minimum(old + rng.normal(0, spread, n), -0.01),
                advantages=rng.normal(0, 1, n),
                reference=rng.uniform(-2.5, -0.3, n),
                selected=rng.random(n) < 0.4,
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Rows as one micro-batch, with the policy's log-probs as a leaf, and what the step is divided by."""

    batch: Batch
    logp: torch.Tensor
    denominators: Denominators

    def inputs(self, logp: torch.Tensor | None = None) -> LossInputs:
        return LossInputs(
            logp=self.logp if logp is None else logp,
            old_logp=self.batch.old_logp,
            sampler_logp=self.batch.sampler_logp,
            advantages=self.batch.advantages,
            mask=self.batch.label_mask,
            sequence=self.batch.sequence,
            turn=self.batch.turn,
            reference_logp=self.batch.reference_logp,
            selected=self.batch.selected,
        )

    def unpacked(self, values: torch.Tensor) -> list[list[float]]:
        """The numbers of each row's sampled tokens."""
        kept = self.batch.label_mask
        rows = range(len(self.denominators.sequence_tokens))
        return [values[kept & (self.batch.sequence == row)].tolist() for row in rows]


def packed(rows: Sequence[LossRow], *, dtype: torch.dtype = torch.float64, bins: int = 2, junk: float = 0.0) -> Packed:
    """Row i goes to bin i mod ``bins``; padding, and whatever was not sampled, holds ``junk``."""
    members = [[i for i in range(len(rows)) if i % bins == b] for b in range(bins)]
    width = max(sum(len(rows[i].turns) for i in inside) for inside in members) + 1
    numbers = {name: torch.full((bins, width), junk, dtype=dtype) for name in _FLOATS}
    turns, index = (torch.full((bins, width), -1, dtype=torch.int64) for _ in range(2))
    selected = torch.zeros((bins, width), dtype=torch.bool)
    for b, inside in enumerate(members):
        start = 0
        for i in inside:
            here = slice(start, start + len(rows[i].turns))
            start = here.stop
            index[b, here] = i
            turns[b, here] = torch.from_numpy(rows[i].turns)
            selected[b, here] = torch.from_numpy(rows[i].selected)
            for name in _FLOATS:
                given = torch.from_numpy(getattr(rows[i], name)).to(dtype)
                numbers[name][b, here] = torch.where(turns[b, here] >= 0, given, junk)
    zeros = torch.zeros((bins, width), dtype=torch.int64)
    counts = torch.tensor([int(row.mask.sum()) for row in rows])
    return Packed(
        batch=Batch(
            ids=zeros,
            positions=zeros,
            segments=index,
            labels=zeros,
            label_mask=turns >= 0,
            advantages=numbers["advantages"],
            sampler_logp=numbers["sampler"],
            old_logp=numbers["old"],
            sequence=index,
            turn=turns,
            token=index,
            reference_logp=numbers["reference"],
            selected=selected,
        ),
        logp=numbers["logp"].requires_grad_(),
        denominators=Denominators(tokens=int(counts.sum()), sequences=int((counts > 0).sum()), sequence_tokens=counts),
    )


_FLOATS = ("logp", "old", "sampler", "advantages", "reference")
