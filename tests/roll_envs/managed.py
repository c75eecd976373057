"""A renderer, settings and an environment with planted faults, for the tests of the managers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from roll_envs.env import TextEnv
from roll_envs.managers import EpisodeSettings
from roll_envs.managers.episode import everything
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
