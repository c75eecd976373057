"""A renderer, settings and an environment with planted faults, for the tests of the managers."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from roll_envs.env import TextEnv
from roll_envs.managers import EpisodeSettings
from roll_envs.managers.attempt import result_of
from roll_envs.managers.episode import CloseRequest, ResetRequest, StepRequest, everything, perform
from roll_envs.testing import CharRenderer, CounterEnv, ScriptedPolicy
from roll_envs.types import Completion, SamplingParams, Task, Trajectory

RENDERER = CharRenderer()
MORE = "<answer>More</answer>"
SLEEPERS = threading.Event()
"""Set to let every planted hang go on."""


def task(index: int = 0, *, seed: int | None = None, **kwargs: Any) -> Task:
    return Task(
        env_id="test/Counter-v0",
        split="train",
        index=index,
        seed=100 + index if seed is None else seed,
        kwargs={"highest": 4, **kwargs},
    )


def settings(**changes: Any) -> EpisodeSettings:
    values: dict[str, Any] = {
        "context": everything,
        "renderer": RENDERER,
        "sampling": SamplingParams(max_new_tokens=40, stop_ids=RENDERER.stop_ids),
        "max_tokens": 2000,
        "system_prompt": "count",
        **changes,
    }
    return EpisodeSettings(**values)


def responder(
    policy: ScriptedPolicy, timeout_s: float = 5.0
) -> Callable[[TextEnv, tuple[int, ...], SamplingParams], Completion]:
    return lambda env, ids, sampling: policy.generate(ids, sampling, timeout_s=timeout_s)


def counting() -> ScriptedPolicy:
    """Always More: wins after ``target`` turns."""
    return ScriptedPolicy(lambda ids: MORE)


class FaultyEnv(CounterEnv):
    """CounterEnv that goes wrong where ``faults`` says: {"reset" | "step" | "close": what to do there}."""

    def __init__(self, faults: Mapping[str, Callable[[], Any]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.faults = dict(faults or {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.faults.get("reset", lambda: None)() or super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        return self.faults.get("step", lambda: None)() or super().step(action)

    def close(self) -> None:
        self.faults.get("close", lambda: None)()
        super().close()


def hang() -> None:
    """Hang until the test lets go (a daemon thread; 30 s at most)."""
    SLEEPERS.wait(30)


def boom() -> None:
    raise RuntimeError("boom")


def leave() -> None:
    raise SystemExit(3)


def without_times(trajectory: Trajectory) -> list[Any]:
    """Everything of an episode but seconds and attempts."""
    turns = [
        (t.prompt_ids, t.completion, t.prompt_observation, t.text, t.observation, t.reward, t.terminated, t.truncated)
        for t in trajectory.turns
    ]
    return [trajectory.task, trajectory.member, trajectory.outcome, turns]


class Unanswered(BaseException):
    """What a call of a :class:`Remote` raises so that its future never gets anything."""


class Workers:
    """Remote environments whose calls one thread makes, as another process would. ``asked`` is what was asked of which
    environment (numbered as they were made), and ``futures`` what was returned for it."""

    def __init__(self, make: Callable[[Task], Any]) -> None:
        self._make = make
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.asked: list[tuple[int, str]] = []
        self.threads: set[str] = set()
        self.futures: list[Future[Any]] = []
        self.made = 0
        self._thread = threading.Thread(target=self._work, name="fake-worker", daemon=True)
        self._thread.start()

    def make(self, t: Task) -> Future[Any]:
        number, self.made = self.made, self.made + 1

        return self.submit(number, "make", lambda: Remote(self, number, self._make(t)))

    def submit(self, number: int, what: str, call: Callable[[], Any]) -> Future[Any]:
        self.asked.append((number, what))
        self.threads.add(threading.current_thread().name)
        self.futures.append(Future())
        self._jobs.put((self.futures[-1], call))
        return self.futures[-1]

    def of(self, what: str) -> list[int]:
        """The numbers of the environments of which this was asked."""
        return [number for number, asked in self.asked if asked == what]

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            value, error = result_of(call)
            with contextlib.suppress(InvalidStateError):  # it was cancelled
                if error is None:
                    future.set_result(value)
                elif not isinstance(error, Unanswered):
                    future.set_exception(error)


class Remote:
    """An environment of :class:`Workers`."""

    def __init__(self, workers: Workers, number: int, env: Any) -> None:
        self.workers, self.number, self.env = workers, number, env

    def ask(self, request: ResetRequest | StepRequest | CloseRequest) -> Future[Any]:
        if isinstance(request, CloseRequest):
            return self.workers.submit(self.number, "close", self.env.close)
        what = "step" if isinstance(request, StepRequest) else "reset"
        return self.workers.submit(self.number, what, lambda: perform(self.env, request))
