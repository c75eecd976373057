"""Weights of ranks that go straight to the servers: what passes the driver says where they lie, whatever goes wrong on
the way. Ranks are threads here; processes, with whole runs, are in the slow tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from episode_builders import batches_of, counted
from fake_vllm import FakeVLLM
from test_crew import QueueLinks
from test_learner import some_rows
from test_learner_ranks import config_of, rank_pids
from tiny import tiny_model
from vllm_engines import ask, blank_model, check, connect

from roll_envs.errors import EngineError
from trainer.cluster import rank_weights
from trainer.cluster.crew import Crew, RankError
from trainer.cluster.frames import Answer, unpacked
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.cluster.rank import Rank
from trainer.cluster.rank_weights import deliver
from trainer.cluster.ranked import RankedLearner, _WeightsOf
from trainer.engines import transfer
from trainer.engines.buckets import Delivered, Delivery
from trainer.engines.transfer import TRANSPORTS
from trainer.engines.vllm_worker.roll_transfer import views
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel


class Holder:
    """A rank that holds the weights of ``network``, and what is wrong with it."""

    def __init__(self, rank: int, network: Any) -> None:
        self.rank, self.network, self.blind, self.fails_at, self.left_out = rank, network, False, -1, ""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, (name, tensor) in enumerate(weights_of(self.network)):
            if number == self.fails_at:
                raise ValueError("out of memory")
            if name != self.left_out:
                yield name, tensor

    def sees(self, name: str, path: str, token: bytes) -> tuple[bool, str]:
        return not self.blind and rank_weights.sees(path, token), "cpu"

    def part(self, name: str, method: str) -> Any:
        return self.weights()

    def deliver(self, name: str, delivery: Delivery, bases: bool) -> Iterator[Any]:
        return deliver(self.weights(), delivery, self.rank)


class Counting(QueueLinks):
    """Counts what the ranks send to the driver."""

    received = 0
    kinds: set[str]

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        found = super().receive(timeout_s)
        if found is not None and found[1] is not None:
            self.received += len(found[1])
            answer: Answer = unpacked(found[1])
            if answer.kind == "item":
                self.kinds = {*getattr(self, "kinds", ()), type(answer.value).__name__}
        return found


class Held:
    """Two ranks and the driver's view of them."""

    def __init__(self, network: Any) -> None:
        self.holders = [Holder(rank, network) for rank in range(2)]
        self.links = Counting(self.holders)
        self.crew = Crew(self.links, 30)

    def weights(self) -> _WeightsOf:
        return _WeightsOf(self.crew, "learner")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)
    network = blank_model().network
    with torch.no_grad():  # the head is that of the embedding: these change no logit
        for name, parameter in network.named_parameters():
            if "mlp" in name or "self_attn" in name:
                parameter.normal_()
    return Held(network)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", TRANSPORTS)
def test_weights_of_ranks_do_not_pass_the_driver(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, way: str, dtype: str
) -> None:
    assert isinstance(held.weights(), Delivered)
    engine = connect(model, fake[0], transfer=way, dtype=dtype)
    try:
        for version in (1, 2):
            fake[1].weights, fake[1].paths = {}, []
            engine.update_weights(held.weights(), version)
            expected = {n: t.to(getattr(torch, dtype)) for n, t in weights_of(held.holders[0].network)}
            assert fake[1].weights.keys() == expected.keys()
            kept = dict(engine._sent.weights.read())
            for name, tensor in expected.items():
                assert torch.equal(fake[1].weights[name], tensor), name
                assert torch.equal(kept[name], tensor), name
            check(ask(engine, 2), version=version)
            assert (fake[1].paths.count("/update_weights") > 1) == (way == "broadcast")
        assert held.links.kinds == {"Word"}
        assert held.links.received < sum(t.nbytes for _, t in weights_of(held.holders[0].network)) / 4
    finally:
        engine.close()


