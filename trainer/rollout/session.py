"""Session: the open parts of a run (environment, model, engine, episode pool) and how they are opened and closed."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

import roll_envs
from roll_envs.env import TextEnv
from roll_envs.errors import RollError
from roll_envs.managers import EpisodePool, EpisodeSettings, PoolLimits, load_context
from roll_envs.types import Completion, Group, SamplingParams, Task, Trajectory
from trainer.config import RunConfig
from trainer.engines import Engine, make_engine
from trainer.model.network import LanguageModel, build_model
from trainer.model.renderer import ChatRenderer
from trainer.rollout.demonstrations import teacher

__all__ = ["Session"]

SMALL_MODEL = 200_000
"""Below so many parameters a second torch thread costs more than it brings."""


class Session(contextlib.AbstractContextManager["Session"]):
    """Everything a run holds open; use it with ``with``."""

    def __init__(
        self,
        config: RunConfig,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        model: LanguageModel | None = None,
    ) -> None:
        """Open the parts of ``config``; ``temperature``, ``seed`` and ``model`` replace what it says."""
        self.config = config
        self.env = roll_envs.make(config.env.id, **config.env.kwargs)
        self.model = model or build_model(config.model, self.env, config.seed)
        self.threads = int((config.learner.model_extra or {}).get("threads", 0)) or _threads(self.model.parameters)
        torch.set_num_threads(self.threads)
        renderer = ChatRenderer(self.model.tokenizer, variables=config.context.template)
        self.rewrites_history = renderer.rewrites_history
        """Whether the chat template changes earlier turns, so that a turn may begin a row of its own."""
        self.settings = EpisodeSettings(
            context=load_context(config.context.kind, turns=config.context.turns, function=config.context.function),
            renderer=renderer,
            sampling=SamplingParams(
                temperature=config.sampling.temperature if temperature is None else temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stop_ids=renderer.stop_ids,
            ),
            max_tokens=config.engine.max_tokens,
            seed=config.seed if seed is None else seed,
            system_prompt=config.context.system_prompt,
            observation_template=config.context.observation_template,
        )
        self._engine: Engine | None = None
        self._pool: EpisodePool | None = None
        self._greedy: EpisodePool | None = None
        self._teachers: EpisodePool | None = None

    @property
    def engine(self) -> Engine:
        """The inference engine, started at first use."""
        if self._engine is None:
            self._engine = make_engine(self.model, self.config.engine)
        return self._engine

    @property
    def pool(self) -> EpisodePool:
        """The episode pool, started at first use."""
        if self._pool is None:
            _ = self.engine  # started here, not by many threads
            self._pool = EpisodePool(_make_env, self._respond, self.settings, self._limits())
        return self._pool

    def _respond(self, env: TextEnv, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        return self.engine.generate(prompt_ids, sampling, timeout_s=self.config.rollout.turn_timeout_s)

    def _limits(self) -> PoolLimits:
        rollout = self.config.rollout
        return PoolLimits(
            max_running=rollout.max_running,
            attempts=rollout.attempts,
            turn_timeout_s=rollout.turn_timeout_s,
            env_timeout_s=rollout.env_timeout_s,
            episode_timeout_s=rollout.episode_timeout_s,
        )

    def collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play ``tasks`` with the engine's current weights."""
        return self.pool.collect(tasks, group_size, on_done)

    def collect_greedy(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One greedy episode of each task."""
        if self._greedy is None:
            settings = replace(self.settings, sampling=replace(self.settings.sampling, temperature=0.0))
            self._greedy = EpisodePool(_make_env, self._respond, settings, self._limits())
        return [group.trajectories[0] for group in self._greedy.collect(tasks, 1)]

    def demonstrate(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The teacher of the warm start plays each task once, under the same deadlines and retries as the model."""
        if self._teachers is None:
            respond = teacher(
                self.model.tokenizer, self.settings.renderer.stop_ids[0], self.config.warm_start.oracle_share
            )
            settings = replace(self.settings, answerer="the teacher")
            # The teacher does not batch: more threads than one would only take turns.
            self._teachers = EpisodePool(_make_env, respond, settings, replace(self._limits(), max_running=1))
        return [group.trajectories[0] for group in self._teachers.collect(tasks, 1)]

    def failed_share(self, episodes: Sequence[Trajectory], where: str) -> float:
        """Share of ``episodes`` that failed. Raises :class:`RollError` with the reasons when they are too many."""
        reasons = Counter(t.outcome.reason for t in episodes if t.outcome.kind == "failed")
        share = reasons.total() / max(1, len(episodes))
        if share > self.config.rollout.max_failed_share:
            listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            raise RollError(
                f"{where}: {reasons.total()} of {len(episodes)} episodes failed ({listed}). "
                "Mend the cause and resume, or raise rollout.max_failed_share in the config.yaml of the run's folder"
            )
        return share

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()  # first, so that nobody waits for its answer
        for pool in (self._pool, self._greedy, self._teachers):
            if pool is not None:
                pool.close()
        self.env.close()


def _make_env(task: Task) -> TextEnv:
    return cast(TextEnv, roll_envs.make(task.env_id, **task.kwargs))


def _threads(parameters: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if parameters < SMALL_MODEL else min(cores, 8)
