"""vLLM in the process of the trainer, on a real vLLM on the CPU. It runs where vLLM and the trainer are in one
environment; ``test_vllm`` runs it so."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_runs import run
from tiny import full_logits, tiny_model
from vllm_engines import until

from roll_envs.errors import EngineError
from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig
from trainer.engines import make_engine, vllm_inside
from trainer.engines.remote import RemoteEngine
from trainer.engines.vllm_inside import InsideServer
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel
from trainer.run.folder import read_metrics

pytest.importorskip("vllm", reason="vLLM is not in this environment")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

WIDE = {"hidden_size": 64, "heads": 2, "layers": 2}
PROMPT = tuple(range(5, 105))
FOREVER = 120.0


@pytest.fixture(scope="module")
def models() -> list[LanguageModel]:
    return [tiny_model(seed, **WIDE) for seed in range(3)]


@pytest.fixture(scope="module")
def engine(models: list[LanguageModel]) -> Iterator[RemoteEngine]:
    random.seed(11)
    before = random.getstate(), torch.get_num_threads(), torch.set_num_threads
    found = make_engine(models[0], EngineConfig(name="vllm", in_process=True, max_running=32, max_tokens=400))
    assert (random.getstate(), torch.get_num_threads(), torch.set_num_threads) == before
    assert isinstance(found, RemoteEngine)
    yield found
    found.close()
    with pytest.raises(EngineError, match="closed"):
        found.generate(PROMPT, SamplingParams(max_new_tokens=1), timeout_s=FOREVER)


def inner(engine: RemoteEngine) -> Any:
    server = engine._replicas[0].server
    assert isinstance(server, InsideServer)
    assert server._engine is not None
    return server._engine


def largest_error(models: list[LanguageModel], prompt: tuple[int, ...], completion: Completion) -> float:
    """By how much log-probs differ from those of plain forward passes, version ``i`` being ``models[i % 3]``."""
    errors, at = [0.0], 0
    for version, tokens in completion.spans:
        logits = full_logits(models[version % 3], [*prompt, *completion.ids]).double().log_softmax(-1)
        for i in range(at, at + tokens):
            errors.append(abs(float(logits[len(prompt) - 1 + i, completion.ids[i]]) - completion.logprobs[i]))
        at += tokens
    assert at == len(completion.ids) == len(completion.logprobs)
    return max(errors)


def until_it_samples(engine: RemoteEngine, requests: int = 1) -> None:
    """Wait until so many requests have some tokens each."""
    states = inner(engine)._engine.output_processor.request_states
    until(lambda: sum(state.detokenizer.num_output_tokens() > 4 for state in list(states.values())) >= requests)


def update(engine: RemoteEngine, models: list[LanguageModel]) -> int:
    version = engine.version + 1
    engine.update_weights(weights_of(models[version % 3].network), version)
    return version


def test_log_probs_are_the_learners_before_and_after_updates(engine: RemoteEngine, models: list[LanguageModel]) -> None:
    for _ in range(3):
        completion = engine.generate(PROMPT, SamplingParams(max_new_tokens=12, seed=3), timeout_s=FOREVER)
        assert (completion.finish, completion.spans) == ("length", ((engine.version, 12),))
        assert largest_error(models, PROMPT, completion) < 1e-3
        stop = completion.ids[4]
        short = SamplingParams(max_new_tokens=12, seed=3, stop_ids=(stop,))
        stopped = engine.generate(PROMPT, short, timeout_s=FOREVER)
        assert (stopped.finish, stopped.ids) == ("stop", completion.ids[: completion.ids.index(stop) + 1])
        update(engine, models)


def test_an_update_in_mid_flight_keeps_requests(engine: RemoteEngine, models: list[LanguageModel]) -> None:
    first = engine.version
    prompts = [PROMPT[i:] for i in range(40)]  # more than run at once
    futures = [
        engine.submit(p, SamplingParams(max_new_tokens=280, seed=i), timeout_s=FOREVER) for i, p in enumerate(prompts)
    ]
    until_it_samples(engine)
    update(engine, models)
    engine.pause()
    done = sum(future.done() for future in futures)
    time.sleep(0.5)
    assert sum(future.done() for future in futures) == done < 40
    engine.resume()
    answers = [future.result() for future in futures]
    assert {answer.finish for answer in answers} == {"length"}
    assert (first, first + 1) in {tuple(span.version for span in answer.spans) for answer in answers}
    assert max(largest_error(models, p, a) for p, a in zip(prompts, answers, strict=True)) < 1e-3
    engine._client.run(engine._replicas[0].follow_load())
    assert engine._replicas[0].lane.limit == 32, "what the update sent back does not count as a lack of memory"


def test_abort_keeps_what_was_sampled_and_a_cancelled_request_ends(
    engine: RemoteEngine, models: list[LanguageModel]
) -> None:
    def ask(seed: int) -> Any:
        return engine.submit(PROMPT, SamplingParams(max_new_tokens=280, seed=seed), timeout_s=FOREVER)

    futures = [ask(i) for i in range(40)]
    until_it_samples(engine, requests=30)  # of 32 that run at once
    engine.abort()
    answers = [future.result() for future in futures]
    assert {answer.finish for answer in answers} == {"abort"}
    assert sum(bool(answer.ids) for answer in answers) >= 30
    assert max(largest_error(models, PROMPT, answer) for answer in answers) < 1e-3
    cancelled = [ask(i) for i in range(4)]
    time.sleep(0.2)
    assert all(future.cancel() for future in cancelled)
    until(lambda: not inner(engine)._engine.has_unfinished_requests(), within_s=10)


def test_an_engine_that_hangs_holds_nobody_up_for_ever(
    engine: RemoteEngine, models: list[LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_inside, "_END_S", 0.2)
    server, hung, goes_on = engine._replicas[0].server, inner(engine), threading.Event()
    hung._calls.put(lambda: goes_on.wait(FOREVER))
    assert server.stop()
    with pytest.raises(EngineError, match=r"has not ended within 0\.2 s"):
        server.start()
    goes_on.set()
    until(lambda: not hung.alive)
    monkeypatch.undo()
    completion = engine.generate(PROMPT, SamplingParams(max_new_tokens=4, seed=1), timeout_s=FOREVER)
    assert largest_error(models, PROMPT, completion) < 1e-3


def test_an_engine_that_fails_is_made_again_with_the_current_weights(
    engine: RemoteEngine, models: list[LanguageModel]
) -> None:
    def fail() -> None:
        raise MemoryError("planted")

    version, old = update(engine, models), inner(engine)
    old._engine.step = fail
    completion = engine.generate(PROMPT, SamplingParams(max_new_tokens=8, seed=1), timeout_s=FOREVER)
    assert completion.spans == ((version, 8),)
    assert largest_error(models, PROMPT, completion) < 1e-3
    assert inner(engine) is not old
    assert "MemoryError: planted" in old.problem


def test_a_whole_run(engine: RemoteEngine, tmp_path: Path) -> None:
    engine.close()  # one vLLM in a process
    settings = {"name": "vllm", "in_process": True, "max_tokens": 128}
    folder, _ = run(tmp_path, steps=3, model=WIDE, engine=settings)
    lines = read_metrics(folder, "train")
    assert len(lines) == 3
    assert all(line["mismatch/logprob_diff_max"] < 1e-3 and line["rollout/failed_share"] == 0 for line in lines)
