"""The engine ``openai``: against a server on a real socket that fails in every way that servers do."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_runs import write_config
from openai_server import FakeAPI, serve
from tiny import tiny_model

from roll_envs.chat_api import read_answer, retry_after_s
from roll_envs.errors import ConfigError, DeadlineExceededError, EngineError
from roll_envs.policy import CharRenderer
from roll_envs.types import Completion, Message, SamplingParams
from trainer import train
from trainer.cli import main
from trainer.cli_eval import main as main_eval
from trainer.config import EngineConfig
from trainer.config.load import load_config
from trainer.engines import Engine, check_can_train, make_engine, openai_engine
from trainer.model.network import save_model
from trainer.rollout import source
from trainer.rollout.source import Session, draw_tasks
from trainer.run.evaluate import evaluate_config
from trainer.run.folder import read_metrics

TEXT = CharRenderer()
ASKED = TEXT.render([Message(role="system", content="Rules."), Message(role="user", content="Map \ud800é")])
SAMPLING = SamplingParams(max_new_tokens=5, temperature=0.7, seed=2**40 + 3)
KEY = "s3cret-key"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and no proxy or key of the machine."""
    monkeypatch.setattr(openai_engine, "_FIRST_PAUSE_S", 0.02)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def engine_at(api: FakeAPI, **settings: Any) -> Iterator[Engine]:
    """An engine whose greeting is over, so that the faults are for the requests of the test."""
    faults, api.faults = api.faults, []
    engine = make_engine(None, EngineConfig(name="openai", url=api.url, model="m", **settings))
    api.faults = faults
    api.requests.clear()
    try:
        yield engine
    finally:
        engine.close()


def ask(engine: Engine, timeout_s: float = 10.0, prompt: tuple[int, ...] = ASKED) -> Completion:
    return engine.generate(prompt, SAMPLING, timeout_s=timeout_s)


# -- what is sent and what comes back ----------------------------------------------------------------------------------


def test_a_prompt_becomes_messages_and_the_answer_ids() -> None:
    with serve("Right") as api, engine_at(api) as engine:
        answer = ask(engine)
        assert (TEXT.decode(answer.ids), answer.finish) == ("Right", "stop")
        assert answer.ids[-1] == TEXT.STOP
        assert api.requests == [
            {
                "model": "m",
                "messages": [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Map \ufffdé"}],
                "temperature": 0.7,
                "max_tokens": 5,
                "seed": 3,
            }
        ]
        assert "Authorization" not in api.headers[-1]
        with pytest.raises(ConfigError, match="gives no log-prob"):
            check_can_train("openai", engine)
        with pytest.raises(EngineError, match="takes no weights"):
            engine.update_weights([], 1)
        engine.health()


def test_half_a_character_is_none_in_an_answer() -> None:
    with serve("\ud83d Right") as api, engine_at(api) as engine:
        assert TEXT.decode(ask(engine).ids) == "\ufffd Right"


def test_a_conversation_continues_to_the_letter() -> None:
    with serve(lambda body: body["messages"][-1]["content"].upper()) as api, engine_at(api) as engine:
        prompt = TEXT.render([Message(role="user", content="a\x00b")])
        answer = ask(engine, prompt=prompt)
        longer = TEXT.extend(prompt + answer.ids, Message(role="user", content="c"))
        assert longer is not None
        ask(engine, prompt=longer)
        said = [(m["role"], m["content"]) for m in api.requests[-1]["messages"]]
        assert said == [("user", "a\x00b"), ("assistant", "A\x00B"), ("user", "c")]


def test_fields_are_added_and_left_out() -> None:
    with serve() as api, engine_at(api, body={"seed": None, "max_tokens": None, "top_p": 0.5}) as engine:
        ask(engine)
        assert api.requests[0].keys() == {"model", "messages", "temperature", "top_p"}
        assert api.requests[0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("fault", "text", "finish"),
    [
        ("parts", "Right", "stop"),
        ("length", "Right", "length"),
        ("no finish", "Right", "stop"),
        ("null", "", "stop"),
        ("tool", "", "stop"),
        ("thoughts", "", "length"),
        ("refusal", "I won't", "stop"),
    ],
)
def test_what_the_model_did_is_its_answer_even_if_it_said_nothing(fault: str, text: str, finish: str) -> None:
    with serve(faults=[fault]) as api, engine_at(api) as engine:
        answer = ask(engine)
        assert (TEXT.decode(answer.ids), answer.finish, len(api.requests)) == (text, finish, 1)
        assert (answer.ids[-1:] == TEXT.stop_ids) == (finish == "stop")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "429",
        "408",
        "500",
        "503",
        "529",
        "half",
        "reset",
        "text",
        "empty",
        "deep",
        "no choices",
        "list",
        "number",
        "abort",
    ],
)
def test_a_failure_that_may_pass_is_asked_again(fault: str) -> None:
    with serve(faults=[fault, fault]) as api, engine_at(api) as engine:
        assert TEXT.decode(ask(engine).ids) == "Right"
        assert len(api.requests) == 3
        assert api.requests[0] == api.requests[2]


