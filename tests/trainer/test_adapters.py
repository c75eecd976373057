"""LoRA: only adapters are trained, engines get merged weights of the plain network, and nothing is lost by saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from episode_builders import batches_of, scattered
from loop_runs import configured, run
from safetensors.torch import load_file
from test_precision import some_rows, steps
from tiny import tiny_model

from roll_envs.errors import CheckpointError, ConfigError
from roll_envs.types import SamplingParams
from trainer.config import LossConfig, OptimizerConfig
from trainer.config.load import resolve
from trainer.engines.hf import HFEngine
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model.forward import load_weights
from trainer.model.network import LanguageModel

pytest.importorskip("peft", reason="the extra 'lora' is not installed")

from trainer.learner.adapters import AdaptedNetwork
from trainer.rollout.source import Session
from trainer.run.folder import RunFolder
from trainer.run.loop import resume
from trainer.run.report import Report
from trainer.run.update import begin_phase


def learner_of(model: LanguageModel, **settings: Any) -> TorchLearner:
    return TorchLearner(
        model,
        loss=LossConfig(),
        optimizer=OptimizerConfig(lr=1e-2, max_grad_norm=1e9),
        temperature=0.7,
        settings=TorchSettings(**{"lora_rank": 4, "lora_alpha": 8.0, **settings}),
    )


def state_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {n: w.clone() for n, w in model.network.state_dict().items()}


def scores(learner: TorchLearner) -> torch.Tensor:
    rows, _ = some_rows()
    batches = batches_of(rows, pack_tokens=40, tokens_per_microbatch=80)
    return torch.cat([torch.from_numpy(x) for x in scattered(rows, batches, learner.score(batches))])


def test_by_hand() -> None:
    """Merged weight = base + alpha / rank * B @ A."""
    model = tiny_model()
    adapted = AdaptedNetwork(model.network, rank=2, alpha=6.0, targets=["q_proj"])
    name = "model.layers.1.self_attn.q_proj"
    state = adapted.state()
    assert len(state["adapters"]) == 4  # A and B of two layers
    a, b = state["adapters"][f"{name}.A"], state["adapters"][f"{name}.B"]
    assert (tuple(a.shape), tuple(b.shape)) == ((2, 16), (16, 2))
    assert not b.any()
    b.copy_(torch.arange(32.0).view(16, 2))
    plain = model.network.state_dict()[f"{name}.weight"]
    assert torch.allclose(dict(adapted.weights())[f"{name}.weight"], plain + 3.0 * b @ a, atol=1e-5)
    # Tied to the embedding, which comes under its first name.
    assert {*dict(adapted.weights()), "lm_head.weight"} == model.network.state_dict().keys()


def test_nothing_changes_at_first_and_only_adapters_are_trained() -> None:
    model = tiny_model()
    before = state_of(model)
    learner = learner_of(model)
    assert all(torch.equal(before[n], w) for n, w in learner.weights())
    trained = [n for n, p in learner._network.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 7  # A and B, two layers, seven linear layers in each
    assert all("lora_" in name for name in trained)
    assert torch.allclose(scores(learner), scores(learner_of(tiny_model(), lora_rank=0)), atol=1e-6)
    steps(learner, 5, lr=1e-2)
    assert all(torch.equal(before[n], w) for n, w in state_of(model).items())  # the plain network is the engine's
    changed = {n for n, w in learner.weights() if not torch.equal(before[n], w)}
    assert changed == {n for n in before if n.endswith("_proj.weight")}


def test_the_engine_samples_from_what_the_learner_trains() -> None:
    model = tiny_model()
    learner = learner_of(model)
    steps(learner, 5, lr=1e-2)
    trained = scores(learner)
    engine = HFEngine(model, max_running=2, max_tokens=100)
    sampling = SamplingParams(temperature=0.7, max_new_tokens=8, seed=1)
    stale = engine.generate((20, 30, 40), sampling, timeout_s=30).logprobs
    engine.update_weights(learner.weights(), 1)
    fresh = engine.generate((20, 30, 40), sampling, timeout_s=30).logprobs
    engine.close()
    assert stale != fresh
    # The plain network with merged weights scores as the adapted one does, and taking them changes no adapter's base.
    load_weights(model.network, learner.weights())
    assert torch.allclose(scores(learner_of(model, lora_rank=0)), trained, atol=1e-4)
    assert torch.equal(scores(learner), trained)


def test_a_reference_that_is_refreshed_is_a_copy_of_the_merged_policy() -> None:
    learner = learner_of(tiny_model())
    steps(learner, 3, lr=1e-2)
    reference = learner.reference(fixed=False)
    merged = dict(learner.weights())
    assert dict(reference.weights()).keys() == merged.keys()
    assert all(torch.equal(merged[n], w) for n, w in reference.weights())
    frozen = {n: w.clone() for n, w in reference.weights()}
    steps(learner, 3, lr=1e-2)
    assert all(torch.equal(frozen[n], w) for n, w in reference.weights())


def test_a_fixed_reference_is_the_base_model_without_a_copy() -> None:
    rows, _ = some_rows()
    batches = batches_of(rows, pack_tokens=40, tokens_per_microbatch=80)
    model = tiny_model()
    learner = learner_of(model)
    fixed, copied = learner.reference(), learner.reference(fixed=False)
    assert list(fixed.weights()) == []  # nothing of its own, so that no checkpoint holds the base model again
    steps(learner, 3, lr=1e-2)
    trained = scores(learner)
    expected = copied.score(batches)  # made before the steps, when the policy was the base model
    for one, other in zip(fixed.score(batches), expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-7)
    assert not torch.allclose(trained, torch.cat([torch.from_numpy(x) for x in scattered(rows, batches, expected)]))
    assert torch.equal(scores(learner), trained)  # adapters are on again
    before = {n: w.clone() for n, w in learner.weights()}
    steps(learner, 1, lr=1e-2)
    assert any(not torch.equal(before[n], w) for n, w in learner.weights())  # and are still trained
    saved = dict(copied.weights())  # as earlier releases wrote them
    fixed.load_weights(saved.items())
    fixed.load_weights([])
    for one, other in zip(fixed.score(batches), expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-7)
    with pytest.raises(CheckpointError, match="the checkpoint's reference does not fit"):
        fixed.load_weights(list(saved.items())[1:])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_goes_on_where_it_was_saved(precision: str) -> None:
    settings = {"precision": precision}
    through, first = learner_of(tiny_model(), **settings), learner_of(tiny_model(), **settings)
    steps(through, 4, lr=1e-2)
    steps(first, 2, lr=1e-2)
    model = tiny_model(seed=5)  # other weights, all of which are loaded
    second = learner_of(model, **settings)
    load_weights(model.network, first.weights())
    second.load_optimizer_state(first.optimizer_state())
    saved = dict(first.weights())
    assert all(torch.equal(saved[n], w) for n, w in second.weights())
    steps(second, 2, lr=1e-2)
    weights = dict(through.weights())
    assert all(torch.equal(weights[n], w) for n, w in second.weights())


def test_other_adapters_than_the_saved_ones_are_an_error() -> None:
    saved = learner_of(tiny_model()).optimizer_state()
    with pytest.raises(CheckpointError, match=r"the shape is \(4, 48\), the learner's \(2, 48\); .* learner.lora_rank"):
        learner_of(tiny_model(), lora_rank=2).load_optimizer_state(saved)
    with pytest.raises(CheckpointError, match=r"adapters of LoRA in the checkpoint .*, the learner's none; resume"):
        learner_of(tiny_model(), lora_targets=("q_proj",)).load_optimizer_state(saved)
    with pytest.raises(CheckpointError, match=r"the checkpoint has LoRA adapters; resume with the learner.lora_rank"):
        learner_of(tiny_model(), lora_rank=0).load_optimizer_state(saved)
    with pytest.raises(CheckpointError, match=r"lora_alpha / lora_rank = \S+, the learner's by 0.25; resume with the"):
        learner_of(tiny_model(), lora_rank=4, lora_alpha=1.0).load_optimizer_state(saved)


def test_a_target_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer is named 'c_attn'; allowed: down_proj, gate_proj, k_proj"):
        AdaptedNetwork(tiny_model().network, rank=2, alpha=4.0, targets=["q_proj", "c_attn"])


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'roll-envs\[lora\]'"):
        AdaptedNetwork(tiny_model().network, rank=2, alpha=4.0)


def test_making_adapters_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    learner_of(tiny_model())
    assert torch.equal(torch.rand(1), expected)
    one, two = (learner_of(tiny_model()).optimizer_state()["lora"]["adapters"] for _ in range(2))
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_a_run_with_adapters_resumes_exactly_and_saves_merged_weights(tmp_path: Path, no_pictures: None) -> None:
    changes: dict[str, Any] = {
        "learner": {"pack_tokens": 64, "minibatches": 2, "lora_rank": 2, "precision": "bfloat16"},
        "optimizer": {"lr": 2e-2},
        "steps": 3,
        "evaluation": {"tasks": 4, "every": 0},
        "checkpoint": {"every": 1, "keep": 9},
    }
    path, _ = run(tmp_path / "a", **changes)
    last, earlier = (sorted((path / "checkpoints").glob("step-*"))[i] for i in (-1, -3))
    end, start = (load_file(folder / "model.safetensors") for folder in (last, earlier))
    moved = {n for n in end if not torch.equal(end[n], start[n])}
    assert moved
    assert all(name.endswith("_proj.weight") for name in moved)  # the warm start trained the rest
    saved = load_file(path / "model" / "model.safetensors")
    assert all(torch.equal(saved[n], end[n]) for n in saved)
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert config["learner"]["lora_rank"] == 2
    with RunFolder.open(path) as folder:
        resume(folder, Report.silent(), None, earlier)
    again = load_file(sorted((path / "checkpoints").glob("step-*"))[-1] / "model.safetensors")
    assert all(torch.equal(again[n], end[n]) for n in end)
    assert configured(tmp_path).learner.lora_rank == 0


def test_the_warm_start_trains_all_weights_on_the_configured_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    config = resolve(configured(tmp_path, learner={"lora_rank": 2, "threads": 3}))
    try:
        with Session(config) as session:
            assert session.threads == torch.get_num_threads() == 3
            assert "lora" not in begin_phase(session, warm_start=True).learner.optimizer_state()
            assert "lora" in begin_phase(session, warm_start=False).learner.optimizer_state()
    finally:
        torch.set_num_threads(before)
