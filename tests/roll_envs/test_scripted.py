"""The fakes: they keep the contracts of a policy and a renderer."""

from __future__ import annotations

import threading

import pytest

from roll_envs import DeadlineExceededError, Message, Policy, Renderer, SamplingParams
from roll_envs.errors import EngineError
from roll_envs.testing import CharRenderer, ScriptedPolicy

SAMPLING = SamplingParams(max_new_tokens=8)
HI = Message(role="user", content="hi")


def test_they_are_a_policy_and_a_renderer() -> None:
    assert isinstance(ScriptedPolicy(["x"]), Policy)
    assert isinstance(CharRenderer(), Renderer)


def test_rendering_is_reversible_and_continues_to_the_letter() -> None:
    renderer = CharRenderer()
    assert renderer.render([HI]) == (1, 108, 109, 3, 2)
    for text in ("", "é √ \u202e", "\x00\x03", "\ud800", "😀"):
        assert renderer.decode((*renderer.encode(text), *renderer.stop_ids)) == text
    answered = (*renderer.render([HI]), *renderer.encode("yo"))
    whole = renderer.render([HI, Message(role="assistant", content="yo"), HI])
    assert renderer.extend(answered, HI) == whole
    assert renderer.extend((*answered, CharRenderer.STOP), HI) == whole


def test_a_list_is_answered_in_turn_and_a_function_from_the_prompt() -> None:
    renderer = CharRenderer()
    policy = ScriptedPolicy(["a", (9, 3)], weight_version=5, logprob=-1.0)
    first, second, third = (policy.generate((1, 2), SAMPLING, timeout_s=1) for _ in range(3))
    assert (renderer.decode(first.ids), first.finish, first.weight_version) == ("a", "stop", 5)
    assert (second.ids, second.logprobs) == ((9, 3), (-1.0, -1.0))
    assert third == first
    echo = ScriptedPolicy(lambda ids: renderer.decode(ids).upper())
    assert renderer.decode(echo.generate(renderer.encode("abc"), SAMPLING, timeout_s=1).ids) == "ABC"
    assert echo.prompts == [renderer.encode("abc")]


def test_long_answers_are_cut() -> None:
    done = ScriptedPolicy(["0123456789"]).generate((1,), SAMPLING, timeout_s=1)
    assert (len(done.ids), len(done.logprobs), done.finish) == (8, 8, "length")


def test_failures_aborts_and_delays_come_where_they_are_asked_for() -> None:
    policy = ScriptedPolicy(["x"], failures={1: EngineError("it died")}, abort=[2])
    assert policy.generate((1,), SAMPLING, timeout_s=1).finish == "stop"
    with pytest.raises(EngineError, match="it died"):
        policy.generate((1,), SAMPLING, timeout_s=1)
    assert policy.generate((1,), SAMPLING, timeout_s=1).finish == "abort"
    with pytest.raises(DeadlineExceededError, match="scripted policy"):
        ScriptedPolicy(["x"], delay_s=60).generate((1,), SAMPLING, timeout_s=0.01)
    with pytest.raises(ValueError, match="no answers"):
        ScriptedPolicy([])


def test_latencies_are_ordered_by_request_and_take_no_thread_each() -> None:
    slow_first = ScriptedPolicy([(i, 3) for i in range(10, 14)], delay_s=lambda number: (0.2, 0.0, 0.1, 60.0)[number])
    done: list[int] = []
    before = threading.active_count()
    futures = [slow_first.submit((1,), SAMPLING, timeout_s=0.3) for _ in range(4)]
    assert threading.active_count() <= before + 1
    assert [f.done() for f in futures] == [False, True, False, False]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: done.append(number))
    assert [f.result(5).ids[0] for f in futures[:3]] == [10, 11, 12]
    with pytest.raises(DeadlineExceededError, match="scripted policy"):
        futures[3].result(5)
    assert done == [1, 2, 0, 3]


def test_errors_come_through_the_future_and_a_cancelled_request_is_let_go() -> None:
    policy = ScriptedPolicy(lambda ids: 1 / 0, failures={0: EngineError("it died")}, delay_s=0.05)  # type: ignore[arg-type]
    ordered, withdrawn, own = (policy.submit((1,), SAMPLING, timeout_s=1) for _ in range(3))
    assert withdrawn.cancel()
    assert isinstance(ordered.exception(5), EngineError)
    assert isinstance(own.exception(5), ZeroDivisionError)
    assert len(policy.prompts) == 3


def test_many_threads_get_each_answer_once() -> None:
    policy = ScriptedPolicy([(i, 3) for i in range(10, 90)])
    got: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: got.extend(policy.generate((1,), SAMPLING, timeout_s=1).ids[0] for _ in range(10))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(10, 90))