@pytest.mark.parametrize("fault", ["400", "404", "413", "422", "redirect", "content_filter"])
def test_a_refusal_is_told_at_once(fault: str) -> None:
    with serve(faults=[fault]) as api, engine_at(api) as engine:
        with pytest.raises(EngineError, match="content filter" if fault == "content_filter" else "refused"):
            ask(engine)
        assert len(api.requests) == 1
        assert TEXT.decode(ask(engine).ids) == "Right"


def test_a_deadline_says_what_went_wrong_before_it() -> None:
    with serve(faults=["500"] * 99) as api, engine_at(api) as engine:
        with pytest.raises(
            DeadlineExceededError, match=r"the engine's answer \(/chat/completions answered 500: busy\)"
        ):
            engine.submit(ASKED, SAMPLING, timeout_s=1.0).result(10)
        assert 2 <= len(api.requests) <= 8  # pauses grow: 0.01 s, 0.02 s, ... at least
    for fault in ("hang", "later"):
        with serve(faults=[fault]) as api, engine_at(api) as engine:
            started = time.monotonic()
            with pytest.raises(DeadlineExceededError):
                engine.submit(ASKED, SAMPLING, timeout_s=0.2).result(10)
            assert time.monotonic() - started < 5
            assert len(api.requests) == 1  # a server that asks for a pause gets it


def test_requests_wait_here_beyond_the_limit_and_take_no_thread_each() -> None:
    with serve(delay_s=0.005) as api, engine_at(api, max_running=4) as engine:
        before = threading.active_count()
        futures = [engine.submit(ASKED, SAMPLING, timeout_s=20) for _ in range(200)]
        assert threading.active_count() <= before + 4
        assert {TEXT.decode(f.result(20).ids) for f in futures} == {"Right"}
        assert api.most_at_once == 4


def test_a_withdrawn_request_gives_its_place_to_another_and_closing_ends_all() -> None:
    with serve(faults=["hang"]) as api, engine_at(api, max_running=1) as engine:
        hung = engine.submit(ASKED, SAMPLING, timeout_s=20)
        while not api.requests:
            time.sleep(0.01)
        waiting = engine.submit(ASKED, SAMPLING, timeout_s=20)
        hung.cancel()
        assert TEXT.decode(waiting.result(10).ids) == "Right"
        api.faults = ["hang"]
        last: Future[Completion] = engine.submit(ASKED, SAMPLING, timeout_s=20)
        engine.close()
        engine.close()
        with pytest.raises(EngineError, match="the engine is closed"):
            last.result(10)
        for act in (lambda: ask(engine), engine.health):
            with pytest.raises(EngineError, match="the engine is closed"):
                act()


def test_prompts_that_no_renderer_made_are_refused() -> None:
    with serve() as api, engine_at(api) as engine:
        for prompt in ((), (5, 6), (5, 3, 2), (1, 5, 3), (1, 2**30, 3, 2)):
            with pytest.raises(EngineError, match="prompt"):
                engine.submit(prompt, SAMPLING, timeout_s=1)
        assert api.requests == []


# -- token ids ---------------------------------------------------------------------------------------------------------


