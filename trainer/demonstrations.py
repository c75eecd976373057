"""Demonstrations of a deliberately poor teacher: episodes of the environment's oracle, mostly spoilt.

They teach a small model to read the observation and to answer in form, not to play well. A demonstration is an
ordinary trajectory whose completions come from the teacher, so that warm start and reinforcement learning share rows,
batches and learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roll_envs.env import TextEnv
from roll_envs.errors import ConfigError
from roll_envs.managers import EpisodeSettings, play_episode
from roll_envs.managers.episode import Respond
from roll_envs.types import Completion, SamplingParams, Task, Trajectory

__all__ = ["demonstrate", "teacher"]


def teacher(tokenizer: Any, stop_id: int, oracle_share: float, rng: np.random.Generator) -> Respond:
    """Answers with the oracle's next answer with probability ``oracle_share``, else with a uniformly random action."""

    def respond(env: TextEnv, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        plan = env.oracle() if rng.random() < oracle_share else None
        form = env.action_format
        text = plan[0] if plan else form.format([int(rng.integers(len(form.actions)))])
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], stop_id)
        if len(ids) > sampling.max_new_tokens:
            raise ConfigError(
                f"sampling.max_new_tokens is {sampling.max_new_tokens}, but the answer {text!r} has {len(ids)} tokens"
            )
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish="stop", weight_version=0)

    return respond


def demonstrate(
    env: TextEnv, tasks: Sequence[Task], settings: EpisodeSettings, *, oracle_share: float, seed: int
) -> list[Trajectory]:
    """One episode of the teacher for each task; the teacher's choices follow from ``seed`` and the task alone."""
    tokenizer: Any = settings.renderer.tokenizer  # type: ignore[attr-defined]
    stop_id = settings.renderer.stop_ids[0]
    episodes = []
    for task in tasks:
        rng = np.random.default_rng([seed, task.index, task.seed])
        respond = teacher(tokenizer, stop_id, oracle_share, rng)
        episodes.append(play_episode(env, task, 0, respond, settings))
    return episodes
