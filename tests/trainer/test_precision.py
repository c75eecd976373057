"""Half-precision weights with float32 copies: small steps are not lost, and results are float32's within rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted
from tiny import tiny_model

from roll_envs.errors import CheckpointError
from trainer.config import CriticConfig, LossConfig, OptimizerConfig
from trainer.data.table import TokenSequence
from trainer.learner import TorchSettings
from trainer.learner.gradients import MasterWeights, cast_weights
from trainer.learner.torch import TorchLearner
from trainer.model.forward import load_weights
from trainer.model.network import LanguageModel

HALF = TorchSettings(precision="bfloat16")


def learner_of(model: LanguageModel, settings: TorchSettings | None = None, **optimizer: Any) -> TorchLearner:
    values = {"lr": 1e-3, "max_grad_norm": 1e9, **optimizer}
    return TorchLearner(
        model, loss=LossConfig(), optimizer=OptimizerConfig(**values), temperature=0.7, settings=settings
    )


def some_rows(count: int = 6) -> tuple[list[TokenSequence], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    rows, advantages = [], []
    for member in range(count):
        n = int(rng.integers(4, 30))
        mask = (False, *(bool(x) for x in rng.random(n - 1) < 0.6))
        rows.append(
            TokenSequence(
                ids=tuple(rng.integers(5, 250, n).tolist()), mask=mask,
                logprobs=tuple(-5.0 if m else 0.0 for m in mask),
                turns=tuple(0 if m else -1 for m in mask), versions=tuple(0 if m else -1 for m in mask),
                group=0, member=member,
            )
        )  # fmt: skip
        advantages.append(np.where(mask, rng.normal(size=n), 0.0))
    return rows, advantages


def steps(learner: TorchLearner, count: int, lr: float = 1e-3) -> list[dict[str, float]]:
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    return [learner.step(batches, counted(rows), lr=lr, on_policy=True)[0] for _ in range(count)]


def test_a_step_that_bfloat16_would_lose_is_kept() -> None:
    """1 + 1e-3 is 1 in bfloat16 (the next number is 1.0078); eight such steps make 1.008, which rounds to 1.0078."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    with torch.no_grad():
        assert torch.equal(parameter + 1e-3, parameter)
    masters = MasterWeights([parameter])
    optimizer = torch.optim.SGD(masters.values, lr=1.0)
    for count in range(1, 9):
        masters.clear_gradients()
        masters.add_gradients([torch.full((3,), -1e-3)])
        optimizer.step()
        masters.write_back()
        assert parameter[0].item() == (1.0 if count < 4 else 1.0078125)  # 1.0039 is half-way
    assert masters.values[0].tolist() == pytest.approx([1.008] * 3)


def test_gradients_are_added_in_float32() -> None:
    """256 + 1 is 256 in bfloat16."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    masters = MasterWeights([parameter])
    for part in (256.0, 1.0, 1.0):
        masters.add_gradients([torch.tensor([part], dtype=torch.bfloat16)])
    assert masters.values[0].grad is not None
    assert masters.values[0].grad.tolist() == [258.0]


def test_float32_weights_are_their_own_masters() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    masters = MasterWeights([parameter])
    assert masters.values[0] is parameter
    assert masters.state() == {}


def test_buffers_keep_their_precision() -> None:
    network = cast_weights(tiny_model().network, torch.bfloat16)
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
    buffers = dict(network.named_buffers())
    assert buffers
    assert {b.dtype for b in buffers.values()} == {torch.float32}


def test_the_model_is_half_and_learns_what_float32_learns() -> None:
    """Same rows, same rate: gradients within bfloat16's rounding, and the copies move as float32 weights do."""
    full_model, half_model = tiny_model(), tiny_model()
    cast_weights(full_model.network, torch.bfloat16)
    cast_weights(full_model.network, torch.float32)  # the same first numbers
    start = {n: w.clone() for n, w in full_model.network.state_dict().items()}
    full, half = learner_of(full_model), learner_of(half_model, HALF)
    a, b = steps(full, 1)[0], steps(half, 1)[0]
    assert b["learner/grad_norm"] == pytest.approx(a["learner/grad_norm"], rel=0.05)
    assert b["loss/entropy"] == pytest.approx(a["loss/entropy"], rel=0.02)
    steps(full, 19)
    steps(half, 19)
    moved = torch.cat([(w - start[n]).flatten() for n, w in full.weights() if n != "lm_head.weight"])
    names = [n for n, _ in half_model.network.named_parameters()]
    copies = dict(zip(names, half.optimizer_state()["masters"], strict=True))
    moved_half = torch.cat([(copies[n] - start[n]).flatten() for n in start if n != "lm_head.weight"])
    assert float(moved.norm()) > 0.1
    assert float(torch.nn.functional.cosine_similarity(moved, moved_half, dim=0)) > 0.97
    for name, weight in half.weights():
        assert weight.dtype == torch.bfloat16
        if name in copies:
            assert torch.equal(weight, copies[name].bfloat16())