def test_with_token_ids_the_servers_ids_and_log_probs_are_kept() -> None:
    sampling = SamplingParams(max_new_tokens=3, stop_ids=(9,))
    faults = ["text ids", "short", "long", "no number", "abort"]
    with serve(faults=faults) as api, engine_at(api, token_ids=True) as engine:
        answer = engine.generate((5, 6), sampling, timeout_s=10)
        assert (answer.ids, answer.logprobs, answer.finish) == ((7, 7, 9), (-0.25,) * 3, "stop")
        assert len(api.requests) == 6
        sent = {"prompt": [5, 6], "stop_token_ids": [9], "return_token_ids": True, "logprobs": 0, "max_tokens": 3}
        assert sent.items() <= api.requests[0].items()
        with pytest.raises(EngineError, match=r"exceed engine\.max_tokens 1024"):
            engine.submit((5,) * 1022, sampling, timeout_s=1)
        api.faults = ["no ids"]
        with pytest.raises(EngineError, match=r"no token ids, as vLLM does; leave engine\.token_ids out"):
            engine.generate((5, 6), sampling, timeout_s=10)


def test_with_token_ids_prompts_are_in_the_template_of_the_models_tokenizer(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path / "model")
    changes = {"model": {"path": str(tmp_path / "model")}, "sampling": {"max_new_tokens": 2}}
    with serve() as api:
        engine = {"name": "openai", "url": api.url, "model": "m", "token_ids": True, "max_tokens": 256}
        result = evaluate_config(load_config(write_config(tmp_path, engine=engine, **changes)), tasks=2)
        assert (result.tasks, result.failed) == (2, 0)
        assert max(api.requests[-1]["prompt"]) < tiny_model().network.config.vocab_size
        assert len(api.requests[-1]["stop_token_ids"]) == 1


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "localhost:8000"}, "engine.url is 'localhost:8000'; allowed: an address such as"),
        ({"url": "http://[host/v1"}, "engine.url is 'http://[host/v1'; allowed: an address such as"),
        ({"url": "http://host:port/v1"}, "engine.url is 'http://host:port/v1'; allowed: an address such as"),
        ({"url": "http://me:pw@host/v1"}, "engine.url has a user or password in it"),
        ({"url": "http://host/v1/chat/completions"}, "it ends with the version, such as /v1, and no route"),
        ({"api_key_env": "sk-123"}, "engine.api_key_env is not the name of an environment variable"),
        ({"body": {"stream": True}}, "engine.body may not change 'stream'"),
        ({"token_ids": True}, "engine.token_ids needs the server's tokenizer: give its folder as model.path"),
        ({"url": None}, "engine.url is null; allowed: text"),
        ({"models": "m"}, "unknown key 'engine.models'; did you mean 'engine.model'"),
    ],
)
def test_wrong_settings_are_told_with_their_place(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    engine = {"name": "openai", "url": "http://host/v1", "model": "m", **settings}
    with pytest.raises(ConfigError) as error:
        load_config(write_config(tmp_path, engine=engine))
    assert said in str(error.value)
    assert "sk-123" not in str(error.value)
    assert "pw" not in str(error.value)


def test_answers_may_be_longer_than_the_models_that_are_built_here_take(tmp_path: Path) -> None:
    engine = {"name": "openai", "url": "http://host/v1", "model": "m"}
    sampling = {"max_new_tokens": 4096}
    config = load_config(write_config(tmp_path, engine=engine, sampling=sampling))
    assert config.sampling.max_new_tokens == 4096
    engine["token_ids"] = True  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="leaves no room for a prompt"):
        load_config(write_config(tmp_path, engine=engine, sampling=sampling, model={"path": "here"}))


def test_missing_settings_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write_config(tmp_path, engine={"name": "openai"}))
    assert "the key 'engine.url' is missing" in str(error.value)
    assert "the key 'engine.model' is missing" in str(error.value)


