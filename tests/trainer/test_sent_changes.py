"""Changes that are sent to servers that keep the weights of before: there they become the new weights to the bit, and
whoever may not have those of before gets all of them (promise 3). Real vLLM takes them in test_vllm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from fake_vllm import FakeVLLM
from vllm_engines import ask, blank_model, check, connect

from roll_envs.errors import EngineError
from trainer.engines import transfer
from trainer.engines.buckets import changes
from trainer.engines.remote import RemoteEngine
from trainer.engines.transfer import TRANSPORTS
from trainer.engines.vllm_worker.roll_transfer import Kept
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel


def trained(seed: int) -> LanguageModel:
    """Most numbers are those of every other seed, and logits stay those of a blank model."""
    model = blank_model()
    weights = dict(weights_of(model.network))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in weights.items():
            if "_proj" in name:
                weight.view(-1)[torch.randint(weight.numel(), (20,))] = torch.randn(20)
        weights["model.layers.0.input_layernorm.weight"].normal_()
    return model


def update(engine: RemoteEngine, fake: FakeVLLM, seed: int, version: int, dtype: str = "float32") -> bool:
    """Whether less than a quarter of the weights crossed; what the server has then is what was sent, to the bit."""
    fake.received, fake.received_bytes = [], 0
    model = trained(seed)
    engine.update_weights(weights_of(model.network), version)
    for name, tensor in weights_of(model.network):
        assert torch.equal(fake.weights[name], tensor.to(getattr(torch, dtype))), name
    check(ask(engine, 2), version=version)
    return fake.received_bytes < 0.25 * sum(tensor.nbytes for tensor in fake.weights.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", [*TRANSPORTS, "folder"])
def test_what_changed_alone_is_sent_to_who_has_the_rest(
    model: LanguageModel,
    fake: tuple[str, FakeVLLM],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    way: str,
    dtype: str,
) -> None:
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)
    placed = {"weights_folder": str(tmp_path)} if way == "folder" else {"transfer": way}
    engine = connect(model, fake[0], dtype=dtype, deltas=True, **placed)
    try:
        assert [update(engine, fake[1], seed, 1 + seed, dtype) for seed in range(3)] == [True] * 3
        assert update(engine, fake[1], 2, 4, dtype), "weights that are the same"
        assert fake[1].received == [list(dict(weights_of(model.network)))[-1]]
        fake[1].version = "default"  # it has other weights than it was sent
        assert not update(engine, fake[1], 5, 5, dtype)
        if way == "folder":  # from where a server of another site reads them
            assert engine._sent.whole is not None
            assert Path(engine._sent.whole.path).stat().st_size >= fake[1].received_bytes
        assert update(engine, fake[1], 6, 6, dtype)
        if way == "folder":
            files = [file for file in tmp_path.iterdir() if file.stat().st_size]
            assert len(files) == 1, "all weights are written only where they are needed"
    finally:
        engine.close()
    assert not list(tmp_path.iterdir())


def test_weights_of_less_precision_than_those_of_before(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0], deltas=True)
    try:
        for version in (1, 2):
            weights = {name: tensor.bfloat16() for name, tensor in weights_of(trained(version).network)}
            engine.update_weights(iter(weights.items()), version)
            assert all(torch.equal(fake[1].weights[name], tensor) for name, tensor in weights.items())
            check(ask(engine, 2), version=version)
    finally:
        engine.close()


def test_after_changes_that_did_not_arrive_the_weights_of_before_serve(
    model: LanguageModel, fake: tuple[str, FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(model, fake[0], deltas=True, weights_folder=str(tmp_path))
    try:
        assert update(engine, fake[1], 1, 1)
        before, take, taken = dict(fake[1].weights), fake[1].take, []

        def damaged(**info: object) -> None:
            taken.append(info["use"])
            if len(taken) == 1:
                with open(str(info["path"]), "r+b") as file:
                    first = os.pread(file.fileno(), 1, 0)[0]
                    os.pwrite(file.fileno(), bytes([first ^ 1]), 0)
            take(**info)  # type: ignore[arg-type]

        monkeypatch.setattr(fake[1], "take", damaged)
        with pytest.raises(EngineError, match=r"/update_weights.*"):
            engine.update_weights(weights_of(trained(2).network), 2)
        assert taken == ["change", "keep"]
        assert all(torch.equal(before[name], tensor) for name, tensor in fake[1].weights.items())
        check(ask(engine, 2), version=1)
        assert update(engine, fake[1], 3, 3)
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_changes_by_hand(dtype: torch.dtype) -> None:
    before = {"a": torch.zeros(100, 2, dtype=dtype), "b": torch.ones(4, dtype=dtype), "c": torch.ones(4, dtype=dtype)}
    after = {name: tensor.clone() for name, tensor in before.items()}
    after["a"][3, 1], after["a"][99, 0] = 5.0, float("nan")
    after["c"][:3] = 2.0
    after["a"][0, 0] = -0.0
    found = dict(changes(before.items(), after.items()))
    assert list(found) == ["a.places", "a.numbers", "c"]
    assert found["a.places"].tolist() == [0, 7, 198]
    kept = Kept()
    kept.keep((name, tensor.clone()) for name, tensor in before.items())
    kept.change(found.items())
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    for name, tensor in kept.merged(torch.device("cpu")):
        assert torch.equal(tensor.view(bits), after[name].view(bits)), name
    assert next(changes(after.items(), after.items()))[0] == "c", "there is something to send"
    with pytest.raises(ValueError, match=r"d\.places changes a weight that was not kept before"):
        kept.change([("d.places", torch.zeros(1, dtype=torch.int32))])


@pytest.mark.parametrize("kinds", [(torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)])
def test_a_weight_of_another_type_comes_whole(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    """The first weights are those of the model that was loaded, in float32; a learner may give out bfloat16."""
    before, after = ({"a": torch.zeros(100, dtype=kind), "b": torch.ones(100, dtype=torch.float32)} for kind in kinds)
    before["a"][0] = 1.0
    bits = before["a"].view(torch.int16)[: 1 if kinds[0] == torch.float16 else 2]
    after["a"].view(torch.int16)[: len(bits)] = bits  # other numbers by the same bits
    assert [name for name, _ in changes(before.items(), after.items())] == ["a"]
    kept = Kept()
    kept.keep(before.items())
    kept.change(changes(before.items(), after.items()))
    found = dict(kept.merged(torch.device("cpu")))
    assert found["a"].dtype == torch.bfloat16
    assert torch.equal(found["a"], after["a"])
