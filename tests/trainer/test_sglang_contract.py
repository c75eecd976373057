"""The SGLang engine against a contract server of ours, which follows 0.5.23's wire format. Promises 2 (a failure is
never a reward), 3 (nothing waits for ever) and 5 (what the server answers is what was sent to it)."""

from __future__ import annotations

import copy
import gc
import importlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_sglang
import httpx
import pytest
import torch
from fake_sglang import FakeSGLang, running_fake
from fake_sglang_bodies import Generate, Sampling
from fake_sglang_scheduler import Request, Scheduler, spans, unflattened
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import configured
from tiny import full_logits, tiny_model

from roll_envs.errors import ConfigError, DeadlineExceededError, EngineError
from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig, LossConfig, OptimizerConfig
from trainer.engines import check_can_train, make_engine, server, sglang, sglang_dialect
from trainer.engines.preflight import WORKER
from trainer.engines.remote import RemoteEngine
from trainer.engines.replica import Sent
from trainer.engines.server import ServerFaultError
from trainer.engines.sglang import LOADERS, TESTED, SGLangSettings
from trainer.engines.sglang_dialect import SGLangDialect
from trainer.learner import TorchSettings
from trainer.learner.adapters import AdaptedWeights
from trainer.learner.torch import TorchLearner
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

PROMPT = (5, 6, 7)
FOREVER = 60.0
VOCABULARY = 265
TRANSFERS = ("tensor", "disk", "distributed")
Models = dict[int, LanguageModel]


@pytest.fixture(scope="module")
def models() -> Models:
    """A model for each version of the weights."""
    torch.set_num_threads(1)
    return {version: tiny_model(seed=version) for version in range(4)}


def dummy(model: LanguageModel) -> Any:
    """The network of ``model`` with other weights, as a server has that was just started."""
    network = copy.deepcopy(model.network)
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    return network


@pytest.fixture
def fake(models: Models) -> Iterator[tuple[str, FakeSGLang]]:
    with running_fake(dummy(models[0])) as found:
        yield found


def connect(model: LanguageModel, url: str | list[str], **settings: Any) -> RemoteEngine:
    values = {"url": url, "max_tokens": 100, "dtype": "float32", **settings}
    engine = make_engine(model, EngineConfig(name="sglang", **values))
    assert isinstance(engine, RemoteEngine)
    return engine


@pytest.fixture
def engine(models: Models, fake: tuple[str, FakeSGLang]) -> Iterator[RemoteEngine]:
    made = connect(models[0], fake[0])
    yield made
    made.close()


def ask(
    engine: RemoteEngine, count: int, *, n: int = 4, temperature: float = 1.0, timeout_s: float = FOREVER
) -> list[Future[Completion]]:
    sampling = SamplingParams(max_new_tokens=n, temperature=temperature)
    return [engine.submit(PROMPT, sampling, timeout_s=timeout_s) for _ in range(count)]


def check(
    answers: Sequence[Completion], models: Models, version: int | None = 0, *, n: int = 4, temperature: float = 1.0
) -> None:
    """Each id was sampled by the weights that its span names; by ``version`` alone unless that is None."""
    for each in answers:
        assert (each.finish, len(each.ids)) == ("length", n)
        if version is not None:
            assert each.spans == ((version, n),)
        by = [v for v, tokens in each.spans for _ in range(tokens)]
        logp = {v: (full_logits(models[v], (*PROMPT, *each.ids)) / temperature).log_softmax(-1) for v in set(by)}
        expected = [
            float(logp[v][len(PROMPT) - 1 + i, token]) for i, (v, token) in enumerate(zip(by, each.ids, strict=True))
        ]
        assert each.logprobs == pytest.approx(expected, rel=1e-5, abs=1e-5)  # float32, in batches of any make


def results(answers: Sequence[Future[Completion]]) -> list[Completion]:
    return [each.result(FOREVER) for each in answers]


def until(done: Any, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 1.45, 0.0])
def test_answers_have_the_log_probabilities_of_the_weights(
    engine: RemoteEngine, models: Models, temperature: float
) -> None:
    check(results(ask(engine, 5, temperature=temperature)), models, temperature=temperature or 1.0)
    engine.update_weights(weights_of(models[1].network), 1)
    check(results(ask(engine, 5, temperature=temperature)), models, 1, temperature=temperature or 1.0)
    check_can_train("sglang", engine)
    engine.health()


