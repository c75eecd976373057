"""Which weights decay, which optimiser steps which, and which steps are taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import tiny_model

from roll_envs.errors import CheckpointError, RollError
from trainer.config import OptimizerConfig
from trainer.learner.gradients import Ranks, StepGuard
from trainer.learner.muon import Muon
from trainer.learner.optimizers import TrainedWeight, make_optimizers, saved_parts, take_step, trained_weights

MUON = OptimizerConfig(name="muon")


def names_of(network: Any, parameters: Any) -> set[str]:
    wanted = {id(p) for p in parameters}
    return {n for n, p in network.named_parameters() if id(p) in wanted}


@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_matrices_decay_and_vectors_do_not(decay_embeddings: bool) -> None:
    network = tiny_model().network
    config = OptimizerConfig(weight_decay=0.1, decay_embeddings=decay_embeddings)
    (optimizer,) = make_optimizers(config, trained_weights(network))
    decayed = {n for g in optimizer.param_groups if g["weight_decay"] for n in names_of(network, g["params"])}
    still = {n for g in optimizer.param_groups if not g["weight_decay"] for n in names_of(network, g["params"])}
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1, 0.0}
    assert decayed | still == {n for n, _ in network.named_parameters()}
    assert ("model.embed_tokens.weight" in decayed) == decay_embeddings  # tied: the head is the same weight
    assert "model.layers.0.self_attn.q_proj.weight" in decayed
    assert {n for n in still if "embed" not in n} == {n for n, p in network.named_parameters() if p.ndim < 2}


def test_muon_decays_its_matrices() -> None:
    weights = trained_weights(tiny_model().network)
    muon, _ = make_optimizers(OptimizerConfig(name="muon", weight_decay=0.1), weights)
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}


def test_decay_by_hand() -> None:
    """Without a gradient AdamW only decays: 1 - lr * decay = 1 - 0.1 * 0.5."""
    matrix, vector, table = (torch.nn.Parameter(torch.ones(s)) for s in ((2, 2), (2,), (2, 2)))
    weights = [TrainedWeight(matrix, False), TrainedWeight(vector, False), TrainedWeight(table, True)]
    for value in (matrix, vector, table):
        value.grad = torch.zeros_like(value)
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, decay_embeddings=False)
    (optimizer,) = make_optimizers(config, weights)
    optimizer.step()
    assert [round(float(v.flatten()[0].detach()), 6) for v in (matrix, vector, table)] == [0.95, 1.0, 1.0]


def test_muon_takes_the_inner_matrices() -> None:
    network = tiny_model().network
    orthogonal, rest = make_optimizers(MUON, trained_weights(network))
    inner = {n for g in orthogonal.param_groups for n in names_of(network, g["params"])}
    others = {n for g in rest.param_groups for n in names_of(network, g["params"])}
    assert all(n.startswith("model.layers") and p.ndim == 2 for n, p in network.named_parameters() if n in inner)
    assert "model.embed_tokens.weight" in others
    assert inner | others == {n for n, _ in network.named_parameters()}
    assert not inner & others


def test_muon_without_vectors_or_without_matrices() -> None:
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    kinds = [type(o) for o in make_optimizers(MUON, [TrainedWeight(matrix, False)])]
    assert kinds == [Muon]
    kinds = [type(o) for o in make_optimizers(MUON, [TrainedWeight(vector, False)])]
    assert kinds == [torch.optim.AdamW]


@pytest.mark.parametrize("quick", [True, False], ids=["bfloat16", "float32"])
def test_muon_is_torchs_whatever_its_products_are_in(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit where they are in bfloat16 too; else as far as bfloat16 goes: three digits of an update."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: quick)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    generator = torch.Generator().manual_seed(0)
    firsts = [torch.randn(shape, generator=generator) for shape in ((12, 20), (20, 12), (8, 8))]
    ours, theirs = ([torch.nn.Parameter(first.clone()) for first in firsts] for _ in range(2))
    optimizers = [
        Muon(ours, lr=0.1, weight_decay=0.5),
        torch.optim.Muon(theirs, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, first in zip(ours, theirs, firsts, strict=True):
        moved = float((other - first).detach().square().mean().sqrt())
        difference = float((one - other).detach().abs().max())
        assert (difference == 0.0) is quick
        assert difference < 0.05 * moved


def test_frozen_weights_are_left_out_and_copies_stand_in() -> None:
    network = tiny_model().network
    network.base_model.embed_tokens.weight.requires_grad_(False)
    weights = trained_weights(network)
    assert not any(w.outer for w in weights)
    assert len(weights) == len(list(network.parameters())) - 1
    copies = [torch.nn.Parameter(w.value.detach().clone()) for w in weights]
    assert [w.value for w in trained_weights(network, copies)] == copies


# -- states of a checkpoint --------------------------------------------------------------------------------------------


def stepped(config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """The optimisers of ``config`` for the tiny model, after a step."""
    network = tiny_model().network
    for number, parameter in enumerate(network.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    made = make_optimizers(config, trained_weights(network))
    take_step(made, 0.5)
    return made


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_go_on_and_settings_are_those_of_the_configuration(name: str) -> None:
    before = stepped(OptimizerConfig(name=name, weight_decay=0.1))
    changed = OptimizerConfig(name=name, lr=0.25, weight_decay=0.3, betas=(0.5, 0.6))
    after = make_optimizers(changed, trained_weights(tiny_model().network))
    for one, other in zip(before, after, strict=True):
        one.param_groups[0]["fused"] = "of another device"
        other.load_state_dict(one.state_dict())
        for saved, group in zip(one.param_groups, other.param_groups, strict=True):
            assert group["weight_decay"] == (0.3 if saved["weight_decay"] else 0.0)
            assert group["lr"] == 0.5, "until the next step, as a checkpoint that is saved at once has it"
            if "betas" in group:
                assert (group["betas"], group["fused"]) == ((0.5, 0.6), False)
        states = [list(each.state.values()) for each in (one, other)]
        assert len(states[0]) > 0
        for a, b in zip(*states, strict=True):
            assert all(torch.equal(a[key], b[key]) for key in a)


def test_states_of_other_groups_are_refused_with_what_to_set() -> None:
    (state,) = (each.state_dict() for each in stepped(OptimizerConfig()))
    (without,) = make_optimizers(OptimizerConfig(decay_embeddings=False), trained_weights(tiny_model().network))
    with pytest.raises(CheckpointError, match=r"optimiser has groups of .*optimizer\.decay_embeddings it was saved"):
        without.load_state_dict(state)
    assert saved_parts({"parts": [state]}, 1) == [state]
    with pytest.raises(CheckpointError, match=r"1 optimisers and .* 2; resume with the optimizer\.name it was saved"):
        saved_parts({"parts": [state]}, 2)


# -- which steps are taken ---------------------------------------------------------------------------------------------


def guarded(guard: StepGuard, *gradient: float) -> tuple[bool, float, list[float]]:
    value = torch.nn.Parameter(torch.zeros(len(gradient)))
    value.grad = torch.tensor(gradient)
    admitted, norm = guard.admits([value])
    return admitted, norm, value.grad.tolist()


def test_gradients_are_cut_to_the_norm() -> None:
    guard = StepGuard(OptimizerConfig(max_grad_norm=1.0, skip_norm=10.0, max_skipped=0), Ranks())
    admitted, norm, gradient = guarded(guard, 3.0, 4.0)
    assert (admitted, norm) == (True, 5.0)
    assert gradient == pytest.approx([0.6, 0.8], abs=1e-5)
    assert guarded(guard, 0.3, 0.4)[2] == pytest.approx([0.3, 0.4])


def test_skips_are_counted_in_a_row() -> None:
    guard = StepGuard(OptimizerConfig(max_grad_norm=1.0, skip_norm=4.0, max_skipped=2), Ranks())
    assert guarded(guard, 3.0, 4.0)[:2] == (False, 5.0)
    assert not guarded(guard, math.inf)[0]
    assert guard.skipped_in_a_row == 2
    assert guarded(guard, 4.0)[0]  # the bound itself is admitted
    assert guard.skipped_in_a_row == 0
    assert not guarded(guard, math.nan)[0]
    assert not guarded(guard, 5.0)[0]
    with pytest.raises(
        RollError, match=r"norm is 7 \(optimizer.skip_norm is 4\); the step was not taken, nor were the 2"
    ):
        guarded(guard, 7.0)


def test_none_may_be_skipped() -> None:
    guard = StepGuard(OptimizerConfig(max_grad_norm=1.0, skip_norm=None, max_skipped=0), Ranks())
    assert guarded(guard, 1e30)[0]
    with pytest.raises(RollError, match=r"the gradient norm is nan; the step was not taken. Lower optimizer.lr"):
        guarded(guard, math.nan)
