"""What the two phases of a run learn by: a step of the warm start, and a training step after its episodes are in.

The order of a training step is always the same. Sequences are scored (proximal and reference log-probs, values) where
something needs it; rewards are shaped and advantages estimated from all scored episodes; masks then leave tokens out of
the losses; the critic and the policy take their optimiser steps. Each of these adds columns to the step's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.algorithms.estimators import make_estimator
from trainer.algorithms.losses.objective import Objective, StepTokens, make_objective
from trainer.algorithms.shaping import AlgorithmState, apply_masks, shape_rewards, within_second_moment
from trainer.cluster.learner_ranks import LearnerRanks, move_beside
from trainer.cluster.ranked import RankedLearner, make_phase_learner
from trainer.cluster.roles import role_host
from trainer.cluster.seats import leaves_devices
from trainer.config import CriticConfig, LearnerConfig, RoleName, RunConfig
from trainer.data.batches import Batch, denominators_of, make_batches, padding_share, scatter_back, split_minibatches
from trainer.data.metrics import explained_variance, sequence_metrics, staleness_metrics, token_mismatch_metrics
from trainer.data.table import (
    FloatArray,
    IntArray,
    StepTable,
    Tokens,
    TokenSequence,
    make_table,
    sequences_of,
    tokens_of,
)
from trainer.learner import Critic, Learner, Offloads, Scorer
from trainer.learner.optimizers import learning_rate
from trainer.rollout.source import RANDOM_MOVE, Session


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """What a training step changes or asks."""

    learner: Learner
    estimator: Callable[[StepTable], tuple[StepTable, Metrics]]
    objective: Objective
    state: AlgorithmState
    critic: Critic | None = None
    """For estimators that need values."""
    reference: Scorer | None = None
    """For KL terms."""
    leaves_devices: bool = False
    """Whether the networks leave their devices between steps."""

    @property
    def others(self) -> dict[str, Scorer]:
        """The networks beside the policy that a checkpoint holds."""
        found = {"critic": self.critic, "reference": self.reference}
        return {name: part for name, part in found.items() if part is not None}

    @property
    def offloading(self) -> list[Offloads]:
        """The networks that leave their devices between steps."""
        if not self.leaves_devices:
            return []
        everything: tuple[object, ...] = (self.learner, self.critic, self.reference)
        return [part for part in everything if isinstance(part, Offloads)]

    @property
    def optimized(self) -> dict[str, Learner | Critic]:
        """The networks whose optimisers a checkpoint holds."""
        return {"policy": self.learner, **({"critic": self.critic} if self.critic else {})}


def make_parts(
    config: RunConfig, learner: Learner, *, critic: Critic | None = None, reference: Scorer | None = None
) -> StepParts:
    """The parts of a run's steps: names are looked up and settings checked here, once, and in no step."""
    return StepParts(
        learner=learner,
        estimator=make_estimator(config.advantage),
        objective=make_objective(config.loss, config.correction),
        state=AlgorithmState(kl_coef=config.reward.kl_coef),
        critic=critic,
        reference=reference,
        leaves_devices=leaves_devices(config),
    )


def begin_phase(session: Session, *, warm_start: bool, ranks: LearnerRanks | None = None) -> StepParts:
    """The parts of the warm start, or those that the configuration asks of training: each with a fresh optimiser;
    reference and critic begin with the weights of this moment. They are in the processes of ``ranks``; None: in this
    one."""
    config = session.config
    if ranks is None:
        learner = make_phase_learner(config, session.model, warm_start=warm_start, threads=session.threads)
    else:
        learner = ranks.learner(session.model, warm_start=warm_start, threads=session.threads)

    def host(name: RoleName) -> Learner:
        if isinstance(learner, RankedLearner):  # whose ranks know
            return learner
        return role_host(config, name, learner, session.model.network.config)

    fixed = not config.reference.refresh_every
    critic = None if warm_start or config.without("critic") else host("critic").critic(config.critic)
    reference = None if warm_start or config.without("reference") else host("reference").reference(fixed=fixed)
    for name, part in (("critic", critic), ("reference", reference)):
        if part is not None:
            move_beside(config, name, part)
    return make_parts(config, learner, critic=critic, reference=reference)


