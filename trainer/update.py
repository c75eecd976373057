"""One training step after its episodes are in: rows, advantages, batches, optimiser steps, and what to watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from roll_envs.types import Group, Metrics
from trainer.advantages import estimate
from trainer.backends import Learner
from trainer.batching import denominators_of, make_batches, padding_share, scatter_back, split_minibatches
from trainer.config import RunConfig
from trainer.metrics import row_mismatch_metrics, staleness_metrics
from trainer.schedules import learning_rate
from trainer.sequences import TokenSequence, rows_of

__all__ = ["update"]

FloatArray = NDArray[np.float64]

LINEAR_ON_POLICY = frozenset({"clip", "reinforce"})
"""Losses whose gradient is linear in the advantages where the ratio is 1."""


def update(config: RunConfig, learner: Learner, groups: Sequence[Group], *, step: int, version: int) -> Metrics:
    """Learn from ``groups``, sampled by weights ``version``; ``step`` counts training steps from 0.

    Rows whose advantages are all 0 have no gradient (without an entropy bonus) and are not run through the model, but
    count in the denominators. In a single on-policy step the gradient is linear in the advantages, so rows with
    the same ids (short answers in a state that several episodes meet) are run once with the sum of theirs. With several
    optimiser steps the ratio is taken to the policy before the first of them.
    """
    rows = rows_of(groups)
    if not rows:
        return {"learner/rows": 0.0}
    advantages = estimate(config.advantage, groups, rows)
    settings = config.learner
    single = settings.minibatches * settings.epochs == 1
    batched = partial(
        make_batches, pack_tokens=settings.pack_tokens, tokens_per_microbatch=settings.tokens_per_microbatch
    )
    metrics: Metrics = {**advantages.metrics, **staleness_metrics(rows, version), "learner/rows": float(len(rows))}

    old = None
    if not single:
        batches = batched(rows)
        old = scatter_back(batches, learner.score(batches))
        metrics.update(row_mismatch_metrics(rows, old))

    rng = np.random.default_rng([config.seed, step])
    parts = [
        part
        for _ in range(settings.epochs)
        for part in ([list(range(len(rows)))] if single else split_minibatches(rows, settings.minibatches, rng))
    ]
    lr = learning_rate(
        config.optimizer.lr_schedule,
        config.optimizer.lr,
        step=step,
        steps=config.steps,
        warmup_steps=config.optimizer.lr_warmup_steps,
    )
    sums: dict[str, list[float]] = {}
    for part in parts:
        whole = denominators_of([rows[i] for i in part])
        credits = advantages.per_row
        if single and not config.loss.entropy_coef and config.loss.name in LINEAR_ON_POLICY:
            credits = _merged(rows, credits)
        used = [i for i in part if config.loss.entropy_coef or credits[i].any()]
        if not used:
            continue
        used_rows = [rows[i] for i in used]
        batches = batched(
            used_rows,
            [credits[i] for i in used],
            old_logprobs=None if old is None else [old[i] for i in used],
        )
        denominators = replace(denominators_of(used_rows), tokens=whole.tokens, rows=whole.rows)
        taken, before = learner.step(batches, denominators, lr=lr, on_policy=single)
        if single:
            taken.update(row_mismatch_metrics(used_rows, scatter_back(batches, before)))
        taken["learner/padding_share"] = padding_share(batches)
        for name, value in taken.items():
            sums.setdefault(name, []).append(value)
    metrics.update({name: float(np.mean(values)) for name, values in sums.items()})
    metrics["learner/tokens"] = float(sum(len(row.ids) for row in rows))
    metrics["learner/optimizer_steps"] = float(len(next(iter(sums.values()), [])))
    return metrics


def _merged(rows: Sequence[TokenSequence], credits: Sequence[FloatArray]) -> list[FloatArray]:
    """Advantages in which the first of several rows with the same ids carries the sum, and the others carry 0."""
    merged = list(credits)
    first: dict[tuple[tuple[int, ...], tuple[bool, ...]], int] = {}
    for i, row in enumerate(rows):
        home = first.setdefault((row.ids, row.mask), i)
        if home != i:
            merged[home] = merged[home] + credits[i]
            merged[i] = np.zeros_like(credits[i])
    return merged
