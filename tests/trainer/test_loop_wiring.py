"""What the loop gives to ``update`` and does between two of them, which the oracle cannot see.

One run is watched from the side: what ``update`` is given at each step, and what checkpoints say in between. Everything
that depends on how the loop is written stands in :func:`watched`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_runs import assert_same_curve, configured, run, without_times
from oracle_cases import DEFAULTS
from oracle_steps import learning_rate

import trainer.run.loop
from roll_envs.types import Group, Task, Trajectory
from trainer.cluster.crew import RankError
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.rollout.scheduler import GroupSource
from trainer.rollout.source import Session
from trainer.rollout.stream import RecordReader
from trainer.run.checkpoint import list_checkpoints, load_checkpoint
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import resume, train
from trainer.run.report import Report
from trainer.run.saving import load_parts
from trainer.run.update import update

WARM, STEPS, REFRESH = 25, 6, 2

SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "env": {"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 3, "format_penalty": -0.1}},
    "warm_start": {"steps": WARM, "episodes_per_step": 12},
    "rollout": {"groups_per_step": 3, "group_size": 4},
    "advantage": {"name": "remax"},
    "filter": {"zero_variance": True, "refill_rounds": 2},
    "loss": {"kl_coef": 0.02},
    "reference": {"refresh_every": REFRESH},
    "learner": {"minibatches": 1},
    "optimizer": {"lr": 2e-2, "lr_schedule": "cosine", "lr_warmup_steps": 2},
    "evaluation": {"tasks": 2, "every": 3},
    "checkpoint": {"every": 1, "keep": 20},
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one call of ``update`` was given, and the networks before it."""

    step: int
    version: int
    groups: tuple[Group, ...]
    greedy: tuple[float | None, ...]
    policy: dict[str, torch.Tensor]
    reference: dict[str, torch.Tensor]
    critic: dict[str, torch.Tensor]
    """Empty without one."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    path: Path
    calls: list[Call]
    greedy: dict[int, float]
    """Return of the greedy episode of each task, by the task's index."""


def _copy(weights: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in dict(weights).items()}


def _watch(folder: Path, settings: dict[str, Any]) -> Watched:
    calls: list[Call] = []
    greedy: dict[int, float] = {}
    collect_greedy = Session.collect_greedy

    def watched_update(config: Any, parts: Any, groups: Sequence[Group], **given: Any) -> Any:
        calls.append(
            Call(
                step=given["step"],
                version=given["version"],
                groups=tuple(groups),
                greedy=tuple(given["greedy"]),
                policy=_copy(parts.learner.weights()),
                reference=_copy(parts.reference.weights()) if parts.reference else {},
                critic=_copy(parts.critic.weights()) if parts.critic else {},
            )
        )
        return update(config, parts, groups, **given)

    def watched_greedy(session: Session, tasks: Sequence[Task]) -> list[Trajectory]:
        played = [  # returns that tell the tasks apart
            replace(t, turns=tuple(replace(turn, reward=turn.reward + 1e-6 * t.task.index) for turn in t.turns))
            for t in collect_greedy(session, tasks)
        ]
        greedy.update({t.task.index: t.total_reward for t in played})
        return played

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.run.loop.update", watched_update)
        patch.setattr(Session, "collect_greedy", watched_greedy)
        path, _ = run(folder, **settings)
    return Watched(path=path, calls=calls, greedy=greedy)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return _watch(tmp_path_factory.mktemp("wiring"), SETTINGS)


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())


def test_steps_and_versions_count_up_and_episodes_are_of_the_newest_weights(watched: Watched) -> None:
    assert [call.step for call in watched.calls] == list(range(STEPS))
    assert [call.version for call in watched.calls] == [WARM + step for step in range(STEPS)]
    for call in watched.calls:
        sampled = {turn.completion.weight_version for g in call.groups for t in g.trajectories for turn in t.turns}
        assert sampled <= {call.version}
    assert any(call.groups for call in watched.calls)
    assert load_checkpoint(watched.path).version == WARM + STEPS


def test_tasks_are_drawn_on_from_the_cursor_with_refills(watched: Watched) -> None:
    cursor, refilled = 0, 0
    for call, record in zip(watched.calls, read_metrics(watched.path, "train"), strict=True):
        played = int(record["filter/groups"])
        refilled += played > SETTINGS["rollout"]["groups_per_step"]
        kept = [group.task.index for group in call.groups]
        assert kept == sorted(set(kept))
        assert all(cursor <= index < cursor + played for index in kept), (kept, cursor, played)
        assert len(kept) == record["filter/kept"]
        cursor += played
    assert refilled, "no step drew further tasks"
    assert load_checkpoint(watched.path).cursor == cursor


def test_the_greedy_return_is_that_of_the_groups_task(watched: Watched) -> None:
    for call in watched.calls:
        assert len(call.greedy) == len(call.groups)
        assert list(call.greedy) == [watched.greedy[group.task.index] for group in call.groups]
    assert max(len(call.groups) for call in watched.calls) > 1


