"""The warm start: supervised learning on demonstrations, with the batches and the learner of every other phase."""

from __future__ import annotations

import numpy as np

from roll_envs.types import Group, Metrics
from trainer.config import LossConfig, RunConfig
from trainer.data.batches import denominators_of, make_batches
from trainer.data.table import sequences_of, tokens_of
from trainer.learner import Learner, make_learner
from trainer.learner.optimizers import learning_rate
from trainer.rollout.session import Session
from trainer.rollout.source import draw_tasks

__all__ = ["warm_start_learner", "warm_start_step"]


def warm_start_learner(session: Session) -> Learner:
    """The learner of this phase: cross-entropy is the policy gradient with advantages of 1."""
    config, learner = session.config, session.config.learner
    if "lora_rank" in (learner.model_extra or {}):  # adapters are for what a model can do already
        learner = learner.model_copy(update={"lora_rank": 0})
    return make_learner(
        session.model,
        loss=LossConfig(name="reinforce"),
        optimizer=config.optimizer,
        temperature=1.0,
        settings=learner,
        threads=session.threads,
        device=learner.device,
    )


def warm_start_step(session: Session, learner: Learner, step: int) -> Metrics:
    """Optimiser step ``step`` on fresh demonstrations; a function of the configuration and ``step`` alone."""
    config: RunConfig = session.config
    warm = config.warm_start
    count = warm.episodes_per_step
    tasks = draw_tasks(
        config.env, seed=config.seed, indices=range(step * count, (step + 1) * count), split="demonstrations"
    )
    episodes = session.demonstrate(tasks)
    failed = session.failed_share(episodes, f"warm start, step {step + 1}")
    sequences = sequences_of([Group(task=e.task, trajectories=(e,)) for e in episodes])
    tokens, everything = tokens_of(sequences), range(len(sequences))
    batches = make_batches(
        sequences,
        tokens.with_columns(advantage=np.ones(len(tokens.sequence))),
        everything,
        pack_tokens=config.learner.pack_tokens,
        tokens_per_microbatch=config.learner.tokens_per_microbatch,
    )
    lr = learning_rate(warm.lr_schedule, warm.lr, step=step, steps=warm.steps, warmup_steps=warm.lr_warmup_steps)
    metrics, _ = learner.step(batches, denominators_of(tokens, everything), lr=lr)
    successes = [e.success for e in episodes if e.scored]
    return {**metrics, "teacher/success_rate": sum(successes) / max(1, len(successes)), "teacher/failed_share": failed}