def test_tiny_steps_add_up() -> None:
    """At a rate of 1e-6 no bfloat16 weight of size 0.4 moves in one step; the copies do, and so at last do weights."""
    model = tiny_model()
    learner = learner_of(model, HALF, lr=1e-6)
    before = {n: w.clone() for n, w in learner.weights()}
    steps(learner, 1, lr=1e-6)
    large = {n: before[n].float().abs() > 0.1 for n in before}
    assert all(torch.equal(before[n][large[n]], w[large[n]]) for n, w in learner.weights())
    copies = learner.optimizer_state()["masters"]
    assert all(bool((c != c.bfloat16()).any()) for c in copies)


def test_it_goes_on_where_it_was_saved() -> None:
    through, first, second = (learner_of(tiny_model(), HALF) for _ in range(3))
    steps(through, 4)
    steps(first, 2)
    load_weights(second._plain, first.weights())
    second.load_optimizer_state(first.optimizer_state())
    steps(second, 2)
    weights = dict(through.weights())
    assert all(torch.equal(weights[n], w) for n, w in second.weights())


def test_another_precision_is_an_error() -> None:
    half, full = learner_of(tiny_model(), HALF), learner_of(tiny_model())
    with pytest.raises(CheckpointError, match=r"has 0 float32 copies .* resume with the learner.precision"):
        half.load_optimizer_state(full.optimizer_state())
    with pytest.raises(CheckpointError, match="and the learner needs 0"):
        full.load_optimizer_state(half.optimizer_state())


def test_checkpointed_layers_give_the_same_gradient_and_are_run_twice() -> None:
    models = tiny_model(), tiny_model()
    plain = learner_of(models[0])
    again = learner_of(models[1], TorchSettings(gradient_checkpointing=True))
    calls = [0, 0]
    for number, model in enumerate(models):
        layer = model.network.base_model.layers[0].mlp

        def count(*_: Any, number: int = number) -> None:
            calls[number] += 1

        layer.register_forward_pre_hook(count)
    a, b = steps(plain, 1)[0], steps(again, 1)[0]
    assert calls[1] == 2 * calls[0] > 0  # forward once more in backward
    assert a["learner/grad_norm"] == b["learner/grad_norm"]
    gradients = [{n: p.grad for n, p in m.network.named_parameters()} for m in models]
    assert all(torch.equal(g, gradients[1][n]) for n, g in gradients[0].items())
    assert not any(m.training for m in models[1].network.modules())


def test_a_critic_s_layers_are_computed_again_where_the_policy_s_are() -> None:
    rows, _ = some_rows()
    batches = batches_of(
        rows, pack_tokens=40, tokens_per_microbatch=80, value=[np.zeros(len(r.ids)) for r in rows],
        returns=[np.linspace(0, 1, len(r.ids)) for r in rows],
    )  # fmt: skip
    found, calls = [], []
    for again in (False, True):
        critic: Any = learner_of(tiny_model(), TorchSettings(gradient_checkpointing=again)).critic(CriticConfig())
        torch.nn.init.constant_(critic._network["head"].weight, 0.1)  # so that the body has a gradient
        seen: list[object] = []
        critic._network["body"].layers[0].mlp.register_forward_pre_hook(lambda *_, seen=seen: seen.append(None))
        found.append(critic.step(batches, counted(rows), lr=1e-3))
        calls.append(len(seen))
        found[-1] |= {n: p.grad for n, p in critic._network.named_parameters()}
        assert not any(module.training for module in critic._network.modules())
    assert calls[1] == 2 * calls[0] > 0
    assert found[0]["critic/grad_norm"] > 0
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(found[1][n])) for n, v in found[0].items())