def test_a_server_that_is_not_there_or_broken_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        with pytest.raises(EngineError, match=r"gave no answer in 3 tries .*; start the server, or check engine\.url"):
            make_engine(None, EngineConfig(name="openai", url=url, model="m"))
    with serve(faults=["text"] * 3) as api, pytest.raises(EngineError, match="gave no answer in 3 tries"):
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m"))
    with serve(faults=["503", "half"]) as api:  # it comes up just now
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m")).close()
    with serve(faults=["429"] * 5) as api:
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m")).close()
    monkeypatch.setattr(openai_engine, "_GREETING_S", 1.0)
    with (
        serve(faults=["later"]) as api,
        pytest.raises(EngineError, match=r"1 tries .*429.*it is busy: try again later"),
    ):
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m"))


def test_a_refusal_of_the_first_request_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(api: FakeAPI, **settings: Any) -> str:
        with pytest.raises((EngineError, ConfigError)) as error:
            make_engine(None, EngineConfig(**{"name": "openai", "url": api.url, "model": "m", **settings}))
        return str(error.value)

    with serve(models=("big", "small")) as api:
        assert "check engine.model (the server has: big, small) and engine.url" in refused(api)
        assert "check engine.model and engine.url" in refused(api, url=api.url.removesuffix("/v1"))
    with serve(faults=["400"]) as api:
        said = refused(api)
        assert "400: busy" in said
        assert "engine.body={NAME: null}; a model without a chat template" in said
    with serve(faults=["redirect"]) as api:
        assert "307: it is at /elsewhere; check engine.url" in refused(api)
    with serve(faults=["text"] * 3) as api:
        assert "answered no JSON but text/html: '<html>busy</html>'" in refused(api)
    with serve(faults=["stream"] * 3) as api:
        assert "no JSON but text/event-stream; it streams, which it was not asked to: 'data: {" in refused(api)
    with serve(key=KEY) as api:
        assert "say in engine.api_key_env which environment variable" in refused(api)
        assert "is not set" in refused(api, api_key_env="ROLL_TEST_KEY")
        monkeypatch.setenv("ROLL_TEST_KEY", "two words")
        assert "strange characters" in refused(api, api_key_env="ROLL_TEST_KEY")


def test_the_key_is_sent_and_never_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ROLL_TEST_KEY", f"{KEY}\n")
    with serve(key=KEY) as api:
        with engine_at(api, api_key_env="ROLL_TEST_KEY") as engine:
            assert TEXT.decode(ask(engine).ids) == "Right"
        api.key = "another"
        with pytest.raises(EngineError) as error:
            make_engine(None, EngineConfig(name="openai", url=api.url, model="m", api_key_env="ROLL_TEST_KEY"))
    assert "wrong key: Bearer (the key)" in str(error.value)
    assert "check the key in the variable that engine.api_key_env names" in str(error.value)
    with serve(faults=["key"] * 3) as api, pytest.raises(EngineError, match=r"not for Bearer \(the key\)"):
        make_engine(None, EngineConfig(name="openai", url=api.url, model="m", api_key_env="ROLL_TEST_KEY"))
    assert KEY not in caplog.text


def test_requests_go_through_the_proxy_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve("Right") as api:
        monkeypatch.setenv("HTTP_PROXY", api.url.removesuffix("/v1"))
        engine = make_engine(None, EngineConfig(name="openai", url="http://elsewhere.invalid/v1", model="m"))
        try:
            assert TEXT.decode(ask(engine).ids) == "Right"
        finally:
            engine.close()
        assert {headers["Host"] for headers in api.headers} == {"elsewhere.invalid"}


def test_an_answer_may_take_as_long_as_its_deadline_and_the_greeting_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.engines.server.ROUTE_TIMEOUT_S", 0.1)
    with serve("Right") as api, engine_at(api) as engine:
        api.delay_s = 0.3
        assert TEXT.decode(ask(engine).ids) == "Right"
        assert len(api.requests) == 1
        monkeypatch.setattr(openai_engine, "_GREETING_S", 0.1)
        with pytest.raises(EngineError, match="gave no answer in 3 tries"):
            make_engine(None, EngineConfig(name="openai", url=api.url, model="m"))


# -- evaluation without a run ------------------------------------------------------------------------------------------


