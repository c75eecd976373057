"""Ways of weights into a server, against one that takes them as the plugin of vLLM does (promises 3 and 5), and what a
server on a GPU is started with. Real vLLM takes them in test_vllm."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVLLM
from tiny import tiny_model
from vllm_engines import ask, check, connect, made_environment

from roll_envs.errors import ConfigError, EngineError
from trainer.config import EngineConfig
from trainer.engines import make_engine, transfer
from trainer.engines.remote import RemoteEngine
from trainer.engines.sent_weights import SentWeights, skeleton_of
from trainer.engines.transfer import TRANSPORTS
from trainer.engines.vllm import GPU_BUILD, VLLMSettings, check_vllm, command_line, variables
from trainer.engines.vllm_worker.roll_transfer import views
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

WAYS = list(TRANSPORTS)
UPDATE = ["/start_weight_update", "/update_weights", "/reset_prefix_cache", "/finish_weight_update"]


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a weight may need one of its own."""
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)


def stream(network: Any) -> list[tuple[str, torch.Tensor]]:
    return list(weights_of(network))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_arrives_is_what_was_sent(
    model: LanguageModel, fake: tuple[str, FakeVLLM], small_buckets: None, way: str, dtype: str
) -> None:
    engine = connect(model, fake[0], transfer=way, dtype=dtype)
    try:
        for version in (1, 2):
            fake[1].weights, fake[1].paths = {}, []
            sent = stream(tiny_model(version, hidden_size=64, heads=2, layers=1).network)
            blank = {name: torch.zeros_like(tensor) for name, tensor in sent}
            blank |= dict(sent[2:])  # the head is that of the embedding: all zeros answer as the fake does
            blank["model.norm.weight"] = torch.zeros_like(blank["model.norm.weight"])
            source = ((name, tensor.T.contiguous().T if tensor.ndim == 2 else tensor) for name, tensor in blank.items())
            engine.update_weights(source, version)
            assert fake[1].weights.keys() == blank.keys()
            for name, tensor in blank.items():
                assert torch.equal(fake[1].weights[name], tensor.to(getattr(torch, dtype))), name
            assert (fake[1].paths.count("/update_weights") > 1) == (way != "shared_memory")
            check(ask(engine, 2), version=version)
    finally:
        engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_do_not_fit_are_named_and_those_of_before_serve(
    model: LanguageModel, fake: tuple[str, FakeVLLM], small_buckets: None, way: str
) -> None:
    engine = connect(model, fake[0], transfer=way)
    try:
        good = stream(model.network)
        wrong = [(name, tensor[:1] if "down_proj" in name else tensor) for name, tensor in good]
        for source, said in (
            (good[:-1], f"{good[-1][0]} is missing"),
            ([*good, ("model.other", good[0][1])], "no weight 'model.other'"),
            (wrong, r"down_proj.weight has shape \(1, "),
        ):
            with pytest.raises(EngineError, match=said):
                engine.update_weights(iter(source), 1)
            check(ask(engine, 2), version=0)
        engine.update_weights(iter(good), 2)
        check(ask(engine, 2), version=2)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("hangs", "said"),
    [
        ("/init_weight_transfer_engine", "did not join the trainer at 127.0.0.1"),
        ("/update_weights", "did not take the weights"),
    ],
)
def test_workers_that_do_not_take_part_end_a_broadcast(
    model: LanguageModel, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch, hangs: str, said: str
) -> None:
    engine = connect(model, fake[0], transfer="broadcast", transfer_timeout_s=1)
    try:
        fake[1].bad = {"hang_in": hangs}
        started = time.monotonic()
        with pytest.raises(EngineError, match=f"{said}.* engine.transfer_timeout_s 1"):
            engine.update_weights(weights_of(model.network), 1)
        assert time.monotonic() - started < 10
        with pytest.raises(EngineError, match="must be repeated"):
            ask(engine, 1)
        fake[1].bad = {}
        engine.update_weights(weights_of(model.network), 2)
        check(ask(engine, 2), version=2)
    finally:
        engine.close()