def test_the_reference_is_the_policy_of_the_last_refresh(watched: Watched) -> None:
    for call in watched.calls:
        last = call.step // REFRESH * REFRESH
        assert _same(call.reference, watched.calls[last].policy), call.step
    assert not _same(watched.calls[-1].policy, watched.calls[0].policy)


def test_each_step_has_the_rate_of_its_number(watched: Watched) -> None:
    settings = DEFAULTS | {f"optimizer.{key}": value for key, value in SETTINGS["optimizer"].items()} | {"steps": STEPS}
    found = [(step, r["learner/lr"]) for step, r in enumerate(read_metrics(watched.path, "train")) if "learner/lr" in r]
    assert found == [(step, pytest.approx(learning_rate(settings, step))) for step, _ in found]
    assert len(found) > 2


def test_the_critic_learns_alone_for_its_first_steps(tmp_path: Path) -> None:
    alone, steps = 2, 4
    seen = _watch(
        tmp_path,
        {
            "steps": steps,
            "advantage": {"name": "gae"},
            "critic": {"lr": 3e-3, "warmup_steps": alone, "clip": None},
            "learner": {"minibatches": 1},
            "optimizer": {"lr": 1e-2, "lr_schedule": "linear", "lr_warmup_steps": 1},
            "evaluation": {"tasks": 2, "every": 0},
            "checkpoint": {"every": 0},
        },
    )
    policies, critics = [call.policy for call in seen.calls], [call.critic for call in seen.calls]
    assert [_same(a, b) for a, b in pairwise(policies)] == [step < alone for step in range(steps - 1)]
    assert not any(_same(a, b) for a, b in pairwise(critics))
    assert [call.version for call in seen.calls] == [seen.calls[0].version + step for step in range(steps)]
    # The first critic is the policy of that moment below a head of 0, so that its first values are 0.
    shared = {name.replace("body.", "model."): value for name, value in critics[0].items() if name.startswith("body.")}
    assert shared
    assert all(torch.equal(value, policies[0][name]) for name, value in shared.items())
    assert not any(value.any() for name, value in critics[0].items() if name.startswith("head."))
    # The policy's schedule goes by the number of the training step, those of the critic alone too.
    settings = DEFAULTS | {
        "steps": steps,
        "optimizer.lr": 1e-2,
        "optimizer.lr_schedule": "linear",
        "optimizer.lr_warmup_steps": 1,
    }
    rates = [record.get("learner/lr") for record in read_metrics(seen.path, "train")]
    assert rates == [None] * alone + [pytest.approx(learning_rate(settings, step)) for step in range(alone, steps)]


def test_a_run_whose_ranks_are_lost_goes_on_from_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    changes: dict[str, Any] = {"steps": 3, "advantage": {"name": "gae"}, "checkpoint": {"every": 1}}
    whole, _ = run(tmp_path / "whole", **changes)
    begun, shown, ended = list[int](), list[int](), list[str]()

    def lost_once(*arguments: Any, **given: Any) -> Any:
        begun.append(given["step"])
        found = update(*arguments, **given)
        if begun == [0, 1]:
            raise RankError("rank 1 is gone")
        return found

    def noting(what: str, function: Any) -> Any:
        return lambda self: (ended.append(what), function(self))

    monkeypatch.setattr("trainer.run.loop.update", lost_once)
    monkeypatch.setattr(LearnerRanks, "end", noting("ranks", LearnerRanks.end))
    monkeypatch.setattr(GroupSource, "cancel", noting("episodes", GroupSource.cancel))
    monkeypatch.setattr(Report, "print_before_and_after", lambda self, before, last: shown.append(len(before)))
    path, summary = run(tmp_path / "lost", **changes)
    assert begun == [0, 1, 1, 2]
    assert summary["steps"] == 3
    assert shown == [summary["phases"][0]["tasks"]], "the episodes of before are still there"
    assert ended == ["ranks", "episodes", "ranks"]
    assert_same_curve(path, whole)
    records = [RecordReader(RunFolder.open(each).stream_path).members for each in (path, whole)]
    assert [(m.phase, m.step) for m in records[0]] == [(m.phase, m.step) for m in records[1]]
    saved = [[checkpoint.name for checkpoint in list_checkpoints(each)] for each in (path, whole)]
    assert saved[0] == saved[1], "the one that was gone on from is not saved again"


def test_lost_ranks_go_on_from_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = list[int]()

    def lost_once(*arguments: Any, **given: Any) -> Any:
        begun.append(given["step"])
        if begun == [0, 1, 2]:
            newest = list_checkpoints(next(tmp_path.glob("runs/*")))[-1]
            (newest / "model.safetensors").write_bytes(b"rotten")
            raise RankError("rank 1 is gone")
        return update(*arguments, **given)

    monkeypatch.setattr("trainer.run.loop.update", lost_once)
    config = configured(tmp_path, steps=3, checkpoint={"every": 1}, evaluation={"tasks": 2, "every": 0})
    with RunFolder.create(config) as folder:
        train(config, folder, Report())
    said = " ".join(capsys.readouterr().out.split())
    assert "step-000006: model.safetensors has 6 bytes where" in said
    assert "step-000005, the newest one that is whole: training steps 2 to 2 are played and learnt again" in said
    assert begun == [0, 1, 2, 1, 2]
    noted = [record.get("checkpoint/damaged") for record in read_metrics(folder.path, "train")]
    assert noted == [None, 1.0, 1.0]
    assert [path.name for path in folder.checkpoints_path.glob("set-aside-*")] == ["set-aside-step-000006"]


