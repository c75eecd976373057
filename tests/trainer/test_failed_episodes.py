"""Turns of failed episodes are for people: they are in records, and in no statistic or sequence (promise 2)."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_runs import configured, run, the_run
from rich.console import Console

from envs.frozenlake.env import FrozenLakeEnv
from roll_envs import env_registry
from roll_envs.errors import RollError
from roll_envs.managers import EpisodeDriver, EpisodeLimits, EpisodeSettings
from roll_envs.managers.episode import everything
from roll_envs.testing import CharRenderer, CounterEnv, ScriptedPolicy
from roll_envs.types import Group, Outcome, SamplingParams, Task, Trajectory
from trainer.data.metrics import rollout_metrics
from trainer.data.table import make_table, sequences_of
from trainer.rollout.records import episode_record
from trainer.rollout.scheduler import Collected, GroupSource
from trainer.rollout.source import Session, draw_tasks
from trainer.rollout.stream import RecordReader, StepRecord
from trainer.run.checkpoint import load_checkpoint
from trainer.run.evaluate import evaluate_run, phase_result
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import train
from trainer.run.report import Report

FAILED = Outcome(kind="failed", reason="step raised", traceback="Traceback: KeyError", answer="More")


def played() -> Trajectory:
    renderer = CharRenderer()
    settings = EpisodeSettings(
        context=everything,
        renderer=renderer,
        sampling=SamplingParams(stop_ids=renderer.stop_ids),
        max_tokens=2000,
    )
    task = Task(env_id="test/Counter-v0", split="train", index=0, seed=1)
    with EpisodeDriver(lambda _: CounterEnv(highest=1), EpisodeLimits()) as driver:
        (group,) = driver.collect([task], 1, settings, ScriptedPolicy(["<answer>More</answer>"]))
    return group.trajectories[0]


def test_the_turns_of_a_failed_episode_enter_no_statistic_and_no_sequence() -> None:
    won = played()
    lost = replace(won, member=1, outcome=FAILED)
    assert won.success
    assert lost.turns
    assert not lost.success
    alone, both = Group(task=won.task, trajectories=(won,)), Group(task=won.task, trajectories=(won, lost))
    counts = {"rollout/episodes": 2.0, "rollout/outcome/failed": 1.0}
    assert rollout_metrics([both]) == {**rollout_metrics([alone]), **counts}
    assert sequences_of([both]) == sequences_of([alone])
    table = make_table([both], sequences_of([both]))
    assert (len(table.episodes.group), len(table.turns.reward), table.left_out) == (1, 1, 1)
    measured = phase_result("test", [won, lost], seconds=1.0)
    assert measured == replace(phase_result("test", [won], seconds=1.0), failed=1)


def test_a_record_tells_what_failed_at_each_attempt() -> None:
    won = played()
    lost = replace(won, outcome=FAILED)
    record = json.loads(json.dumps(episode_record(replace(won, attempts=2, failed_attempts=(lost,)))))
    assert (record["outcome"], record["traceback"], record["answer"], record["attempts"]) == ("completed", "", None, 2)
    (earlier,) = record["failed_attempts"]
    told = ("failed", "step raised", "Traceback: KeyError", "More")
    assert (earlier["outcome"], earlier["reason"], earlier["traceback"], earlier["answer"]) == told
    assert len(earlier["turns"]) == 1


def test_deadlines_recycling_and_the_token_budget_reach_the_episodes(tmp_path: Path) -> None:
    made: list[str] = []
    limits = {"recycle_after": 1, "episode_tokens": 3, "max_running": 1, "step_timeout_s": 7.0}
    config = configured(tmp_path, rollout=limits)
    with Session(config) as session:
        make = session._driver._make_env
        session._driver._make_env = lambda task: (made.append(task.env_id), make(task))[1]
        groups = session.collect(draw_tasks(config.env, seed=1, indices=range(2)), 2)
        assert {kind.doing: kind.limit_s for kind in session._driver._kinds.values()} == {
            "step of " + config.env.id: 7.0,
            "reset of " + config.env.id: 60.0,
            "the making of " + config.env.id: 60.0,
            "the closing of " + config.env.id: 60.0,
            "the context function": 60.0,
            "the engine's answer": 120.0,
        }
    assert len(made) == 4
    episodes = [t for g in groups for t in g.trajectories]
    assert {t.outcome.kind for t in episodes} <= {"completed", "truncated"}
    assert max(sum(len(turn.completion.ids) for turn in t.turns) for t in episodes) == 3


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("mode", "every"), [("sync", 0), ("sync", 1), ("overlap", 0), ("async", 1)])
def test_steps_that_were_done_are_saved_before_a_failure_ends_the_run(tmp_path: Path, mode: str, every: int) -> None:
    """Whether a step or an evaluation fails, or the update of an engine that is dead."""
    with pytest.raises(RollError, match="the scripted engine died"):
        run(
            tmp_path,
            steps=40,
            engine={"name": "scripted", "dies_after": 100},
            warm_start={"steps": 0},
            rollout={"mode": mode},
            evaluation={"tasks": 2, "every": every},
            checkpoint={"every": 0},
        )
    path = the_run(tmp_path)
    assert path is not None
    done, state = len(read_metrics(path, "train")), load_checkpoint(path)
    assert 0 < done < 40
    assert state.progress["steps"] == done
    learnt = {group.task.index for step in range(done) for group in _record(path, step + 1).groups}
    assert not learnt & set(state.progress["in_flight"])
    assert learnt | set(state.progress["in_flight"]) == set(range(state.cursor))


def test_where_every_episode_fails_nothing_is_measured_as_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "step", lambda *_: _raises(KeyError("broken")))
    config = configured(tmp_path, steps=1, warm_start={"steps": 0}, rollout={"max_failed_share": 1.0})
    out = io.StringIO()
    with RunFolder.create(config) as folder:
        train(config, folder, Report(Console(file=out, width=10_000)))
    assert {r["step"]: r["tasks"] for r in read_metrics(folder.path, "evaluation")} == {0: 0, 1: 0}
    for record in read_metrics(folder.path):
        assert not {"success", "mean_return", "rollout/success_rate", "rollout/return_mean"} & record.keys()
    assert load_checkpoint(folder.path).success is None
    assert (
        out.getvalue().count("attempts at episodes failed (12), the first: step of roll/FrozenLake-v0 raised KeyE") == 1
    )
    with pytest.raises(RollError, match=r"no episode of the evaluation counts: 12 x step of .* raised KeyError"):
        evaluate_run(folder.path)


@pytest.mark.usefixtures("no_pictures")
def test_failures_of_greedy_and_of_cancelled_episodes_are_listed_and_only_those_that_ended_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_step = GroupSource.next_step

    def with_failures(source: GroupSource, step: int) -> Collected:
        found = next_step(source, step)
        first = found.played[0].trajectories[0]
        cut = replace(first, outcome=Outcome(kind="cancelled", reason="late"), failed_attempts=(failed("cancelled"),))
        cancelled = (Group(task=cut.task, trajectories=(cut,)),)
        return replace(found, greedy=(failed("greedy"), *found.greedy[1:]), cancelled=cancelled)

    def failed(reason: str) -> Trajectory:
        return replace(played(), outcome=replace(FAILED, reason=reason))

    monkeypatch.setattr(GroupSource, "next_step", with_failures)
    path, _ = run(
        tmp_path,
        steps=1,
        advantage={"name": "remax"},
        warm_start={"steps": 0},
        rollout={"groups_per_step": 3, "group_size": 3, "max_failed_share": 0.5},
        evaluation={"tasks": 2, "every": 0},
    )
    listed = [json.loads(line) for line in (path / "episodes" / "failed.jsonl").read_text().splitlines()]
    assert sorted((line["phase"], line["step"], line["reason"]) for line in listed) == [
        ("train", 1, "cancelled"),
        ("train", 1, "greedy"),
    ]
    (record,) = read_metrics(path, "train")
    assert record["rollout/failed_share"] == 1 / (3 * 3 + 3), "of the episodes that were played, and the greedy ones"


def _record(path: Path, step: int) -> StepRecord:
    return RecordReader(path / "episodes" / "stream.jsonl.gz").find("train", step)


def _raises(error: BaseException) -> None:
    raise error


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("close", "said"),
    [
        (lambda _: _raises(StopIteration("no end")), "raised StopIteration: no end"),
        (lambda _: _raises(SystemExit(0)), "SystemExit(0)"),
        (lambda _: threading.Event().wait(60), "gave up waiting for the closing of FrozenLakeEnv after 0.1 s"),
    ],
)
def test_an_environment_that_cannot_be_closed_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, close: Any, said: str
) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "close", close)
    monkeypatch.setattr(env_registry.discard, "__defaults__", (0.1,))
    _, summary = run(tmp_path, steps=1, warm_start={"steps": 0}, evaluation={"tasks": 2})
    assert [phase["tasks"] for phase in summary["phases"]] == [2, 2]
    assert said in caplog.text
