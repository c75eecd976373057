"""An attempt at an episode: the calls into code of others (environments, context functions, answerers) that it makes,
one after the other.

:mod:`roll_envs.managers.calls` says which thread makes them, and :mod:`roll_envs.managers.driver` until when.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from roll_envs.errors import EnvironmentFaultError, RollError, WorkerLostError
from roll_envs.managers.episode import (
    AttemptRequest,
    CloseRequest,
    CompletionRequest,
    Env,
    EpisodeSettings,
    MakeRequest,
    Played,
    RemoteEnv,
    ResetRequest,
    StepRequest,
    close_quietly,
    episode,
    perform,
)
from roll_envs.types import Completion, Outcome, OutcomeKind, Task, Trajectory

_SLICE_S = 0.01
"""An attempt pauses after so long, so that other episodes have their turn."""
_WAIT_S = 0.005
"""Calls that wait this long, in the mean, and twice as long as they compute are made on worker threads. Below it, a
thread that waits for the interpreter's lock (5 ms at a time) looks the same."""
_QUICK_S = 0.001
"""Shorter calls are counted only where the mean is longer: they could not change what follows from it."""
_WAIT_CAP_S = 0.05
_OUTSTANDING = 3
"""As long as so many calls of a kind are late, further ones of that kind are made on worker threads."""
_TRACEBACK_CHARACTERS = 8000