def warm_start_step(session: Session, learner: Learner, step: int) -> Metrics:
    """Optimiser step ``step`` on fresh demonstrations; a function of the configuration and ``step`` alone."""
    config, warm = session.config, session.config.warm_start
    indices = range(step * warm.episodes_per_step, (step + 1) * warm.episodes_per_step)
    episodes = session.demonstrate(session.demonstration_tasks(indices))
    failed = session.failed_share(episodes, f"warm start, step {step + 1}")
    successes = [e.success for e in episodes if e.scored]
    measured = {"teacher/success_rate": sum(successes) / max(1, len(successes)), "teacher/failed_share": failed}
    learnt = [e for e in episodes if warm.teacher is None or e.success]
    sequences = sequences_of([Group(task=e.task, trajectories=(e,)) for e in learnt])
    tokens = tokens_of(sequences)
    tokens = tokens.with_columns(
        advantage=np.ones(len(tokens.sequence)), trained=warm.learn_random | (tokens.version != RANDOM_MOVE)
    )
    used = np.unique(tokens.sequence[tokens.trained]).tolist()
    if not used:
        return {"loss/total": 0.0, "learner/skipped_steps": 1.0, **measured}
    batches = _batched(config, sequences, tokens, used)
    lr = learning_rate(warm.lr_schedule, warm.lr, step=step, steps=warm.steps, warmup_steps=warm.lr_warmup_steps)
    metrics, _ = learner.step(batches, denominators_of(tokens, used), lr=lr)
    return {**metrics, **measured}


def update(
    config: RunConfig,
    parts: StepParts,
    groups: Sequence[Group],
    *,
    step: int,
    version: int,
    greedy: Sequence[float | None] = (),
    learnt: dict[str, FloatArray] | None = None,
) -> Metrics:
    """Learn from ``groups``, sampled by weights ``version``; ``step`` counts training steps from 0.

    ``greedy`` is the return of the greedy episode of each group, where one was played. ``learnt`` takes what was known
    of each sampled token: its ``advantage`` (0 where it is masked) and ``policy_logp``, NaN where it was not run.
    Sequences that cannot have a gradient are not run through the model, but count in the denominators. In a single
    on-policy step of a loss that is linear in the advantages, sequences with the same ids (short answers in a state
    that several episodes meet) are run once with the sum of theirs. With several optimiser steps the ratio is taken to
    the policy before the first of them, in which it is exactly 1.
    """
    sequences = sequences_of(groups)
    metrics: Metrics = {"learner/sequences": float(len(sequences))}
    if not sequences:
        return metrics
    table = make_table(groups, sequences, greedy)
    metrics.update({**staleness_metrics(table.tokens, version), **sequence_metrics(table)})
    table = _scored(config, parts, sequences, table)
    for change in (
        partial(shape_rewards, config.reward, state=parts.state),
        parts.estimator,
        partial(apply_masks, config.mask),
    ):
        table, measured = change(table)
        metrics.update(measured)
    if parts.critic is not None:
        metrics.update(_train_critic(config, parts, sequences, table.tokens, step))
    if parts.critic is None or step >= config.critic.warmup_steps:
        metrics.update(_train_policy(config, parts, sequences, table.tokens, step, learnt))
    metrics["learner/tokens"] = float(sum(len(s.ids) for s in sequences))
    return metrics


def refresh_reference(config: RunConfig, parts: StepParts, steps: int) -> None:
    """After training step ``steps``, counted from 1: the next one is measured against the policy that samples it."""
    every = config.reference.refresh_every
    if parts.reference is not None and every and steps % every == 0:
        parts.reference.load_weights(parts.learner.weights())


def _single(config: RunConfig) -> bool:
    """Whether there is one optimiser step, on the policy that sampled (but for staleness)."""
    return config.learner.minibatches * config.learner.epochs == 1


def _same(
    sequences: Sequence[TokenSequence], tokens: Tokens, among: Sequence[int], *, by_turns: bool = False
) -> dict[int, list[int]]:
    """The sequences ``among`` by the first of them that has the same ids, with a loss (or score) in the same places;
    ``by_turns`` tells those apart that are cut into turns in another way."""
    bounds = np.searchsorted(tokens.sequence, np.arange(len(sequences) + 1))
    learnt = tokens.learnt
    first: dict[object, int] = {}
    same: dict[int, list[int]] = {}
    for i in among:
        s, here = sequences[i], slice(bounds[i], bounds[i + 1])
        key = (s.ids, s.mask, learnt[here].tobytes(), s.turns if by_turns else ())
        same.setdefault(first.setdefault(key, i), []).append(i)
    return same


def _alike(sequences: Sequence[TokenSequence], used: Iterable[int]) -> list[int]:
    """``used`` in the order of the ids, so that sequences which begin alike meet in a micro-batch, where that beginning
    is run once."""
    return sorted(used, key=lambda i: (sequences[i].ids, i))


def _batched(
    config: RunConfig,
    sequences: Sequence[TokenSequence],
    tokens: Tokens,
    used: Sequence[int],
    *,
    limit: int | None = None,
    returns: FloatArray | None = None,
) -> list[Batch]:
    settings = config.learner
    limit = settings.tokens_per_microbatch if limit is None else limit
    return make_batches(
        sequences, tokens, used, pack_tokens=settings.pack_tokens, tokens_per_microbatch=limit, returns=returns
    )


