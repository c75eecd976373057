"""That engines behind servers are wired as they say: what reaches whom, in which state, and what never does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_vllm import FakeVLLM, running_fake
from loop_runs import configured, run, write_config
from openai_server import serve
from vllm_engines import ask, blank_model, check, connect, made_environment, misbehave, process, started, until

from roll_envs.errors import ConfigError, EngineError
from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig
from trainer.config.load import dump_config, load_config
from trainer.engines import ENGINES, make_engine, remote, server, transfer
from trainer.engines.hf import HFEngine
from trainer.engines.preflight import addresses
from trainer.engines.remote import RemoteEngine
from trainer.engines.router import Lane, Router
from trainer.engines.scripted import ScriptedEngine
from trainer.engines.sglang import SGLangSettings
from trainer.engines.sglang import _own_server as sglang_server
from trainer.engines.vllm import GPU_BUILD, VLLMSettings, command_line, variables
from trainer.engines.vllm import _own_server as vllm_server
from trainer.engines.vllm_dialect import VLLMDialect
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel
from trainer.run import loop
from trainer.run.checkpoint import load_checkpoint
from trainer.run.evaluate import evaluate_config, evaluate_run

# -- weights that were not proven --------------------------------------------------------------------------------------


def test_weights_that_came_while_paused_are_proven_when_it_goes_on(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    engine.pause()
    fake[1].bad = {"shift": 0.01}
    engine.update_weights(weights_of(blank_model().network), 1)
    with pytest.raises(EngineError, match=r"were sent by 0\.01"):
        engine.resume()
    with pytest.raises(EngineError, match=r"were sent by 0\.01"):
        ask(engine, 1)[0].result()


def test_a_probe_that_got_no_answer_is_asked_again(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].version = "0-other-1"  # it lost our weights, gets them, and answers the probe with an error
    fake[1].bad = {"shift": 0.01, "generate": ["unlabelled", "500"]}
    with pytest.raises(EngineError, match=r"were sent by 0\.01"):
        ask(engine, 1)[0].result()


def test_an_update_outlasts_a_connection_that_breaks_again_and_again(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    fake[1].bad = {"generate": ["drop", "500"] * 4}  # more than one probe is asked for
    engine.update_weights(weights_of(blank_model().network), 1)
    check(ask(engine, 2), version=1)
    fake[1].bad = {"generate": ["drop"] * 100}
    with pytest.raises(EngineError, match="did not answer the probe of an update"):
        engine.update_weights(weights_of(blank_model().network), 2)


def test_a_server_that_fails_its_probe_after_an_update_answers_nothing(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]])
        late_by(0.8, engine)
        b[1].bad = {"shift": 0.01}
        engine.update_weights(weights_of(model.network), 1)  # does not wait for the second
        until(lambda: bool(engine._problem))
        with pytest.raises(EngineError, match=r"were sent by 0\.01"):
            ask(engine, 1)
        engine.close()


def test_a_restore_that_fails_its_probe_fails_again(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]])
        engine.drain(1)
        b[1].bad = {"shift": 0.01}
        engine.update_weights(weights_of(model.network), 1)
        for _ in range(2):
            with pytest.raises(EngineError, match=r"were sent by 0\.01"):
                engine.restore(1)
        assert [replica.lane.open for replica in engine._replicas] == [True, False]
        engine.close()


def late_by(seconds: float, engine: RemoteEngine) -> None:
    """Let the second server be reached only after ``seconds``."""
    replica, when = engine._replicas[1], time.monotonic() + seconds
    answers = replica._ask_health

    async def ask_health() -> None:
        if time.monotonic() < when:
            raise server.ServerFaultError("it is being started")
        await answers()

    replica._ask_health = ask_health  # type: ignore[method-assign]


def test_a_server_that_starts_during_an_update_and_stumbles_comes_back(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]])
        late_by(0.8, engine)
        b[1].bad = {"fail_in": "/update_weights"}
        engine.update_weights(weights_of(model.network), 1)
        until(lambda: b[1].paths.count("/update_weights") > 1)
        b[1].bad = {}
        until(lambda: engine._replicas[1].lane.open)
        check(ask(engine, 8), version=1)
        engine.close()


CONTROL = (
    "/weight_info", "/pause", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
    "/reset_prefix_cache", "/finish_weight_update", "/resume", "/inference/v1/generate",
)  # fmt: skip


@pytest.mark.parametrize("way", ["shared_memory", "broadcast"])
def test_a_server_that_is_busy_for_a_moment_costs_no_update(model: LanguageModel, way: str) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]], transfer=way)
        b[1].bad = {"busy_in": dict.fromkeys(CONTROL, 2)}
        engine.update_weights(weights_of(model.network), 1)
        assert set(b[1].bad["busy_in"].values()) == {0}
        check(ask(engine, 8), version=1)
        engine.close()


def test_a_server_that_stays_busy_fails_an_update_when_the_time_of_a_route_is_over(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ROUTE_TIMEOUT_S", 0.5)
    fake[1].bad = {"busy_in": {"/update_weights": 10**6, "/finish_weight_update": 10**6}}
    with pytest.raises(EngineError, match="/update_weights answered 503"):
        engine.update_weights(weights_of(blank_model().network), 1)
    assert fake[1].paths.count("/update_weights") > 3
    assert fake[1].paths.count("/finish_weight_update") == 1 + 2  # when these and the old ones are undone: nobody waits


def test_a_failure_of_another_kind_is_not_asked_again(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].bad, before = {"fail_in": "/update_weights"}, fake[1].paths.count("/update_weights")
    with pytest.raises(EngineError, match="/update_weights answered 500"):
        engine.update_weights(weights_of(blank_model().network), 1)
    assert fake[1].paths.count("/update_weights") == before + 2  # these weights once, and those of before


@pytest.mark.usefixtures("forked_servers")
def test_a_revival_that_stumbles_begins_anew_with_another_process(model: LanguageModel, tmp_path: Path) -> None:
    engine = started(model, made_environment(tmp_path / "venv"))
    first, replica = process(engine), engine._replicas[0]
    engine._client.run(replica.ask("/finish_weight_update", {"weight_version": "0-other-1"}))
    misbehave(engine, fail_in="/update_weights")  # as long as it lives
    check(ask(engine, 2))
    assert process(engine) != first
    engine.close()


def test_a_revival_that_stumbles_at_a_server_of_others_undoes_what_it_began(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    fake[1].version = "0-other-1"
    fake[1].bad = {"fail_in": "/update_weights"}
    waiting = ask(engine, 1)
    until(lambda: fake[1].paths.count("/update_weights") > 2)
    fake[1].bad = {}
    check(waiting)
    begun = [i for i, path in enumerate(fake[1].paths) if path == "/start_weight_update"]
    for one, two in itertools.pairwise(begun[1:]):
        between = [path for path in fake[1].paths[one:two] if path in ("/finish_weight_update", "/resume")]
        assert between == ["/finish_weight_update", "/resume"]


# -- asleep, paused, drained -------------------------------------------------------------------------------------------


def test_what_goes_wrong_while_it_sleeps_does_not_wake_it(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0], colocated=True)
    fake[1].bad = {"delay_s": 0.6}
    waiting = ask(engine, 1)
    until(lambda: fake[1].at_once == 1)
    engine.sleep()
    fake[1].paths.clear()
    engine._client.run(engine._replicas[0].ask("/abort_requests", {}))  # the server ends the request
    time.sleep(0.5)
    assert fake[1].asleep
    assert fake[1].paths == ["/abort_requests"]
    fake[1].bad = {}
    engine.update_weights(weights_of(model.network), 1)
    check(waiting, version=1)
    engine.close()


def test_an_engine_of_which_one_server_does_not_sleep_is_awake(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]], colocated=True)
        b[1].bad = {"fail_in": "/sleep"}
        b[1].running.clear()  # it got as far as the pause
        with pytest.raises(EngineError, match="/sleep fails"):
            engine.sleep()
        assert not a[1].asleep
        assert b[1].running.is_set()
        assert [replica.lane.open for replica in engine._replicas] == [True, True]
        check(ask(engine, 8))
        a[1].bad = {"fail_in": "/update_weights"}  # nor does the other one wake up
        with pytest.raises(EngineError, match="/sleep fails"):
            engine.sleep()
        with pytest.raises(EngineError, match=r"the engine gave up: .*/update_weights fails"):
            ask(engine, 1)
        a[1].bad = b[1].bad = {}
        engine.update_weights(weights_of(model.network), 1)
        assert [replica.lane.open for replica in engine._replicas] == [True, True]
        check(ask(engine, 8), version=1)
        engine.close()


def test_what_goes_wrong_while_it_is_paused_does_not_let_it_go_on(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    fake[1].bad = {"delay_s": 0.2}
    waiting = ask(engine, 2)
    until(lambda: fake[1].at_once == 2)
    engine.pause()
    fake[1].bad = {"fail_in": "/weight_info"}
    engine._client.run(engine._replicas[0].ask("/abort_requests", {}))
    time.sleep(0.5)
    fake[1].bad = {}
    time.sleep(0.5)
    assert not fake[1].running.is_set()
    assert not any(f.done() for f in waiting)
    engine.resume()
    check(waiting)


def test_a_fault_at_a_server_that_is_drained_does_not_open_it_again(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]], max_running=4)
        a[1].bad = {"delay_s": 0.3, "generate": ["500"]}
        waiting = ask(engine, 20)
        until(lambda: a[1].at_once > 0)
        engine.drain(0)
        check(waiting)
        time.sleep(0.2)
        assert not engine._replicas[0].lane.open
        engine.close()


def test_the_engine_sleeps_while_the_learner_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **k: (did.append(name), real(*a, **k))[1]

    monkeypatch.setattr(ScriptedEngine, "capabilities", replace(ScriptedEngine.capabilities, sleep=True))
    monkeypatch.setattr(ScriptedEngine, "sleep", lambda engine: did.append("sleep"))
    for name in ("submit", "update_weights"):
        monkeypatch.setattr(ScriptedEngine, name, noted(name, getattr(ScriptedEngine, name)))
    for name in ("update", "warm_start_step"):
        monkeypatch.setattr(f"trainer.run.loop.{name}", noted("learn", getattr(loop, name)))
    run(tmp_path, steps=2, engine={"name": "scripted"}, warm_start={"steps": 2}, evaluation={"tasks": 1})
    awake = True
    for act in did:
        awake = {"sleep": False, "update_weights": True}.get(act, awake)
        assert awake == (act != "learn") or act == "sleep", did
    assert did.count("learn") == 4


def test_steps_are_saved_before_a_server_that_does_not_sleep_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = 0

    def sleep(engine: ScriptedEngine) -> None:
        nonlocal slept
        slept += 1
        if slept > 3:
            raise EngineError("it does not sleep")

    monkeypatch.setattr(ScriptedEngine, "capabilities", replace(ScriptedEngine.capabilities, sleep=True))
    monkeypatch.setattr(ScriptedEngine, "sleep", sleep)
    quiet = {"warm_start": {"steps": 0}, "evaluation": {"tasks": 1, "every": 0}, "checkpoint": {"every": 0}}
    with pytest.raises(EngineError, match="it does not sleep"):
        run(tmp_path, steps=5, engine={"name": "scripted"}, **quiet)
    [folder] = (tmp_path / "runs").iterdir()
    assert load_checkpoint(folder).progress["steps"] == 3


# -- requests ----------------------------------------------------------------------------------------------------------


def test_whatever_ends_a_revival_is_told_to_those_that_wait(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].version = "another trainer's"

    async def send(*_: Any) -> None:
        raise KeyError("success")

    engine._dialect.send = send  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="the engine gave up"):
        ask(engine, 1, timeout_s=20)[0].result()


def test_those_that_waited_before_a_replica_was_looked_after_come_first() -> None:
    async def work() -> list[str]:
        lane, order = Lane(1, open=True), []
        router = Router([lane])

        async def visit(name: str) -> None:
            async with router.place(None):
                order.append(name)
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(visit(name)) for name in ("first", "early", "early")]
        await asyncio.sleep(0)
        router.shut(lane)
        router.open(lane)
        tasks += [asyncio.create_task(visit("late")) for _ in range(2)]
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(work()) == ["first", "early", "early", "late", "late"]


def test_a_session_stays_though_others_have_less_to_do(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine, sampling = connect(model, [a[0], b[0]]), SamplingParams(max_new_tokens=4, seed=1)
        before = a[1].requests, b[1].requests
        a[1].bad = b[1].bad = {"delay_s": 0.3}
        waiting: Sequence[Future[Completion]] = [
            engine.submit((5, 6), sampling, timeout_s=30, session="an episode") for _ in range(6)
        ]
        check(waiting)
        assert sorted((a[1].requests - before[0], b[1].requests - before[1])) == [0, 6]
        engine.close()


def test_places_that_a_grown_limit_gives_are_taken_before_anybody_leaves(
    model: LanguageModel, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LOAD_EVERY_S", 0.05)
    engine = connect(model, fake[0], max_running=8)
    engine._replicas[0].lane.limit, fake[1].bad = 1, {"delay_s": 4}
    waiting = ask(engine, 8)
    until(lambda: fake[1].at_once == 8, within_s=3.8)
    fake[1].bad = {}
    engine.abort()
    assert {f.result().finish for f in waiting} == {"abort"}
    engine.close()


def test_the_rest_of_an_answer_is_asked_for_with_another_seed(engine: RemoteEngine) -> None:
    asked: list[Any] = []

    async def generate(prompt: tuple[int, ...], sampling: SamplingParams, sent: Any) -> None:
        asked.append((prompt, sampling.max_new_tokens, sampling.seed))

    part = Completion(ids=(9, 8), logprobs=(-1.0, -1.0), finish="abort", weight_version=0)
    replica: Any = SimpleNamespace(asking=set(), generate=generate)
    engine._client.run(engine._ask(replica, (5,), SamplingParams(max_new_tokens=6, seed=3), [part, part]))
    assert asked == [((5, 9, 8, 9, 8), 2, 5)]


def test_what_a_request_says() -> None:
    sampling = SamplingParams(max_new_tokens=3, temperature=0.7, seed=2**63 + 9, stop_ids=(4, 8))
    body = VLLMDialect().body((5, 6), sampling)
    assert body["token_ids"] == (5, 6)
    assert body["sampling_params"] == {
        "temperature": 0.7, "max_tokens": 3, "stop_token_ids": [4, 8], "ignore_eos": True, "top_p": 1.0, "top_k": 0,
        "logprobs": 0, "detokenize": False, "seed": 9,
    }  # fmt: skip


def test_a_closed_engine_says_so_whatever_it_is_asked(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    engine = connect(model, fake[0], colocated=True)
    engine.close()
    for act in (engine.pause, engine.resume, engine.abort, engine.sleep, engine.wake, lambda: engine.drain(0)):
        with pytest.raises(EngineError, match="the engine is closed"):
            act()


@pytest.mark.parametrize("act", ["update_weights", "pause", "sleep"])
def test_closing_ends_what_waits_for_a_server_that_hangs(
    model: LanguageModel, fake: tuple[str, FakeVLLM], act: str
) -> None:
    engine = connect(model, fake[0], colocated=True)
    fake[1].paths.clear()
    fake[1].bad = {"hang_in": "all"}
    acts = {"update_weights": lambda: engine.update_weights(weights_of(model.network), 1)}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(acts.get(act) or getattr(engine, act))
        until(lambda: fake[1].paths)
        engine.close()
        with pytest.raises(EngineError, match="the engine is closed"):
            waiting.result(1)


def test_closing_ends_what_does_not_end_by_itself() -> None:
    client = server.ServerClient()
    entered = threading.Event()

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                entered.set()
                await asyncio.sleep(60)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.run, stubborn())
        assert entered.wait(10)
        client.close()
        with pytest.raises(EngineError, match="the engine is closed"):
            waiting.result(1)
    client.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        client.run(stubborn())


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ipc", "broadcast"])
def test_several_servers_all_get_all_weights(model: LanguageModel, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 20_000)
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]], transfer=way)
        slow = ((time.sleep(0.02), pair)[1] for pair in weights_of(model.network))
        engine.update_weights(slow, 1)
        for _, fake in (a, b):
            assert all(torch.equal(fake.weights[name], w) for name, w in weights_of(model.network))
        engine.close()


@pytest.mark.usefixtures("forked_servers")
def test_each_replica_has_gpus_of_its_own(model: LanguageModel, tmp_path: Path) -> None:
    engine = started(model, made_environment(tmp_path / "venv", **GPU_BUILD), gpus="3,5", replicas=2)
    found = [(replica.server._environment or {})["CUDA_VISIBLE_DEVICES"] for replica in engine._replicas]
    engine.close()
    assert found == ["3", "5"]


def test_replicas_have_ports_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free_port", lambda port=0: port)
    assert addresses(VLLMSettings(port=9000, replicas=2)) == ["http://127.0.0.1:9000", "http://127.0.0.1:9001"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "127.0.0.1:8000"}, r"engine.url '127.0.0.1:8000' is no address.*write it like http://127.0.0.1:8000"),
        ({"url": "localhost:8000"}, r"engine.url 'localhost:8000' is no address of a server; write it like http://"),
        ({"url": "http://127.0.0.1:port"}, r"engine.url 'http://127.0.0.1:port' is no address of a server"),
        ({"url": "http://[::1"}, r"is no address of a server"),
        ({"url": "http:///path"}, r"is no address of a server"),
        ({"url": ""}, r"engine.url '' is no address of a server"),
        ({"url": ["http://127.0.0.1:8000", "http://10.0.0.1:80"]}, r"'http://10.0.0.1:80': anyone who .*ssh -L"),
        ({"url": []}, r"engine.url is an empty list; give the addresses of servers, or null to start them"),
        ({"url": ["http://127.0.0.1:80", "http://127.0.0.1:81", "http://localhost:81/"]}, r"localhost:81/' twice"),
        ({"url": "http://127.0.0.1:80", "replicas": 2}, r"engine.replicas 2 are servers that are started.*engine.url"),
    ],
)
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_addresses_are_checked_with_the_configuration_and_before_anything_starts(
    model: LanguageModel, tmp_path: Path, name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_engine(model, EngineConfig(name=name, **settings))
    with pytest.raises(ConfigError, match=said):
        configured(tmp_path, engine={"name": name, **settings})


@pytest.mark.parametrize(
    ("settings", "logs"),
    [
        ({"log_file": "a/run.log"}, ["a/run.log"]),
        ({"log_file": "a/run.log", "replicas": 2}, ["a/run-0.log", "a/run-1.log"]),
        ({"log_file": "log", "replicas": 2}, ["log-0", "log-1"]),
    ],
)
def test_each_replica_has_a_log_of_its_own(model: LanguageModel, settings: dict[str, Any], logs: list[str]) -> None:
    for number, log in enumerate(logs):
        for made in (
            vllm_server(model.network.config, VLLMSettings(**settings), "http://a:1", 100, gpu=False, number=number),
            sglang_server(model.network.config, SGLangSettings(**settings), "http://a:1", number, 100, {}),
        ):
            assert made._log == log
            made.close()


@pytest.mark.parametrize(("number", "gpus", "cpu", "sleeps"), [(0, "3,5", 0, False), (1, "0,1", 1, True)])
def test_each_server_gets_all_that_its_settings_give_to_it(
    model: LanguageModel, number: int, gpus: str, cpu: int, sleeps: bool
) -> None:
    given: dict[str, Any] = {
        "replicas": 2,
        "tensor_parallel_size": 2,
        "gpus": "3,5,0,1",
        "cpus": [[0], [1]],
        "colocated": [1],
        "gpu_memory_utilization": 0.4,
        "max_running": 7,
        "arguments": ["--last"],
    }
    config, url = model.network.config, "http://a:12"
    vllm, sglang = VLLMSettings(**given, dtype="float32"), SGLangSettings(**given, dtype="float16", deterministic=True)
    servers = {
        "vllm": vllm_server(config, vllm, url, 90, gpu=True, number=number),
        "sglang": sglang_server(config, sglang, url, number, 90, {}),
    }
    for made in servers.values():
        made.close()
    told = {
        "vllm": "dtype float32, max-model-len 90, max-num-seqs 8, gpu-memory-utilization 0.4, tensor-parallel-size 2",
        "sglang": "dtype float16, context-length 98, max-running-requests 8, mem-fraction-static 0.4, tp-size 2",
    }
    for name, made in servers.items():
        words = " ".join(made._command)
        assert [pair for pair in told[name].split(", ") if f"--{pair} " not in words] == []
        assert "--port 12 " in words
        assert words.endswith(" --last")
        assert ("sleep-mode" in words or "memory-saver" in words) == sleeps
        assert ("--enable-deterministic-inference" in words) == (name == "sglang")
        assert (made._environment or {})["CUDA_VISIBLE_DEVICES"] == gpus
        assert list(made._cpus) == [cpu]


def test_a_server_on_the_processor_has_the_threads_and_the_memory_of_its_settings() -> None:
    found = variables(VLLMSettings(threads=3, kv_cache_gib=2), gpu=False)
    assert (found["OMP_NUM_THREADS"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("3", "2")


def test_the_way_of_weights_is_the_one_that_the_settings_describe(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialects: list[VLLMDialect] = []
    monkeypatch.setattr(remote, "RemoteEngine", lambda _, dialect, *rest, **how: dialects.append(dialect))
    settings: dict[str, Any] = {
        "url": "http://127.0.0.1:1",
        "device": "cuda",
        "max_tokens": 64,
        "deltas": True,
        "weights_folder": str(tmp_path),
        "transfer_address": "127.0.0.2",
        "transfer_timeout_s": 3.0,
        "accept": {"vllm": "9.9"},
    }
    for way in ("shared_memory", "broadcast"):
        make_engine(model, EngineConfig(name="vllm", transfer=way, **settings))
        dialect = dialects.pop()
        options = transfer.TransportOptions(on_gpu=True, address="127.0.0.2", timeout_s=3.0, checksums=True)
        assert (dialect._transport, dialect._options) == (transfer.TRANSPORTS[way], options)
        assert (dialect.sends_changes, dialect.capabilities.sleep) == (True, False)
        assert (dialect._accepted, dialect._max_tokens) == ((*GPU_BUILD.values(), "9.9"), 64)


def test_a_server_takes_what_is_let_in_and_a_probe() -> None:
    def words(most: int) -> str:
        return " ".join(command_line(VLLMSettings(max_running=most).resolved("cpu"), max_tokens=500, gpu=False))

    assert "--max-num-seqs 8" in words(7)
    assert "--max-num-batched-tokens 9001" in words(9000)  # vLLM refuses fewer than requests


def test_a_server_that_quantises_weights_is_told_so_and_gets_them_in_bfloat16() -> None:
    plain, quantized = (VLLMSettings(quantization=q).resolved("cpu") for q in (None, "fp8"))
    assert "--quantization" not in command_line(plain, max_tokens=500, gpu=False)
    words = " ".join(command_line(quantized, max_tokens=500, gpu=False))
    assert "--dtype bfloat16" in words
    assert "--quantization fp8_per_channel" in words
    assert (plain.tolerance, quantized.tolerance) == (1e-3, 1.0)
    assert VLLMSettings(quantization="fp8", probe_tolerance=0.5).tolerance == 0.5


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_weights_are_not_quantised_where_that_cannot_be_computed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"name": name, "quantization": "fp8"}
    with pytest.raises(ConfigError, match=r"engine\.dtype is 'float32'; set engine\.dtype: bfloat16, or"):
        configured(tmp_path, engine={**settings, "dtype": "float32"})
    config = configured(tmp_path, engine={**settings, "device": "cuda" if name == "vllm" else "auto"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(ConfigError, match=r"'fp8': NVIDIA A100 has compute capability 8\.0, and .*from 8\.9 on.*null"):
        ENGINES.find(name).check_machine(config)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    with pytest.raises(ConfigError, match="it is not in"):  # the next one
        ENGINES.find(name).check_machine(config)


def test_a_colocated_sglang_server_can_sleep(model: LanguageModel) -> None:
    for colocated in (True, False):
        settings = SGLangSettings(colocated=colocated, gpu_memory_utilization=0.4)
        made = sglang_server(model.network.config, settings, "http://127.0.0.1:1", 0, 100, {})
        assert ("--enable-memory-saver" in made._command) == colocated
        assert "--mem-fraction-static 0.4" in " ".join(made._command)
        made.close()


# -- what goes out, and at which temperature ---------------------------------------------------------------------------


def test_no_key_is_sent_that_was_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-machine")
    with serve() as api:
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m")).close()  # type: ignore[call-arg]
    assert api.headers
    assert not any("Authorization" in headers for headers in api.headers)


def test_an_evaluation_without_a_run_takes_temperature_and_seed(tmp_path: Path) -> None:
    with serve("Down") as api:
        path = write_config(tmp_path, engine={"name": "openai", "url": api.url, "model": "m"})
        for seed in (1, 2):
            evaluate_config(load_config(path), tasks=2, temperature=0.3, seed=seed)
    asked = [each for each in api.requests if each["temperature"] != 1.0]  # all but the greetings
    assert {each["temperature"] for each in asked} == {0.3}
    assert len({each["seed"] for each in asked}) > 2


def test_what_an_engine_lacks_is_said_before_an_evaluation_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    path, _ = run(tmp_path, steps=0, evaluation={"tasks": 2})
    wrong = load_config(path / "config.yaml", ["engine.name=vllm", f"engine.venv={tmp_path}", "model.head_width=32"])
    (path / "config.yaml").write_text(dump_config(wrong))
    monkeypatch.setattr("trainer.run.evaluate.Session", None)
    for evaluate in (lambda: evaluate_config(wrong), lambda: evaluate_run(path)):
        with pytest.raises(ConfigError, match="engine 'vllm': it is not in"):
            evaluate()


def test_a_run_is_evaluated_at_the_temperature_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    path, _ = run(tmp_path, steps=1, evaluation={"tasks": 2})
    submit, asked = HFEngine.submit, []

    def noted(engine: HFEngine, ids: Sequence[int], sampling: SamplingParams, **more: Any) -> Future[Completion]:
        asked.append(sampling.temperature)
        return submit(engine, ids, sampling, **more)

    monkeypatch.setattr(HFEngine, "submit", noted)
    evaluate_run(path, tasks=2, temperature=0.3)
    assert set(asked) == {0.3}
