"""One episode: exact ids (promise 1), failures that are never rewards (promise 2), every kind of end (promise 4)."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from managed import MORE, RENDERER, FaultyEnv, boom, counting, responder, settings, task

from roll_envs.errors import EngineError, EnvironmentFaultError
from roll_envs.managers import History, play_episode
from roll_envs.managers.episode import (
    CompletionRequest,
    ResetRequest,
    StepRequest,
    episode,
    everything,
    perform,
    sampling_seed,
)
from roll_envs.testing import CounterEnv, EchoEnv, ScriptedPolicy
from roll_envs.types import Completion, Message, SamplingParams


def test_what_was_sent_and_returned_is_stored_as_it_is() -> None:
    policy = ScriptedPolicy([MORE, (*RENDERER.encode("hm \ud800é"), 0, 3)], weight_version=7, logprob=-0.25)
    env = CounterEnv()
    heard: list[str] = []
    step = env.step
    env.step = lambda action: (heard.append(action), step(action))[1]  # type: ignore[method-assign]
    played = play_episode(env, task(), 3, responder(policy), settings())
    assert played.turns
    assert [t.prompt_ids for t in played.turns] == policy.prompts
    for number, turn in enumerate(played.turns):
        ids = ((*RENDERER.encode(MORE), 3), (*RENDERER.encode("hm \ud800é"), 0, 3))[number % 2]
        assert turn.completion == Completion(ids=ids, logprobs=(-0.25,) * len(ids), finish="stop", weight_version=7)
        assert turn.text == heard[number] == RENDERER.decode(ids)
    assert played.turns[0].prompt_observation == CounterEnv().reset(seed=task().seed)[0]
    for before, after in zip(played.turns, played.turns[1:], strict=False):
        assert after.prompt_observation == before.observation
    assert (played.member, played.task) == (3, task())


@pytest.mark.parametrize(
    ("split", "asked"), [("train", "train"), ("demonstrations", "train"), ("held-out", "test"), ("eval", "eval")]
)
def test_an_environment_with_splits_is_told_which_one(split: str, asked: str) -> None:
    given: list[Any] = []

    class Listening(CounterEnv):
        def reset(self, **keywords: Any) -> Any:  # type: ignore[override]
            given.append(keywords)
            return super().reset(**keywords)

    class Splits(Listening):
        splits = ("train", "test", "eval")

    for kind in (Listening, Splits):
        play_episode(kind(), replace(task(), split=split), 0, responder(counting()), settings())
    assert given == [{"seed": 100, "options": None}, {"seed": 100, "options": {"split": asked}}]


def test_ends_completed_or_truncated_as_the_environment_says() -> None:
    won = play_episode(CounterEnv(), task(), 0, responder(counting()), settings())
    assert won.outcome.kind == "completed"
    assert won.success
    lost = play_episode(CounterEnv(), task(), 0, responder(ScriptedPolicy(["?"])), settings())
    assert (lost.outcome.kind, lost.outcome.reason) == ("truncated", "turn limit")
    assert len(lost.turns) == 6
    assert lost.scored


def test_a_full_context_truncates() -> None:
    first = len(play_episode(CounterEnv(), task(), 0, responder(counting()), settings()).turns[0].prompt_ids)
    limits: list[int] = []

    def respond(env: Any, ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        limits.append(sampling.max_new_tokens)
        return ScriptedPolicy(["?" * 100]).generate(ids, sampling, timeout_s=1)

    played = play_episode(CounterEnv(), task(), 0, respond, settings(max_tokens=first + 60))
    assert (played.outcome.kind, played.outcome.reason) == ("truncated", "context is full")
    assert played.scored
    assert limits[0] == 40
    assert all(len(t.prompt_ids) + len(t.completion.ids) <= first + 60 for t in played.turns)
    exact = play_episode(CounterEnv(), task(), 0, respond, settings(max_tokens=first + 1))
    assert len(exact.turns) == 1
    assert limits[-1] == 1


def test_a_token_budget_cuts_the_last_answer_and_truncates() -> None:
    policy = ScriptedPolicy(["?" * 19])  # and the stop id
    played = play_episode(CounterEnv(), task(), 0, responder(policy), settings(max_episode_tokens=50))
    assert (played.outcome.kind, played.outcome.reason) == ("truncated", "token budget of the episode is spent")
    assert played.scored
    assert [len(t.completion.ids) for t in played.turns] == [20, 20, 10]
    assert played.turns[-1].completion.finish == "length"
    longest = play_episode(CounterEnv(), task(), 0, responder(policy), settings(max_episode_tokens=120))
    assert [len(t.completion.ids) for t in longest.turns] == [20] * 6
    assert longest.outcome.reason == "turn limit", "the environment's own end comes first"


def test_a_first_prompt_that_is_too_long_is_our_failure() -> None:
    with pytest.raises(
        EnvironmentFaultError, match=r"first prompt of test/Counter-v0 has \d+ tokens.*raise engine.max"
    ):
        play_episode(CounterEnv(), task(), 0, responder(counting()), settings(max_tokens=5))


def test_an_aborted_request_cancels_the_episode() -> None:
    played = play_episode(CounterEnv(), task(), 0, responder(ScriptedPolicy(["?", "x"], abort=[1])), settings())
    assert played.outcome.kind == "cancelled"
    assert "the engine aborted" in played.outcome.reason
    assert len(played.turns) == 1
    assert not played.scored


def returns(value: Any) -> Any:
    return lambda: value


GOOD = ("seen", 0.0, False, False, {})
BAD_STEPS = {
    "raises": (boom, "RuntimeError: boom"),
    "four values": (returns(GOOD[:4]), "not enough values"),
    "reward nan": (returns(("seen", math.nan, False, False, {})), "reward is nan"),
    "reward huge": (returns(("seen", -1e300, False, False, {})), "reward is -1e+300; it must be finite, of 1e+15"),
    "reward text": (returns(("seen", "one", False, False, {})), "could not convert"),
    "observation bytes": (returns((b"seen", 0.0, False, False, {})), "observation is a bytes"),
    "info None": (returns(("seen", 0.0, False, False, None)), "info is a NoneType"),
    "success of two": (
        returns(("seen", 0.0, False, False, {"success": np.array([0, 1])})),
        "info['success'] is a ndarray",
    ),
    "penalty None": (
        returns(("seen", 0.0, False, False, {"format_penalty": None})),
        "['format_penalty'] is a NoneType",
    ),
    "parts listed": (returns(("seen", 0.0, False, False, {"reward_parts": [1.0]})), "info['reward_parts'] is a list"),
}


@pytest.mark.parametrize("fault", BAD_STEPS)
def test_a_faulty_step_is_named_and_never_a_reward(fault: str) -> None:
    what, words = BAD_STEPS[fault]
    with pytest.raises(EnvironmentFaultError, match=r"step of test/Counter-v0") as error:
        play_episode(FaultyEnv({"step": what}), task(), 0, responder(counting()), settings())
    assert words in str(error.value)


@pytest.mark.parametrize("fault", [boom, returns("just text"), returns((None, {}))])
def test_a_faulty_reset_is_named(fault: Any) -> None:
    with pytest.raises(EnvironmentFaultError, match="reset of test/Counter-v0 raised"):
        play_episode(FaultyEnv({"reset": fault}), task(), 0, responder(counting()), settings())


def test_errors_of_the_engine_pass_through() -> None:
    policy = ScriptedPolicy(["x"], failures={0: EngineError("it died")})
    with pytest.raises(EngineError, match="it died"):
        play_episode(CounterEnv(), task(), 0, responder(policy), settings())


def test_what_is_asked_for() -> None:
    """Driven by hand: the requests, in order, are all that happens."""
    env = CounterEnv(highest=1)
    drawn = SamplingParams(temperature=0.7, max_new_tokens=40, stop_ids=RENDERER.stop_ids)
    playing = episode(replace(task(), split="held-out"), 2, settings(seed=5, max_tokens=2000, sampling=drawn))
    reset = next(playing)
    assert reset == ResetRequest(100, "test")
    asked = playing.send(perform(env, reset))
    assert isinstance(asked, CompletionRequest)
    assert asked.prompt_ids == RENDERER.render(
        [Message(role="system", content="count"), Message(role="user", content="counter 0, target 1")]
    )
    seed = sampling_seed(5, replace(task(), split="held-out"), 2, 0)
    assert asked.sampling == replace(drawn, seed=seed)
    step = playing.send(counting().generate(asked.prompt_ids, asked.sampling, timeout_s=1))
    assert step == StepRequest(MORE)
    with pytest.raises(StopIteration) as end:
        playing.send(perform(env, step))
    assert end.value.value.outcome.kind == "completed"


def test_an_episode_that_is_given_up_asks_for_nothing() -> None:
    playing = episode(task(), 0, settings())
    next(playing)
    playing.close()
    with pytest.raises(StopIteration):
        next(playing)


def test_a_plain_environment_is_played() -> None:
    """No TextEnv: no instructions, no splits; and wrapped, as ``gymnasium.make`` gives it."""
    seen: list[History] = []

    def context(history: History, renderer: Any) -> tuple[int, ...]:
        seen.append(history)
        return everything(history, renderer)

    env = gymnasium.wrappers.OrderEnforcing(EchoEnv(max_turns=2))
    played = play_episode(
        env, task(), 0, responder(ScriptedPolicy(["hello"])), settings(context=context, system_prompt=None)
    )
    assert [t.observation for t in played.turns] == ["hello", "hello"]
    assert played.outcome.kind == "truncated"
    assert {h.instructions for h in seen} == {""}


def test_a_turn_says_how_long_the_engine_and_the_environment_took() -> None:
    env, answer = CounterEnv(highest=1), responder(counting())
    step = env.step

    def slow_step(action: str) -> Any:
        time.sleep(0.05)
        return step(action)

    def slow_answer(*asked: Any) -> Completion:
        time.sleep(0.3)
        return answer(*asked)

    env.step = slow_step  # type: ignore[method-assign]
    (turn,) = play_episode(env, task(highest=1), 0, slow_answer, settings()).turns
    assert turn.timings["generate_s"] >= 0.3
    assert 0.05 <= turn.timings["env_s"] < 0.3


def test_sampling_seeds_follow_from_identity_alone() -> None:
    seeds = {
        sampling_seed(run, task(index, seed=seed), member, turn)
        for run in (0, 1)
        for index in (0, 1)
        for seed in (5, 6)
        for member in (0, 1)
        for turn in (0, 1)
    }
    assert len(seeds) == 32
    assert sampling_seed(1, task(2, seed=3), 4, 5) == 8657006807232388324
