"""Episodes whose environments are in workers: the same as in place, and no worse for a worker that dies or hangs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from managed import settings, without_times
from worker_envs import OBEDIENT, obedient

import roll_envs
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.managers.processes import ProcessLink
from roll_envs.managers.workers import EnvWorkers
from roll_envs.testing import CharRenderer, ScriptedPolicy
from roll_envs.types import Task, Trajectory

LIMITS = EpisodeLimits(max_running=32, env_timeout_s=30.0, turn_timeout_s=20.0, episode_timeout_s=120.0)
LAKES = [Task(env_id="roll/FrozenLake-v0", split="train", index=index, seed=index) for index in range(12)]


@pytest.fixture(scope="module")
def workers() -> Iterator[EnvWorkers]:
    with EnvWorkers(ProcessLink, 2, LIMITS) as shared:
        yield shared


def local(task: Task) -> Any:
    return roll_envs.make(task.env_id, **task.kwargs)


def walking(ids: tuple[int, ...]) -> str:
    """An action that follows from the prompt alone."""
    return "<answer>" + ("Up", "Down", "Left", "Right", "nowhere")[sum(ids) % 5] + "</answer>"


def play(
    make: Callable[[Task], Any], tasks: list[Task], say: Callable[[tuple[int, ...]], str], size: int = 2, **limits: Any
) -> list[Trajectory]:
    """So many episodes of each task, in order."""
    values = {name: getattr(LIMITS, name) for name in ("max_running", "env_timeout_s", "turn_timeout_s")} | limits
    with EpisodeDriver(make, EpisodeLimits(**values)) as driver:
        groups = driver.collect(tasks, size, settings(system_prompt=None, max_tokens=20_000), ScriptedPolicy(say))
    return [trajectory for group in groups for trajectory in group.trajectories]


def test_episodes_are_those_of_environments_in_place(workers: EnvWorkers) -> None:
    here, there = play(local, LAKES, walking), play(workers.make, LAKES, walking)
    assert [without_times(t) for t in there] == [without_times(t) for t in here]
    assert {t.outcome.kind for t in there} <= {"completed", "truncated"}
    assert any(t.total_reward for t in there)


@pytest.mark.parametrize("action", ["raise no such thing", "leave 3"])
def test_failures_read_as_those_in_place(workers: EnvWorkers, action: str) -> None:
    here, there = (play(make, [obedient()], lambda ids: action, attempts=1) for make in (local, workers.make))
    assert [t.outcome.reason for t in there] == [t.outcome.reason for t in here]
    assert there[0].outcome.kind == "failed"
    assert f"step of {OBEDIENT} raised " in there[0].outcome.reason
    assert "in step\n" in there[0].outcome.traceback  # the line of the environment's code
    assert "worker_envs.py" in there[0].outcome.traceback


def test_an_environment_that_cannot_be_made_reads_as_in_place(workers: EnvWorkers) -> None:
    tasks = [obedient(fails="no luck"), Task(env_id="roll/FrozenLak-v0", split="", index=1, seed=0)]
    here, there = (play(make, tasks, walking, attempts=1) for make in (local, workers.make))
    assert [t.outcome.reason for t in there] == [t.outcome.reason for t in here]


class Once:
    """Says ``action`` a single time, to the first prompt of a second turn, and ends every other episode after it."""

    def __init__(self, action: str) -> None:
        self.action, self.pids = action, list[int]()

    def __call__(self, ids: tuple[int, ...]) -> str:
        said = re.findall(r"(\d+) \d+", CharRenderer().messages(ids)[-1].content)
        self.pids.append(int(said[0]))
        if len(CharRenderer().messages(ids)) < 3:
            return "go on"
        action, self.action = self.action, "end"
        return action


@pytest.mark.parametrize("action", ["exit 3", f"kill {signal.SIGKILL:d}"])
def test_a_worker_that_dies_uses_up_no_attempts(action: str) -> None:
    with EnvWorkers(ProcessLink, 1, LIMITS) as workers:
        policy = Once(action)
        played = play(workers.make, [obedient()] * 6, policy, attempts=1)
    assert [t.outcome.kind for t in played] == ["completed"] * 12
    assert any(t.attempts > 1 for t in played)
    assert len(set(policy.pids)) == 2
    assert os.getpid() not in policy.pids


class Killer:
    """Ends its worker in the first step of every episode of seed 13; others take four steps."""

    def __init__(self) -> None:
        self.killed: list[int] = []
        self.pids: set[int] = set()

    def __call__(self, ids: tuple[int, ...]) -> str:
        messages = CharRenderer().messages(ids)
        pid, seed = re.findall(r"(\d+) (\d+)", " ".join(message.content for message in messages))[0]
        self.pids.add(int(pid))
        if int(seed) == 13:
            self.killed.append(int(pid))
            return "exit 3"
        return "sleep 0.05" if len(messages) < 8 else "end"


@pytest.mark.parametrize("size", [1, 2])
def test_an_environment_that_kills_its_workers_takes_no_neighbour_with_it(size: int) -> None:
    with EnvWorkers(ProcessLink, size, LIMITS) as workers:
        policy = Killer()
        tasks = [replace(obedient(), index=index, seed=13 if index == 3 else index) for index in range(12)]
        played = play(workers.make, tasks, policy, size, attempts=1)
    assert [t.outcome.kind for t in played if t.task.seed != 13] == ["completed"] * 11 * size
    assert [t.outcome.kind for t in played if t.task.seed == 13] == ["failed"] * size
    assert all("ended with exit code 3" in t.outcome.reason for t in played if t.task.seed == 13)
    assert len(set(policy.killed)) <= size * 7
    assert max(t.attempts for t in played if t.task.seed != 13) <= 6


def test_a_hung_step_is_named_and_its_worker_replaced() -> None:
    with EnvWorkers(ProcessLink, 1, EpisodeLimits(env_timeout_s=2.0)) as workers:
        policy = Once("sleep 3600")
        tasks = [obedient(closed=""), *[obedient()] * 3]
        played = play(workers.make, tasks, policy, attempts=1, env_timeout_s=2.0)
        failed = [t for t in played if t.outcome.kind == "failed"]
        assert [t.outcome.reason for t in failed] == [f"gave up waiting for step of {OBEDIENT} after 2 s"]
        assert sum(t.outcome.kind == "completed" for t in played) == 7
        first = set(policy.pids)
        while set(policy.pids) == first:  # bounded by the test's deadline
            play(workers.make, [obedient()], policy)
