"""One episode: reset, then prompt, answer and step until the environment or a limit ends it.

:func:`play_episode` is the only place where prompts meet environments. It raises for failures of ours (a crashed
environment, an engine that does not answer); the pool turns those into ``failed`` outcomes. What a model wrote, however
strange, goes to the environment as it is.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from roll_envs.env import TextEnv
from roll_envs.errors import EnvironmentFaultError, RollError
from roll_envs.managers.context import Context, History
from roll_envs.policy import Renderer
from roll_envs.types import Completion, Outcome, SamplingParams, Task, Trajectory, Turn

__all__ = ["EpisodeSettings", "Respond", "Waiting", "play_episode", "sampling_seed"]

SPLITS = {"demonstrations": "train", "held-out": "test"}
"""Which split of an environment that has splits the tasks of a training run come from; other names stay."""

Respond = Callable[[TextEnv, tuple[int, ...], SamplingParams], Completion]
"""Answers a prompt. It is given the environment too, so that a teacher can consult its oracle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSettings:
    """What is the same for every episode of a run."""

    context: Context
    renderer: Renderer
    sampling: SamplingParams
    max_tokens: int
    """Longest prompt + completion; an episode that outgrows it is truncated."""
    seed: int = 0
    """Seed of the run: enters every sampling seed."""
    system_prompt: str | None = None
    """Replaces the environment's instructions when not ``None``."""
    observation_template: str | None = None
    """What is written around each observation, with ``{observation}`` for it; ``None`` is nothing."""
    answerer: str = "the engine"
    """Who answers, as errors and deadlines name it."""


@dataclass(slots=True)
class Waiting:
    """What an episode waits for right now; read by the pool's watchdog from another thread."""

    what: str = ""
    since: float = field(default_factory=time.monotonic)
    answer: bool = False
    """Whether it waits for an answer (else for the environment or the context)."""
    given_up: bool = False
    """Set by the watchdog: nobody wants this episode any more."""

    def on(self, what: str, *, answer: bool = False) -> None:
        # The watchdog may look between two assignments: a fresh time first, so that no wait looks longer than it is.
        self.since = time.monotonic()
        self.what, self.answer = what, answer


def sampling_seed(run_seed: int, task: Task, member: int, turn: int) -> int:
    """Seed of one request, from identity alone: the same on any host, however episodes are scheduled."""
    identity = f"{run_seed}|{task.env_id}|{task.split}|{task.index}|{task.seed}|{member}|{turn}"
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1


def _call(waiting: Waiting, name: str, env_id: str, function: Callable[[], Any]) -> Any:
    waiting.on(f"{name} of {env_id}")
    try:
        return function()
    except Exception as error:
        raise EnvironmentFaultError(f"{name} of {env_id} raised {type(error).__name__}: {error}") from error


def _reset(env: TextEnv, task: Task, system_prompt: str | None) -> tuple[str, str]:
    options = {"split": SPLITS.get(task.split, task.split)} if env.splits else None
    observation, _ = env.reset(seed=task.seed, options=options)
    return _text(observation), env.instructions if system_prompt is None else system_prompt


def _step(env: TextEnv, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    observation, reward, terminated, truncated, info = env.step(text)
    number = float(reward)
    if not math.isfinite(number):
        raise ValueError(f"the reward is {number}; it must be finite")
    if not isinstance(info, Mapping):
        raise TypeError(f"info is a {type(info).__name__}; it must be a mapping")
    return _text(observation), number, bool(terminated), bool(truncated), dict(info)


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation is a {type(observation).__name__}; it must be a str")
    return observation


def play_episode(
    env: TextEnv, task: Task, member: int, respond: Respond, settings: EpisodeSettings, waiting: Waiting | None = None
) -> Trajectory:
    """Play ``task`` once from its seed.

    Raises :class:`EnvironmentFaultError` when the environment's code raises or returns what no environment may (an
    observation that is no text, a reward that is not finite), and whatever ``respond`` raises.
    """
    waiting = waiting or Waiting()
    observation, instructions = _call(waiting, "reset", task.env_id, partial(_reset, env, task, settings.system_prompt))
    turns: list[Turn] = []

    def ended(kind: str, reason: str = "") -> Trajectory:
        outcome = Outcome(kind=kind, reason=reason)  # type: ignore[arg-type]
        return Trajectory(task=task, member=member, turns=tuple(turns), outcome=outcome)

    while True:
        if waiting.given_up:
            raise RollError("the episode was given up")
        waiting.on("the context function")
        history = History(
            instructions=instructions,
            turns=tuple(turns),
            observation=observation,
            observation_template=settings.observation_template,
        )
        prompt_ids = settings.context(history, settings.renderer)
        room = settings.max_tokens - len(prompt_ids)
        if room < 1:
            if not turns:
                raise EnvironmentFaultError(
                    f"the first prompt of {task.env_id} has {len(prompt_ids)} tokens, but engine.max_tokens is "
                    f"{settings.max_tokens}; raise engine.max_tokens or shorten context.system_prompt"
                )
            return ended("truncated", "context is full")
        sampling = replace(
            settings.sampling,
            max_new_tokens=min(settings.sampling.max_new_tokens, room),
            seed=sampling_seed(settings.seed, task, member, len(turns)),
        )
        waiting.on(f"{settings.answerer}'s answer", answer=True)
        started = time.monotonic()
        completion = respond(env, prompt_ids, sampling)
        answered = time.monotonic()
        if completion.finish == "abort":
            return ended("cancelled", f"{settings.answerer} aborted the request")
        text = settings.renderer.decode(completion.ids)
        shown, reward, terminated, truncated, info = _call(waiting, "step", task.env_id, partial(_step, env, text))
        turns.append(
            Turn(
                prompt_ids=prompt_ids,
                completion=completion,
                prompt_observation=observation,
                text=text,
                observation=shown,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
                timings={"generate_s": answered - started, "env_s": time.monotonic() - answered},
            )
        )
        observation = shown
        if terminated:
            return ended("completed")
        if truncated:
            return ended("truncated", "turn limit")