@pytest.mark.parametrize("refuses", ["/init_weight_transfer_engine", "/update_weights"])
def test_a_server_that_refuses_its_side_of_a_broadcast_ends_it_at_once(
    model: LanguageModel, fake: tuple[str, FakeVLLM], refuses: str
) -> None:
    engine = connect(model, fake[0], transfer="broadcast")
    fake[1].bad = {"fail_in": refuses}
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"{refuses} answered 500"):
        engine.update_weights(weights_of(model.network), 1)
    fake[1].bad = {}
    engine.update_weights(weights_of(model.network), 2)
    check(ask(engine, 2), version=2)
    engine.close()
    assert time.monotonic() - started < 10  # of a transfer_timeout_s of 120


def test_an_address_of_another_machine_is_refused(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    with pytest.raises(ConfigError, match=r"engine.transfer_address '192.0.2.1' is no address of this machine"):
        connect(model, fake[0], transfer="broadcast", transfer_address="192.0.2.1")


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_fails_ends_an_update_at_once(
    model: LanguageModel, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    engine = connect(model, fake[0], transfer=way, transfer_timeout_s=30)
    try:
        monkeypatch.setattr(fake[1], "take", lambda **_: fake[1].leave() or 1 / 0)
        started = time.monotonic()
        with pytest.raises(EngineError):
            engine.update_weights(weights_of(model.network), 1)
        assert time.monotonic() - started < 10
    finally:
        engine.close()


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_dies_midway_gets_all_weights_again(
    tmp_path: Path, model: LanguageModel, small_buckets: None, way: str
) -> None:
    environment = made_environment(tmp_path / "venv")
    config = EngineConfig(name="vllm", venv=str(environment), transfer=way, max_tokens=100)  # type: ignore[call-arg]
    engine = make_engine(model, config)
    assert isinstance(engine, RemoteEngine)
    try:
        replica = engine._replicas[0]
        engine._client.run(replica.ask("/misbehave", {"die_in": "/update_weights"}))
        engine.update_weights(weights_of(model.network), 1)
        check(ask(engine, 2), version=1)
        kept = dict(engine._sent.weights.read())
        assert all(torch.equal(kept[name], tensor) for name, tensor in weights_of(model.network))
    finally:
        engine.close()


def test_live_weights_are_read_while_they_are_sent_and_kept() -> None:
    network = tiny_model().network
    taken: list[str] = []

    def source() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights_of(network):
            taken.append(name)
            yield name, tensor

    weights = SentWeights(skeleton_of(network), source(), live=True)
    assert taken == [next(weights_of(network))[0]]  # one, to see where they are
    reading = weights.read()
    first = next(reading)
    assert first[1].data_ptr() == dict(weights_of(network))[first[0]].data_ptr()
    reading.close()  # the server went away
    again = dict(weights.read())
    assert len(taken) == len(again) == len(dict(weights_of(network)))
    assert all(torch.equal(again[name], tensor) for name, tensor in weights_of(network))
    weights.close()


def test_weights_of_a_gpu_are_kept_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_model().network
    weights = SentWeights(skeleton_of(network), weights_of(network), live=True, dtype=torch.bfloat16)
    weights._pinned = torch.zeros(
        weights.most_bytes, dtype=torch.uint8
    )  # of a GPU's weights it is there from the start
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    sent = dict(weights.read())
    assert not os.stat(weights.path).st_size
    assert not waited
    kept = dict(weights.read())
    assert waited
    assert all(torch.equal(kept[name], tensor.bfloat16()) for name, tensor in weights_of(network))
    assert sent.keys() == kept.keys()
    answered = weights.logprobs([1, 2, 3], [4, 5])
    in_file = SentWeights(skeleton_of(network), weights_of(network), dtype=torch.bfloat16)
    assert answered == in_file.logprobs([1, 2, 3], [4, 5])
    for each in (weights, in_file):
        each.close()


def test_a_weight_may_come_by_both_of_its_names() -> None:
    network = tiny_model().network
    both = {name: value.detach() for name, value in network.state_dict(keep_vars=True).items()}
    once = SentWeights(skeleton_of(network), weights_of(network))
    assert len(both) == len(once.tensors) + 1  # the head is tied to the embedding
    twice = SentWeights(skeleton_of(network), both.items())
    assert twice.logprobs((5, 6, 7), (8, 9)) == once.logprobs((5, 6, 7), (8, 9))
    once.close()
    twice.close()


def test_pieces_that_lie_outside_of_a_bucket_are_refused() -> None:
    with pytest.raises(ValueError, match="lies at bytes 0 to 8 of a bucket of 4"):
        list(views(torch.zeros(4, dtype=torch.uint8), [("a", "float32", (2,), 0, 8)]))


# -- an engine that shares a device with the learner ------------------------------------------------------------------


def test_a_colocated_server_wakes_for_weights_before_it_wakes_for_keys_and_values(
    model: LanguageModel, fake: tuple[str, FakeVLLM]
) -> None:
    engine = connect(model, fake[0], colocated=True)
    try:
        assert engine.capabilities.sleep
        running = ask(engine, 2)
        check(running)
        fake[1].paths = []
        engine.sleep()
        engine.sleep()
        assert fake[1].paths == ["/sleep"]
        waiting = ask(engine, 1)
        time.sleep(0.2)
        assert fake[1].paths == ["/sleep"]
        engine.update_weights(weights_of(model.network), 1)
        check(waiting, version=1)
        named = [path for path in fake[1].paths if "wake" in path or path in (*UPDATE, "/inference/v1/generate")]
        probe = "/inference/v1/generate"
        assert named[:-1] == ["/wake_up?tags=weights", *UPDATE, "/wake_up?tags=kv_cache", probe]
        engine.sleep()
        engine.wake()  # the weights are forgotten in between, and sent again
        check(ask(engine, 1), version=1)
        assert fake[1].updates == 3
    finally:
        engine.close()


def test_an_engine_that_sleeps_and_is_paused_wakes_up_paused(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0], colocated=True)
    try:
        engine.sleep()
        engine.pause()
        engine.update_weights(weights_of(model.network), 1)
        waiting = ask(engine, 1)
        time.sleep(0.2)
        assert not waiting[0].done()
        engine.resume()
        check(waiting, version=1)
    finally:
        engine.close()


def test_what_goes_wrong_while_an_engine_sleeps_or_wakes(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0], colocated=True)
    try:
        fake[1].bad = {"fail_in": "/sleep"}
        with pytest.raises(EngineError, match="/sleep fails"):
            engine.sleep()
        fake[1].bad = {}
        engine.sleep()
        fake[1].bad = {"fail_in": "/update_weights"}
        with pytest.raises(EngineError, match="/update_weights fails"):
            engine.update_weights(weights_of(model.network), 1)
        assert fake[1].asleep == {"kv_cache"}
        assert not fake[1].running.is_set()
        fake[1].bad = {}
        engine.update_weights(weights_of(model.network), 2)
        check(ask(engine, 1), version=2)
    finally:
        engine.close()


