"""One training step after its episodes are in: rows, scores, rewards, advantages, optimiser steps, what to watch.

The order is always the same. Rows are scored (proximal and reference log-probs, values) where something needs it;
rewards are shaped and advantages estimated from all scored episodes; masks then leave tokens out of the losses; the
critic and the policy take their optimiser steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from roll_envs.types import Group, Metrics
from trainer.algorithms.advantages import Advantages, Episodes, estimate, view_episodes
from trainer.algorithms.estimators.types import FloatArray
from trainer.algorithms.losses import StepTokens, find_loss, within_second_moment
from trainer.algorithms.masks import apply_masks
from trainer.algorithms.rewards import shape_rewards
from trainer.algorithms.state import AlgorithmState
from trainer.config import RunConfig
from trainer.data.batches import Batch, denominators_of, make_batches, padding_share, scatter_back, split_minibatches
from trainer.data.metrics import explained_variance, row_metrics, row_mismatch_metrics, staleness_metrics
from trainer.data.sequences import TokenSequence, rows_of
from trainer.learner import Critic, Learner, Scorer
from trainer.learner.schedules import learning_rate

__all__ = ["Parts", "Scores", "update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a training step changes or asks."""

    learner: Learner
    state: AlgorithmState
    critic: Critic | None = None
    """For estimators that need values."""
    reference: Scorer | None = None
    """For KL terms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Numbers for every id of every row, 0.0 where it was not sampled; None where nothing needs them."""

    old: list[FloatArray] | None
    """Log-probs under the weights before the step, or the sampler's."""
    reference: list[FloatArray] | None
    values: list[FloatArray] | None


def update(
    config: RunConfig,
    parts: Parts,
    groups: Sequence[Group],
    *,
    step: int,
    version: int,
    greedy: Sequence[float | None] = (),
) -> Metrics:
    """Learn from ``groups``, sampled by weights ``version``; ``step`` counts training steps from 0.

    ``greedy`` is the return of the greedy episode of each group, where one was played. Rows that cannot have a gradient
    are not run through the model, but count in the denominators. In a single on-policy step of a loss that is linear in
    the advantages, rows with the same ids (short answers in a state that several episodes meet) are run once with the
    sum of theirs. With several optimiser steps the ratio is taken to the policy before the first of them.
    """
    rows = rows_of(groups)
    metrics: Metrics = {"learner/rows": float(len(rows))}
    if not rows:
        return metrics
    metrics.update({**staleness_metrics(rows, version), **row_metrics(rows, groups)})
    scores = _scores(config, parts, rows)
    episodes = view_episodes(groups, rows)
    episodes = _with_scores(episodes, rows, scores, greedy)
    views, shaped = shape_rewards(config.reward, episodes.views, parts.state, _kl(episodes, rows, scores))
    advantages = estimate(config.advantage, episodes.with_views(views), rows)
    masked = apply_masks(config.mask, groups, rows)
    # Nothing is left of the advantages of masked tokens, which must not decide whether a step is taken.
    credits = [
        a * w * np.array(row.mask) for a, w, row in zip(advantages.per_row, masked.weights, masked.rows, strict=True)
    ]
    metrics.update({**shaped, **advantages.metrics, **masked.metrics})
    if parts.critic is not None:
        metrics.update(_train_critic(config, parts.critic, masked.rows, scores, advantages, step))
    if parts.critic is None or step >= config.critic.warmup_steps:
        metrics.update(_train_policy(config, parts, masked.rows, scores, credits, step))
    metrics["learner/tokens"] = float(sum(len(row.ids) for row in rows))
    return metrics


def _single(config: RunConfig) -> bool:
    """Whether there is one optimiser step, on the policy that sampled (but for staleness)."""
    return config.learner.minibatches * config.learner.epochs == 1


def _batched(config: RunConfig) -> partial[list[Batch]]:
    return partial(
        make_batches,
        pack_tokens=config.learner.pack_tokens,
        tokens_per_microbatch=config.learner.tokens_per_microbatch,
    )