def test_a_whole_evaluation_against_a_server_that_fails_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path, context={"kind": "everything", "system_prompt": None})
    with serve("Down", faults=["500", "", *["half", "429", "reset", "no choices", ""] * 2]) as api:
        arguments = ["engine.name=openai", f"engine.url={api.url}", "engine.model=m", "engine.max_running=3"]
        assert main_eval([str(path), "--tasks", "6", "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["failed"], found["step"]) == (6, 0, 0)
    assert found["valid_action_rate"] == 1.0
    assert found["name"] == "roll/FrozenLake-v0 without training"
    turns = [r["messages"] for r in api.requests[2:]]
    assert {m[0]["role"] for m in turns} == {"system"}
    assert max(len(m) for m in turns) == 6  # system, then three questions with two answers between
    assert not (tmp_path / "runs").exists()


def test_a_server_that_goes_away_gives_failed_episodes_and_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(faults=["", *["400"] * 99]) as api:
        engine = {"name": "openai", "url": api.url, "model": "m"}
        path = write_config(tmp_path, engine=engine)
        assert main_eval([str(path), "--tasks", "3"]) == 2
        assert "no episode of the evaluation counts: 3 x" in capsys.readouterr().err
    with serve(faults=["", "400"]) as api:  # one of them
        engine["url"] = api.url
        result = evaluate_config(load_config(write_config(tmp_path, engine=engine)), tasks=3)
        assert (result.tasks, result.failed) == (2, 1)


def test_training_with_it_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path, engine={"name": "openai", "url": "http://127.0.0.1:9/v1", "model": "m"})
    for command in ([str(path)], [str(path), "--dry-run"]):
        assert main(command) == 2
        assert "engine.name 'openai': the model is the server's" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="the model is the server's"):
        train(path)


def test_a_configuration_is_evaluated_with_the_built_in_engine_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path)
    assert main_eval([str(path), "--tasks", "4", "--seed", "3", "--temperature", "0"]) == 0
    assert "without training" in capsys.readouterr().out
    assert main_eval([str(tmp_path / "none.yaml")]) == 2
    assert "no configuration file" in capsys.readouterr().err
    assert main_eval(["a-run", "engine.name=openai"]) == 2
    assert "keys are laid over a YAML file" in capsys.readouterr().err


# -- teachers ----------------------------------------------------------------------------------------------------------


def towards_the_goal(body: dict[str, Any]) -> str:
    """A good player of FrozenLake, who sees no holes."""
    rows = body["messages"][-1]["content"].splitlines()
    place = {c: (y, row.index(c)) for y, row in enumerate(rows) for c in "PG" if c in row}
    if len(place) < 2:
        return "Up"
    down, right = (place["G"][axis] - place["P"][axis] for axis in (0, 1))
    return ("Down" if down > 0 else "Up") if down else ("Right" if right > 0 else "Left")


def taught(tmp_path: Path, api: FakeAPI, **changes: Any) -> Path:
    teacher = {"name": "openai", "url": api.url, "model": "m", "body": {"max_tokens": 99}, **changes.pop("teacher", {})}
    return write_config(tmp_path, warm_start={"teacher": teacher, "episodes_per_step": 20, "steps": 1}, **changes)


def test_a_teachers_episodes_are_retold_as_the_model_would_have_played_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SMALL_MODEL", 1)  # this one is large, so that it gets more than one thread
    with serve(towards_the_goal) as api, Session(load_config(taught(tmp_path, api))) as session:
        tasks = draw_tasks(session.config.env, seed=0, indices=range(20), split="demonstrations")
        threads = torch.get_num_threads()
        episodes = session.demonstrate(tasks)
        assert torch.get_num_threads() == threads
        assert {e.outcome.kind for e in episodes} == {"completed", "truncated"}
        assert sum(e.success for e in episodes) > 5
        decode = session.model.tokenizer.decode
        for turn in (turn for episode in episodes for turn in episode.turns):
            # The model sees the map alone, its teacher the rules and what was played before.
            assert decode(turn.prompt_ids) == f"<|user|>{turn.prompt_observation}<|end|><|assistant|>"
            assert decode(turn.completion.ids) == f"{turn.text}<|end|>"
        assert all(r["messages"][0]["role"] == "system" and r["max_tokens"] == 99 for r in api.requests[1:])
        assert max(len(r["messages"]) for r in api.requests) == 6
        session.settings = replace(session.settings, max_tokens=9)
        (long,) = session.demonstrate(tasks[:1])
        assert (long.outcome.kind, long.turns) == ("failed", ())
        assert "more than engine.max_tokens" in long.outcome.reason