def test_what_a_request_says(engine: RemoteEngine, fake: tuple[str, FakeSGLang]) -> None:
    sampling = SamplingParams(max_new_tokens=3, temperature=0.7, stop_ids=(9, 11), seed=2**63 + 5)
    engine.generate(PROMPT, sampling, timeout_s=FOREVER)
    body = fake[1].bodies[-1][1]
    assert isinstance(body, Generate)
    assert (body.input_ids, body.return_logprob) == ([5, 6, 7], True)
    asked = body.sampling_params
    assert (asked.stop_token_ids, asked.ignore_eos, asked.sampling_seed) == ([9, 11], False, 5)
    # The longest prompt and the longest answer that engine.max_tokens allows fit into the context.
    longest = engine.generate(tuple(range(5, 100)), SamplingParams(max_new_tokens=5), timeout_s=FOREVER)
    assert len(longest.ids) == 5
    for n in (1, 99):
        completion = engine.generate(PROMPT[:1] * (100 - n), SamplingParams(max_new_tokens=n), timeout_s=FOREVER)
        assert (completion.finish, len(completion.ids)) == ("length", n)


def test_only_the_ids_of_a_request_end_its_answer(models: Models, fake: tuple[str, FakeSGLang]) -> None:
    config = fake[1].scheduler.network.config
    config.eos_token_id = None
    engine = connect(models[0], fake[0])
    greedy = SamplingParams(max_new_tokens=20, temperature=0.0)
    whole = engine.generate(PROMPT, greedy, timeout_s=FOREVER)
    stop = next(i for i in whole.ids[3:] if i not in whole.ids[:3])
    ended = engine.generate(PROMPT, replace(greedy, stop_ids=(stop,)), timeout_s=FOREVER)
    assert (ended.finish, ended.ids) == ("stop", whole.ids[: whole.ids.index(stop) + 1])
    # The model's folder has an id that ends a text: it ends those answers too that have ids of their own to end them.
    config.eos_token_id = stop
    absent = next(i for i in range(5, VOCABULARY) if i not in whole.ids)
    for stop_ids in ((), (absent,)):
        before = fake[1].paths.count("/generate")
        answer = engine.generate(PROMPT, replace(greedy, stop_ids=stop_ids), timeout_s=FOREVER)
        assert (answer.ids, answer.finish) == (whole.ids, "length")
        check([answer], models, n=20)
    assert fake[1].paths.count("/generate") > before + 1  # the rest was asked for
    engine.close()


