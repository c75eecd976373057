"""One attempt at an episode, as calls into code of others: what is called and what a failure is called.

Left out: which thread makes the calls (:mod:`roll_envs.managers.calls`), and when (:mod:`roll_envs.managers.driver`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from roll_envs.errors import RollError
from roll_envs.managers.calls import Call, Work
from roll_envs.managers.episode import (
    CloseRequest,
    CompletionRequest,
    Env,
    EpisodeSettings,
    Request,
    Respond,
    StepRequest,
    perform,
)
from roll_envs.managers.episode import episode as play
from roll_envs.managers.stream import GroupStream
from roll_envs.policy import Policy
from roll_envs.types import Outcome, Task, Trajectory

__all__ = ["Attempt", "Collection", "EpisodeLimits", "calls_of", "close_quietly", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLimits:
    """Deadlines in seconds and budgets of a driver."""

    max_running: int = 128
    attempts: int = 3
    turn_timeout_s: float = 120.0
    env_timeout_s: float = 60.0
    episode_timeout_s: float = 600.0


@dataclass(slots=True, eq=False)
class Collection:
    """What the episodes of one :meth:`EpisodeDriver.start` share."""

    stream: GroupStream
    settings: EpisodeSettings
    answerer: Policy | Respond


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at an episode."""

    collection: Collection
    number: int
    """Place of its task in the stream's tasks."""
    task: Task
    member: int
    attempt: int = 1
    started: float = 0.0
    env: Env | None = None
    calls: Generator[Call, tuple[Any, BaseException | None], Trajectory] | None = None
    next_call: Call | None = None
    """What is called next; None where the answer to the last call is awaited."""
    work: Work[Attempt] | None = None
    """Its work now; what is handed in for another one is too late."""
    reason: str = ""
    """Why it failed."""
    given_up: RollError | None = None
    """What it is told instead of its next answer."""


def calls_of(
    episode: Attempt, limits: EpisodeLimits, make_env: Callable[[Task], Env]
) -> Generator[Call, tuple[Any, BaseException | None], Trajectory]:
    """The calls that play an episode, in their order; each is answered with its value and its error."""
    task, limit_s = episode.task, limits.env_timeout_s
    doing, error = "", None
    if episode.env is None:
        doing = f"the making of {task.env_id}"
        _, error = yield Call(doing, limit_s, _make_env_of, (episode, make_env))
        if error is not None:
            return failed(episode, _describe(error, doing))
    playing = play(task, episode.member, episode.collection.settings)
    value: Any = None
    while True:
        request, failure = yield Call("the context function", limit_s, _resume, (playing, value, error))
        if isinstance(request, Trajectory):
            return request
        if failure is not None and episode.env is not None:  # told to give up before the episode went on
            request = CloseRequest(failure)
        elif failure is not None:
            return failed(episode, _describe(failure, "the context function"))
        if isinstance(request, CloseRequest) and not episode.reason:
            episode.reason = _describe(request.error, doing if error is not None else "the context function")
        call = _call_for(episode, request, limits)
        doing = call.doing
        value, error = yield call
        if failure is not None:
            return failed(episode, episode.reason)


def _call_for(episode: Attempt, request: Request, limits: EpisodeLimits) -> Call:
    """The call that answers what the episode wants."""
    env, env_id = episode.env, episode.task.env_id
    if isinstance(request, CompletionRequest):
        doing, answerer = f"{episode.collection.settings.answerer}'s answer", episode.collection.answerer
        if isinstance(answerer, Policy):
            return Call(doing, limits.turn_timeout_s, _submit, (answerer, request, limits.turn_timeout_s))
        return Call(doing, limits.turn_timeout_s, answerer, (env, request.prompt_ids, request.sampling))
    if isinstance(request, CloseRequest):
        episode.env = None
        doing = f"the closing of {env_id}"
        return Call(doing, limits.env_timeout_s, close_quietly, (env,), f" (which had failed: {episode.reason})")
    name = "step" if isinstance(request, StepRequest) else "reset"
    return Call(f"{name} of {env_id}", limits.env_timeout_s, perform, (env, request))


def _make_env_of(episode: Attempt, make_env: Callable[[Task], Env]) -> None:
    episode.env = make_env(episode.task)


def failed(episode: Attempt, reason: str) -> Trajectory:
    outcome = Outcome(kind="failed", reason=episode.reason or reason)
    return Trajectory(task=episode.task, member=episode.member, turns=(), outcome=outcome)


def _submit(policy: Policy, request: CompletionRequest, timeout_s: float) -> Future[Any]:
    return policy.submit(request.prompt_ids, request.sampling, timeout_s=timeout_s)


def _resume(
    playing: Generator[Request, Any, Trajectory], value: Any, error: BaseException | None
) -> Request | Trajectory:
    """What the episode wants next, or the episode when it is over."""
    try:
        return playing.send(value) if error is None else playing.throw(error)
    except StopIteration as end:
        ended: Trajectory = end.value
        return ended


def _describe(error: BaseException, during: str) -> str:
    try:
        return str(error) if isinstance(error, RollError) else f"{during} raised {type(error).__name__}: {error}"
    except Exception:  # an exception of others whose own text fails
        return f"{during} raised {type(error).__name__}"


def close_quietly(env: Any) -> None:
    with contextlib.suppress(BaseException):  # it may have failed before, and fail again; that is recorded already
        env.close()
