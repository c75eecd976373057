"""Session: the open parts of a run (environment, model, engine, episode driver), and the episodes they play."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import roll_envs
from roll_envs.errors import ConfigError, RollError
from roll_envs.managers import EpisodeDriver, EpisodeLimits, EpisodeSettings, GroupStream, Respond, load_context
from roll_envs.types import Completion, Group, SamplingParams, Task, Trajectory
from trainer.config import RunConfig
from trainer.engines import Engine, make_engine
from trainer.model.network import LanguageModel, build_model
from trainer.model.renderer import ChatRenderer

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
        """Whether the chat template changes earlier turns, so that a turn may begin a sequence of its own."""
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
        rollout = config.rollout
        self._driver = EpisodeDriver(
            lambda task: roll_envs.make(task.env_id, **task.kwargs),
            EpisodeLimits(
                max_running=rollout.max_running,
                attempts=rollout.attempts,
                turn_timeout_s=rollout.turn_timeout_s,
                env_timeout_s=rollout.env_timeout_s,
                episode_timeout_s=rollout.episode_timeout_s,
            ),
        )

    @property
    def engine(self) -> Engine:
        """The inference engine, started at first use."""
        if self._engine is None:
            self._engine = make_engine(self.model, self.config.engine)
        return self._engine

    def start(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> GroupStream:
        """Begin to play ``tasks`` with the engine's current weights; groups come as they finish."""
        return self._driver.start(tasks, group_size, self.settings, self.engine, on_done)

    def collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play ``tasks`` with the engine's current weights; groups in the order of ``tasks``."""
        return self._driver.collect(tasks, group_size, self.settings, self.engine, on_done)

    def collect_greedy(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One greedy episode of each task."""
        settings = replace(self.settings, sampling=replace(self.settings.sampling, temperature=0.0))
        return [group.trajectories[0] for group in self._driver.collect(tasks, 1, settings, self.engine)]

    def demonstrate(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The teacher of the warm start plays each task once, under the same deadlines and retries as the model."""
        respond = teacher(self.model.tokenizer, self.settings.renderer.stop_ids[0], self.config.warm_start.oracle_share)
        settings = replace(self.settings, answerer="the teacher")
        return [group.trajectories[0] for group in self._driver.collect(tasks, 1, settings, respond)]

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
        self._driver.close()
        self.env.close()


def teacher(tokenizer: Any, stop_id: int, oracle_share: float) -> Respond:
    """A deliberately poor player: the oracle's next answer with probability ``oracle_share``, else one of the legal
    answers, drawn uniformly.

    It teaches a small model to read the observation and to answer in form, not to play well. Its choices follow from
    ``sampling.seed``, so that a demonstration depends on its task and the run's seed alone.
    """

    def respond(env: Any, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        rng = np.random.default_rng(sampling.seed)
        plan = env.oracle() if rng.random() < oracle_share else None
        legal = env.legal_answers()
        text = plan[0] if plan else legal[int(rng.integers(len(legal)))]
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], stop_id)
        if len(ids) > sampling.max_new_tokens:
            raise ConfigError(
                f"an answer may have {sampling.max_new_tokens} tokens (sampling.max_new_tokens, engine.max_tokens), "
                f"but {text!r} has {len(ids)}"
            )
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish="stop", weight_version=0)

    return respond


def _threads(parameters: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if parameters < SMALL_MODEL else min(cores, 8)