FAULTS = (
    "half", "drop", "text", "500", "503", "empty", "list", "short", "other id", "text ids", "no log-probs", "finish",
    "foreign", "unlabelled", "no versions", "no spans", "spans", "gap",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_answer_is_asked_again(
    engine: RemoteEngine, fake: tuple[str, FakeSGLang], models: Models, fault: str
) -> None:
    fake[1].bad["generate"] = [fault, fault]
    before = fake[1].paths.count("/generate")
    check(results(ask(engine, 1)), models)
    assert fake[1].paths.count("/generate") == before + 3


@pytest.mark.parametrize("fault", ["abort", "stop"])
def test_what_ends_too_early_is_kept_and_the_rest_asked_for(
    engine: RemoteEngine, fake: tuple[str, FakeSGLang], models: Models, fault: str
) -> None:
    fake[1].bad["generate"] = [f"half {fault}"] * 2
    before = fake[1].paths.count("/generate")
    check(results(ask(engine, 1, n=12)), models, n=12)
    assert fake[1].paths.count("/generate") == before + 3


@pytest.mark.parametrize("fault", ["half", "short", "503"])
def test_a_request_that_is_never_answered_well_ends_at_its_deadline(
    engine: RemoteEngine, fake: tuple[str, FakeSGLang], fault: str
) -> None:
    fake[1].bad["generate"] = [fault] * 1000
    with pytest.raises(DeadlineExceededError, match=r"after 0\.4 s"):
        ask(engine, 1, timeout_s=0.4)[0].result()


@pytest.mark.parametrize(
    ("fault", "said"), [("nan", "not finite"), ("-inf", "not finite"), ("400", "refused /generate")]
)
def test_what_asking_again_cannot_mend_is_an_error(
    engine: RemoteEngine, fake: tuple[str, FakeSGLang], fault: str, said: str
) -> None:
    fake[1].bad["generate"] = [fault]
    with pytest.raises(EngineError, match=said):
        ask(engine, 1)[0].result()


def test_pause_abort_and_close(engine: RemoteEngine, fake: tuple[str, FakeSGLang], models: Models) -> None:
    fake[1].bad["step_s"] = 0.01
    waiting = ask(engine, 3, n=30)
    until(lambda: fake[1].scheduler.steps > 15)
    engine.pause()
    steps = fake[1].scheduler.steps
    waiting += ask(engine, 2, n=30)
    time.sleep(0.1)
    assert fake[1].scheduler.steps == steps
    engine.update_weights(weights_of(models[2].network), 2)  # stays paused
    assert fake[1].scheduler.steps == steps
    assert not any(each.done() for each in waiting)
    engine.resume()
    answers = results(waiting)
    check(answers, models, None, n=30)
    assert [[v for v, _ in a.spans] for a in answers] == [[0, 2]] * 3 + [[2]] * 2
    waiting = ask(engine, 80, n=60)  # more than the server runs at once
    until(lambda: sum(bool(each.ids) for each in list(fake[1].scheduler.running)) > 1)
    assert waiting[0].cancel()
    engine.abort()
    answers = results(waiting[1:])
    assert {a.finish for a in answers} == {"abort"}
    assert max(len(a.ids) for a in answers) < 60
    assert {0} < {len(a.ids) for a in answers}
    waiting = ask(engine, 1, n=60)
    engine.close()
    assert waiting[0].result().finish == "abort"
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        ask(engine, 1)


def test_the_engine_hears_how_full_the_memory_is(engine: RemoteEngine, fake: tuple[str, FakeSGLang]) -> None:
    replica = engine._replicas[0]
    replica.lane.running = replica.lane.limit
    fake[1].bad["load"] = {"token_usage": 0.99, "num_waiting_reqs": 7}
    engine._client.run(replica.follow_load())
    assert replica.lane.limit == 128 * 4 // 5
    fake[1].bad["load"] = {"token_usage": None}
    engine._client.run(replica.follow_load())
    assert replica.lane.limit == 128 * 4 // 5


def test_two_servers_share_the_work_and_have_the_same_weights(models: Models) -> None:
    with running_fake(dummy(models[0])) as one, running_fake(dummy(models[0])) as two:
        for transfer in TRANSFERS:
            engine = connect(models[0], [one[0], two[0]], transfer=transfer)
            engine.update_weights(weights_of(models[3].network), 3)
            check(results(ask(engine, 40)), models, 3)
            engine.close()
        assert min(each[1].paths.count("/generate") for each in (one, two)) > 30


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("tied", [False, True])
def test_each_way_of_sending_weights(
    transfer: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_dialect, "BUCKET_BYTES", 5000)  # several buckets
    models = {version: tiny_model(seed=version) for version in (0, 1)}
    for each in models.values():  # tied as they are made
        each.network.config.tie_word_embeddings = tied
        if not tied:
            each.network.lm_head.weight = torch.nn.Parameter(torch.randn_like(each.network.lm_head.weight))
    folder = {"weights_folder": str(tmp_path)} if transfer == "disk" else {}
    with running_fake(dummy(models[0])) as (url, fake):
        engine = connect(models[0], url, transfer=transfer, **folder)
        check(results(ask(engine, 3)), models)
        for version, name in ((1, "model.embed_tokens.weight"), (1, "lm_head.weight")):
            weights = {k: v.detach() for k, v in models[version].network.state_dict().items()}
            if tied:  # by whichever name they come
                del weights[name]
            engine.update_weights(weights.items(), version)
            check(results(ask(engine, 3)), models, version)
        assert fake.scheduler.updates == 3
        asked = fake.paths.count(f"/update_weights_from_{transfer}")
        assert asked == 3 if transfer == "disk" else asked > 9
        engine.close()
    assert list(tmp_path.iterdir()) == []


def adapted(model: LanguageModel) -> TorchLearner:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    settings = TorchSettings(lora_rank=4, lora_alpha=6.0)
    return TorchLearner(model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=1.0, settings=settings)


def trained(learner: TorchLearner, models: Models, version: int) -> AdaptedWeights:
    """Weights of other adapters than before, which ``models`` has, merged, as ``version``."""
    torch.manual_seed(version)
    merged = models[version] = tiny_model()
    with torch.no_grad():
        for name, parameter in learner._network.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3)
        for name, tensor in learner.weights():
            merged.network.get_parameter(name).copy_(tensor)
    weights = learner.weights()
    assert isinstance(weights, AdaptedWeights)
    return weights


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a server that is started gets by its command line and its path, for one in this process."""
    monkeypatch.syspath_prepend(str(WORKER))
    for name in ("roll_sglang", "roll_transfer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return list(LOADERS.values())


def test_adapters_alone_are_sent_to_who_has_the_rest(loaders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_dialect, "BUCKET_BYTES", 5000)
    models, learner = {0: tiny_model()}, adapted(tiny_model())
    with running_fake(dummy(models[0]), custom_weight_loader=loaders) as (url, fake):
        engine = connect(models[0], url)
        engine._dialect.merges_adapters = True
        flushes = fake.scheduler.updates
        used = []
        for version in (1, 2, 3):
            fake.bodies.clear()
            engine.update_weights(trained(learner, models, version), version)
            check(results(ask(engine, 3)), models, version)
            sent = [body for path, body in fake.bodies if path == "/update_weights_from_tensor"]
            used.append([body.load_format.removeprefix("roll_sglang.") for body in sent])
            assert [body.flush_cache for body in sent] == [False] * (len(sent) - 1) + [True]
            assert [body.weight_version is None for body in sent] == [True] * (len(sent) - 1) + [False]
        assert fake.scheduler.updates == flushes + 3
        assert [set(each) for each in used] == [{"keep", "adapt", "load"}, {"adapt", "load"}, {"adapt", "load"}]
        assert all(each.count("load") == 1 and each[-1] == "load" for each in used)
        fake.scheduler.version = "0-another-1"
        fake.bodies.clear()
        engine.update_weights(trained(learner, models, 4), 4)
        assert "roll_sglang.keep" in {body.load_format for path, body in fake.bodies if path.endswith("from_tensor")}
        check(results(ask(engine, 3)), models, 4)
        engine.update_weights(weights_of(models[0].network), 5)  # without adapters
        check(results(ask(engine, 3)), {5: models[0]}, 5)
        engine.close()


def test_what_is_kept_is_no_memory_of_the_trainer(loaders: list[str]) -> None:
    worker: Any = importlib.import_module("roll_sglang")
    sent = {name: torch.ones(2, 2) for name in ("w", "v", "w.lora_A", "w.lora_B")}
    found: dict[str, torch.Tensor] = {}
    model = SimpleNamespace(parameters=lambda: iter([torch.empty(0)]), load_weights=found.update)
    for loader, names in (("keep", ("w", "v")), ("adapt", ("w.lora_A",)), ("load", ("w.lora_B",))):
        assert not found
        getattr(worker, loader)(model, [(name, sent[name]) for name in names])
        if loader != "load":
            for name in names:
                sent[name].zero_()
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w": [[3.0] * 2] * 2, "v": [[1.0] * 2] * 2}


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_servers_without_our_loaders_are_sent_merged_weights(transfer: str, fake: tuple[str, FakeSGLang]) -> None:
    models, learner = {0: tiny_model()}, adapted(tiny_model())
    engine = connect(models[0], fake[0], transfer=transfer)
    for version in (1, 2):
        engine.update_weights(trained(learner, models, version), version)
        check(results(ask(engine, 3)), models, version)
    engine.close()


def test_each_tensor_of_a_bucket_begins_at_a_multiple_of_its_width() -> None:
    kinds = (torch.int8, torch.float32, torch.bfloat16, torch.int8, torch.float64)
    weights = [(str(i), torch.arange(3).to(kind)) for i, kind in enumerate(kinds)]
    found = []
    for bucket, last in sglang_dialect._buckets(weights):
        flat, places = sglang_dialect._flattened(bucket, torch.device("cpu"))
        assert all(place.start_idx % place.dtype.itemsize == 0 for place in places)
        found += unflattened({"flattened_tensor": flat, "metadata": places})
        assert last == (len(found) == len(weights))
    assert [name for name, _ in found] == [name for name, _ in weights]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(found, weights, strict=True))


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_an_update_in_mid_flight_says_which_ids_are_whose(
    models: Models, fake: tuple[str, FakeSGLang], transfer: str
) -> None:
    engine = connect(models[0], fake[0], transfer=transfer)
    fake[1].bad["step_s"] = 0.01
    waiting = ask(engine, 4, n=60)
    for version in (1, 2):
        before = fake[1].scheduler.steps
        until(lambda before=before: fake[1].scheduler.steps > before + 12)  # type: ignore[misc]
        waiting += ask(engine, 2, n=60)
        engine.update_weights(weights_of(models[version].network), version)
    answers = results(waiting)
    check(answers, models, None, n=60)
    assert [[v for v, _ in a.spans] for a in answers[:4]] == [[0, 1, 2]] * 4
    assert {a.weight_version for a in answers[:4]} == {0}
    assert max(a.spans[-1].tokens for a in answers) > 20
    assert fake[1].scheduler.steps < 4 * 60  # nothing was sampled twice
    engine.close()


def test_weights_that_do_not_fit_are_refused_and_those_of_before_serve(engine: RemoteEngine, models: Models) -> None:
    good = dict(weights_of(models[1].network))
    name = next(iter(good))
    for bad, said in (
        ({**good, "other": good[name]}, "no weight 'other'"),
        ({k: v for k, v in good.items() if k != name}, f"{name} is missing"),
    ):
        with pytest.raises(EngineError, match=said):
            engine.update_weights(bad.items(), 1)
        check(results(ask(engine, 1)), models, 0)
    engine.update_weights(good.items(), 1)
    check(results(ask(engine, 1)), models, 1)


BROKEN = [
    ("tensor", {"shift": 0.01}, r"log-probabilities differ from those of the weights that were sent by 0\.01"),
    ("tensor", {"keeps_cache": True}, "log-probabilities differ"),
    ("tensor", {"before_temperature": True}, "log-probabilities differ.*computes or samples otherwise"),
    ("tensor", {"fail_in": "/update_weights_from_tensor"}, "/update_weights_from_tensor answered 500"),
    ("tensor", {"half_in": "/update_weights_from_tensor"}, "/update_weights_from_tensor: ClientPayloadError"),
    ("tensor", {"fail_in": "/end_weight_update"}, "/end_weight_update answered 500"),
    ("tensor", {"hang_in": "/begin_weight_update"}, r"gave up waiting for /begin_weight_update after 0\.8 s"),
    ("disk", {"fail_in": "/update_weights_from_disk"}, "/update_weights_from_disk answered 500"),
    ("distributed", {"fail_in": "/init_weights_update_group"}, "/init_weights_update_group answered 500"),
    ("distributed", {"fail_in": "/update_weights_from_distributed"}, "/update_weights_from_distributed answered 500"),
]


@pytest.mark.parametrize(("transfer", "bad", "said"), [fault for fault in BROKEN if "keeps_cache" not in fault[1]])
def test_nothing_is_answered_where_the_weights_of_before_cannot_be_given_back_until_an_update_succeeds(
    fake: tuple[str, FakeSGLang],
    models: Models,
    transfer: str,
    bad: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = connect(models[0], fake[0], transfer=transfer, transfer_timeout_s=1.0)
    monkeypatch.setattr(server, "ROUTE_TIMEOUT_S", 0.8)
    for replica in engine._dialect._groups.values():  # type: ignore[attr-defined]
        replica.abort()
    engine._dialect._groups.clear()  # type: ignore[attr-defined]
    fake[1].bad["step_s"] = 0.05
    running = ask(engine, 2, n=12)
    time.sleep(0.1)
    fake[1].bad.update(bad)
    with pytest.raises(EngineError, match=said):
        engine.update_weights(weights_of(models[1].network), 1)
    for each in running:
        with pytest.raises(EngineError, match="update to weight version 1 failed"):
            each.result()
    with pytest.raises(EngineError, match="update to weight version 1 failed"):
        engine.health()
    fake[1].bad.clear()
    engine.update_weights(weights_of(models[1].network), 1)
    check(results(ask(engine, 1)), models, 1)
    engine.close()


@pytest.mark.parametrize(("transfer", "bad", "said"), BROKEN)
def test_after_an_update_that_fails_the_weights_of_before_go_on(
    fake: tuple[str, FakeSGLang],
    models: Models,
    transfer: str,
    bad: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = connect(models[0], fake[0], transfer=transfer, transfer_timeout_s=1.0)
    monkeypatch.setattr(server, "ROUTE_TIMEOUT_S", 0.8)
    for replica in engine._dialect._groups.values():  # type: ignore[attr-defined]
        replica.abort()
    engine._dialect._groups.clear()  # type: ignore[attr-defined]
    fake[1].bad["step_s"] = 0.05
    running = ask(engine, 2, n=12)
    time.sleep(0.1)
    fake[1].bad.update(bad, heals_in={"/pause_generation": 2})
    with pytest.raises(EngineError, match=said):
        engine.update_weights(weights_of(models[1].network), 1)
    assert engine.version == 0
    check(results([*running, *ask(engine, 1, n=12)]), models, 0, n=12)
    engine.update_weights(weights_of(models[1].network), 1)
    check(results(ask(engine, 1)), models, 1)
    engine.close()


def test_no_two_engines_make_groups_of_one_name(fake: tuple[str, FakeSGLang], models: Models) -> None:
    # The second engine is often at the first one's address in memory.
    for _ in range(12):
        connect(models[0], fake[0], transfer="distributed", transfer_timeout_s=20).close()
        gc.collect(1)  # all there is would take as long as the engine
    names = [body.group_name for path, body in fake[1].bodies if path == "/init_weights_update_group"]
    assert len(set(names)) == len(names) == 12


@pytest.mark.parametrize("refuses", ["/init_weights_update_group", "/update_weights_from_distributed"])
def test_a_server_that_refuses_its_side_of_a_broadcast_ends_it_at_once(
    fake: tuple[str, FakeSGLang], models: Models, refuses: str
) -> None:
    engine = connect(models[0], fake[0], transfer="distributed", transfer_timeout_s=20)
    engine._dialect._groups.clear()  # type: ignore[attr-defined]
    fake[1].bad["fail_in"] = refuses
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"{refuses} answered 500"):
        engine.update_weights(weights_of(models[1].network), 1)
    fake[1].bad.clear()
    fake[1].bodies.clear()
    engine.update_weights(weights_of(models[2].network), 2)
    check(results(ask(engine, 1)), models, 2)
    assert [path for path, _ in fake[1].bodies].count("/init_weights_update_group") == 1  # a group of its own
    engine.close()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_server_that_dies_in_an_update_gets_the_weights_when_it_is_back(
    models: Models, fake: tuple[str, FakeSGLang], transfer: str
) -> None:
    engine = connect(models[0], fake[0], transfer=transfer, transfer_timeout_s=1.0)
    fake[1].bad["die_in"] = f"/update_weights_from_{transfer}"
    update = threading.Thread(target=engine.update_weights, args=(weights_of(models[1].network), 1))
    update.start()
    until(lambda: fake[1].died and fake[1].paths[-2:] == ["/model_info"] * 2)  # it is looked for
    assert update.is_alive()
    started_again(fake[1], models)
    update.join(20)
    check(results(ask(engine, 3)), models, 1)
    engine.close()


def started_again(fake: FakeSGLang, models: Models) -> None:
    """Other weights, no groups, nothing in progress."""
    fake.scheduler.network.load_state_dict(models[3].network.state_dict())
    fake.scheduler.version, fake.scheduler.session, fake.died = "default", False, ""
    fake.paused = fake.scheduler.paused = False
    fake.scheduler.groups.clear()
    fake.bad.clear()


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_server_that_lost_our_weights_gets_them_again(
    models: Models, fake: tuple[str, FakeSGLang], transfer: str
) -> None:
    engine = connect(models[0], fake[0], transfer=transfer)
    engine.update_weights(weights_of(models[1].network), 1)
    started_again(fake[1], models)
    check(results(ask(engine, 3)), models, 1)
    engine.close()


def test_an_update_that_another_trainer_left_open_is_ended(models: Models, fake: tuple[str, FakeSGLang]) -> None:
    fake[1].scheduler.session = True
    engine = connect(models[0], fake[0])
    check(results(ask(engine, 2)), models)
    engine.close()


def test_shared_memory_that_is_too_small_is_said(
    engine: RemoteEngine, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_dialect.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(EngineError, match=r"/dev/shm has room for 0 MiB.*--shm-size"):
        engine.update_weights(weights_of(models[1].network), 1)


def test_a_colocated_server_sleeps_and_wakes_for_weights_before_it_wakes_for_keys_and_values(models: Models) -> None:
    with running_fake(dummy(models[0]), enable_memory_saver=True) as (url, fake):
        engine = connect(models[0], url, colocated=True)
        fake.bad["step_s"] = 0.01
        waiting = ask(engine, 2, n=40)
        until(lambda: fake.scheduler.steps > 15)
        engine.sleep()
        assert fake.scheduler.released == {"kv_cache", "weights"}
        fake.paths.clear()
        engine.update_weights(weights_of(models[1].network), 1)
        wakes = [i for i, path in enumerate(fake.paths) if path == "/resume_memory_occupation"]
        assert len(wakes) == 2
        assert wakes[0] < fake.paths.index("/begin_weight_update") < fake.paths.index("/end_weight_update") < wakes[1]
        assert not fake.scheduler.released
        answers = results(waiting)
        check(answers, models, None, n=40)
        assert {a.spans[-1].version for a in answers} == {1}
        assert not fake.died
        engine.close()


# -- the process -------------------------------------------------------------------------------------------------------


def made_environment(folder: Path, **releases: str) -> Path:
    """A virtual environment in which the contract server stands for SGLang."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    for name, version in {**TESTED, **releases}.items():
        place = packages / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nshift 2\nexec '{sys.executable}' '{fake_sglang.__file__}' \"$@\"\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sglang, "has_gpu", lambda: True)
    return made_environment(tmp_path / "venv")