def test_weights_that_ranks_have_written_are_sent_from_memory(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are found there, before anything is sent: a device of a rank may be none of this process."""
    engine = connect(model, fake[0], transfer="ipc", deltas=True)
    try:
        for version in (1, 2):
            weights = held.weights()
            monkeypatch.setattr(weights, "writers", lambda *_: ((0,), torch.device("cuda", 7)))
            fake[1].version = "default"  # it has other weights than it was sent
            engine.update_weights(weights, version)
            for name, tensor in weights_of(held.holders[0].network):
                assert torch.equal(fake[1].weights[name], tensor), name
    finally:
        engine.close()


def test_weights_of_ranks_are_sent_again_from_memory(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a server that is given back those of before, from the driver: a device of a rank may be none of it."""
    engine = connect(model, fake[0], transfer="ipc")
    try:
        for version in (1, 2):
            weights = held.weights()
            monkeypatch.setattr(weights, "writers", lambda *_: ((0,), torch.device("cuda", 7)))
            if version == 1:
                engine.update_weights(weights, version)
                continue
            fake[1].bad = {"fail_in": "/finish_weight_update", "heals_in": {"/finish_weight_update": 2}}
            with pytest.raises(EngineError, match=r"/finish_weight_update.* answered 500"):
                engine.update_weights(weights, version)
        fake[1].bad = {}
        check(ask(engine, 2), version=1)
    finally:
        engine.close()


def test_each_rank_writes_its_share(tmp_path: Path, held: Held) -> None:
    network = held.holders[0].network
    path = tmp_path / "weights"
    path.write_bytes(b"token")
    alone: list[set[str]] = []
    for rank in (0, 2):
        path.write_bytes(b"")
        *_, last = deliver(weights_of(network), Delivery(str(path), (0, 2), None), rank)
        memory = torch.zeros(last.pieces[-1][4], dtype=torch.uint8)
        found = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        memory[: len(found)] = found
        whole = dict(weights_of(network))
        alone.append({n for n, t in views(memory, last.pieces) if t.count_nonzero() and torch.equal(t, whole[n])})
    names = [n for n, t in weights_of(network) if t.count_nonzero()]
    assert sorted([*alone[0], *alone[1]]) == sorted(names)
    assert all(alone)


@pytest.mark.parametrize("bases", [False, True])
def test_a_rank_with_adapters_writes_them_merged_or_what_is_beside_them(tmp_path: Path, bases: bool) -> None:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    config = config_of(more="learner: {lora_rank: 2, device: cpu}\n")
    learner = RankedLearner(Crew(QueueLinks([Rank(0, 1)]), 60), config, tiny_model(), warm_start=False, threads=1)
    rows, advantages = some_rows()
    learner.step(batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=60), counted(rows), lr=0.1)
    weights: Any = learner.weights().bases() if bases else learner.weights()  # type: ignore[attr-defined]
    path = tmp_path / "weights"
    path.write_bytes(b"")
    *_, last = weights.deliver(Delivery(str(path), (0,), None))
    found = dict(views(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), last.pieces))
    first, sent = dict(weights_of(tiny_model().network)), dict(weights)
    assert found.keys() == sent.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in sent.items())
    assert all(torch.equal(found[name], tensor) for name, tensor in first.items()) is bases


@pytest.mark.parametrize("way", TRANSPORTS)
def test_a_rank_that_sees_no_file_leaves_the_writing_to_others(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, way: str
) -> None:
    engine = connect(model, fake[0], transfer=way)
    try:
        for version, blind in ((1, [1]), (2, [0, 1])):
            for rank in blind:
                held.holders[rank].blind = True
            engine.update_weights(held.weights(), version)
            for name, tensor in weights_of(held.holders[0].network):
                assert torch.equal(fake[1].weights[name], tensor), name
            check(ask(engine, 1), version=version)
        assert held.links.kinds == {"Word", "tuple"}, "where none sees it, they come through the driver"
    finally:
        engine.close()