def _minibatches(
    settings: LearnerConfig | CriticConfig, sequences: Sequence[TokenSequence], rng: np.random.Generator
) -> list[list[int]]:
    """The sequences of each optimiser step."""
    if settings.minibatches * settings.epochs == 1:  # nothing to shuffle
        return [list(range(len(sequences)))]
    epochs = range(settings.epochs)
    return [step for _ in epochs for step in split_minibatches(sequences, settings.minibatches, rng)]


def _mean_of(steps: Sequence[Metrics]) -> Metrics:
    """The mean of each number over the optimiser steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: float(np.mean([step[name] for step in steps if name in step])) for name in names}


def _scored(config: RunConfig, parts: StepParts, sequences: Sequence[TokenSequence], table: StepTable) -> StepTable:
    """The step with the columns that the configured terms need to know before it; the same ids are run once."""
    loss, tokens = config.loss, table.tokens
    # In a single step the policy's own log-probs are those of before, unless something needs them earlier: a KL in the
    # reward, or a choice of tokens.
    chooses = parts.objective.part.select is not None or config.correction.second_moment is not None
    recompute = loss.proximal == "recompute" and (not _single(config) or bool(config.reward.kl_coef) or chooses)
    scorers: dict[str, Learner | Scorer | None] = {
        "proximal_logp": parts.learner if recompute else None,
        "reference_logp": parts.reference,
        "value": parts.critic,
    }
    needed = {name: scorer for name, scorer in scorers.items() if scorer is not None}
    columns: dict[str, FloatArray] = {}
    if needed:
        same = _same(sequences, tokens, range(len(sequences)))
        batches = _batched(config, sequences, tokens, _alike(sequences, same))
        source = np.arange(len(tokens.sequence))  # the token that each was scored as
        for first, copies in same.items():
            source[tokens.of(copies)] = np.tile(tokens.of([first]), len(copies))
        for name, scorer in needed.items():
            columns[name] = scatter_back(batches, scorer.score(batches), tokens)[source]
    # The ratio is then taken to what the engine said, rounding of another implementation included.
    if loss.proximal == "sampler":
        columns["proximal_logp"] = tokens.sampler_logp
    return table.with_tokens(**columns)


def _train_policy(
    config: RunConfig,
    parts: StepParts,
    sequences: Sequence[TokenSequence],
    tokens: Tokens,
    step: int,
    learnt: dict[str, FloatArray] | None,
) -> Metrics:
    loss = config.loss
    objective, part = parts.objective, parts.objective.part
    # Until a step is taken the policy is the proximal one: a ratio of exactly 1 leaves no rounding to learn from.
    on_policy = loss.proximal == "recompute"
    rng = np.random.default_rng([config.seed, step])
    minibatches = _minibatches(config.learner, sequences, rng)
    everything = bool(loss.entropy_coef or loss.kl_coef) or not part.only_advantages
    assert tokens.advantage is not None
    assert tokens.weight is not None
    # Nothing is left of the advantages of masked tokens, which must not decide whether a step is taken.
    advantage = tokens.advantage * tokens.weight * tokens.trained
    tokens, metrics = _within_second_moment(config, tokens.with_columns(advantage=advantage))
    # Linear in the advantages: the gradient of copies is that of one of them with the sum of theirs.
    if on_policy and _single(config) and part.linear_on_policy and objective.correction is None and not everything:
        by_turns = getattr(objective.settings, "ratio", "token") == "turn-mean"
        tokens = _merged(sequences, tokens, by_turns=by_turns)
    lr = learning_rate(
        config.optimizer.lr_schedule,
        config.optimizer.lr,
        step=step,
        steps=config.steps,
        warmup_steps=config.optimizer.lr_warmup_steps,
        min_share=config.optimizer.lr_min_share,
        decay_share=config.optimizer.lr_decay_share,
    )
    if tokens.proximal_logp is not None and loss.proximal == "recompute":
        metrics.update(token_mismatch_metrics(tokens, tokens.proximal_logp, tokens.learnt))
    policy_logp = np.full(len(tokens.sequence), np.nan) if tokens.proximal_logp is None else tokens.proximal_logp
    steps: list[Metrics] = []
    for minibatch in minibatches:
        denominators = denominators_of(tokens, minibatch)
        chosen = _selected(objective, tokens, minibatch, rng)
        assert chosen.advantage is not None
        has_advantage = set(chosen.sequence[chosen.learnt & (chosen.advantage != 0)].tolist())
        used = _alike(sequences, minibatch if everything else has_advantage.intersection(minibatch))
        if not (used and denominators.tokens):
            continue
        batches = _batched(config, sequences, chosen, used)
        # Sequences that are not run count in the denominators all the same.
        mine = replace(denominators_of(chosen, used), tokens=denominators.tokens, sequences=denominators.sequences)
        taken, before = parts.learner.step(batches, mine, lr=lr, on_policy=on_policy)
        # A step that was skipped (its gradient not finite, say) has left the policy where it was.
        on_policy = on_policy and taken.get("learner/skipped_steps", 0.0) > 0
        if tokens.proximal_logp is None:
            run = tokens.learnt & np.isin(tokens.sequence, used)
            scored = scatter_back(batches, before, tokens)
            taken.update(token_mismatch_metrics(tokens, scored, run))
            policy_logp = np.where(np.isnan(policy_logp) & run, scored, policy_logp)
        steps.append({**taken, "learner/padding_share": padding_share(batches)})
    if learnt is not None:
        learnt.update(advantage=advantage, policy_logp=policy_logp)
    skipped = sum(taken.get("learner/skipped_steps", 0.0) for taken in steps)
    counted = {"learner/skipped_steps": skipped, "learner/optimizer_steps": len(steps) - skipped}
    return {**metrics, **_mean_of(steps), **counted}


def _within_second_moment(config: RunConfig, tokens: Tokens) -> tuple[Tokens, Metrics]:
    """Advantages of 0 for the tokens that ``correction.second_moment`` takes out, over the whole training step."""
    limit, learnt = config.correction.second_moment, tokens.learnt
    if limit is None or tokens.proximal_logp is None or not learnt.any():
        return tokens, {}
    moved = (tokens.proximal_logp - tokens.sampler_logp)[learnt]
    kept = within_second_moment(moved, limit)
    assert tokens.advantage is not None
    advantage = tokens.advantage.copy()
    advantage[learnt] *= kept
    return tokens.with_columns(advantage=advantage), {
        "correction/second_moment": float(np.square(moved).mean()),
        "correction/second_moment_share": float(1.0 - kept.mean()),
    }


def _selected(objective: Objective, tokens: Tokens, minibatch: Sequence[int], rng: np.random.Generator) -> Tokens:
    """The tokens with what the loss chooses among those of one optimiser step; without the reference that no term of
    the loss reads."""
    reference = tokens.reference_logp if objective.config.kl_coef else None
    selected = None
    if objective.part.select is not None and tokens.proximal_logp is not None:
        assert tokens.advantage is not None
        lines: IntArray = tokens.of(minibatch)
        lines = lines[tokens.learnt[lines]]
        step = StepTokens(old_logp=tokens.proximal_logp[lines], advantages=tokens.advantage[lines])
        selected = np.zeros(len(tokens.sequence), dtype=np.bool_)
        selected[lines] = objective.part.select(step, objective.settings, rng)
    return tokens.with_columns(reference_logp=reference, selected=selected, value=None)


def _merged(sequences: Sequence[TokenSequence], tokens: Tokens, *, by_turns: bool) -> Tokens:
    """Advantages in which the first of several sequences with the same ids carries the sum, and the others carry 0."""
    assert tokens.advantage is not None
    advantage = tokens.advantage.copy()
    for first, copies in _same(sequences, tokens, range(len(sequences)), by_turns=by_turns).items():
        if len(copies) > 1:
            together = advantage[tokens.of(copies)].reshape(len(copies), -1).sum(axis=0)
            advantage[tokens.of(copies)] = 0.0
            advantage[tokens.of([first])] = together
    return tokens.with_columns(advantage=advantage)


def _train_critic(
    config: RunConfig, parts: StepParts, sequences: Sequence[TokenSequence], tokens: Tokens, step: int
) -> Metrics:
    settings, critic = config.critic, parts.critic
    assert critic is not None
    assert tokens.value is not None
    if tokens.return_ is None:
        raise ValueError(f"estimator {config.advantage.name!r} asks for a critic and gives it nothing to learn")
    metrics = explained_variance(tokens.value[tokens.learnt], tokens.return_[tokens.learnt])
    rng = np.random.default_rng([config.seed, step, 1])
    steps: list[Metrics] = []
    for minibatch in _minibatches(settings, sequences, rng):
        denominators = denominators_of(tokens, minibatch)
        if not denominators.tokens:
            continue
        # Sequences with the same ids are run once, each with its own return.
        same = _same(sequences, tokens, _alike(sequences, minibatch))
        returns = np.full((max(map(len, same.values()), default=1), len(tokens.sequence)), np.nan)
        for first, copies in same.items():
            returns[: len(copies), tokens.of([first])] = tokens.return_[tokens.of(copies)].reshape(len(copies), -1)
        limit = settings.tokens_per_microbatch
        batches = _batched(config, sequences, tokens, list(same), limit=limit, returns=returns)
        steps.append(critic.step(batches, denominators, lr=settings.lr))
    return {**metrics, **_mean_of(steps)}