def started(model: LanguageModel, environment: Path, **settings: Any) -> RemoteEngine:
    settings = {"max_tokens": 100, "dtype": "float32", **settings}
    engine = make_engine(model, EngineConfig(name="sglang", venv=str(environment), **settings))
    assert isinstance(engine, RemoteEngine)
    return engine


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # also one that ends between opening and reading
        return True


@pytest.mark.usefixtures("forked_servers")
def test_a_killed_server_is_started_again_and_asked_again(models: Models, environment: Path) -> None:
    engine = started(models[0], environment, transfer="distributed", gpus="3", deterministic=True)
    own = engine._replicas[0].server
    misbehave = partial(httpx.post, own.url + "/misbehave", trust_env=False)
    assert own._process is not None
    pids = [own._process.pid]
    check(results(ask(engine, 3)), models)
    engine.update_weights(weights_of(models[1].network), 1)
    misbehave(json={"step_s": 5})
    waiting = ask(engine, 5)
    time.sleep(0.2)
    os.kill(pids[0], signal.SIGKILL)
    check(results(waiting), models, 1)
    pids.append(own._process.pid)
    assert own._folder is not None
    folder = Path(own._folder.name)
    assert (folder / "config.json").is_file()
    engine.close()
    assert not folder.exists()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or ended(pid)