def result_of(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Value and error of a call; one of them is None."""
    try:
        return function(*args), None
    except BaseException as error:  # work of others: environments (sys.exit() too), engines, context functions
        return None, error


@dataclass(slots=True)
class CallKind:
    """What calls of one kind have in common; means of those made in place decide where the next one is made."""

    doing: str
    """What deadlines and errors call it ("step of roll/Sokoban-v0")."""
    limit_s: float
    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0
    late: int = 0
    """Calls that the driving thread was relieved of and that have not returned."""

    def make(
        self, function: Callable[[Any], Any], argument: Any, now: float
    ) -> tuple[tuple[Any, BaseException | None], float]:
        """Value and error of a call in place, which is measured, and the time after it. Processor time is read (a
        system call) only where calls last so long, in the mean, that waiting could matter."""
        measured = self.wall_s >= _WAIT_S / 2
        cpu = time.thread_time() if measured else 0.0
        result: tuple[Any, BaseException | None]
        try:
            result = function(argument), None
        except BaseException as error:  # as in result_of, which would be one more call for each
            result = None, error
        ended = time.monotonic()
        if ended - now > _QUICK_S or self.wall_s > _QUICK_S:
            self.add(ended - now, time.thread_time() - cpu if measured else ended - now)
        return result, ended

    def add(self, wall_s: float, cpu_s: float) -> None:
        """Count a call in place. It begins as if 16 calls without any waiting had been seen, and one call counts as
        ``_WAIT_CAP_S`` of waiting at most: a process that takes the core for a moment must not decide."""
        self.calls += 1
        weight = 1.0 / min(self.calls + 16, 64)
        self.wall_s += weight * (wall_s - self.wall_s)
        if self.wall_s < _WAIT_S / 2:
            return
        waited = min(max(wall_s - cpu_s, 0.0), max(_WAIT_CAP_S, 4 * cpu_s))
        self.wait_s += weight * (waited - self.wait_s)
        self.cpu_s += weight * (cpu_s - self.cpu_s)

    def on_worker(self) -> bool:
        """Whether the next call is made on a worker thread; one in 64 is made in place, to measure again."""
        if self.late >= _OUTSTANDING:
            return True
        if self.wait_s < _WAIT_S or self.wait_s < 2 * self.cpu_s:
            return False
        self.calls += 1
        return self.calls % 64 != 0


class Place(Enum):
    """Where an attempt is at the moment."""

    DRIVER = "with the driving thread, or in its inbox"
    PARKED = "waits for a future, of a policy or a remote environment"
    QUEUED = "waits for a worker thread"
    WORKER = "on a worker thread"
    RELIEVED = "on a thread that was the driving one"
    GIVEN_UP = "in a call that nobody waits for any more"


class Pause(Enum):
    """Why an attempt's calls stopped before it had to wait."""

    TIME_IS_UP = "others have their turn"
    FOR_WORKER = "the next call is one for a worker thread"


Done = Future[Any] | Trajectory | Pause
"""What comes of an attempt's calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLimits:
    """Deadlines in seconds and budgets of a driver."""

    max_running: int = 128
    attempts: int = 3
    turn_timeout_s: float = 120.0
    env_timeout_s: float = 60.0
    make_timeout_s: float | None = None
    """This one and the next three: ``None`` is ``env_timeout_s``."""
    reset_timeout_s: float | None = None
    step_timeout_s: float | None = None
    close_timeout_s: float | None = None
    episode_timeout_s: float = 600.0
    recycle_after: int = 0
    """Episodes after which an environment is closed and made anew; 0 is never."""

    def of_env(self, call: str) -> float:
        """Deadline of an environment's 'make', 'reset', 'step' or 'close'."""
        own: float | None = getattr(self, f"{call}_timeout_s")
        return self.env_timeout_s if own is None else own


def call_kinds(env_id: str, answerer: str, limits: EpisodeLimits) -> dict[type, CallKind]:
    """Kind of the call that each type of request leads to; that of None goes on with the episode, where the context
    function is called."""
    return {
        MakeRequest: CallKind(f"the making of {env_id}", limits.of_env("make")),
        ResetRequest: CallKind(f"reset of {env_id}", limits.of_env("reset")),
        type(None): CallKind("the context function", limits.env_timeout_s),
        StepRequest: CallKind(f"step of {env_id}", limits.of_env("step")),
        CloseRequest: CallKind(f"the closing of {env_id}", limits.of_env("close")),
        CompletionRequest: CallKind(f"{answerer}'s answer", limits.turn_timeout_s),
    }


MakeEnv = Callable[[Task], Env | RemoteEnv | Future[Any]]
"""Makes the environment of a task; a future gets it."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at an episode. It belongs to the thread that makes its calls, else to the driving thread."""

    task: Task
    member: int
    settings: EpisodeSettings
    make_env: MakeEnv
    answerer: Callable[[Attempt, CompletionRequest], Future[Completion] | Completion]
    kinds: Mapping[type, CallKind]
    """Those of :func:`call_kinds`."""
    env: Any = None
    """None, a ``gymnasium.Env``, or a :class:`RemoteEnv`."""
    env_episodes: int = 0
    """How many episodes it has played before this one."""
    ask: Callable[[Any], Future[Any]] | None = None
    """That of a remote environment."""
    requests: Generator[AttemptRequest, Any, Trajectory] | None = None
    request: AttemptRequest | None = None
    """What it asks for; None where it is to go on with ``answer``."""
    answer: tuple[Any, BaseException | None] = (None, None)
    """Value and error of its last request."""
    kind: CallKind = field(init=False)
    """Kind of the call that is made now, or was made last."""
    since: float = 0.0
    """When that call, or the wait for its answer, began."""
    place: Place = Place.DRIVER
    relieved_in: CallKind | None = None
    """During which kind of call the driving thread was relieved."""
    done: Done = Pause.TIME_IS_UP
    """What came of its calls."""
    thread: int = 0
    """The thread that makes its calls, or made the last one."""
    played: Played = field(default_factory=Played)
    reason: str = ""
    """Why it failed."""
    traceback: str = ""
    lost: bool = False
    """Whether it failed because the worker that held its environment was lost."""

    @property
    def asks_env(self) -> bool:
        """Whether the future that it waits for is of a remote environment."""
        return self.place is Place.PARKED and self.kind is not self.kinds[CompletionRequest]

    def begin(self, kept: tuple[Env | RemoteEnv, int] | None, recycle_after: int) -> None:
        """Note its first request; ``kept`` is an environment, and how many episodes it has played."""
        self.env, self.env_episodes = kept or (None, 0)
        self.kind = self.kinds[type(None)]
        self.requests = self._play(worn=0 < recycle_after <= self.env_episodes)
        self.request = next(self.requests)

    def _play(self, worn: bool) -> Generator[AttemptRequest, Any, Trajectory]:
        """What it asks for, in order; an environment that took part in a failure is closed."""
        try:
            if worn and self.env is not None:
                env, self.env, self.env_episodes = self.env, None, 0
                yield CloseRequest(env)
            if self.env is None:
                yield MakeRequest()
            self.ask = getattr(self.env, "ask", None)
            return (yield from episode(self.task, self.member, self.settings, self.played))
        except GeneratorExit:
            raise
        except BaseException as error:
            if not self.reason:  # else it was given up, and this is what it was told
                self.reason, self.traceback = _describe(error, self.kind.doing), _traceback_of(error)
                self.lost = isinstance(_own(error), WorkerLostError)
        # Whoever gives this attempt up closes its environment, which must not happen twice.
        used, self.env = self.env, None
        if used is not None and not self.lost:
            try:
                yield CloseRequest(used)
            except GeneratorExit:
                raise
            except BaseException:  # of a remote environment; the failure that led here is the one to tell
                pass
        return self.ended("failed", self.reason, self.traceback)

    def ended(self, kind: OutcomeKind, reason: str, traceback: str = "") -> Trajectory:
        """What was played until now."""
        turns, answer = tuple(self.played.turns), self.played.answer
        outcome = Outcome(kind=kind, reason=reason, traceback=traceback, answer=answer)
        return Trajectory(task=self.task, member=self.member, turns=turns, outcome=outcome)

    def stack(self) -> str:
        """Where the call that is being made is stuck; empty when it is made no longer."""
        frame = sys._current_frames().get(self.thread)
        return _shortened("".join(traceback.format_stack(frame))) if frame is not None else ""

    def hear(self, value: Any, error: BaseException | None) -> None:
        """Go on with what came of the future that it waited for."""
        self.answer = value, error
        if self.env is None and self.kind is self.kinds[MakeRequest]:
            self.env = value

    def run(self) -> Done:
        """Make calls until it waits for a future, is over or pauses."""
        now = time.monotonic()
        until = now + _SLICE_S
        self.thread = threading.get_ident()
        while True:
            request = self.request
            kind = self.kinds[type(request)]
            in_place = self.place is Place.DRIVER
            if in_place and kind.on_worker():
                return Pause.FOR_WORKER  # the request stays, and is done there
            self.since = now
            if self.answer[1] is None:  # an error is named after the call that raised it
                self.kind = kind
            if in_place:
                made, now = kind.make(self._do, request, now)
            else:
                made, now = result_of(self._do, request), time.monotonic()
            value, error = made
            if request is not None:
                self.request, self.answer = None, made
                if isinstance(value, Future):
                    return value
            elif isinstance(value, Trajectory):
                return value  # the episode is over
            elif error is not None:  # GeneratorExit of somebody's code: the generator took it for its own end
                discard(self)
                return self.ended("failed", _describe(error, self.kind.doing), _traceback_of(error))
            else:
                self.request, self.answer = value, (None, None)
            if now > until:
                return Pause.TIME_IS_UP

    def _do(self, request: AttemptRequest | None) -> Any:
        """Do what it asks for, or go on with what came of that: its next request, or the episode that is over."""
        if request is None:
            assert self.requests is not None
            value, error = self.answer
            try:
                return self.requests.send(value) if error is None else self.requests.throw(error)
            except StopIteration as end:
                return end.value
        if isinstance(request, CompletionRequest):
            return self.answerer(self, request)
        if isinstance(request, MakeRequest):
            made = self.make_env(self.task)
            if not isinstance(made, Future):
                self.env = made  # at once: the attempt may have been given up meanwhile
            return made
        if isinstance(request, CloseRequest):
            ask = getattr(request.env, "ask", None)
            return close_quietly(request.env) if ask is None else ask(request)
        return perform(self.env, request) if self.ask is None else self.ask(request)


def discard(attempt: Attempt, done: Done | None = None) -> None:
    """Give back what an attempt holds that nobody waits for any more."""
    if isinstance(done, Future):
        done.cancel()
    env, attempt.env = attempt.env, None
    if env is not None:
        close_quietly(env)


def _describe(error: BaseException, during: str) -> str:
    try:
        return str(error) if isinstance(error, RollError) else f"{during} raised {type(error).__name__}: {error}"
    except Exception:  # an exception of others whose own text fails
        return f"{during} raised {type(error).__name__}"


def _own(error: BaseException) -> BaseException:
    """The error of the environment itself, where ``error`` names the call that raised it."""
    return error.__cause__ or error if isinstance(error, EnvironmentFaultError) else error


def _traceback_of(error: BaseException) -> str:
    """That of the environment's own error, where it is one, with the errors that led to it."""
    try:
        return _shortened("".join(traceback.format_exception(_own(error))))
    except Exception:  # an exception of others that cannot be shown
        return ""


def _shortened(text: str) -> str:
    """A quarter of what there may be from the start of ``text``, the rest from its end, where the error stands."""
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    first = _TRACEBACK_CHARACTERS // 4
    return text[:first] + "\n  ...\n" + text[first + 7 - _TRACEBACK_CHARACTERS :]