def test_an_engine_with_a_device_of_its_own_does_not_sleep(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0])
    try:
        assert not engine.capabilities.sleep
        for act in (engine.sleep, engine.wake):
            with pytest.raises(EngineError, match="ask its capabilities first"):
                act()
    finally:
        engine.close()


# -- a server on a GPU: what it is started with; it was not run on one -------------------------------------------------


def test_what_is_only_for_the_cpu_is_not_said_to_a_server_on_a_gpu() -> None:
    settings = VLLMSettings(gpu_memory_utilization=0.4, tensor_parallel_size=2).resolved("cuda")
    words = " ".join(command_line(settings, max_tokens=500, gpu=True))
    for said in (
        "--dtype bfloat16", "--gpu-memory-utilization 0.4", "--tensor-parallel-size 2", "--enable-sleep-mode",
        '--weight-transfer-config {"backend": "roll"}', "--enable-scale-out", "--logprobs-mode processed_logprobs",
    ):  # fmt: skip
        assert said in words
    for unsaid in ("uni", "block-size", "chunked", "eager", "max-num-batched-tokens"):
        assert unsaid not in words
    found = variables(settings, gpu=True)
    assert not any(key.startswith(("VLLM_CPU", "VLLM_ENABLE_V1")) for key in found)
    assert found["VLLM_PLUGINS"] == "roll"
    apart = VLLMSettings(gpus="2,3,5,7", tensor_parallel_size=2, replicas=2).resolved("cuda")
    assert [variables(apart, gpu=True, number=i)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["2,3", "5,7"]
    on_cpu = VLLMSettings(threads=2, kv_cache_gib=3).resolved("cpu")
    words = " ".join(command_line(on_cpu, max_tokens=500, gpu=False))
    assert "--no-enable-chunked-prefill" in words
    assert "--dtype float32" in words
    assert "gpu" not in words
    assert "sleep" not in words
    assert variables(on_cpu, gpu=False)["VLLM_CPU_KVCACHE_SPACE"] == "3"


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        ({}, "cuda", ("bfloat16", True, "ipc")),
        ({"gpus": "1"}, "cuda", ("bfloat16", False, "broadcast")),
        ({"url": "http://127.0.0.1:1"}, "cuda", ("bfloat16", False, "shared_memory")),
        ({"colocated": False, "dtype": "float32"}, "cuda", ("float32", False, "ipc")),
        ({}, "cpu", ("float32", False, "shared_memory")),
    ],
)
def test_auto_follows_the_devices(given: dict[str, Any], device: str, expected: tuple[str, bool, str]) -> None:
    found = VLLMSettings(**given).resolved(device)
    assert (found.dtype, found.colocated, found.transfer) == expected


