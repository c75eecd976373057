"""One episode: reset, then prompt, answer and step until the environment or a limit ends it.

:func:`episode` does no input or output: it is a generator that yields what it wants next (a completion for these ids;
reset or step of its environment) and is sent the answer. Who drives it decides on threads, processes or actors:
:func:`play_episode` drives one in the calling thread, :class:`~roll_envs.managers.driver.EpisodeDriver` thousands.
What a model wrote, however strange, goes to the environment as it is.

A context turns the history of an episode into the ids of its next prompt: ``everything`` continues the previous prompt
and completion to the letter where the chat template allows it; ``last_turns(k)`` renders the last k turns and the
current observation anew; a user's function may return any messages it likes. How training sequences follow from the
prompts is decided elsewhere, by the exact-prefix rule alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium

from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.policy import Renderer
from roll_envs.registry import why_not_found
from roll_envs.types import Completion, Message, Outcome, OutcomeKind, SamplingParams, Task, Trajectory, Turn

SPLITS = {"demonstrations": "train", "held-out": "test"}
"""Which split of an environment that has splits the tasks of a training run come from; other names stay."""

MOST_REWARD = 1e15
"""The largest size of a turn's reward: returns of a thousand turns can be squared in single precision."""


def _parts(value: Mapping[str, Any]) -> list[float]:
    return [float(part) for part in value.values()]


_MEASURED: Mapping[str, Callable[[Any], object]] = {
    "success": bool,
    "action_is_valid": bool,
    "action_is_effective": bool,
    "format_penalty": float,
    "reward_parts": _parts,
}
"""What is measured of an ``info``, and what it must be able to become."""

Env = gymnasium.Env[Any, Any]
Respond = Callable[[Env, tuple[int, ...], SamplingParams], Completion]
"""Answers a prompt. It is given the environment too, so that a teacher can consult its oracle."""


# -- context: what the next prompt shows of the episode so far ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """An episode as its next prompt may see it."""

    instructions: str
    """System text; empty leaves the system message out."""
    turns: Sequence[Turn]
    observation: str
    """The observation to answer now."""
    observation_template: str | None = None
    """What the user's messages are made of: a text with ``{observation}`` in it; ``None`` is the observation alone."""

    def shown(self, observation: str) -> str:
        """The text of the user's message for ``observation``: 'Map' in 'See {observation}. Go.' is 'See Map. Go.'"""
        if self.observation_template is None:
            return observation
        return self.observation_template.replace("{observation}", observation)


Context = Callable[[History, Renderer], tuple[int, ...]]


def _dialogue(history: History, first: int) -> list[Message]:
    messages = [Message(role="system", content=history.instructions)] if history.instructions else []
    for turn in history.turns[first:]:
        messages.append(Message(role="user", content=history.shown(turn.prompt_observation)))
        messages.append(Message(role="assistant", content=turn.text))
    messages.append(Message(role="user", content=history.shown(history.observation)))
    return messages


def everything(history: History, renderer: Renderer) -> tuple[int, ...]:
    """All turns: the previous prompt and completion kept as they are, plus the new observation."""
    if history.turns:
        last = history.turns[-1]
        extended = renderer.extend(
            last.prompt_ids + last.completion.ids, Message(role="user", content=history.shown(history.observation))
        )
        if extended is not None:
            return extended
    return renderer.render(_dialogue(history, 0))


def last_turns(count: int) -> Context:
    """The last ``count`` turns and the current observation; 0 shows the observation alone."""
    return lambda history, renderer: renderer.render(_dialogue(history, max(0, len(history.turns) - count)))


def load_context(kind: str, *, turns: int = 0, function: str | None = None) -> Context:
    """The context named by a configuration: ``everything``, ``last`` (with ``turns``), or ``function``
    (``module:name`` of a function from :class:`History` to messages).

    Raises :class:`ConfigError` for another kind or a function that cannot be imported.
    """
    if kind == "everything":
        return everything
    if kind == "last":
        return last_turns(turns)
    if kind != "function":
        raise ConfigError(f"context.kind: {kind!r} is not one of 'everything', 'last', 'function'")
    module, _, name = (function or "").partition(":")
    if not module or not name:
        raise ConfigError(f"context.function: {function!r} is not of the form 'module:name'")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user: it may fail in any way
        reason = why_not_found(module) or f"{type(error).__name__}: {error}"
        raise ConfigError(f"context.function: cannot load {function!r}: {reason}") from error
    if not callable(loaded):
        raise ConfigError(f"context.function: {function!r} is a {type(loaded).__name__}, not a function of the history")
    return lambda history, renderer: renderer.render(loaded(history))