def test_a_retold_dialogue_continues_to_the_letter(tmp_path: Path) -> None:
    changes = {"context": {"kind": "everything", "system_prompt": "Go."}, "engine": {"max_tokens": 512}}
    with serve("Up") as api, Session(load_config(taught(tmp_path, api, **changes))) as session:
        (played,) = session.demonstrate(draw_tasks(session.config.env, seed=0, indices=[3], split="demonstrations"))
        assert len(played.turns) == 3
        for before, after in pairwise(played.turns):
            said = before.prompt_ids + before.completion.ids
            assert after.prompt_ids[: len(said)] == said
        assert session.model.tokenizer.decode(played.turns[-1].prompt_ids).startswith("<|system|>Go.<|end|><|user|>")


def test_a_warm_start_learns_from_the_teachers_successes(tmp_path: Path, no_pictures: None) -> None:
    with serve(towards_the_goal) as api:
        summary = train(taught(tmp_path, api, steps=0))
    (record,) = read_metrics(summary["folder"], "warm_start")
    assert 0.2 < record["teacher/success_rate"] < 1.0
    assert record["teacher/failed_share"] == 0.0
    assert record["loss/total"] > 0
    with serve("Nothing") as api:  # never succeeds: there is nothing to learn, and the weights stay
        summary = train(taught(tmp_path, api, steps=0))
    (record,) = read_metrics(summary["folder"], "warm_start")
    assert (record["teacher/success_rate"], record["learner/skipped_steps"]) == (0.0, 1.0)


def test_a_teacher_that_cannot_teach_is_told(tmp_path: Path) -> None:
    with serve() as api:
        for teacher, said in (
            ({"name": "opnai"}, "warm_start.teacher: override engine.name: no engine 'opnai'; did you mean 'openai'"),
            ({"modell": "x"}, "warm_start.teacher: override engine.modell: unknown key 'engine.modell'; did you mean"),
            ({"url": "here"}, "warm_start.teacher: override engine: engine.url is 'here'"),
        ):
            with pytest.raises(ConfigError) as error:
                load_config(taught(tmp_path, api, teacher=teacher))
            assert said in str(error.value)
        config = load_config(write_config(tmp_path, warm_start={"teacher": {"name": "hf"}}))
        with (
            Session(config) as session,
            pytest.raises(ConfigError, match="a teacher takes messages, as engine 'openai'"),
        ):
            session.demonstrate(draw_tasks(config.env, seed=0, indices=range(1)))


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_prompts_of_characters_are_read_again() -> None:
    texts = ["", "é √ \u202e", "\x00\x03", "\ud800", "😀", "\U0010ffff"]
    messages = [Message(role=role, content=text) for text in texts for role in ("user", "assistant")]
    assert TEXT.messages(TEXT.render(messages)) == messages
    for ids in ((), (1, 5, 3), (5, 3, 2), (1, 3, 2, 2)):
        with pytest.raises(ValueError, match=r"ids|message"):
            TEXT.messages(ids)


@pytest.mark.parametrize(
    "reply", [None, 7, {}, [], {"choices": []}, {"choices": [None]}, {"choices": [{"message": 1}]}]
)
def test_a_reply_without_choices_is_none(reply: Any) -> None:
    with pytest.raises(ValueError, match="no choices"):
        read_answer(reply)


def test_pauses_are_read_as_seconds_or_dates() -> None:
    assert [retry_after_s(text) for text in ("7", " 0 ", "", "soon", "-1")] == [7.0, 0.0, 0.0, 0.0, 0.0]
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s("Wed, 21 Oct 2065 07:28:00 GMT") > 1e6
