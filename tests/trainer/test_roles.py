"""Reference and critic in another backend than the policy: the numbers of one backend for all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from episode_builders import batches_of
from loop_runs import configured, run
from test_crew import QueueLinks
from test_learner import some_rows
from tiny import tiny_model

from roll_envs.errors import ConfigError, MissingExtraError
from trainer.cluster.crew import Crew
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import RankedLearner, make_phase_learner
from trainer.cluster.roles import network_of, role_host, role_section
from trainer.cluster.seats import Machine, place
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.config.parts import BACKENDS, part_settings
from trainer.learner import TorchSettings
from trainer.learner.fsdp2 import ShardedCritic, ShardedScorer
from trainer.learner.torch import TorchLearner, TorchScorer
from trainer.rollout.source import Session
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import read_metrics
from trainer.run.memory_plan import make_plan
from trainer.run.picture import seats
from trainer.run.preflight import preflight
from trainer.run.update import begin_phase

BASE = "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nloss: {kl_coef: 0.1}\nadvantage: {name: gae}\n"


def config_of(more: str) -> RunConfig:
    return parse_config(BASE + more)


def test_a_role_has_the_settings_that_all_backends_share() -> None:
    config = config_of(
        "learner: {backend: fsdp2, precision: bfloat16, logits_mib: 8, lora_rank: 2, device: cpu}\n"
        "reference: {backend: torch}\n"
    )
    assert role_section(config, "critic") is config.learner
    section = role_section(config, "reference")
    assert (section.backend, section.device) == ("torch", "cpu")
    settings = part_settings(section, BACKENDS.find("torch"))
    assert settings == TorchSettings(precision="bfloat16", logits_mib=8)


@pytest.mark.parametrize(("policy", "other"), [("torch", "fsdp2"), ("fsdp2", "torch")])
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_role_begins_with_the_policy_s_weights_in_its_own_backend(policy: str, other: str, lora_rank: int) -> None:
    if lora_rank:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    config = config_of(
        f"learner: {{backend: {policy}, lora_rank: {lora_rank}, device: cpu}}\n"
        f"reference: {{backend: {other}}}\ncritic: {{backend: {other}}}\n"
    )
    batches = batches_of(some_rows()[0], pack_tokens=20, tokens_per_microbatch=40)
    alone = make_phase_learner(config_of(""), tiny_model(), warm_start=False, threads=1)
    expected = torch.cat([x.flatten() for x in alone.score(batches)])
    model = tiny_model()
    learner = make_phase_learner(config, model, warm_start=False, threads=1)
    reference = role_host(config, "reference", learner, model.network.config).reference()
    critic = role_host(config, "critic", learner, model.network.config).critic(config.critic)
    assert isinstance(reference, ShardedScorer if other == "fsdp2" else TorchScorer)
    assert isinstance(critic, ShardedCritic) == (other == "fsdp2")
    rank = Rank(0, 1)
    ranked = RankedLearner(Crew(QueueLinks([rank]), 60), config, tiny_model(), warm_start=False, threads=1)
    for found in (reference, ranked.reference()):
        assert torch.allclose(torch.cat([x.flatten() for x in found.score(batches)]), expected, atol=1e-6)
    for found in (critic, ranked.critic(config.critic)):
        body = {name: weight for name, weight in found.weights() if name.startswith("body.")}
        assert body.keys() == {n.replace("model.", "body.", 1) for n, _ in alone.weights() if n.startswith("model.")}
        assert all(torch.equal(w, dict(alone.weights())[n.replace("body.", "model.", 1)]) for n, w in body.items())
    assert type(rank._parts["reference"]) is type(reference)
    assert type(rank._parts["critic"]) is type(critic)


def test_a_run_in_one_process_has_its_roles_in_their_own_backends(tmp_path: Path) -> None:
    sharded = {"backend": "fsdp2"}
    config = configured(tmp_path, algorithm="ppo", loss={"kl_coef": 0.01}, critic=sharded, reference=sharded)
    with Session(config) as session:
        parts = begin_phase(session, warm_start=False)
    assert isinstance(parts.learner, TorchLearner)
    assert isinstance(parts.critic, ShardedCritic)
    assert isinstance(parts.reference, ShardedScorer)


def test_a_network_of_a_role_leaves_the_policy_s_attention_alone() -> None:
    """Both are made of one configuration, into which transformers writes what attention a network has; with another one
    packed sequences of the policy would see each other."""
    batches, model = batches_of(some_rows()[0], pack_tokens=20, tokens_per_microbatch=40), tiny_model()
    learner = make_phase_learner(config_of(""), model, warm_start=False, threads=1)
    before = learner.score(batches)
    network_of(model.network.config, empty=True)
    assert all(torch.equal(now, x) for now, x in zip(learner.score(batches), before, strict=True))


def test_who_sits_where_and_what_it_takes() -> None:
    machine = Machine(gpus=("0", "1", "2", "3"))
    served = "engine: {name: scripted}\n"
    placed = "placement: {learner: {ranks: 2}, reference: {device: [2, 3]}, critic: {device: cpu}}\n"
    other = "learner: {backend: fsdp2}\nreference: {backend: torch}\ncritic: {backend: torch}\n"
    config = config_of(other + placed + served)
    placement = place(config, machine)
    assert (placement.reference, placement.critic) == ((2, 3), ())
    who = {seat.who: seat.place for seat in seats(config, placement)}
    assert (who["reference 1 (torch)"], who["critic 0 (torch)"]) == ("3", "processors")
    with pytest.raises(ConfigError, match=r"reference\.device is set, but backend 'fsdp2' .*set reference\.backend to"):
        config_of(other.replace("reference: {backend: torch}\n", "") + placed)

    def size(more: str, what: str) -> float:
        plan = make_plan(
            config_of(f"{more}placement: {{learner: {{ranks: 4}}}}\n{served}"), tiny_model().network.config,
            devices=("cuda", "cuda"), free={"cuda": 2.0**33, "cpu": 2.0**33},
        )  # fmt: skip
        return sum(item.bytes for item in plan.items["cuda"] if item.what.startswith(what))

    for what in ("reference", "critic: gradients", "critic: optimiser state"):
        assert size(other, what) == 4 * size("learner: {backend: fsdp2}\n", what) > 0
    with_adapters = "learner: {lora_rank: 2}\n"
    assert size(with_adapters, "reference") == 0 < size(f"{with_adapters}reference: {{backend: fsdp2}}\n", "reference")


def test_what_is_not_there_or_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"critic\.backend: .*'fsdp3'.*did you mean 'fsdp2'"):
        config_of("critic: {backend: fsdp3}\n")
    with pytest.raises(ConfigError, match=r"reference\.backend is 'fsdp2', whose networks do not leave the device"):
        config_of("learner: {offload: between_steps}\nreference: {backend: fsdp2}\n")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *more: None if n == "deepspeed" else found(n, *more))
    config = config_of("critic: {backend: deepspeed}\n")
    for check in (lambda: preflight(config), lambda: Rank(0, 1).check(BASE + "critic: {backend: deepspeed}\n", {})):
        with pytest.raises(MissingExtraError, match=r"critic\.backend 'deepspeed' needs"):
            check()


# -- whole runs on two ranks -------------------------------------------------------------------------------------------

SCENE: dict[str, Any] = {
    "steps": 2,
    "algorithm": "ppo",
    "model": {"hidden_size": 32, "layers": 2, "heads": 2, "head_width": 16},
    "warm_start": {"steps": 2},
    "evaluation": {"every": 0},
    "optimizer": {"lr": 1e-3, "name": "adamw", "lr_schedule": "constant"},
    "loss": {"kl_coef": 0.01},
    "critic": {"lr": 1e-3, "minibatches": 2},
    "learner": {"minibatches": 2},
    "reference": {"refresh_every": 1},
}
"""Several optimiser steps in each training step, of policy and critic, and a reference that follows."""
WATCHED = ("loss/total", "learner/grad_norm", "loss/kl", "critic/loss", "critic/grad_norm", "rollout/return_mean")
CASES = [
    pytest.param("fsdp2", "fsdp2", "fsdp2", marks=pytest.mark.slow, id="all in fsdp2"),
    pytest.param("fsdp2", "torch", "torch", marks=pytest.mark.slow, id="beside fsdp2"),
    pytest.param("torch", "fsdp2", "fsdp2", marks=pytest.mark.slow, id="beside torch"),
    pytest.param("torch", "deepspeed", "deepspeed", marks=pytest.mark.cluster, id="in deepspeed"),
    pytest.param("deepspeed", "fsdp2", "torch", marks=pytest.mark.cluster, id="beside deepspeed"),
    pytest.param("megatron", "torch", "fsdp2", marks=pytest.mark.megatron, id="beside megatron"),
    pytest.param("torch", "megatron", "megatron", marks=pytest.mark.megatron, id="in megatron"),
    pytest.param("fsdp2", "megatron", "torch", marks=pytest.mark.megatron, id="reference in megatron"),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the plain backend in one process."""
    return run(tmp_path_factory.mktemp("alone"), **SCENE)[0]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(("policy", "reference", "critic"), CASES)
def test_two_ranks_are_one_process(tmp_path: Path, alone: Path, policy: str, reference: str, critic: str) -> None:
    for package in {"deepspeed", "megatron"} & {policy, reference, critic}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    mixed = {
        "learner": {**SCENE["learner"], "backend": policy},
        "reference": {**SCENE["reference"], "backend": reference},
        "critic": {**SCENE["critic"], "backend": critic},
    }
    folder, _ = run(tmp_path, **{**SCENE, **mixed}, placement={"learner": {"ranks": 2}})
    for step, whole in zip(read_metrics(folder, "train"), read_metrics(alone, "train"), strict=True):
        for name in WATCHED:
            assert (name in step) == (name in whole)
            if name in whole:
                assert step[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name
    found, expected = load_checkpoint(folder), load_checkpoint(alone)
    assert found.others.keys() == expected.others.keys() == {"critic", "reference"}
    for name, weights in expected.others.items():
        other = dict(found.others[name]())
        for key, weight in weights():
            assert float((other[key] - weight).norm()) <= 1e-5 * float(weight.norm()) + 1e-6, (name, key)
