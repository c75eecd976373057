"""Demonstrations of a deliberately poor teacher: episodes of the environment's oracle, mostly spoilt.

They teach a small model to read the observation and to answer in form, not to play well. A demonstration is an
ordinary trajectory whose completions come from the teacher, so that warm start and reinforcement learning share rows,
batches and learner.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roll_envs.env import TextEnv
from roll_envs.errors import ConfigError
from roll_envs.managers.episode import Respond
from roll_envs.types import Completion, SamplingParams

__all__ = ["teacher"]


def teacher(tokenizer: Any, stop_id: int, oracle_share: float) -> Respond:
    """Answers with the oracle's next answer with probability ``oracle_share``, else with one of the legal ones, drawn
    uniformly.

    Its choices follow from ``sampling.seed``, so that a demonstration depends on its task and the run's seed alone.
    """

    def respond(env: TextEnv, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
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
