"""Session: the open parts of a run (environment, model, engine, episode pool) and how they are opened and closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import torch

import roll_envs
from roll_envs.env import TextEnv
from roll_envs.managers import EpisodePool, EpisodeSettings, PoolLimits, load_context
from roll_envs.types import Completion, Group, SamplingParams, Task, Trajectory
from trainer.config import RunConfig
from trainer.engines import Engine, make_engine
from trainer.model import LanguageModel, build_model
from trainer.renderer import ChatRenderer

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
        self.threads = config.learner.threads or _threads(self.model.parameters)
        torch.set_num_threads(self.threads)
        renderer = ChatRenderer(self.model.tokenizer)
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
        )
        self._engine: Engine | None = None
        self._pool: EpisodePool | None = None

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
            rollout = self.config.rollout
            limits = PoolLimits(
                max_running=rollout.max_running,
                attempts=rollout.attempts,
                turn_timeout_s=rollout.turn_timeout_s,
                env_timeout_s=rollout.env_timeout_s,
                episode_timeout_s=rollout.episode_timeout_s,
            )
            self._pool = EpisodePool(_make_env, self._respond, self.settings, limits)
        return self._pool

    def collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play ``tasks`` with the engine's current weights."""
        return self.pool.collect(tasks, group_size, on_done)

    def _respond(self, env: TextEnv, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        return self.engine.generate(prompt_ids, sampling, timeout_s=self.config.rollout.turn_timeout_s)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._engine is not None:
            self._engine.close()
        self.env.close()


def _make_env(task: Task) -> TextEnv:
    return roll_envs.make(task.env_id, **task.kwargs)


def _threads(parameters: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if parameters < SMALL_MODEL else min(cores, 8)