@pytest.mark.parametrize(("damaged", "restarts"), [(True, 1), (False, 0)])
def test_lost_ranks_that_end_a_run_say_what_there_is_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None, damaged: bool, restarts: int
) -> None:
    def lost(*_: Any, **__: Any) -> Any:
        for checkpoint in list_checkpoints(path) if damaged else ():
            (checkpoint / "model.safetensors").write_bytes(b"rotten")
        raise RankError("rank 1 is gone")

    monkeypatch.setattr("trainer.run.loop.update", lost)
    config = configured(tmp_path, steps=1, placement={"learner": {"restarts": restarts}})
    with RunFolder.create(config) as folder:
        path = folder.path
        with pytest.raises(RankError, match="rank 1 is gone") as error:
            train(config, folder, Report.silent())
    (note,) = error.value.__notes__
    if damaged:
        assert "model.safetensors has 6 bytes where" in note
        assert note.endswith(f"no checkpoint of {path} is whole; start the run anew")
    else:
        assert note == f"it goes on from the last checkpoint: roll-train resume {path}"


@pytest.mark.parametrize("restarts", [1, 2])
def test_ranks_that_are_lost_while_they_are_started_again_take_another_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None, restarts: int
) -> None:
    changes: dict[str, Any] = {"steps": 2, "checkpoint": {"every": 1}, "evaluation": {"tasks": 2, "every": 0}}
    placed = {"placement": {"learner": {"restarts": restarts}}}
    losses = ["in a step", "while the checkpoint is loaded"]

    def lost(what: str, function: Any) -> Any:
        def call(*arguments: Any, **given: Any) -> Any:
            if losses[:1] == [what]:
                raise RankError(losses.pop(0))
            return function(*arguments, **given)

        return call

    monkeypatch.setattr("trainer.run.loop.update", lost(losses[0], update))
    monkeypatch.setattr("trainer.run.loop.load_parts", lost(losses[1], load_parts))
    if restarts == 1:
        with pytest.raises(RankError, match="while the checkpoint is loaded"):
            run(tmp_path, **changes, **placed)
    else:
        assert run(tmp_path, **changes, **placed)[1]["steps"] == 2
    assert losses == []


@pytest.mark.parametrize("what", ["begin_phase", "load_parts"])
def test_ranks_that_are_lost_while_a_resume_begins_take_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None, what: str
) -> None:
    changes: dict[str, Any] = {"checkpoint": {"every": 1}, "evaluation": {"tasks": 2, "every": 0}}
    whole, _ = run(tmp_path / "whole", **changes, steps=2)
    path, _ = run(tmp_path / "lost", **changes, steps=1)
    function, losses, ended = getattr(trainer.run.loop, what), ["gone", "gone", "gone"], list[str]()

    def lost(*arguments: Any, **given: Any) -> Any:
        if losses:
            raise RankError(losses.pop())
        return function(*arguments, **given)

    def go_on() -> dict[str, Any]:
        with RunFolder.open(path) as folder:
            return resume(folder, Report.silent(), 2)

    end = LearnerRanks.end
    monkeypatch.setattr(LearnerRanks, "end", lambda self: (ended.append("ranks"), end(self)))
    monkeypatch.setattr(f"trainer.run.loop.{what}", lost)
    before = without_times(path)
    with pytest.raises(RankError, match="gone"):
        go_on()  # placement.learner.restarts is 1
    assert losses == ["gone"]
    assert without_times(path) == before, "a resume that failed changed the metrics"
    ended.clear()
    assert go_on()["steps"] == 2
    assert ended == ["ranks", "ranks"], "those that are lost, and those at the end"
    assert [(r["phase"], r["step"]) for r in read_metrics(path, "train")] == [("train", 1), ("train", 2)]
    assert load_checkpoint(path).cursor == load_checkpoint(whole).cursor


def test_the_warm_start_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    warm = {"steps": 4, "lr": 1e-2, "lr_schedule": "linear", "lr_warmup_steps": 2}
    own = {"lr": 5e-3, "lr_schedule": "constant", "lr_warmup_steps": 1}
    folder, _ = run(tmp_path, steps=2, warm_start=warm, optimizer=own, evaluation={"tasks": 2, "every": 0})
    rates = [record["learner/lr"] for record in read_metrics(folder, "warm_start")]
    assert rates == pytest.approx([5e-3, 1e-2, 1e-2, 5.25e-3])  # the docstring of learning_rate
    assert [record["learner/lr"] for record in read_metrics(folder, "train")] == [5e-3, 5e-3]
