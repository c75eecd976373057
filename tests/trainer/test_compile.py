"""A compiled learner takes the steps of a plain one."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from episode_builders import batches_of, counted
from test_learner import some_rows
from tiny import tiny_model

from roll_envs.errors import ConfigError
from trainer.config import LossConfig, OptimizerConfig
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model import forward

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++"),
    pytest.mark.filterwarnings("ignore"),  # torch's compiler hides its own, which it does not mean as errors
]


def three_steps(settings: TorchSettings, threads: int = 1) -> tuple[TorchLearner, list[dict[str, float]], list[Any]]:
    """A learner, the metrics of its steps, and its log-probs behind them."""
    rows, advantages = some_rows(20)
    batches = batches_of(rows, advantages, pack_tokens=30, tokens_per_microbatch=60)
    learner = TorchLearner(
        tiny_model(), loss=LossConfig(entropy_coef=0.01), optimizer=OptimizerConfig(lr=1e-3), temperature=0.7,
        settings=settings, threads=threads, device="cpu",
    )  # fmt: skip
    metrics = [learner.step(batches, counted(rows), lr=1e-3)[0] for _ in range(3)]
    return learner, metrics, learner.score(batches)


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_checkpointing": True, "logits_mib": 0.01}, {"lora_rank": 2}, {"precision": "bfloat16"}],
    ids=lambda settings: " ".join(settings) or "float32",
)
def test_steps_are_those_of_a_plain_learner(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if "lora_rank" in settings:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    compiled = []
    plain_compile = torch.compile

    def noted(what: Any, **keywords: Any) -> Any:
        compiled.append(what)
        return plain_compile(what, **keywords)

    forward._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", noted)
    plain, expected, plain_scores = three_steps(TorchSettings(**settings))
    assert compiled == []
    learner, found, scores = three_steps(TorchSettings(**settings, compile=True))
    assert {forward._statistics, forward._logit_gradient} < set(compiled)
    assert sum(getattr(what, "__name__", "") == "_call_impl" for what in compiled) == 2  # the layers
    close = 0.1 if "precision" in settings else 1e-5  # what is put together is rounded to bfloat16 less often
    for a, b in zip(expected, found, strict=True):
        assert b == pytest.approx(a, rel=close, abs=close)
    for a, b in zip(plain_scores, scores, strict=True):
        assert torch.allclose(a, b, rtol=close, atol=close)
    weights = dict(plain.weights())
    assert all(torch.allclose(weights[name], value, atol=max(close, 1e-3)) for name, value in learner.weights())


def test_threads_change_no_bit() -> None:
    first, second = (three_steps(TorchSettings(compile=True), threads) for threads in (1, 3))
    assert first[1] == second[1]
    assert all(torch.equal(a, b) for a, b in zip(first[2], second[2], strict=True))


def test_an_engine_copy_is_not_compiled() -> None:
    learner = three_steps(TorchSettings(compile=True))[0]
    layer = learner._network.base_model.layers[0]
    assert layer._compiled_call_impl is not None
    assert copy.deepcopy(layer)._compiled_call_impl is None


def test_a_network_without_known_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.compile: Linear has no layers that are known; set it to false"):
        forward.compile_layers(torch.nn.Linear(2, 2))