def _scores(config: RunConfig, parts: Parts, rows: Sequence[TokenSequence]) -> Scores:
    """What the configured terms need to know before the step; rows with the same ids are run once."""
    loss = config.loss
    chooses = find_loss(loss.name).select is not None or config.correction.second_moment is not None
    recompute = loss.proximal == "recompute" and (not _single(config) or bool(config.reward.kl_coef) or chooses)
    home = _homes(rows)
    first = sorted(set(home))
    place = {index: i for i, index in enumerate(first)}
    needed = recompute or parts.reference is not None or parts.critic is not None
    batches = _batched(config)([rows[i] for i in first]) if needed else []

    def scored(scorer: Learner | Scorer) -> list[FloatArray]:
        found = scatter_back(batches, scorer.score(batches))
        return [found[place[index]] for index in home]

    old = None
    if recompute:
        old = scored(parts.learner)
    elif loss.proximal == "sampler":
        old = [np.array(row.logprobs) for row in rows]
    return Scores(
        old=old,
        reference=None if parts.reference is None else scored(parts.reference),
        values=None if parts.critic is None else scored(parts.critic),
    )


def _homes(rows: Sequence[TokenSequence], *, by_turns: bool = False) -> list[int]:
    """For each row the index of the first with the same ids, sampled in the same places (``by_turns``: and turns)."""
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    return [first.setdefault((row.ids, row.mask, row.turns if by_turns else ()), i) for i, row in enumerate(rows)]


def _with_scores(
    episodes: Episodes, rows: Sequence[TokenSequence], scores: Scores, greedy: Sequence[float | None]
) -> Episodes:
    values = [None] * len(episodes.views) if scores.values is None else episodes.gather(rows, scores.values)
    return episodes.with_views(
        [
            replace(view, values=value, greedy_return=greedy[view.group] if greedy else None)
            for view, value in zip(episodes.views, values, strict=True)
        ]
    )


def _kl(episodes: Episodes, rows: Sequence[TokenSequence], scores: Scores) -> list[FloatArray] | None:
    """``log pi - log reference`` of every sampled token, per episode; None where either is not known."""
    if scores.old is None or scores.reference is None:
        return None
    return episodes.gather(rows, [o - r for o, r in zip(scores.old, scores.reference, strict=True)])


def _train_policy(
    config: RunConfig,
    parts: Parts,
    rows: Sequence[TokenSequence],
    scores: Scores,
    credits: list[FloatArray],
    step: int,
) -> Metrics:
    settings, loss, spec = config.learner, config.loss, find_loss(config.loss.name)
    on_policy = _single(config) and loss.proximal == "recompute"
    rng = np.random.default_rng([config.seed, step])
    cuts = [
        part
        for _ in range(settings.epochs)
        for part in (
            [list(range(len(rows)))] if _single(config) else split_minibatches(rows, settings.minibatches, rng)
        )
    ]
    everywhere = loss.entropy_coef or loss.kl_coef or not spec.only_advantages
    credits, metrics = _within_second_moment(config, rows, scores, credits)
    if on_policy and spec.linear_on_policy and not config.correction.weighs and not everywhere:
        credits = _merged(rows, credits, by_turns=loss.ratio == "turn")
    lr = learning_rate(
        config.optimizer.lr_schedule,
        config.optimizer.lr,
        step=step,
        steps=config.steps,
        warmup_steps=config.optimizer.lr_warmup_steps,
        min_share=config.optimizer.lr_min_share,
        decay_share=config.optimizer.lr_decay_share,
    )
    if scores.old is not None and loss.proximal == "recompute":
        metrics.update(row_mismatch_metrics(rows, scores.old))
    sums: dict[str, list[float]] = {}
    for part in cuts:
        whole = denominators_of([rows[i] for i in part])
        selected = _selected(config, rows, scores, credits, part, rng)
        used = [i for i in part if everywhere or credits[i].any()]
        if not used or not whole.tokens:
            continue
        used_rows = [rows[i] for i in used]
        batches = _batched(config)(
            used_rows,
            [credits[i] for i in used],
            old_logprobs=None if scores.old is None else [scores.old[i] for i in used],
            reference_logprobs=(
                None if scores.reference is None or not loss.kl_coef else [scores.reference[i] for i in used]
            ),
            selected=None if selected is None else [selected[i] for i in used],
        )
        denominators = replace(denominators_of(used_rows), tokens=whole.tokens, rows=whole.rows)
        taken, before = parts.learner.step(batches, denominators, lr=lr, on_policy=on_policy)
        if scores.old is None:
            taken.update(row_mismatch_metrics(used_rows, scatter_back(batches, before)))
        taken["learner/padding_share"] = padding_share(batches)
        for name, value in taken.items():
            sums.setdefault(name, []).append(value)
    metrics.update({name: float(np.mean(values)) for name, values in sums.items()})
    skipped = sum(sums.get("learner/skipped_steps", []))
    metrics["learner/skipped_steps"] = skipped
    metrics["learner/optimizer_steps"] = max(map(len, sums.values()), default=0) - skipped
    return metrics


