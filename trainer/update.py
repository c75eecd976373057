"""One training step after its episodes are in: rows, advantages, batches, optimiser steps, and what to watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.advantages import estimate
from trainer.backends import Learner
from trainer.batching import denominators_of, make_batches, padding_share, scatter_back, split_minibatches
from trainer.config import RunConfig
from trainer.metrics import row_mismatch_metrics, staleness_metrics
from trainer.schedules import learning_rate
from trainer.sequences import rows_of

__all__ = ["update"]


def update(config: RunConfig, learner: Learner, groups: Sequence[Group], *, step: int, version: int) -> Metrics:
    """Learn from ``groups``, sampled by weights ``version``; ``step`` counts training steps from 0.

    Rows whose advantages are all 0 have no gradient (without an entropy bonus) and are not run through the model, but
    count in the denominators. With several optimiser steps the ratio is taken to the policy before the first of them.
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
        used = [i for i in part if config.loss.entropy_coef or advantages.per_row[i].any()]
        if not used:
            continue
        used_rows = [rows[i] for i in used]
        batches = batched(
            used_rows,
            [advantages.per_row[i] for i in used],
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