@pytest.mark.usefixtures("forked_servers")
def test_a_started_server_is_sent_adapters_alone_and_all_when_it_is_back(environment: Path) -> None:
    models, learner = {0: tiny_model()}, adapted(tiny_model())
    engine = started(models[0], environment)
    sizes = []
    for version in (1, 2):
        engine.update_weights(trained(learner, models, version), version)
        check(results(ask(engine, 3)), models, version)
        sizes.append([part.use for part in engine._sent.since("1-x-1")])
    assert sizes == [["keep", "adapt"]] * 2
    own = engine._replicas[0].server
    assert own._process is not None
    pid = own._process.pid
    httpx.post(own.url + "/misbehave", json={"die_in": "/update_weights_from_tensor"}, trust_env=False)
    engine.update_weights(trained(learner, models, 3), 3)  # adapters alone would end the new one, too
    check(results(ask(engine, 3)), models, 3)
    assert own._process.pid != pid
    engine.close()


def quantized(model: LanguageModel) -> LanguageModel:
    """What a server has of ``model`` that it is sent in bfloat16, and the layers of which it rounds to fp8."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in found.network.named_parameters():
            weight.copy_(weight.bfloat16())
            if name.endswith("_proj.weight"):
                scale = weight.abs().amax(1, keepdim=True) / 448
                weight.copy_((weight / scale).to(torch.float8_e4m3fn).float() * scale)
    return found


def test_a_started_server_quantises_what_it_is_sent(environment: Path) -> None:
    models = {version: tiny_model(version, architecture="qwen2") for version in (0, 1)}
    engine = started(models[0], environment, quantization="fp8", dtype="bfloat16")
    own = engine._replicas[0].server
    assert own._folder is not None
    blank = Path(own._folder.name) / "model.safetensors"
    assert blank.stat().st_size > 2 * sum(p.numel() for p in models[0].network.parameters())
    assert blank.stat().st_blocks * 512 <= 8192, "it has no numbers"
    rounded = {version: quantized(model) for version, model in models.items()}
    check(results(ask(engine, 3)), rounded)
    engine.update_weights(weights_of(models[1].network), 1)
    check(results(ask(engine, 3)), rounded, 1)
    engine.close()
    with pytest.raises(ConfigError, match=r"of Qwen2ForCausalLM and Qwen3.* only, and the model is a Llama.*name vllm"):
        started(tiny_model(), environment, quantization="fp8", dtype="bfloat16")


def test_a_server_that_does_not_start_says_why(models: Models, environment: Path) -> None:
    (environment / "bin" / "python").write_text("#!/bin/sh\necho no such model: $3\nexit 1\n")
    with pytest.raises(EngineError, match=r"(?s)did not start\. It ended with status 1.*no such model: --load-format"):
        started(models[0], environment)


def test_the_server_ends_with_the_trainer(tmp_path: Path) -> None:
    """The program that starts SGLang ends with its standard input, and takes its children along."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(
        "import os, subprocess, sys\n"
        "print(sys.argv[1:], subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, str(WORKER / "serve.py"), "sglang.launch_server", "--port", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        process_group=0,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    arguments, _, pid = child.stdout.readline().rpartition(" ")
    assert arguments == "['--port', '1']"
    child.stdin.close()
    assert child.wait(10) == -signal.SIGKILL
    child.stdout.close()
    until(lambda: not Path(f"/proc/{int(pid)}").exists() or ended(int(pid)))


