"""An engine with several servers: who gets what, and what happens when one of them dies."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fake_vllm import FakeVLLM, running_fake
from vllm_engines import ask, blank_model, check, connect, made_environment, started, until

from roll_envs.errors import EngineError
from trainer.engines import remote
from trainer.engines import replica as replicas
from trainer.engines.remote import RemoteEngine
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel


@pytest.fixture
def fakes() -> Iterator[list[tuple[str, FakeVLLM]]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running_fake()) for _ in range(3)]


@pytest.fixture
def engine(model: LanguageModel, fakes: list[tuple[str, FakeVLLM]]) -> Iterator[RemoteEngine]:
    made = connect(model, [url for url, _ in fakes], max_running=16, start_timeout_s=1.0)
    yield made
    made.close()


def test_requests_are_spread_and_weights_reach_everybody(
    engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]]
) -> None:
    before = [fake.requests for _, fake in fakes]
    for _, fake in fakes:
        fake.bad = {"delay_s": 1.0}
    check(ask(engine, 30))
    assert [fake.requests - known for (_, fake), known in zip(fakes, before, strict=True)] == [10, 10, 10]
    engine.update_weights(weights_of(blank_model().network), 7)
    assert len({fake.version for _, fake in fakes}) == 1
    assert [fake.requests - known for (_, fake), known in zip(fakes, before, strict=True)] == [11, 11, 11]  # the probes
    check(ask(engine, 9), version=7)
    engine.health()


def test_a_session_is_answered_by_one_server(engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]]) -> None:
    before = [fake.requests for _, fake in fakes]
    for _ in range(20):
        check(ask(engine, 1, session=lambda _: "an episode"))
    assert sorted(fake.requests - known for (_, fake), known in zip(fakes, before, strict=True)) == [0, 0, 20]


def test_weights_that_one_server_does_not_take_are_an_error(
    engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]]
) -> None:
    fakes[1][1].bad = {"shift": 0.01}
    with pytest.raises(EngineError, match=r"differ from those of the weights that were sent by 0\.01"):
        engine.update_weights(weights_of(blank_model().network), 1)
    with pytest.raises(EngineError, match="update to weight version 1 failed"):
        ask(engine, 1)
    fakes[1][1].bad = {}
    engine.update_weights(weights_of(blank_model().network), 1)
    check(ask(engine, 9), version=1)


@pytest.mark.usefixtures("forked_servers")
def test_a_server_that_dies_costs_nothing_and_comes_back(model: LanguageModel, tmp_path: Path) -> None:
    engine = started(model, made_environment(tmp_path / "venv"), replicas=2, max_running=8)
    engine.update_weights(weights_of(blank_model().network), 3)
    pids = [replica.server._process.pid for replica in engine._replicas if replica.server._process]
    assert len(set(pids)) == 2
    waiting = ask(engine, 400)
    os.kill(pids[0], signal.SIGKILL)
    check(waiting, version=3)
    check(ask(engine, 8), version=3)
    until(lambda: all(replica.lane.open for replica in engine._replicas))
    check(ask(engine, 8), version=3)
    assert all(replica.lane.open for replica in engine._replicas)
    engine.close()


def test_the_engine_goes_on_without_a_server_that_is_lost_and_takes_it_back(
    model: LanguageModel, fakes: list[tuple[str, FakeVLLM]], caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(running_fake())[0]
        engine = connect(model, [fakes[0][0], url], max_running=4, start_timeout_s=0.6)
        stack.close()
    waiting = ask(engine, 40)
    check(waiting)
    until(lambda: "did not answer within engine.start_timeout_s 0.6" in caplog.text)
    begun = time.monotonic()
    engine.update_weights(weights_of(blank_model().network), 1)
    assert time.monotonic() - begun < 5.0
    check(ask(engine, 8), version=1)
    assert [replica.lane.open for replica in engine._replicas] == [True, False]
    engine._replicas[1].server.url = fakes[1][0]
    engine._replicas[1].ask = partial(engine._client.ask, fakes[1][0])
    engine.update_weights(weights_of(blank_model().network), 2)
    until(lambda: engine._replicas[1].lane.open)
    before = fakes[1][1].requests
    check(ask(engine, 8), version=2)
    assert fakes[1][1].requests > before
    engine.close()


def test_a_server_that_hangs_is_found_and_its_requests_are_asked_elsewhere(
    engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LOAD_EVERY_S", 0.05)
    monkeypatch.setattr(replicas, "_HEALTH_S", 0.3)
    monkeypatch.setattr(replicas, "_LOAD_S", 0.3)
    fakes[0][1].bad = {"hang_in": "all"}
    waiting = ask(engine, 12)
    until(lambda: engine._replicas[0].lane.running)
    check(waiting)
    assert not engine._replicas[0].lane.open
    check(ask(engine, 12))
    fakes[0][1].bad = {}
    engine.update_weights(weights_of(blank_model().network), 1)
    until(lambda: engine._replicas[0].lane.open)
    check(ask(engine, 12), version=1)


def test_an_engine_that_has_lost_its_last_server_says_so(model: LanguageModel) -> None:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(running_fake())[0] for _ in range(2)]
        engine = connect(model, urls, start_timeout_s=0.5)
        stack.close()
    for answer in ask(engine, 8):
        with pytest.raises(EngineError, match=r"the engine gave up: the vLLM server http://.* did not answer within"):
            answer.result()
    with pytest.raises(EngineError, match="the engine gave up"):
        engine.health()
    with pytest.raises(EngineError, match="did not answer within"):
        engine.update_weights(weights_of(blank_model().network), 1)
    engine.close()


def test_a_server_can_be_taken_out_and_put_back(engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]]) -> None:
    for _, fake in fakes:
        fake.bad = {"delay_s": 0.3}
    waiting = ask(engine, 60)
    until(lambda: fakes[0][1].at_once > 0)
    engine.drain(0)
    assert fakes[0][1].at_once == 0
    seen = fakes[0][1].requests
    engine.update_weights(weights_of(blank_model().network), 1)
    check(ask(engine, 12), version=1)
    assert fakes[0][1].requests == seen
    assert {span.version for answer in waiting for span in answer.result().spans} <= {0, 1}
    engine.restore(0)
    check(ask(engine, 12, session=lambda i: f"new {i}"), version=1)
    assert fakes[0][1].requests > seen + 1  # and the probe


def test_fewer_requests_are_at_a_server_whose_memory_is_full(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_LOAD_EVERY_S", 0.05)
    with running_fake() as (url, fake):
        engine = connect(model, url, max_running=64)
        lane = engine._replicas[0].lane
        fake.bad, fake.load = {"delay_s": 0.3}, {"used": 0.99, "waiting": 7}
        waiting = ask(engine, 300)
        until(lambda: lane.limit < 8)
        fake.load = {"used": 0.3}
        until(lambda: lane.limit > 16)
        check(waiting)
        engine.close()


def test_an_update_in_mid_flight_lets_as_many_requests_in_as_before(model: LanguageModel) -> None:
    with running_fake() as (url, fake):
        engine = connect(model, url, max_running=16)
        replica, fake.bad = engine._replicas[0], {"delay_s": 8}
        waiting = ask(engine, 16)
        until(lambda: fake.at_once == 16)
        fake.bad = {}  # the probe is answered at once
        engine.update_weights(weights_of(blank_model().network), 1)
        engine._client.run(replica.follow_load())
        assert (fake.preempted, replica.lane.limit) == (16, 16)
        fake.preempted += 1
        engine._client.run(replica.follow_load())
        assert replica.lane.limit == 12
        engine.abort()
        assert len([each.result() for each in waiting]) == 16
        engine.close()


def test_a_probe_that_is_not_answered_says_nothing_of_the_weights(
    engine: RemoteEngine, fakes: list[tuple[str, FakeVLLM]], caplog: pytest.LogCaptureFixture
) -> None:
    """A lost connection is asked again; a server that goes on so is left out, and comes back by itself."""
    fakes[0][1].bad = {"generate": ["drop"]}
    engine.update_weights(weights_of(blank_model().network), 1)
    assert "goes on without" not in caplog.text
    fakes[0][1].bad = {"generate": ["drop"] * 8}
    engine.update_weights(weights_of(blank_model().network), 2)
    assert "did not answer the probe" in caplog.text
    check(ask(engine, 20), version=2)
    until(lambda: all(replica.lane.open for replica in engine._replicas))
    check(ask(engine, 20), version=2)


def test_the_last_server_is_not_given_up_for_probes_that_get_lost(model: LanguageModel) -> None:
    with running_fake() as (url, fake):
        engine = connect(model, [url], max_running=4)
        engine._replicas[0]._unproved = True  # as after an update of which the end was not seen
        fake.bad = {"generate": ["drop"] * 8}
        check(ask(engine, 1))
        engine.close()


def test_replicas_on_the_learner_s_gpus_sleep_and_the_others_answer(
    model: LanguageModel, fakes: list[tuple[str, FakeVLLM]]
) -> None:
    engine = connect(model, [url for url, _ in fakes], max_running=16, colocated=[0, 2])
    assert engine.capabilities.sleep
    assert engine.capabilities.answers_asleep
    for _, fake in fakes:
        fake.bad = {"delay_s": 0.3}
    waiting = ask(engine, 30)
    until(lambda: all(fake.at_once for _, fake in fakes))
    engine.sleep()
    assert [bool(fake.asleep) for _, fake in fakes] == [True, False, True]
    assert [fake.at_once for _, fake in fakes if fake.asleep] == [0, 0], "what ran there was finished first"
    seen = [fake.requests for _, fake in fakes]
    check([*waiting, *ask(engine, 6, session=lambda _: "an episode")])
    assert [fake.requests - known for (_, fake), known in zip(fakes, seen, strict=True)][::2] == [0, 0]
    engine.update_weights(weights_of(blank_model().network), 1)
    assert not any(fake.asleep for _, fake in fakes)
    for _, fake in fakes:
        fake.bad = {"delay_s": 0.3}
    seen = [fake.requests for _, fake in fakes]
    check(ask(engine, 30), version=1)
    assert all(fake.requests > known for (_, fake), known in zip(fakes, seen, strict=True))
    engine.close()


def test_an_engine_that_sleeps_as_a_whole_answers_nothing(
    model: LanguageModel, fakes: list[tuple[str, FakeVLLM]]
) -> None:
    engine = connect(model, [url for url, _ in fakes], colocated=True)
    assert not engine.capabilities.answers_asleep
    engine.sleep()
    waiting = ask(engine, 3)
    time.sleep(0.2)
    assert not any(answer.done() for answer in waiting)
    engine.wake()
    check(waiting)
    engine.close()
