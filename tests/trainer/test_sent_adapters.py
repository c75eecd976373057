"""Adapters that are sent alone to servers that keep the weights beside them: merged there they are what the learner
trains, and whoever may not have those weights gets them again (promises 3 and 5). Real vLLM merges in test_vllm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVLLM
from test_crew import QueueLinks
from test_learner_ranks import config_of
from vllm_engines import ask, blank_model, check, connect, made_environment, misbehave, process, started, until

from roll_envs.errors import EngineError
from trainer.cluster.crew import Crew
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import RankedLearner
from trainer.config import LossConfig, OptimizerConfig
from trainer.engines import transfer
from trainer.engines.buckets import Adapted
from trainer.engines.remote import RemoteEngine
from trainer.engines.transfer import TRANSPORTS
from trainer.engines.vllm_worker.roll_transfer import Kept
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

pytest.importorskip("peft", reason="the extra 'lora' is not installed")

ADAPTERS = 2 * 7
"""Matrices: two for each linear layer of the only block."""


def learner_of(**settings: Any) -> TorchLearner:
    """Of a model that is blank but for what no logit depends on, since its embedding and head are 0."""
    model = blank_model()
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "_proj" in name:
                parameter.normal_()
    return TorchLearner(
        model,
        loss=LossConfig(),
        optimizer=OptimizerConfig(),
        temperature=1.0,
        settings=TorchSettings(**{"lora_rank": 4, "lora_alpha": 6.0, **settings}),
    )


@torch.no_grad()
def train(learner: Any, seed: int) -> None:
    """Other adapters."""
    torch.manual_seed(seed)
    for name, parameter in learner._network.named_parameters():
        if ".lora_" in name:
            parameter.normal_()


def update(engine: RemoteEngine, fake: FakeVLLM, learner: Any, version: int) -> bool:
    """Whether adapters alone crossed; what the server has then is what the learner has."""
    fake.received = []
    engine.update_weights(learner.weights(), version)
    for name, tensor in learner.weights():
        assert torch.allclose(fake.weights[name].float(), tensor, rtol=1e-2, atol=2e-2), name
    check(ask(engine, 2), version=version)
    adapters = [name for name in fake.received if ".lora_" in name]
    assert len(adapters) == ADAPTERS
    return len(fake.received) == ADAPTERS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", TRANSPORTS)
def test_adapters_alone_are_sent_to_who_has_the_rest(
    model: LanguageModel, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch, way: str, dtype: str
) -> None:
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)
    learner, engine = learner_of(), connect(model, fake[0], transfer=way, dtype=dtype)
    try:
        alone = []
        for version in (1, 2, 3):
            train(learner, version)
            alone.append(update(engine, fake[1], learner, version))
        assert alone == [False, True, True]
        kinds = {name: tensor.dtype for name, tensor in fake[1].weights.items()}
        assert set(kinds.values()) == {getattr(torch, dtype)}
        sent = engine._sent.weights
        assert all(tensor.dtype == torch.float32 for _, tensor in sent.read())
        if dtype == "float32":
            assert all(torch.allclose(fake[1].weights[n], t, atol=1e-5) for n, t in learner.weights())
        # Weights of a learner without adapters are sent whole, and what was kept is given up.
        engine.update_weights(weights_of(blank_model().network), 4)
        assert not any(tensor.any() for tensor in fake[1].weights.values())
        assert sent.base is not None
        assert sent.base._file.closed
        assert not update(engine, fake[1], learner, 5)
    finally:
        engine.close()


def test_other_weights_beside_the_adapters_are_sent(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    learner, engine = learner_of(), connect(model, fake[0])
    try:
        assert not update(engine, fake[1], learner, 1)
        first = engine._sent.weights.base
        saved = learner.optimizer_state()
        for base in saved["lora"]["bases"].values():
            base += 1
        learner.load_optimizer_state(saved)
        assert not update(engine, fake[1], learner, 2)
        assert first is not None
        assert first._file.closed
        assert update(engine, fake[1], learner, 3)
    finally:
        engine.close()


@pytest.mark.parametrize("fails", ["/update_weights", "/reset_prefix_cache", "/finish_weight_update"])
def test_after_adapters_that_did_not_arrive_all_is_sent(
    model: LanguageModel, fake: tuple[str, FakeVLLM], fails: str
) -> None:
    learner, engine = learner_of(), connect(model, fake[0])
    try:
        update(engine, fake[1], learner, 1)
        train(learner, 1)
        before = {name: tensor.clone() for name, tensor in fake[1].weights.items()}
        fake[1].bad, fake[1].received = {"fail_in": fails, "heals_in": {fails: 2}}, []
        with pytest.raises(EngineError, match=f"{fails}.* answered 500"):
            engine.update_weights(learner.weights(), 2)
        check(ask(engine, 2), version=1)
        assert "model.norm.weight" in fake[1].received  # and not only the adapters of before
        assert all(torch.equal(before[name], tensor) for name, tensor in fake[1].weights.items())
        assert update(engine, fake[1], learner, 3)
    finally:
        engine.close()


def test_a_server_that_slept_is_sent_all(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    learner, engine = learner_of(), connect(model, fake[0], colocated=True)
    try:
        update(engine, fake[1], learner, 1)
        assert update(engine, fake[1], learner, 2)
        engine.sleep()
        assert not update(engine, fake[1], learner, 3)
    finally:
        engine.close()


def test_a_server_with_weights_of_another_trainer_is_sent_all(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    learner, engine = learner_of(), connect(model, fake[0])
    try:
        update(engine, fake[1], learner, 1)
        version, _, *rest = fake[1].version.split("-")
        fake[1].version, fake[1].kept = "-".join([version, "another", *rest]), Kept()
        assert not update(engine, fake[1], learner, 2)
    finally:
        engine.close()


@pytest.mark.usefixtures("forked_servers")
def test_a_server_that_dies_is_sent_all(model: LanguageModel, tmp_path: Path) -> None:
    learner, engine = learner_of(), started(model, made_environment(tmp_path / "venv"))
    try:
        for version in (1, 2):
            engine.update_weights(learner.weights(), version)
        pid = process(engine)
        misbehave(engine, die_in="/update_weights")
        engine.update_weights(learner.weights(), 3)  # adapters alone would be refused by the new one
        assert process(engine) != pid
        check(ask(engine, 2), version=3)
        until(lambda: engine._replicas[0].lane.open)
    finally:
        engine.close()


@pytest.mark.parametrize("way", TRANSPORTS)
def test_adapters_of_ranks(model: LanguageModel, fake: tuple[str, FakeVLLM], way: str) -> None:
    """The weights beside them are written by the ranks, and only the adapters pass the driver."""
    config = config_of(more="learner: {lora_rank: 4, lora_alpha: 6.0}\n")
    rank = Rank(0, 1)
    learner = RankedLearner(Crew(QueueLinks([rank]), 60), config, blank_model(), warm_start=False, threads=1)
    assert isinstance(learner.weights(), Adapted)
    warming = RankedLearner(Crew(QueueLinks([Rank(0, 1)]), 60), config, blank_model(), warm_start=True, threads=1)
    assert not isinstance(warming.weights(), Adapted)
    engine = connect(model, fake[0], transfer=way)
    try:
        alone = []
        for version in (1, 2):
            train(rank._parts["learner"], version)
            alone.append(update(engine, fake[1], learner, version))
        assert alone == [False, True]
    finally:
        engine.close()


def test_merged_by_hand() -> None:
    kept, cpu = Kept(), torch.device("cpu")
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    kept.keep([("w", weight), ("v", weight)])
    kept.adapt([("w.lora_A", torch.tensor([[1.0, 0.5]])), ("w.lora_B", torch.tensor([[2.0], [4.0]]))])
    found = dict(kept.merged(cpu))
    assert found["w"].tolist() == [[3.0, 3.0], [7.0, 6.0]]
    assert found["w"].dtype == torch.bfloat16
    assert found["v"] is weight
    kept.adapt([("w.lora_B", torch.zeros(2, 1))])
    assert torch.equal(dict(kept.merged(cpu))["w"], weight)
    kept.keep([("w", 2 * weight)])
    assert torch.equal(dict(kept.merged(cpu))["w"], 2 * weight), "adapters of other weights are forgotten"
    for name in ("x.lora_A", "w"):
        with pytest.raises(ValueError, match=f"{name} is no adapter of a weight that was kept"):
            kept.adapt([(name, weight)])
    kept.adapt([("w.lora_A", torch.ones(1, 2))])
    with pytest.raises(ValueError, match="the adapter of w lacks one of its two matrices"):
        dict(kept.merged(cpu))
    kept.clear()
    assert not dict(kept.merged(cpu))
