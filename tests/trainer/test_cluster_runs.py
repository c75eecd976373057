"""Whole runs with environments in worker processes: as those in this process, and through the death of a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_runs import configured, run

from roll_envs.types import Trajectory
from trainer.cluster import env_workers
from trainer.rollout.scheduler import GroupSource
from trainer.rollout.source import Ledger, Session, draw_tasks
from trainer.run.checkpoint import load_checkpoint
from trainer.run.evaluate import evaluate_run
from trainer.run.folder import read_metrics
from trainer.run.replay import replay

pytestmark = pytest.mark.usefixtures("no_pictures")

PROCESSES = {"manager": "process", "workers": 2, "groups_per_step": 3, "group_size": 3, "max_running": 8}


def worker_pids() -> set[int]:
    """Worker processes of this process."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"managers.host" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def facts(trajectory: Trajectory) -> Any:
    turns = [(t.prompt_ids, t.completion.ids, t.observation, t.reward, t.info) for t in trajectory.turns]
    return trajectory.task, trajectory.member, trajectory.outcome, turns


SHORT = {"warm_start": {"steps": 1, "episodes_per_step": 4}, "evaluation": {"tasks": 4}}
"""Changes that make a run quicker."""


@pytest.mark.filterwarnings("ignore")  # of Ray's own sockets
@pytest.mark.parametrize("other", ["process", pytest.param("ray", marks=pytest.mark.slow)])
def test_episodes_do_not_depend_on_the_manager(tmp_path: Path, other: str) -> None:
    if other == "ray":
        pytest.importorskip("ray", reason="needs the optional part 'ray'")
    played = []
    for manager in ("thread", other):
        with Session(configured(tmp_path, rollout={"manager": manager})) as session:
            taught = session.demonstrate(draw_tasks(session.config.env, seed=0, indices=range(4)))
            groups = GroupSource(session, Ledger(), lambda: None).next_step(0).played
            played.append([facts(t) for t in (*taught, *(t for group in groups for t in group.trajectories))])
    assert played[0] == played[1]
    assert len(played[0]) == 4 + 9
    assert not worker_pids()


def test_a_run_learns_the_same_with_every_manager(tmp_path: Path) -> None:
    records = []
    for manager in ("thread", "process"):
        folder, _ = run(tmp_path / manager, steps=2, rollout={"manager": manager}, **SHORT)
        found = read_metrics(folder, "train")
        records.append(
            [
                {k: v for k, v in one.items() if k.startswith(("rollout/", "loss", "learner/")) and "_s" not in k}
                for one in found
            ]
        )
    assert len(records[0]) == 2
    assert records[0] == records[1]


def test_an_evaluation_starts_its_workers_once_and_a_replay_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = run(tmp_path, steps=1, rollout=PROCESSES, **SHORT)
    started: list[int] = []

    @contextlib.contextmanager
    def counted(*args: Any) -> Iterator[Any]:
        started.append(1)
        with env_workers(*args) as workers:
            yield workers

    monkeypatch.setattr("trainer.rollout.source.env_workers", counted)
    assert [step.differing for step in replay(folder, 1)] == [()]
    assert not started
    assert evaluate_run(folder, tasks=2).tasks == 2
    assert len(started) == 1


def test_a_worker_killed_in_the_middle_costs_the_run_nothing(tmp_path: Path) -> None:
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        """Kill a worker after each step that was trained."""
        steps = 0
        while not over.wait(0.02):
            for folder in (tmp_path / "runs").glob("tiny-*"):
                done = len(read_metrics(folder, "train"))
                if done > steps and (pids := worker_pids()):
                    steps = done
                    killed.append(min(pids))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        folder, _ = run(
            tmp_path,
            steps=4,
            **SHORT,
            rollout=PROCESSES,
            env={"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 6}},
        )
    finally:
        over.set()
        killer.join(30)
    assert len(killed) >= 2
    records = read_metrics(folder, "train")
    assert [record["step"] for record in records] == list(range(1, 5))
    assert all(record.get("rollout/failed_share", 0.0) == 0.0 for record in records)
    state = load_checkpoint(folder)
    assert state.cursor == 4 * 3
    assert state.progress["in_flight"] == []
    until = time.monotonic() + 20
    while worker_pids() and time.monotonic() < until:
        time.sleep(0.05)
    assert not worker_pids()
