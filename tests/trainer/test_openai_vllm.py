"""The engine ``openai`` against a plain vLLM server: by messages, and by token ids whose log-probs are the model's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from loop_runs import write_config
from tiny import full_logits, tiny_model

from roll_envs import make_verifier
from roll_envs.errors import ConfigError, EngineError
from roll_envs.policy import CharRenderer
from roll_envs.types import Message, SamplingParams
from roll_envs.verifiers.types import Failed
from trainer.config import EngineConfig
from trainer.config.load import load_config, parse_config
from trainer.engines import make_engine
from trainer.engines.judges import served_judges
from trainer.engines.server import Server, free_port
from trainer.engines.vllm import VLLMSettings, check_vllm, serve_program
from trainer.model.network import LanguageModel, save_model
from trainer.run.evaluate import evaluate_config

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model(0, hidden_size=64, heads=2, layers=2)


@pytest.fixture(scope="module")
def folder(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    save_model(model, folder)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The API of a server as a user starts it."""
    try:
        check_vllm(VLLMSettings())
    except ConfigError as error:
        pytest.skip(str(error))
    port = free_port()
    arguments = {
        "model": str(folder),
        "served-model-name": "m",
        "port": str(port),
        "host": "127.0.0.1",
        "dtype": "float32",
        "max-model-len": "512",
        "block-size": "32",
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "distributed-executor-backend": "uni",
    }
    server = Server(
        f"http://127.0.0.1:{port}",
        [
            *serve_program(VLLMSettings()),
            *[text for key, value in arguments.items() for text in (f"--{key}", value)],
            "--no-enable-chunked-prefill",
            "--enforce-eager",
        ],
        environment={
            **os.environ,
            "PYTHONPATH": "",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        log=str(folder.parent / "server.log"),
    )
    server.start()
    try:
        until = time.monotonic() + 300
        while not _answers(server.url):
            assert server.can_answer, server.last_words()
            assert time.monotonic() < until, server.last_words()
            time.sleep(0.5)
        yield f"{server.url}/v1"
    finally:
        server.close()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


def test_by_token_ids_the_log_probs_are_those_of_the_model(model: LanguageModel, url: str) -> None:
    engine = make_engine(None, EngineConfig(name="openai", url=url, model="m", token_ids=True, max_tokens=512))
    prompt = tuple(range(5, 60))
    try:
        for temperature in (0.7, 1.0):
            sampling = SamplingParams(max_new_tokens=12, temperature=temperature, stop_ids=(1,), seed=3)
            answer = engine.generate(prompt, sampling, timeout_s=120)
            assert (len(answer.ids) == 12) == (answer.finish == "length")
            logp = (full_logits(model, [*prompt, *answer.ids]).double() / temperature).log_softmax(-1)
            expected = [float(logp[len(prompt) - 1 + i, token]) for i, token in enumerate(answer.ids)]
            assert answer.logprobs == pytest.approx(expected, abs=1e-3)
        greedy = SamplingParams(max_new_tokens=12, temperature=0.0)
        answer = engine.generate(prompt, greedy, timeout_s=120)
        best = full_logits(model, [*prompt, *answer.ids]).argmax(-1).tolist()
        assert list(answer.ids) == best[len(prompt) - 1 : -1]
        stop = answer.ids[5]  # among what is sampled for sure
        ended = engine.generate(
            prompt, SamplingParams(max_new_tokens=12, temperature=0.0, stop_ids=(stop,)), timeout_s=60
        )
        assert ended.ids == answer.ids[: answer.ids.index(stop) + 1]
        assert ended.finish == "stop"
    finally:
        engine.close()


def test_an_evaluation_by_messages_and_one_by_token_ids(folder: Path, url: str, tmp_path: Path) -> None:
    for token_ids in (False, True):
        engine = {"name": "openai", "url": url, "model": "m", "token_ids": token_ids, "max_tokens": 512}
        path = write_config(tmp_path, engine=engine, model={"path": str(folder)}, sampling={"max_new_tokens": 4})
        result = evaluate_config(load_config(path), tasks=4)
        assert (result.tasks, result.failed) == (4, 0)


def test_what_a_real_server_refuses_is_told(url: str) -> None:
    with pytest.raises(EngineError, match=r"check engine\.model \(the server has: m\) and engine\.url"):
        make_engine(None, EngineConfig(name="openai", url=url, model="other"))
    with pytest.raises(EngineError, match=r"check engine\.model and engine\.url"):
        make_engine(None, EngineConfig(name="openai", url=url.removesuffix("/v1"), model="m"))
    engine = make_engine(None, EngineConfig(name="openai", url=url, model="m"))
    text = CharRenderer()
    try:
        engine.health()
        long = text.render([Message(role="user", content="word " * 500)])
        with pytest.raises(EngineError, match="refused /chat/completions with 400"):
            engine.generate(long, SamplingParams(max_new_tokens=4), timeout_s=60)
        answer = engine.generate(
            text.render([Message(role="user", content="hi")]), SamplingParams(seed=1), timeout_s=60
        )
        assert answer.finish in ("stop", "length")
    finally:
        engine.close()


def test_a_model_that_a_run_serves_judges_answers(url: str, tmp_path: Path) -> None:
    """A network of random weights gives no verdict that means anything, but it is asked, and its words come back."""
    save_model(tiny_model(0, hidden_size=64, heads=2, layers=1, max_positions=4096), tmp_path)
    config = parse_config(
        "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"
        f"judges: {{referee: {{model: '{tmp_path}', device: cpu, max_tokens: 4096}}}}\n"
    )
    judge = make_verifier("llm_judge", url="judge:referee", model="referee", max_tokens=32, asks=2, structured="never")
    with served_judges(config, [()], [0]):
        verdict = judge("It is Paris.", "Paris", {"prompt": "What is the capital of France?"})
        judge.close()
    assert judge.usage["completion_tokens"] > 0, verdict
    assert not isinstance(verdict, Failed) or "asked 2 times; the last: " in verdict.reason