def test_a_path_that_names_another_file_here_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    assert not rank_weights.sees(str(path), b"token")
    path.write_bytes(b"nekot...")
    assert not rank_weights.sees(str(path), b"token")
    path.write_bytes(b"token...")
    assert rank_weights.sees(str(path), b"token")


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_where_a_rank_fails_midway_the_weights_of_before_go_on(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, way: str, rank: int
) -> None:
    engine = connect(model, fake[0], transfer=way)
    try:
        held.holders[rank].fails_at = 6
        with pytest.raises(RankError, match=f"(?s)out of memory.*rank {rank} of 2"):
            engine.update_weights(held.weights(), 1)
        check(ask(engine, 2), version=0)
        engine.update_weights(Held(held.holders[0].network).weights(), 2)  # of new ranks: the others were ended
        check(ask(engine, 2), version=2)
    finally:
        engine.close()


@pytest.mark.parametrize("way", TRANSPORTS)
def test_weights_of_ranks_that_do_not_fit_are_named(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, way: str
) -> None:
    engine = connect(model, fake[0], transfer=way)
    try:
        for holder in held.holders:
            holder.left_out = "model.norm.weight"
        with pytest.raises(EngineError, match=r"model\.norm\.weight is missing"):
            engine.update_weights(held.weights(), 1)
        for holder in held.holders:
            holder.left_out = ""
        engine.update_weights(held.weights(), 1)
        check(ask(engine, 1), version=1)
    finally:
        engine.close()


@pytest.mark.parametrize("route", ["/init_weight_transfer_engine", "/update_weights"])
@pytest.mark.parametrize("fault", ["fail_in", "hang_in"])
def test_ranks_outlive_a_server_that_does_not_take_their_broadcast(
    model: LanguageModel, fake: tuple[str, FakeVLLM], held: Held, fault: str, route: str
) -> None:
    engine = connect(model, fake[0], transfer="broadcast", transfer_timeout_s=2)
    try:
        fake[1].bad = {fault: route}
        mended = threading.Timer(1.0, fake[1].bad.clear)
        mended.start()
        said = f"{route} answered 500" if fault == "fail_in" else "within engine.transfer_timeout_s 2"
        with pytest.raises(EngineError, match=said):
            engine.update_weights(held.weights(), 1)
        mended.join()
        assert held.crew.call("sees", "learner", "", b"") == [(False, "cpu")] * 2  # they have done with it
        engine.update_weights(held.weights(), 2)
        check(ask(engine, 2), version=2)
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("way", ["shared_memory", "broadcast"])
def test_weights_of_rank_processes_and_one_that_is_killed_midway(
    model: LanguageModel, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)
    engine = connect(model, fake[0], transfer=way)
    others = rank_pids()
    with LearnerRanks(config_of("{ranks: 2, timeout_s: 60}", "")) as ranks:
        learner = ranks.learner(model, warm_start=False, threads=1)
        engine.update_weights(learner.weights(), 1)
        check(ask(engine, 2), version=1)
        assert all(torch.equal(fake[1].weights[name], tensor) for name, tensor in weights_of(model.network))
        victim, whole = max(rank_pids() - others), _WeightsOf.deliver

        def stopped(self: _WeightsOf, delivery: Delivery) -> Iterator[Any]:
            os.kill(victim, signal.SIGSTOP)
            threading.Timer(2.0, os.kill, (victim, signal.SIGKILL)).start()
            return whole(self, delivery)

        monkeypatch.setattr(_WeightsOf, "deliver", stopped)
        began = time.monotonic()
        with pytest.raises(RankError, match="was killed by SIGKILL"):
            engine.update_weights(learner.weights(), 2)
        assert time.monotonic() - began < 30
        engine.update_weights(weights_of(model.network), 3)
        check(ask(engine, 2), version=3)
    engine.close()