def _predicted(row: TokenSequence) -> NDArray[np.bool_]:
    """Which ids were sampled and are predicted: all that were sampled but a row's first id."""
    return np.array((False, *row.mask[1:]))


def _within_second_moment(
    config: RunConfig, rows: Sequence[TokenSequence], scores: Scores, credits: list[FloatArray]
) -> tuple[list[FloatArray], Metrics]:
    """Advantages of 0 for the tokens that ``correction.second_moment`` takes out, over the whole training step."""
    limit = config.correction.second_moment
    if limit is None or scores.old is None:
        return credits, {}
    masks = [_predicted(row) for row in rows]
    moved = [(o - np.array(r.logprobs))[m] for o, r, m in zip(scores.old, rows, masks, strict=True)]
    joined = np.concatenate(moved)
    if not joined.size:
        return credits, {}
    kept = within_second_moment(joined, limit)
    result = [credit.copy() for credit in credits]
    for credit, mask, keep in zip(result, masks, np.split(kept, np.cumsum([len(m) for m in moved])[:-1]), strict=True):
        credit[mask] *= keep
    return result, {
        "correction/second_moment": float(np.square(joined).mean()),
        "correction/second_moment_share": float(1.0 - kept.mean()),
    }


def _selected(
    config: RunConfig,
    rows: Sequence[TokenSequence],
    scores: Scores,
    credits: Sequence[FloatArray],
    part: Sequence[int],
    rng: np.random.Generator,
) -> dict[int, FloatArray] | None:
    """What the loss chooses among the tokens of one optimiser step: for each of its rows, 1.0 or 0.0 per id."""
    select = find_loss(config.loss.name).select
    if select is None or scores.old is None:
        return None
    masks = {i: _predicted(rows[i]) for i in part}
    chosen = select(
        StepTokens(
            old_logp=np.concatenate([scores.old[i][masks[i]] for i in part]),
            advantages=np.concatenate([credits[i][masks[i]] for i in part]),
        ),
        config.loss,
        rng,
    )
    result, used = {}, 0
    for i in part:
        count = int(masks[i].sum())
        result[i] = np.zeros(len(rows[i].ids))
        result[i][masks[i]] = chosen[used : used + count]
        used += count
    return result


def _train_critic(
    config: RunConfig,
    critic: Critic,
    rows: Sequence[TokenSequence],
    scores: Scores,
    advantages: Advantages,
    step: int,
) -> Metrics:
    settings = config.critic
    assert scores.values is not None
    if advantages.returns is None:
        raise ValueError(f"estimator {config.advantage.name!r} asks for a critic and gives it nothing to learn")
    masks = [_predicted(row) for row in rows]
    metrics = explained_variance(
        np.concatenate([v[m] for v, m in zip(scores.values, masks, strict=True)]),
        np.concatenate([r[m] for r, m in zip(advantages.returns, masks, strict=True)]),
    )
    rng = np.random.default_rng([config.seed, step, 1])
    sums: dict[str, list[float]] = {}
    for part in (p for _ in range(settings.epochs) for p in split_minibatches(rows, settings.minibatches, rng)):
        used = [rows[i] for i in part]
        denominators = denominators_of(used)
        if not denominators.tokens:
            continue
        same: dict[int, list[int]] = {}  # rows with the same ids are run once, each with its own return
        for i, home in zip(part, _homes(used), strict=True):
            same.setdefault(part[home], []).append(i)
        batches = make_batches(
            [rows[i] for i in same],
            pack_tokens=config.learner.pack_tokens,
            tokens_per_microbatch=settings.tokens_per_microbatch,
            values=[scores.values[i] for i in same],
            returns=[np.stack([advantages.returns[i] for i in copies]) for copies in same.values()],
        )
        for name, value in critic.step(batches, denominators, lr=settings.lr).items():
            sums.setdefault(name, []).append(value)
    return {**metrics, **{name: float(np.mean(values)) for name, values in sums.items()}}


def _merged(rows: Sequence[TokenSequence], credits: Sequence[FloatArray], *, by_turns: bool) -> list[FloatArray]:
    """Advantages in which the first of several rows with the same ids carries the sum, and the others carry 0.

    ``by_turns`` tells rows apart that are cut into turns in another way.
    """
    merged = list(credits)
    for i, home in enumerate(_homes(rows, by_turns=by_turns)):
        if home != i:
            merged[home] = merged[home] + credits[i]
            merged[i] = np.zeros_like(credits[i])
    return merged