def test_the_build_for_gpus_is_found_and_its_release_checked(tmp_path: Path, model: LanguageModel) -> None:
    there = VLLMSettings(venv=str(made_environment(tmp_path / "gpu", **GPU_BUILD)))
    assert there.on_gpu("auto")
    assert not there.on_gpu("cpu")
    check_vllm(there)
    other = VLLMSettings(venv=str(made_environment(tmp_path / "other", vllm="0.40.0")))
    with pytest.raises(ConfigError, match=r"vllm in '.*other' is 0.40.0, and 0.32.0 was tested.*accept={vllm: 0.40.0}"):
        check_vllm(other)
    check_vllm(other.model_copy(update={"accept": {"vllm": "0.40.0"}}))
    only_cpu = VLLMSettings(venv=str(made_environment(tmp_path / "cpu")))
    assert not only_cpu.on_gpu("auto")
    with pytest.raises(ConfigError, match="install vLLM's build for GPUs there"):
        check_vllm(only_cpu, "cuda")


def test_memory_of_a_shared_gpu_is_not_passed_to_another_one(tmp_path: Path, model: LanguageModel) -> None:
    environment = str(made_environment(tmp_path / "gpu", **GPU_BUILD))
    config = EngineConfig(name="vllm", venv=environment, gpus="1", transfer="ipc")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"engine.gpus '1' gives the server others; choose broadcast"):
        make_engine(model, config)
    config = EngineConfig(name="vllm", venv=environment, gpus="1", replicas=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"engine.gpus '1' are fewer than the 2 of all replicas"):
        make_engine(model, config)


def test_vllm_beside_the_trainer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made_environment(tmp_path / "own")
    monkeypatch.setattr("trainer.engines.vllm.sys.prefix", str(own))
    monkeypatch.setattr("trainer.engines.vllm.importlib.util.find_spec", lambda name: name == "vllm" or None)
    assert VLLMSettings().environment("vllm") == own
    made_environment(tmp_path / ".venv-vllm")
    assert VLLMSettings().environment("vllm") == tmp_path / ".venv-vllm"
    assert VLLMSettings(venv="x").environment("vllm") == Path("x")