# -- the episode -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSettings:
    """What is the same for every episode of a collection."""

    context: Context
    renderer: Renderer
    sampling: SamplingParams
    max_tokens: int
    """Longest prompt + completion; an episode that outgrows it is truncated."""
    max_episode_tokens: int | None = None
    """Most tokens that are sampled in a whole episode; the answer that reaches it is cut, and the next truncates."""
    seed: int = 0
    """Seed of the run: enters every sampling seed."""
    system_prompt: str | None = None
    """Replaces the environment's instructions when not ``None``."""
    observation_template: str | None = None
    """What is written around each observation, with ``{observation}`` for it; ``None`` is nothing."""
    answerer: str = "the engine"
    """Who answers, as errors and deadlines name it."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Start the environment from ``seed``; answered with its observation and its instructions."""

    seed: int
    split: str


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Continue these ids; answered with a :class:`Completion`."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Play ``action``; answered with the five values of ``gymnasium.Env.step``, as they are."""

    action: str


@dataclass(frozen=True, slots=True)
class MakeRequest:
    """Make the environment: what an attempt asks for before its episode."""


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Close an environment that is not to be used again: what an attempt asks for after a failure."""

    env: Env | RemoteEnv


Request = ResetRequest | CompletionRequest | StepRequest
AttemptRequest = Request | MakeRequest | CloseRequest


class RemoteEnv(Protocol):
    """An environment in another process or machine."""

    def ask(self, request: ResetRequest | StepRequest | CloseRequest) -> Future[Any]:
        """Send the request, and return at once. The future gets what :func:`perform` returns, the environment's error,
        or :class:`~roll_envs.errors.WorkerLostError`, after which the environment is asked for nothing more.

        Cancelling the future says that nobody waits any more: the call hangs, or its episode is not needed. Who holds
        the environment closes it then.
        """


@dataclass(slots=True)
class Played:
    """How far an episode got, for whoever drives it and ends it early."""

    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    """The answer that the environment is playing."""


def sampling_seed(run_seed: int, task: Task, member: int, turn: int) -> int:
    """Seed of one request, from identity alone: the same on any host, however episodes are scheduled."""
    identity = f"{run_seed}|{task.env_id}|{task.split}|{task.index}|{task.seed}|{member}|{turn}"
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1


def episode(
    task: Task, member: int, settings: EpisodeSettings, played: Played | None = None
) -> Generator[Request, Any, Trajectory]:
    """Play ``task`` once from its seed. Errors of what was asked for are thrown in. ``played`` is kept up to date.

    Raises :class:`EnvironmentFaultError` when the environment's code raises or returns what no environment may (an
    observation that is no text, a reward that is not finite), and other errors as they were thrown in. The environment
    is not to be used again then.
    """
    played = Played() if played is None else played
    turns = played.turns
    try:
        observation, instructions = yield ResetRequest(task.seed, SPLITS.get(task.split, task.split))
        observation = _text(observation)
    except Exception as error:
        raise _fault("reset", task, error) from error
    if settings.system_prompt is not None:
        instructions = settings.system_prompt
    while True:
        left = _tokens_left(settings, turns)
        if left < 1:
            return _ended(task, member, turns, "truncated", "token budget of the episode is spent")
        history = History(
            instructions=instructions,
            turns=tuple(turns),
            observation=observation,
            observation_template=settings.observation_template,
        )
        prompt_ids = settings.context(history, settings.renderer)
        sampling = _sampling(settings, task, member, turn=len(turns), prompt_length=len(prompt_ids), left=left)
        if sampling is None:
            return _ended(task, member, turns, "truncated", "context is full")
        started = time.monotonic()
        completion = yield CompletionRequest(prompt_ids, sampling)
        answered = time.monotonic()
        if completion.finish == "abort":
            return _ended(task, member, turns, "cancelled", f"{settings.answerer} aborted the request")
        played.answer = text = settings.renderer.decode(completion.ids)
        try:
            shown, reward, terminated, truncated, info = _checked((yield StepRequest(text)))
        except Exception as error:
            raise _fault("step", task, error) from error
        turns.append(
            Turn(
                prompt_ids=prompt_ids,
                completion=completion,
                prompt_observation=observation,
                text=text,
                observation=shown,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
                timings={"generate_s": answered - started, "env_s": time.monotonic() - answered},
            )
        )
        played.answer = None
        if terminated:
            return _ended(task, member, turns, "completed")
        if truncated:
            return _ended(task, member, turns, "truncated", "turn limit")
        observation = shown


def _tokens_left(settings: EpisodeSettings, turns: Sequence[Turn]) -> int:
    """How many tokens may yet be sampled in the episode."""
    if settings.max_episode_tokens is None:
        return sys.maxsize
    return settings.max_episode_tokens - sum(len(turn.completion.ids) for turn in turns)


def _sampling(
    settings: EpisodeSettings, task: Task, member: int, *, turn: int, prompt_length: int, left: int
) -> SamplingParams | None:
    """How this turn is sampled, with ``left`` tokens at most; ``None`` when the prompt leaves no room for an answer."""
    room = settings.max_tokens - prompt_length
    if room < 1 and turn == 0:
        raise EnvironmentFaultError(
            f"the first prompt of {task.env_id} has {prompt_length} tokens, but engine.max_tokens is "
            f"{settings.max_tokens}; raise engine.max_tokens or shorten context.system_prompt"
        )
    if room < 1:
        return None
    return SamplingParams(
        temperature=settings.sampling.temperature,
        max_new_tokens=min(settings.sampling.max_new_tokens, room, left),
        stop_ids=settings.sampling.stop_ids,
        seed=sampling_seed(settings.seed, task, member, turn),
    )


def _ended(task: Task, member: int, turns: list[Turn], kind: OutcomeKind, reason: str = "") -> Trajectory:
    return Trajectory(task=task, member=member, turns=tuple(turns), outcome=Outcome(kind=kind, reason=reason))


def _checked(stepped: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
    observation, reward, terminated, truncated, info = stepped
    number = float(reward)
    if not abs(number) <= MOST_REWARD:  # nan is not, either
        raise ValueError(f"the reward is {number}; it must be finite, of {MOST_REWARD:g} at most in size")
    if not isinstance(info, (dict, Mapping)):  # dict is what it is, and quicker to see
        raise TypeError(f"info is a {type(info).__name__}; it must be a mapping")
    for name, kind in _MEASURED.items():  # here, where a wrong one fails its episode, and not where all are summed up
        if name in info:
            try:
                kind(info[name])
            except Exception as error:
                raise TypeError(f"info[{name!r}] is a {type(info[name]).__name__} with no use: {error}") from error
    return _text(observation), number, bool(terminated), bool(truncated), dict(info)


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation is a {type(observation).__name__}; it must be a str")
    return observation


def _fault(name: str, task: Task, error: Exception) -> EnvironmentFaultError:
    return EnvironmentFaultError(f"{name} of {task.env_id} raised {type(error).__name__}: {error}")


def perform(env: Env, request: ResetRequest | StepRequest) -> Any:
    """Do what an episode asks of its environment (any ``gymnasium.Env`` with text spaces), and return the answer.

    Attributes of :class:`~roll_envs.env.TextEnv` that a plain environment lacks count as empty.
    """
    if isinstance(request, StepRequest):
        return env.step(request.action)
    bare = env.unwrapped
    options = {"split": request.split} if getattr(bare, "splits", ()) else None
    observation, _ = env.reset(seed=request.seed, options=options)
    return observation, getattr(bare, "instructions", "")


def close_quietly(env: Any) -> None:
    """Close an environment that may have failed before, and fail again. A :class:`RemoteEnv` is not waited for."""
    with contextlib.suppress(BaseException):
        ask = getattr(env, "ask", None)
        env.close() if ask is None else ask(CloseRequest(env))


def play_episode(env: Env, task: Task, member: int, respond: Respond, settings: EpisodeSettings) -> Trajectory:
    """Play ``task`` once in the calling thread. Raises as :func:`episode` does, and whatever ``respond`` raises.

    The environment is left open, also after a failure.
    """
    playing = episode(task, member, settings)
    try:
        request = next(playing)
        while True:
            try:
                if isinstance(request, CompletionRequest):
                    answer: Any = respond(env, request.prompt_ids, request.sampling)
                else:
                    answer = perform(env, request)
            except BaseException as error:
                request = playing.throw(error)
            else:
                request = playing.send(answer)
    except StopIteration as end:
        ended: Trajectory = end.value
        return ended