# -- before anything starts --------------------------------------------------------------------------------------------


def test_the_preflight_says_what_is_missing(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: tuple[str, FakeSGLang]
) -> None:
    monkeypatch.setattr(sglang, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match=r"this machine has no GPU.*engine\.url.*engine\.name hf or vllm"):
        started(models[0], tmp_path)
    monkeypatch.setattr(sglang, "has_gpu", lambda: True)
    with pytest.raises(
        ConfigError, match=r"it is not in '.*nowhere'; make its environment .*pip install sglang==0\.5\.23"
    ):
        started(models[0], tmp_path / "nowhere")
    other = made_environment(tmp_path / "other", sglang="0.6.0")
    with pytest.raises(
        ConfigError, match=r"sglang in '.*' is 0\.6\.0, and 0\.5\.23 was tested.*accept=\{sglang: 0\.6\.0"
    ):
        started(models[0], other)
    for settings, said in (
        ({"weights_folder": str(tmp_path)}, r"engine\.weights_folder is for engine\.transfer disk; it is tensor"),
        ({"weights_folder": "nowhere", "transfer": "disk"}, "'nowhere' is no folder"),
        ({"max_tokens": 5000}, r"engine\.max_tokens 5000 is more than the model's 1024"),
    ):
        with pytest.raises(ConfigError, match=said):
            connect(models[0], fake[0], **settings)
    with pytest.raises(ConfigError, match=r"only addresses of this machine.*ssh -L"):
        connect(models[0], "http://10.0.0.1:8000")


