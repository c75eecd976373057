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
from trainer.learner import TorchSettings, steps
from trainer.learner.torch import TorchLearner
from trainer.model import attention, forward

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
    # What these change is in the graphs; to write and compile C++ for each again takes most of the time.
    backend = "aot_eager" if {"lora_rank", "logits_mib"} & settings.keys() else "inductor"

    def noted(what: Any, **keywords: Any) -> Any:
        compiled.append(what)
        return plain_compile(what, **keywords, backend=backend)

    forward._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", noted)
    plain, expected, plain_scores = three_steps(TorchSettings(**settings))
    assert compiled == []
    learner, found, scores = three_steps(TorchSettings(**settings, compile=True))
    assert {forward._fused_statistics, forward._fused_gradient} < set(compiled)
    assert sum(getattr(what, "__name__", "") == "_call_impl" for what in compiled) == 2  # the layers
    close = 0.1 if "precision" in settings else 1e-5  # what is put together is rounded to bfloat16 less often
    for a, b in zip(expected, found, strict=True):
        assert b == pytest.approx(a, rel=close, abs=close)
    for a, b in zip(plain_scores, scores, strict=True):
        assert torch.allclose(a, b, rtol=close, atol=close)
    weights = dict(plain.weights())
    assert all(torch.allclose(weights[name], value, atol=max(close, 1e-3)) for name, value in learner.weights())


def probabilities(q: torch.Tensor, k: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """[H, N, N]; of causal attention over sequences end to end, q and k [N, H, E]."""
    places = torch.arange(len(q))
    sequence = torch.bucketize(places, starts, right=True)
    seen = (sequence[:, None] == sequence) & (places[:, None] >= places)
    scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[2] ** 0.5
    found: torch.Tensor = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return found


@torch.library.custom_op("roll_test::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    """As torch's flash attention is for the compiler: an operation of its own, with a backward that is another."""
    return torch.einsum("hqk,khe->qhe", probabilities(q, k, starts), v).contiguous()


@torch.library.custom_op("roll_test::attend_backward", mutates_args=())
def attend_backward(
    gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = probabilities(q, k, starts)
    by_p = torch.einsum("qhe,khe->hqk", gradient, v)
    by_scores = p * (by_p - (p * by_p).sum(-1, keepdim=True)) / q.shape[2] ** 0.5
    by_q, by_k = torch.einsum("hqk,khe->qhe", by_scores, k), torch.einsum("hqk,qhe->khe", by_scores, q)
    by_v = torch.einsum("hqk,qhe->khe", p, gradient)
    return by_q.contiguous(), by_k.contiguous(), by_v.contiguous()


attend.register_fake(lambda q, *_: torch.empty_like(q))
attend_backward.register_fake(lambda gradient, *tokens: tuple(torch.empty_like(x) for x in tokens[:3]))
attend.register_autograd(
    lambda ctx, gradient: (*attend_backward(gradient, *ctx.saved_tensors), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:4]),
)


def test_layers_with_flash_attention_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, _ = three_steps(TorchSettings())

    def flash(q: Any, k: Any, v: Any, starts: Any, _: Any, longest: int, __: int, *, scale: float | None) -> Any:
        groups = q.shape[1] // k.shape[1]
        return attend(q, *(x.repeat_interleave(groups, dim=1) for x in (k, v)), starts, longest)

    monkeypatch.setattr(attention, "_FLASH", flash)
    monkeypatch.setattr(steps, "choose_attention", lambda *_: "flash")
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    _, found, _ = three_steps(TorchSettings(compile=True))
    assert not counters["graph_break"]
    # A layer and what is done with logits, for a step and for scoring; the gradient of the logits.
    assert counters["stats"]["unique_graphs"] == 5
    for a, b in zip(expected, found, strict=True):
        assert b == pytest.approx(a, rel=1e-5, abs=1e-5)


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
