"""The engine ``scripted``: latencies, faults, updates and log-probs come as they are ordered, the same each time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_runs import run, write_config
from tiny import tiny_model

from roll_envs.errors import ConfigError, DeadlineExceededError, EngineError, RollError
from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig
from trainer.config.load import load_config
from trainer.engines import check_can_train, make_engine
from trainer.engines.scripted import ScriptedEngine, ScriptedSettings
from trainer.model.forward import weights_of
from trainer.run.evaluate import evaluate_config
from trainer.run.folder import read_metrics

SAMPLING = SamplingParams(max_new_tokens=8, stop_ids=(1,))


def scripted(**settings: Any) -> ScriptedEngine:
    return ScriptedEngine(ScriptedSettings(**settings), vocabulary=50)


def seeded(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 8, "stop_ids": (1,), "seed": seed, **changes})


def outcome(engine: ScriptedEngine, seed: int) -> str:
    try:
        return engine.submit((5,), seeded(seed), timeout_s=0.001).result(5).finish
    except RollError as error:
        return type(error).__name__


# -- answers -----------------------------------------------------------------------------------------------------------


def test_random_answers_are_as_long_as_ordered_and_end_with_a_stop_id() -> None:
    engine = scripted(answer_tokens=4, logprob=-2.0)
    answers = [engine.generate((5,), seeded(i), timeout_s=1) for i in range(50)]
    assert {(len(a.ids), a.ids[-1], a.ids.count(1), a.finish) for a in answers} == {(4, 1, 1, "stop")}
    assert answers[0].logprobs == (-2.0,) * 4
    assert len({a.ids for a in answers}) > 45
    longest = [scripted().generate((5,), seeded(i), timeout_s=1) for i in range(50)]
    assert {(len(a.ids), 1 in a.ids, a.finish) for a in longest} == {(8, False, "length")}
    varied = scripted(answer_tokens=3, answer_sigma=0.5)
    lengths = [len(varied.generate((5,), seeded(i), timeout_s=1).ids) for i in range(300)]
    assert np.median(lengths) == 3
    assert {1, 2, 4, 8} <= set(lengths)


def test_texts_are_answered_evenly_and_cut() -> None:
    model = tiny_model()
    words = ["More", "Less"]
    engine = make_engine(model, EngineConfig(name="scripted", answers=words))
    said = Counter(model.tokenizer.decode(engine.generate((5,), seeded(i), timeout_s=1).ids[:-1]) for i in range(100))
    assert said.keys() == set(words)
    assert min(said.values()) > 30
    cut = ScriptedEngine(ScriptedSettings(), vocabulary=50, answers=[(7, 8, 9)])
    answers = [cut.generate((5,), seeded(0, max_new_tokens=n), timeout_s=1) for n in (2, 3, 4)]
    assert [(a.ids, a.finish) for a in answers] == [((7, 8), "length"), ((7, 8, 9), "length"), ((7, 8, 9, 1), "stop")]


def test_what_comes_of_a_request_is_the_same_each_time_and_in_any_order() -> None:
    orders = {"answer_tokens": 4, "answer_sigma": 1.0, "error_rate": 0.3, "hang_rate": 0.2, "garbage_rate": 0.2}

    def played(seeds: list[int], seed: int = 3) -> dict[int, str]:
        engine = scripted(seed=seed, **orders)
        return {i: outcome(engine, i) for i in seeds}

    first = played(list(range(60)))
    assert first == dict(sorted(played(list(range(59, -1, -1))).items()))
    assert first != played(list(range(60)), seed=4)
    again = scripted(seed=3, **orders)  # an episode that is tried again may do better
    assert len({outcome(again, 7) for _ in range(20)}) > 1


# -- latencies ---------------------------------------------------------------------------------------------------------


def delays(**settings: Any) -> list[float]:
    engine = scripted(**settings)
    return [engine._plan(seeded(i), [0, i])[1] for i in range(1000)]


def test_latencies_have_the_distribution_that_was_ordered() -> None:
    assert set(delays()) == {0.0}
    assert set(delays(latency_s=0.2)) == {0.2}
    assert {round(delay, 6) for delay in delays(latency_s=0.2, token_s=0.1, answer_tokens=3)} == {0.5}
    tail = np.log(delays(latency_s=0.2, latency_sigma=1.0))
    assert np.exp(np.median(tail)) == pytest.approx(0.2, rel=0.1)
    assert tail.std() == pytest.approx(1.0, rel=0.1)


def test_thousands_wait_without_a_thread_each_and_come_in_the_order_of_their_times() -> None:
    engine = scripted(latency_s=0.2, latency_sigma=0.3)
    before = threading.active_count()
    started = time.monotonic()
    futures = [engine.submit((5,), seeded(i), timeout_s=30) for i in range(3000)]
    assert threading.active_count() <= before + 1
    assert not all(f.done() for f in futures)
    assert not wait(futures, timeout=20).not_done
    assert time.monotonic() - started < 15
    assert engine.requests == 3000
    assert engine._pending == {}


# -- faults ------------------------------------------------------------------------------------------------------------


def test_faults_come_as_often_as_ordered() -> None:
    engine = scripted(error_rate=0.2, hang_rate=0.1)
    found = Counter(outcome(engine, i) for i in range(400))
    assert found.keys() == {"length", "EngineError", "DeadlineExceededError"}
    assert found["EngineError"] == pytest.approx(80, abs=25)
    assert found["DeadlineExceededError"] == pytest.approx(40, abs=20)


def test_a_hang_ends_at_the_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"the scripted engine's answer after 0\.05 s"):
        scripted(hang_rate=1.0).submit((5,), SAMPLING, timeout_s=0.05).result(5)
    assert 0.05 <= time.monotonic() - started < 3


def test_garbage_is_of_the_vocabulary_and_ends_at_the_first_stop_id() -> None:
    engine = scripted(garbage_rate=1.0, answer_tokens=2)
    answers = [engine.generate((5,), seeded(i, stop_ids=(1, 2, 3)), timeout_s=1) for i in range(200)]
    assert {i for a in answers for i in a.ids} == set(range(50))
    for answer in answers:
        stopped = answer.ids[-1] in (1, 2, 3)
        assert answer.finish == ("stop" if stopped else "length")
        assert stopped or len(answer.ids) == 8
        assert not {1, 2, 3} & set(answer.ids[:-1])


def test_after_its_death_nothing_is_answered() -> None:
    engine = scripted(dies_after=2, latency_s=5.0)
    running = [engine.submit((5,), SAMPLING, timeout_s=30) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(EngineError, match=r"died after 2 requests, as engine\.dies_after says"):
            engine.submit((5,), SAMPLING, timeout_s=1)
    for future in running:
        with pytest.raises(EngineError, match="died after 2"):
            future.result(1)
    for act in (engine.health, lambda: engine.update_weights([], 1)):
        with pytest.raises(EngineError, match="died after 2"):
            act()
    assert (engine.requests, engine.updates, engine.version) == (2, 0, 0)


def test_requests_that_no_engine_could_answer_are_refused() -> None:
    engine = scripted()
    for prompt, said in (((), "empty"), ((50,), "knows 0 to 49"), ((5,) * 1020, r"engine\.max_tokens 1024")):
        with pytest.raises(EngineError, match=said):
            engine.submit(prompt, SAMPLING, timeout_s=1)
    assert engine.requests == 0


# -- weights and aborts ------------------------------------------------------------------------------------------------


def test_weights_are_checked_and_counted_and_a_failed_update_leaves_those_of_before() -> None:
    model = tiny_model()
    engine = make_engine(model, EngineConfig(name="scripted", latency_s=0.0))
    assert isinstance(engine, ScriptedEngine)
    engine.update_weights(weights_of(model.network), 4)
    assert (engine.version, engine.updates) == (4, 1)
    assert engine.generate((5,), SAMPLING, timeout_s=1).weight_version == 4
    short = list(weights_of(model.network))[1:]
    with pytest.raises(EngineError, match="is missing"):
        engine.update_weights(short, 5)
    assert engine.generate((5,), SAMPLING, timeout_s=1).weight_version == 4
    engine.update_weights(weights_of(model.network), 6)
    assert (engine.version, engine.updates) == (6, 2)
    engine.health()
    check_can_train("scripted", engine)


def test_an_update_in_mid_flight_says_which_ids_are_whose() -> None:
    engine = scripted(token_s=0.05)
    early = engine.submit((5,), SAMPLING, timeout_s=30)
    time.sleep(0.17)
    engine.update_weights([], 3)
    late = engine.submit((5,), SAMPLING, timeout_s=30)
    first, second = early.result(10), late.result(10)
    assert [version for version, _ in first.spans] == [0, 3]
    assert (first.weight_version, sum(n for _, n in first.spans)) == (0, 8)
    assert (second.weight_version, second.spans) == (3, ((3, 8),))


def test_an_abort_keeps_what_was_sampled_and_closing_ends_all() -> None:
    engine = scripted(latency_s=0.1, token_s=0.05)
    whole: Completion = scripted().generate((5,), seeded(9), timeout_s=1)
    running = engine.submit((5,), seeded(9), timeout_s=30)
    time.sleep(0.25)
    engine.abort()
    part = running.result(1)
    assert part.finish == "abort"
    assert 1 <= len(part.ids) < 8
    assert part.ids == whole.ids[: len(part.ids)]
    last = engine.submit((5,), seeded(9), timeout_s=30)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        last.result(1)
    with pytest.raises(EngineError, match="closed"):
        engine.submit((5,), SAMPLING, timeout_s=1)


# -- by its name -------------------------------------------------------------------------------------------------------


def test_a_whole_run_goes_through_faults(tmp_path: Path, no_pictures: None) -> None:
    orders = {"name": "scripted", "answers": ["Left", "Right", "Down", "Up"], "latency_s": 0.001, "latency_sigma": 1.0}
    faults = {"error_rate": 0.1, "garbage_rate": 0.2}
    rollout = {"attempts": 4}
    folder, summary = run(tmp_path, engine={**orders, **faults}, rollout=rollout, steps=2, learner={"minibatches": 1})
    assert summary["steps"] == 2
    steps = read_metrics(folder, "train")
    assert all(step["rollout/failed_share"] < 0.2 for step in steps)
    assert summary["phases"][-1]["valid_action_rate"] < 1.0
    assert all(step["mismatch/kl"] > 0 for step in steps)  # its log-probs are not the learner's


def test_an_evaluation_is_the_same_each_time(tmp_path: Path) -> None:
    engine = {"name": "scripted", "answers": ["Left", "Right", "Down", "Up"]}
    path = write_config(tmp_path, engine=engine)
    results = [evaluate_config(load_config(path), tasks=20) for _ in range(2)]
    assert results[0].mean_return == results[1].mean_return
    assert results[0].valid_action_rate == 1.0


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"error_rate": 1.5}, "engine.error_rate is 1.5; allowed: a number from 0 to 1"),
        ({"error_rate": 0.7, "hang_rate": 0.6}, "add up to 1.3; allowed: 1 at most"),
        ({"latency": 1}, "unknown key 'engine.latency'; did you mean 'engine.latency_s'"),
    ],
)
def test_wrong_orders_are_told(tmp_path: Path, engine: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write_config(tmp_path, engine={"name": "scripted", **engine}))
    assert said in str(error.value)


def test_in_code_it_needs_no_torch() -> None:
    program = (
        "import sys\nfrom trainer.engines.scripted import ScriptedEngine, ScriptedSettings\n"
        "from roll_envs import SamplingParams\n"
        "engine = ScriptedEngine(ScriptedSettings(answer_tokens=3), vocabulary=9)\n"
        "assert len(engine.generate((1,), SamplingParams(stop_ids=(0,)), timeout_s=1).ids) == 3\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)