def test_a_server_that_cannot_be_used_is_refused(models: Models, fake: tuple[str, FakeSGLang]) -> None:
    fake[1].release = "0.6.0"
    with pytest.raises(
        EngineError, match=r"it is SGLang 0\.6\.0, and 0\.5\.23 was tested.*engine\.accept=\{sglang: 0\.6\.0"
    ):
        connect(models[0], fake[0])
    connect(models[0], fake[0], accept={"sglang": "0.6.0"}).close()
    fake[1].release = "0.5.23"
    with pytest.raises(
        EngineError, match=r"its context has 128 tokens, and engine.max_tokens 121.*--context-length 129"
    ):
        connect(models[0], fake[0], max_tokens=121)
    connect(models[0], fake[0], max_tokens=120).close()
    fake[1].arguments["dp_size"] = 2
    with pytest.raises(EngineError, match="weights reach tensor-parallel ranks only, and its dp_size"):
        connect(models[0], fake[0])
    with pytest.raises(EngineError, match="did not answer within"):
        connect(models[0], "http://127.0.0.1:9", start_timeout_s=0.3)


def test_a_configuration_says_so_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device 'cpu': SGLang computes on GPUs only"):
        configured(tmp_path, engine={"name": "sglang", "device": "cpu"})
    configured(tmp_path, engine={"name": "sglang", "device": "cpu", "url": "http://127.0.0.1:1"})
    program = (
        "import sys\nfrom trainer.engines import ENGINES\n"
        "assert ENGINES.find('sglang').settings(transfer='disk').tolerance == 0.5\n"
        "assert not {'torch', 'transformers', 'aiohttp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


# -- the contract server -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/generate", {"input_ids": [1], "sampling_params": {"max_tokens": 3}}, 400, "max_tokens"),
        ("/generate", {"prompt_ids": [1]}, 400, "prompt_ids"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": "3"}}, 400, "valid integer"),
        ("/generate", {"input_ids": []}, 400, "cannot be empty"),
        ("/generate", {"input_ids": [1] * 200}, 400, "longer than the model's context"),
        ("/pause_generation", {"mode": "keep"}, 400, "'abort', 'retract' or 'in_place'"),
        ("/continue_generation", None, 400, "required"),
        ("/end_weight_update", {}, 400, "no weight-update session is open"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": []}, 400, "must run between"),
        ("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}, 400, "must run between"),
        ("/update_weights_from_disk", {"model_path": "x", "load_format": "dummy"}, 400, "Failed to get model loader"),
        ("/init_weight_transfer_engine", {}, 404, "Not Found"),
    ],
)
def test_the_contract_server_refuses_what_sglang_refuses(
    fake: tuple[str, FakeSGLang], path: str, body: Any, status: int, said: str
) -> None:
    reply = httpx.post(fake[0] + path, json=body, trust_env=False)
    assert reply.status_code == status
    assert said in reply.text


def request_of(sampling: Sampling) -> Request:
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        return Request("r", [5, 6], sampling, loop.create_future())
    finally:
        loop.close()


def test_the_contract_server_keeps_keys_and_values_as_sglang_does(models: Models) -> None:
    scheduler = Scheduler(dummy(models[0]), context=64)
    scheduler.waiting = [request_of(Sampling(max_new_tokens=9))]
    with torch.inference_mode():
        scheduler.step()
    assert not scheduler.flush()  # running
    scheduler.paused = True
    assert not scheduler.flush()  # running still: paused in place
    scheduler.retract()
    assert scheduler.flush()
    assert not scheduler.cache
    assert spans([("a", 2), ("b", 2), ("c", 5)], "d", 4) == [
        {"version": "a", "start": 0, "end": 2},
        {"version": "c", "start": 2, "end": 4},
    ]


def test_the_contract_server_takes_no_pickle_that_sglang_blocks() -> None:
    import io
    import pickle

    from fake_sglang_scheduler import SafeUnpickler

    for harmful in (os.system, subprocess.Popen, torch.load):
        with pytest.raises(RuntimeError, match="Blocked unsafe global"):
            SafeUnpickler(io.BytesIO(pickle.dumps(harmful))).load()


# -- reading answers ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PLACES = (
    "output_ids",
    "meta_info",
    "output_token_logprobs",
    "finish_reason",
    "weight_versions",
    "version",
    "end",
    "type",
)


@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_is_answered_is_a_whole_completion_or_a_fault(place: str, value: Any) -> None:
    sampling = SamplingParams(max_new_tokens=3, seed=1)
    entries = [[-1.5, 7, None], [-0.25, 9, None], [-2.0, 7, None]]
    span = {"version": "3-ours-1", "start": 0, "end": 3}
    info = {
        "finish_reason": {"type": "length", "length": 3},
        "output_token_logprobs": entries,
        "weight_versions": [span],
    }
    answer: dict[str, Any] = {"output_ids": [7, 9, 7], "meta_info": info}
    sent = Sent(weights=None, version=3, owner="ours", update=1)  # type: ignore[arg-type]
    read = partial(SGLangDialect(SGLangSettings(), max_tokens=9, names={}).completion, sampling=sampling, sent=sent)
    whole = read(answer)
    assert whole == Completion(ids=(7, 9, 7), logprobs=(-1.5, -0.25, -2.0), finish="length", weight_version=3)
    for holder in (answer, info, info["finish_reason"], span):
        if place in holder:
            holder[place] = value  # type: ignore[index]
    try:
        completion = read(answer)
    except (ServerFaultError, EngineError):
        return
    assert (completion.ids, completion.logprobs, completion.spans) in (
        (whole.ids, whole.logprobs, whole.spans),
        ((), (), ()),
    )
    assert math.isfinite(sum(completion.logprobs))
