"""A tiny model, its renderer and plain reference computations, for the tests of engine, learner and loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from roll_envs.testing import CounterEnv
from roll_envs.types import SamplingParams
from trainer.config import ModelConfig
from trainer.model.network import LanguageModel, build_model


def tiny_model(seed: int = 0, **changes: Any) -> LanguageModel:
    """Two layers of width 16; large first weights, so that its distribution is far from even."""
    values = {"hidden_size": 16, "layers": 2, "heads": 2, "init_std": 0.4, **changes}
    return build_model(ModelConfig(**values), CounterEnv(), seed)


def full_logits(model: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] of a row by one plain forward pass: no cache, no packing, no mask."""
    with torch.inference_mode():
        return model.network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]  # type: ignore[no-any-return]


def reference_completion(
    model: LanguageModel, prompt: Sequence[int], sampling: SamplingParams
) -> tuple[list[int], list[float]]:
    """Token by token with a whole forward pass each, from the same draws as the engine."""
    assert sampling.seed is not None
    draws = np.random.Generator(np.random.Philox(key=sampling.seed)).random(sampling.max_new_tokens)
    ids: list[int] = []
    logprobs: list[float] = []
    for draw in draws:
        logits = full_logits(model, [*prompt, *ids])[-1].double()
        logp = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        if sampling.temperature == 0:
            token = int(logp.argmax())
        else:
            cumulative = logp.exp().cumsum(-1)
            token = int((cumulative <= draw * cumulative[-1]).sum())
        ids.append(token)
        logprobs.append(float(logp[token]))
        if token in sampling.stop_ids:
            break
    return ids, logprobs
