"""The training loop as a whole, with a tiny real model.

Promises 2 (a failure is never a reward of 0), 3 (Ctrl-C leaves no process), 6 (a task is its identity), 7 (resume is
exact) and 9 (the resolved configuration is saved with the run).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from forked import roll_train
from loop_runs import (
    assert_same_curve,
    configured,
    run,
    stop_when,
    the_run,
    without_times,
    write_config,
)
from safetensors.torch import load_file
from word_env import CARD, fault_of

import roll_envs
import trainer.rollout.source
import trainer.run.loop
import trainer.run.saving
from roll_envs.errors import CheckpointError, ConfigError, RollError
from roll_envs.types import Metrics, Outcome, Task, Trajectory
from trainer.cli import main
from trainer.command import MISTAKE
from trainer.config.load import load_config
from trainer.data.batches import Batch, Denominators
from trainer.engines.hf import HFEngine
from trainer.model.network import words_of
from trainer.rollout.source import HELD_OUT_SEEDS, Session, draw_tasks, held_out_tasks
from trainer.run.checkpoint import CheckpointState, list_checkpoints, load_checkpoint
from trainer.run.evaluate import evaluate_run
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.interrupts import Interrupts
from trainer.run.loop import resume, train
from trainer.run.report import Report
from trainer.run.update import warm_start_step

Whole = tuple[Path, dict[str, Any]]


pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    threads = torch.get_num_threads()
    before = set(threading.enumerate())
    yield
    torch.set_num_threads(threads)
    until = time.monotonic() + 5
    left = set(threading.enumerate()) - before
    while [t for t in left if t.is_alive()] and time.monotonic() < until:
        time.sleep(0.01)
    assert not [t.name for t in left if t.is_alive() and t.name.startswith(("hf-engine", "episode"))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The uninterrupted run that others are compared to, with its picture."""
    return run(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def word() -> Iterator[str]:
    roll_envs.register(CARD)
    yield CARD.id
    roll_envs.unregister(CARD.id)


WORD_RUN: dict[str, Any] = {
    "engine": {"max_tokens": 32},
    "warm_start": {"steps": 2},
    "advantage": {"name": "grpo"},
    "evaluation": {"tasks": 30, "every": 0},
    "rollout": {"groups_per_step": 6, "group_size": 3, "attempts": 2},
    "steps": 3,
}


def word_run(fail_share: float, **changes: Any) -> dict[str, Any]:
    return {**WORD_RUN, "env": {"id": CARD.id, "kwargs": {"fail_share": fail_share}}, **changes}


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_a_run_writes_everything(whole: Whole) -> None:
    path, summary = whole
    config = load_config(path / "config.yaml")
    assert (config.steps, config.learner.pack_tokens, config.advantage.name) == (5, 64, "gigpo")
    assert sorted(p.name for p in path.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "episodes", "learning_curve.png", "metrics.jsonl", "model",
        "summary.json", "tensorboard",
    ]  # fmt: skip
    assert (path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((path / "tensorboard").glob("events.out.tfevents.*"))
    for step in (0, 2, 4, 5):
        assert (path / "episodes" / f"evaluation-step-{step:06d}.txt").stat().st_size > 100
        records = (path / "episodes" / f"evaluation-step-{step:06d}.jsonl").read_text().splitlines()
        assert [json.loads(line)["task"]["index"] for line in records] == list(range(12))
    assert [p.name for p in list_checkpoints(path / "checkpoints")] == ["step-000007", "step-000008", "step-000009-r2"]
    assert (path / "model" / "config.json").is_file()
    assert json.loads((path / "summary.json").read_text()) == json.loads(json.dumps(summary))


def test_the_summary_has_what_a_reader_needs(whole: Whole) -> None:
    _, summary = whole
    assert [p["name"] for p in summary["phases"]] == ["after warm start", "step 2", "step 4", "after training"]
    for phase in summary["phases"]:
        assert {"success", "interval_low", "interval_high", "turns", "valid_action_rate", "seconds", "tasks"} <= set(
            phase
        )
        assert phase["interval_low"] <= phase["success"] <= phase["interval_high"]
        assert phase["tasks"] == 12
    assert (summary["seed"], summary["steps"], summary["env"]) == (0, 5, "roll/FrozenLake-v0")
    assert {"torch", "transformers", "roll-envs", "python"} <= set(summary["versions"])
    assert set(summary["training_seconds"]) == {"warm_start", "train", "evaluation"}


def test_metrics_hold_every_step_once(whole: Whole) -> None:
    path, _ = whole
    records = [(r["phase"], r["step"]) for r in read_metrics(path)]
    assert records == [
        *[("warm_start", s) for s in (1, 2, 3, 4)],
        ("evaluation", 0), ("train", 1), ("train", 2), ("evaluation", 2), ("train", 3), ("train", 4), ("evaluation", 4),
        ("train", 5),
        ("evaluation", 5),
    ]  # fmt: skip
    for record in read_metrics(path, "train"):
        assert record["rollout/episodes"] == 9.0
        assert record["rollout/failed_share"] == 0.0
        assert record["staleness/lag_max"] == 0.0
        assert record["learner/optimizer_steps"] > 0, "a run that learns nothing would be resumed exactly by anything"
        assert record["mismatch/logprob_diff_max"] < 1e-4
    rates = [r["learner/lr"] for r in read_metrics(path, "train")]
    assert rates == sorted(rates, reverse=True)


def test_what_is_saved_is_the_policy_as_it_is_then(whole: Whole) -> None:
    """The model in Hugging Face form is the last one; a checkpoint has the success of its own weights, or none."""
    path, summary = whole
    trained, exported = dict(load_checkpoint(path).model()), load_file(path / "model" / "model.safetensors")
    assert exported.keys() <= trained.keys()
    assert all(torch.equal(exported[name], trained[name]) for name in exported)
    measured = {phase["step"]: phase["success"] for phase in summary["phases"]}
    found = []
    for checkpoint in list_checkpoints(path):
        state = load_checkpoint(checkpoint)
        evaluated = [evaluation["step"] for evaluation in state.progress["evaluations"]]
        steps = state.progress["steps"]
        assert state.success == (measured[steps] if steps in evaluated else None)
        found.append((steps, state.success is None))
    assert found == [(3, True), (4, False), (5, False)]


@pytest.mark.parametrize(
    ("checkpoint", "evaluation", "expected"),
    [
        ({"every": 1, "keep_best": 0}, 0, [(0, None), (0, 0), *((step, None) for step in range(1, 6)), (5, 5)]),
        ({"every": 0, "keep_best": 1}, 2, [(0, None), (0, 0), (2, 2), (4, 4), (5, None), (5, 5)]),
        ({"every": 0, "keep_best": 0}, 2, [(0, None), (0, 0), (5, None), (5, 5)]),
    ],
)
def test_checkpoints_are_saved_when_they_are_due(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: dict[str, int],
    evaluation: int,
    expected: list[tuple[int, int | None]],
) -> None:
    """Training steps of each checkpoint, and the evaluation that its success is of; the last of each step stays."""
    saved: list[tuple[int, float | None]] = []
    last: dict[int, tuple[int, float | None]] = {}
    save = trainer.run.saving.save_checkpoint

    def noted(folder: Path, state: CheckpointState, **more: Any) -> Path:
        saved.append((state.progress["steps"], state.success))
        last[state.step] = saved[-1]
        return save(folder, state, **more)

    monkeypatch.setattr(trainer.run.saving, "save_checkpoint", noted)
    path, summary = run(
        tmp_path,
        warm_start={"steps": 1},
        checkpoint={**checkpoint, "keep": 99},
        evaluation={"tasks": 3, "every": evaluation},
    )
    measured = {phase["step"]: phase["success"] for phase in summary["phases"]}
    assert saved == [(steps, None if of is None else measured[of]) for steps, of in expected]
    found = [load_checkpoint(one) for one in list_checkpoints(path)]
    assert [(state.progress["steps"], state.success) for state in found] == list(last.values())


def test_the_warm_start_learns_at_a_temperature_of_1(whole: Whole, tmp_path: Path) -> None:
    """Demonstrations were not sampled from the model, at no temperature."""
    path, _ = run(tmp_path, steps=0, sampling={"temperature": 0.5}, evaluation={"tasks": 1})
    losses = [[r["loss/total"] for r in read_metrics(p, "warm_start")] for p in (whole[0], path)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_the_clocks_of_a_step_add_up(whole: Whole) -> None:
    path, summary = whole
    records = read_metrics(path, "train")
    for record in records:
        assert record["time/step_s"] == pytest.approx(record["time/rollout_s"] + record["time/learn_s"])
        assert min(record["time/rollout_s"], record["time/learn_s"]) > 0
    assert summary["training_seconds"]["train"] == pytest.approx(sum(r["time/step_s"] for r in records))
    assert summary["total_seconds"] == pytest.approx(sum(summary["training_seconds"].values()))


def test_every_step_of_the_warm_start_has_demonstrations_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demonstrate, drawn = Session.demonstrate, []

    def watched(self: Session, tasks: Sequence[Task]) -> list[Trajectory]:
        drawn.append([(task.split, task.index) for task in tasks])
        return demonstrate(self, tasks)

    monkeypatch.setattr(Session, "demonstrate", watched)
    run(tmp_path, steps=0, warm_start={"steps": 3, "episodes_per_step": 2}, evaluation={"tasks": 2})
    assert drawn == [[("demonstrations", 2 * step), ("demonstrations", 2 * step + 1)] for step in range(3)]


class Listener:
    """A learner that learns nothing."""

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> tuple[Metrics, None]:
        self.batches, self.tokens = batches, denominators.tokens
        return {"loss/total": 1.0}, None


@pytest.mark.parametrize("learn_random", [True, False])
def test_of_demonstrations_all_or_the_oracles_actions_alone_are_learnt(tmp_path: Path, learn_random: bool) -> None:
    config = configured(tmp_path, warm_start={"learn_random": learn_random, "oracle_share": 0.5})
    learner = Listener()
    with Session(config) as session:
        assert warm_start_step(session, learner, 0)["loss/total"] == 1.0  # type: ignore[arg-type]
        episodes = session.demonstrate(session.demonstration_tasks(range(6)))
        right: list[int] = []
        everything: list[int] = []
        for episode in episodes:
            env = gymnasium.make(episode.task.env_id, **episode.task.kwargs)
            env.reset(seed=episode.task.seed)
            for turn in episode.turns:
                plan = env.unwrapped.oracle()  # type: ignore[attr-defined]
                if turn.completion.weight_version == 0:
                    assert turn.text == plan[0]
                    right += turn.completion.ids
                everything += turn.completion.ids
                env.step(turn.text)
    learnt = [int(i) for batch in learner.batches for i in batch.labels[batch.label_mask]]
    assert 0 < len(right) < len(everything)
    assert sorted(learnt) == sorted(everything if learn_random else right)
    assert learner.tokens == len(learnt)


def test_a_step_of_random_actions_that_are_not_learnt_is_left_out(tmp_path: Path) -> None:
    path, _ = run(tmp_path, steps=0, warm_start={"learn_random": False, "oracle_share": 0.0}, evaluation={"tasks": 2})
    records = read_metrics(path, "warm_start")
    assert [record["learner/skipped_steps"] for record in records] == [1.0] * 4
    assert {record["loss/total"] for record in records} == {0.0}


def test_the_warm_start_may_have_an_optimiser_of_its_own(whole: Whole, tmp_path: Path) -> None:
    short = {"steps": 1, "evaluation": {"tasks": 2, "every": 0}}
    mixed, _ = run(tmp_path, warm_start={"optimizer": "muon"}, **short)
    muon, _ = run(tmp_path, name="muon", optimizer={"name": "muon"}, **short)
    losses = [[r["loss/total"] for r in read_metrics(path, "warm_start")] for path in (mixed, muon, whole[0])]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    states = [load_checkpoint(path).optimizer["policy"]["parts"] for path in (mixed, muon, whole[0])]
    assert [len(parts) for parts in states] == [1, 2, 1]
    with pytest.raises(ConfigError, match=r"warm_start\.optimizer: no optimiser 'muom'"):
        configured(tmp_path, warm_start={"optimizer": "muom"})
    with pytest.raises(ConfigError, match=r"warm_start\.optimizer: no optimiser ''"):
        configured(tmp_path, warm_start={"optimizer": ""})
    with pytest.raises(ConfigError, match=r"no optimiser 'muom'") as refused:
        configured(tmp_path, optimizer={"name": "muom"})
    assert "warm_start" not in str(refused.value)


def test_the_same_run_twice_is_the_same(whole: Whole, tmp_path: Path) -> None:
    again, _ = run(tmp_path)
    assert_same_curve(whole[0], again)


def test_another_seed_is_another_run(whole: Whole, tmp_path: Path) -> None:
    other, _ = run(tmp_path, seed=1, steps=0, warm_start={"steps": 1})
    assert without_times(other)[0]["loss/total"] != without_times(whole[0])[0]["loss/total"]


def test_a_learning_rate_of_zero_stays_flat(tmp_path: Path) -> None:
    path, summary = run(tmp_path, optimizer={"lr": 0.0}, steps=3, evaluation={"every": 1, "tasks": 20})
    measured = [{k: v for k, v in p.items() if k not in ("name", "seconds", "step")} for p in summary["phases"]]
    assert len(measured) == 4
    assert measured == [measured[0]] * 4
    texts = [p.read_text() for p in sorted((path / "episodes").glob("*.txt"))]
    assert texts == [texts[0]] * 4
    oldest, *_, newest = list_checkpoints(path / "checkpoints")
    before, after = (dict(load_checkpoint(path).model()) for path in (oldest, newest))
    assert all(torch.equal(before[n], after[n]) for n in before)


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_tasks_have_no_gap_and_no_repeat(tmp_path: Path) -> None:
    env = configured(tmp_path).env
    drawn = [t for first in range(0, 350, 7) for t in draw_tasks(env, seed=3, indices=range(first, first + 7))]
    assert [t.index for t in drawn] == list(range(350))
    assert len({t.seed for t in drawn}) == 350
    assert {t.split for t in drawn} == {"train"}
    assert draw_tasks(env, seed=3, indices=range(28, 35)) == drawn[28:35]
    assert draw_tasks(env, seed=4, indices=range(28, 35)) != drawn[28:35]
    assert {t.seed for t in draw_tasks(env, seed=3, indices=range(99), split="demonstrations")}.isdisjoint(
        t.seed for t in drawn
    )


def test_train_and_held_out_seeds_are_disjoint(tmp_path: Path) -> None:
    env = configured(tmp_path).env
    evaluation = held_out_tasks(env, 300)
    assert [t.index for t in evaluation] == list(range(300))
    assert evaluation[100:] == held_out_tasks(env, 200, first=100)
    assert min(t.seed for t in evaluation) >= HELD_OUT_SEEDS
    for seed in range(5):
        assert (
            max(t.seed for s in range(40) for t in draw_tasks(env, seed=seed, indices=range(50 * s, 50 * s + 50)))
            < HELD_OUT_SEEDS
        )


def test_groups_share_their_start(tmp_path: Path) -> None:
    with Session(configured(tmp_path)) as session:
        groups = session.collect(draw_tasks(session.config.env, seed=0, indices=range(4)), 3)
    for group in groups:
        assert len({t.turns[0].prompt_observation for t in group.trajectories}) == 1


# -- resume ------------------------------------------------------------------------------------------------------------


def go_on(path: Path, steps: int | None = None, checkpoint: Path | None = None) -> dict[str, Any]:
    with RunFolder.open(path) as folder:
        return resume(folder, Report.silent(), steps, checkpoint)


def die_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, int], where: str, **changes: Any
) -> Path:
    """A run that dies in this process, by an exception that nothing handles, as abrupt as SIGKILL for what is on disk;
    and is resumed. Its folder."""

    class Death(BaseException):
        pass

    seen: list[tuple[str, int]] = []
    log, save, learn = RunFolder.log, trainer.run.saving.save_checkpoint, trainer.run.loop.update

    def logged(self: RunFolder, metrics: Any, *, step: int, phase: str = "train") -> None:
        log(self, metrics, step=step, phase=phase)
        seen.append((phase, step))
        if where == "after log" and seen[-1] == wanted:
            raise Death

    def saved(*args: Any, **kwargs: Any) -> Path:
        if where == "in save" and wanted in seen:
            (args[0] / ".unfinished-1-dead").mkdir()
            (args[0] / ".unfinished-1-dead" / "model.safetensors").write_bytes(b"half")
            raise Death
        return save(*args, **kwargs)

    def updated(config: Any, learner: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = learn(config, learner, *args, **kwargs)
        if where == "in update" and kwargs["step"] + 1 == wanted[1]:
            raise Death  # the weights have changed, nothing says so
        return metrics

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "log", logged)
        patched.setattr(trainer.run.saving, "save_checkpoint", saved)
        patched.setattr(trainer.run.loop, "update", updated)
        with pytest.raises(Death):
            run(tmp_path, **changes)
    path = the_run(tmp_path)
    assert path is not None
    torch.manual_seed(12345)  # the process that goes on is another one
    go_on(path)
    return path


@pytest.mark.parametrize(
    ("phase", "step", "where"),
    [("warm_start", 2, "after log"), ("train", 1, "after log"), ("train", 3, "in update"),
     ("evaluation", 2, "after log"),
     ("train", 2, "in save"), ("evaluation", 5, "after log")],
)  # fmt: skip
def test_a_run_that_dies_at_any_point_goes_on_the_same(
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    step: int,
    where: str,
) -> None:
    path = die_and_go_on(tmp_path, monkeypatch, (phase, step), where)
    assert_same_curve(whole[0], path)
    assert not list((path / "checkpoints").glob(".unfinished*"))


REMEMBERS: dict[str, Any] = {
    "algorithm": "ppo",
    "env": {"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 4, "format_penalty": -0.1}},
    "warm_start": {"steps": 25, "episodes_per_step": 12},
    "rollout": {"groups_per_step": 3, "group_size": 4},
    "reward": {"kl_coef": 0.05, "kl_target": 0.01, "kl_horizon": 100, "normalize_mean": "running",
               "normalize_std": "running"},
    "filter": {"zero_variance": True, "refill_rounds": 2},
    "loss": {"kl_coef": 0.02},
    "critic": {"lr": 1e-2, "minibatches": 2, "epochs": 2, "warmup_steps": 1},
    "reference": {"refresh_every": 2},
    "learner": {"minibatches": 2, "epochs": 2},
    "checkpoint": {"every": 1, "keep": 2, "keep_best": 1},
    "optimizer": {"lr_schedule": "cosine", "lr_warmup_steps": 2},
}  # fmt: skip
"""Everything that has a state of its own: critic, reference, adaptive KL, running norms, a cursor with refills."""


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = run(tmp_path_factory.mktemp("remembering"), **REMEMBERS)
    records = read_metrics(path, "train")
    assert len({r["reward/kl_coef"] for r in records}) > 2, "the coefficient must move"
    assert load_checkpoint(path).cursor > 5 * 3, "further tasks must have been drawn"
    return path


@pytest.mark.parametrize(
    ("phase", "step", "where"),
    [
        pytest.param("train", 1, "after log", marks=pytest.mark.slow),
        ("train", 2, "in update"),
        pytest.param("train", 3, "in save", marks=pytest.mark.slow),
        ("evaluation", 2, "after log"),
    ],
)
def test_all_that_an_algorithm_remembers_goes_on_the_same(
    remembering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, step: int, where: str
) -> None:
    path = die_and_go_on(tmp_path, monkeypatch, (phase, step), where, **REMEMBERS)
    assert_same_curve(remembering, path)
    one, other = load_checkpoint(remembering), load_checkpoint(path)
    remembered, again = (c.progress["algorithm"] for c in (one, other))
    assert again["kl_coef"] == pytest.approx(remembered["kl_coef"], rel=1e-4)
    assert again["returns"] == pytest.approx(remembered["returns"], rel=1e-6)
    assert one.others.keys() == other.others.keys() == {"critic", "reference"}
    for name, weights in one.others.items():
        expected = dict(other.others[name]())
        for key, tensor in weights():
            assert float((tensor - expected[key]).abs().max()) < 1e-3, (name, key)


@pytest.mark.parametrize("moment", ["in a save", pytest.param("in training", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_the_same(whole: Whole, tmp_path: Path, moment: str) -> None:
    """SIGKILL to a process of its own, then `roll-train resume`."""
    process = roll_train(str(write_config(tmp_path)), log=tmp_path / "log")

    def due() -> bool:
        path = the_run(tmp_path)
        if path is None or not list((path / "checkpoints").glob("step-*")):
            return False
        if moment == "in a save":
            return bool(list((path / "checkpoints").glob(".unfinished-*"))) and len(read_metrics(path)) > 6
        return len(read_metrics(path)) > 7

    stop_when(process, due)
    process.wait()
    path = the_run(tmp_path)
    assert path is not None
    go_on(path)
    assert_same_curve(whole[0], path)


def test_a_run_that_goes_on_elsewhere_is_read_but_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = roll_train(str(write_config(tmp_path, steps=99)), log=tmp_path / "log")
    assert stop_when(process, lambda: bool(list(tmp_path.glob("runs/*/checkpoints/step-*"))), signal.SIGSTOP)
    path = the_run(tmp_path)
    assert path is not None
    before = sorted(path.rglob("*"))
    for _ in range(2):
        assert main(["resume", str(path)]) == MISTAKE
        said = f"roll-train: process {process.pid} on {socket.gethostname()} trains in {path}; wait until it ends"
        assert capsys.readouterr().err.startswith(said)
    with pytest.raises(RollError, match="trains in"):
        go_on(path)
    assert sorted(path.rglob("*")) == before, "a refused resume changed the folder"
    assert evaluate_run(path, tasks=2).tasks == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert go_on(path, steps=1)["steps"] == 1


def test_training_on_from_a_finished_run(tmp_path: Path) -> None:
    constant = {"optimizer": {"lr_schedule": "constant"}, "evaluation": {"every": 0}}
    longer, _ = run(tmp_path / "a", steps=4, **constant)
    shorter, _ = run(tmp_path / "b", steps=2, **constant)
    summary = go_on(shorter, steps=4)
    a, b = ([r for r in without_times(p) if r["phase"] == "train"] for p in (longer, shorter))
    assert [r["step"] for r in b] == [1, 2, 3, 4]
    for one, other in zip(a, b, strict=True):
        assert one["rollout/success_rate"] == other["rollout/success_rate"]
        assert one.get("learner/grad_norm", 0) == pytest.approx(other.get("learner/grad_norm", 0), rel=1e-3)
    assert [p["step"] for p in summary["phases"]] == [0, 2, 4]
    with pytest.raises(ConfigError, match="has done 4 steps already"):
        go_on(shorter, steps=3)
    before = without_times(shorter)
    go_on(shorter)
    assert without_times(shorter) == before


def test_a_resume_puts_back_what_no_metric_shows(whole: Whole, tmp_path: Path) -> None:
    """The global random states, for parts that draw from them; the clocks; and what is refused changes nothing."""
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    saved = load_checkpoint(path)
    torch.manual_seed(12345)
    summary = go_on(path)
    assert torch.equal(torch.get_rng_state(), saved.random["torch"])
    assert summary["training_seconds"] == saved.progress["seconds"]
    names = [p.name for p in list_checkpoints(path)]
    with pytest.raises(ConfigError, match="has done 3 steps already"):
        go_on(path, steps=2, checkpoint=list_checkpoints(path)[0])
    assert [p.name for p in list_checkpoints(path)] == names, "a refused resume set checkpoints aside"


def damage(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_corrupt_checkpoint_that_is_asked_for_offers_the_one_before(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    *_, before, newest = list_checkpoints(path / "checkpoints")
    damage(newest)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is corrupt") as error:
        go_on(path, checkpoint=newest)
    assert str(error.value).endswith(f"; the newest good one before it is {before}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is corrupt") as error:
        evaluate_run(path, tasks=2)
    assert str(error.value).endswith(f"; the newest good one before it is {before}"), "it is no resume that asks"
    assert without_times(path) == without_times(whole[0]), "a failed resume changed the metrics"
    go_on(path, checkpoint=before)
    assert_same_curve(whole[0], path)
    assert (path / "checkpoints" / f"set-aside-{newest.name}").is_dir()


def without_notes_of_damage(path: Path) -> list[float]:
    """Take ``checkpoint/damaged`` out of the metrics of a run; what it was."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    noted = [line.pop("checkpoint/damaged") for line in lines if "checkpoint/damaged" in line]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return noted


def test_a_resume_passes_over_damaged_checkpoints_and_says_what_is_lost(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    oldest, middle, newest = list_checkpoints(path / "checkpoints")
    damage(newest)
    (middle / "training.pt").unlink()
    with RunFolder.open(path) as folder:
        resume(folder, Report())
    said = " ".join(capsys.readouterr().out.split())
    assert f"DAMAGED: checkpoint {newest}: model.safetensors is corrupt" in said
    assert f"DAMAGED: checkpoint {middle}: training.pt is missing" in said
    assert f"Going on from {oldest}, the newest one that is whole: training steps 4 to 5 are played and" in said
    assert all((path / "checkpoints" / f"set-aside-{one.name}").is_dir() for one in (middle, newest))
    assert without_notes_of_damage(path) == [2.0, 2.0]
    assert_same_curve(whole[0], path)


@pytest.mark.parametrize("kind", ["all damaged", "another format", "not to be read"])
def test_a_resume_that_finds_no_whole_checkpoint_changes_nothing(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nor does it pass over one that is whole, and cannot be read for another reason."""
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    there = list_checkpoints(path / "checkpoints")
    if kind == "all damaged":
        said = r"\n.*no checkpoint of .* is whole; start the run anew"
        for one in there:
            damage(one)
    elif kind == "another format":
        said = "its format is 4, this release reads"
        (there[-1] / "manifest.json").write_text('{"format": 4, "files": {}}')
    else:
        said, read = r"manifest\.json cannot be read \(PermissionError", Path.read_bytes

        def refused(self: Path) -> bytes:
            if self == there[-1] / "manifest.json":
                raise PermissionError("no")
            return read(self)

        monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CheckpointError, match=said):
        go_on(path)
    assert list_checkpoints(path / "checkpoints") == there
    assert without_times(path) == without_times(whole[0])


def test_a_checkpoint_of_another_model_is_an_error(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("hidden_size: 16", "hidden_size: 32"))
    with pytest.raises(CheckpointError, match=r"does not fit the configured model.*; the sections model and env of "):
        go_on(path)
    with pytest.raises(CheckpointError, match="does not fit the configured model"):
        evaluate_run(path, tasks=2)


def test_a_checkpoint_whose_ids_mean_something_else_is_an_error(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many words as before, so that the weights fit: of another environment, or of a later release of it."""
    monkeypatch.setattr("trainer.model.network.words_of", lambda env: words_of(env)[::-1])
    said = "ids of the tokenizer mean something else than when the checkpoint was saved"
    with pytest.raises(CheckpointError, match=rf"{said} .*; the sections model and env of "):
        go_on(whole[0])
    with pytest.raises(CheckpointError, match=said):
        evaluate_run(whole[0], tasks=2)


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        (
            "warm_start",
            {"steps": 6},
            r"warm_start\.steps 6: the run was trained for 5 steps after a warm start of 4; set",
        ),
        ("loss", {"kl_coef": 0.1}, r"has no reference, .*; resume with the advantage\.name, loss\.kl_coef and"),
        ("optimizer", {"name": "muon"}, r"has 1 optimisers .* 2; resume with the optimizer\.name it was saved with"),
        ("optimizer", {"decay_embeddings": False}, r"groups of .*optimizer\.decay_embeddings it was saved with"),
        ("learner", {"precision": "bfloat16"}, r"float32 copies .*; resume with the learner\.precision it was saved"),
    ],
)
def test_a_setting_that_a_checkpoint_cannot_go_on_with_is_named(
    whole: Whole, tmp_path: Path, section: str, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(whole[0], path)
    settings = yaml.safe_load((path / "config.yaml").read_text())
    settings[section] |= change
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(RollError, match=said):
        go_on(path)
    assert without_times(path) == without_times(whole[0]), "a failed resume changed the metrics"


# -- interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_ctrl_c_saves_and_says_how_to_go_on(whole: Whole, tmp_path: Path, number: signal.Signals) -> None:
    process = roll_train(str(write_config(tmp_path, checkpoint={"every": 0})), log=tmp_path / "log")
    moment = 6 if number == signal.SIGINT else 8

    def due() -> bool:
        path = the_run(tmp_path)
        return path is not None and len(read_metrics(path)) >= moment

    assert stop_when(process, due, number)
    status, said = process.wait(), process.log.read_text()
    assert status == 130, said
    path = the_run(tmp_path)
    assert path is not None
    assert f"roll-train resume {path}" in said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    done = max(r["step"] for r in read_metrics(path, "train"))
    assert load_checkpoint(path).progress["steps"] == done
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("  every: 0", "  every: 1"))
    go_on(path)
    assert_same_curve(whole[0], path)


@pytest.mark.parametrize("where", ["warm_start", "update", "evaluation"])
def test_an_interrupt_waits_for_the_whole_step(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The signal comes in the middle of a step: its weights, its counter and its record all count, or none does."""
    name = {"warm_start": "warm_start_step", "update": "update", "evaluation": "asdict"}[where]
    original = getattr(trainer.run.loop, name)
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(trainer.run.loop, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    path = the_run(tmp_path)
    assert path is not None
    if where != "evaluation":
        phase = "warm_start" if where == "warm_start" else "train"
        assert [r["step"] for r in read_metrics(path, phase)] == [1, 2]
        assert load_checkpoint(path).progress["warm_steps" if where == "warm_start" else "steps"] == 2
    go_on(path)
    assert_same_curve(whole[0], path)


def test_a_second_interrupt_does_not_save_half_a_step(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = trainer.run.loop.update

    def impatient(config: Any, learner: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = original(config, learner, *args, **kwargs)
        if kwargs["step"] == 2:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
        return metrics

    with monkeypatch.context() as patched:
        patched.setattr(trainer.run.loop, "update", impatient)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, checkpoint={"every": 0})
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] == 0
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("  every: 0", "  every: 1"))
    go_on(path)
    assert_same_curve(whole[0], path)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_loss_of_a_cluster_s_head_ends_a_run_after_a_whole_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    head_given_up: Callable[..., None],
    stopped: bool,
) -> None:
    """It is no second interrupt where someone has stopped the run already."""
    original = trainer.run.loop.update

    def lost(config: Any, learner: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["step"] == 2:
            if stopped:
                os.kill(os.getpid(), signal.SIGTERM)
            head.close()
            time.sleep(0.5)
        return original(config, learner, *args, **kwargs)

    with socket.create_server(("127.0.0.1", 0), backlog=4096) as head:
        head_given_up(f"127.0.0.1:{head.getsockname()[1]}")
        monkeypatch.setattr(trainer.run.loop, "update", lost)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, checkpoint={"every": 0})
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] == 3
    assert ("does not answer: the run is saved and ends." in capfd.readouterr().err) != stopped


def test_a_terminal_that_ends_may_send_two_signals() -> None:
    def hang_up() -> None:
        with interrupts.whole():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.01)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run below nohup
    try:
        with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
            hang_up()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not interrupts.interrupted_midway


def test_only_a_run_that_saves_is_interrupted() -> None:
    Interrupts().interrupt("SIGTERM would end this process")


def test_an_interrupt_waits_for_the_weights_that_the_engine_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a tensor that a rank was sending would be read as its next answer, and the save would fail."""
    update, taken = HFEngine.update_weights, list[int]()

    def interrupted(self: HFEngine, weights: Any, version: int) -> None:
        if taken == [4]:
            os.kill(os.getpid(), signal.SIGINT)
        update(self, weights, version)
        taken.append(version)

    monkeypatch.setattr(HFEngine, "update_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, checkpoint={"every": 0}, evaluation={"tasks": 2, "every": 0})
    assert taken == [4, 5]
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] == 1


def test_an_interrupt_while_collecting(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Session.start
    calls: list[int] = []

    def interrupted(self: Session, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        stream = start(self, *args, **kwargs)
        if len(calls) == 2:
            threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT)).start()
            with contextlib.suppress(KeyboardInterrupt):
                list(stream)
                time.sleep(1)
            raise KeyboardInterrupt
        return stream

    with monkeypatch.context() as patched:
        patched.setattr(Session, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, checkpoint={"every": 0})
    path = the_run(tmp_path)
    assert path is not None
    saved = load_checkpoint(path)
    assert (saved.progress["steps"], saved.cursor, saved.progress["in_flight"]) == (1, 6, [3, 4, 5])
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("  every: 0", "  every: 1"))
    go_on(path)
    assert_same_curve(whole[0], path)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_failed_episodes_are_in_no_statistic(word: str, tmp_path: Path) -> None:
    path, summary = run(tmp_path, **word_run(0.2))
    records = read_metrics(path, "train")
    assert [r["step"] for r in records] == [1, 2, 3]
    env = configured(tmp_path, **word_run(0.2)).env
    for record in records:
        first = 6 * (record["step"] - 1)
        tasks = draw_tasks(env, seed=0, indices=range(first, first + 6))
        failed = 3 * sum(fault_of(t.seed, 0.2) for t in tasks)
        assert record["rollout/outcome/failed"] == failed
        assert record["rollout/outcome/completed"] == 18 - failed
        assert record["rollout/failed_share"] == pytest.approx(failed / 18)
        assert record["advantage/episodes_left_out"] == failed
        assert record["rollout/return_mean"] == pytest.approx(record["rollout/success_rate"])
        assert record["learner/sequences"] == 18 - failed
    assert sum(r["rollout/outcome/failed"] for r in records) > 0
    lost = sum(fault_of(t.seed, 0.2) for t in held_out_tasks(env, 30))
    assert lost > 0
    for phase in summary["phases"]:
        assert (phase["tasks"], phase["failed"]) == (30 - lost, lost)
    assert any(r["teacher/failed_share"] > 0 for r in read_metrics(path, "warm_start"))


def test_failed_greedy_episodes_are_counted(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Session.collect_greedy

    def lost(self: Session, tasks: Sequence[Task]) -> list[Trajectory]:
        return [replace(t, outcome=Outcome(kind="failed", reason="lost")) for t in played(self, tasks)]

    monkeypatch.setattr(Session, "collect_greedy", lost)
    path, _ = run(tmp_path, **word_run(0.0, advantage={"name": "remax"}))
    for record in read_metrics(path, "train"):
        assert record["rollout/failed_share"] == pytest.approx(6 / (18 + 6))
        assert record["advantage/without_greedy"] == 18
        assert record["rollout/outcome/failed"] == 0


@pytest.mark.parametrize("warm_steps", [0, 2])
def test_an_environment_that_always_fails_stops_the_run_with_its_reason(
    word: str, tmp_path: Path, warm_steps: int
) -> None:
    with pytest.raises(RollError) as error:
        run(tmp_path, **word_run(1.0, warm_start={"steps": warm_steps}))
    assert "episodes failed" in str(error.value)
    assert "step of test/Word-v0 raised OSError: the planted fault" in str(error.value)
    assert "rollout.max_failed_share" in str(error.value)
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] == 0
    assert read_metrics(path, "evaluation") == [], "an evaluation of failures is no success of 0"


def test_an_environment_that_breaks_in_training_leaves_a_checkpoint(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = trainer.rollout.source.draw_tasks

    def draw(env: Any, *, indices: Any, **kwargs: Any) -> Any:
        broken = env.model_copy(update={"kwargs": {"fail_share": 1.0}})
        return original(broken if set(indices) <= {*range(12, 18)} else env, indices=indices, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.rollout.source, "draw_tasks", draw)
        with pytest.raises(RollError, match="training, step 3: 18 of 18 episodes failed"):
            run(tmp_path, **word_run(0.0, checkpoint={"every": 0}))
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] == 2
    go_on(path)
    fresh, _ = run(tmp_path / "fresh", **word_run(0.0, checkpoint={"every": 0}))
    assert_same_curve(fresh, path)


def test_the_error_that_ends_a_run_is_shown_even_where_the_disk_is_full_too(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, save = trainer.rollout.source.draw_tasks, trainer.run.saving.save_checkpoint

    def draw(env: Any, *, indices: Any, **kwargs: Any) -> Any:
        broken = env.model_copy(update={"kwargs": {"fail_share": 1.0}})
        return original(broken if set(indices) <= {*range(12, 18)} else env, indices=indices, **kwargs)

    def full(folder: Path, state: Any, **kwargs: Any) -> Path:
        if state.progress["steps"] == 2:
            raise RollError("the disk is full")
        return save(folder, state, **kwargs)

    monkeypatch.setattr(trainer.rollout.source, "draw_tasks", draw)
    monkeypatch.setattr(trainer.run.saving, "save_checkpoint", full)
    assert main([str(write_config(tmp_path, **word_run(0.0, checkpoint={"every": 0})))]) == MISTAKE
    said = capsys.readouterr().err
    assert "training, step 3: 18 of 18 episodes failed" in said
    assert said.index("episodes failed") < said.index("could not be saved: the disk is full") < said.index("run folder")


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_evaluation_is_that_of_training(whole: Whole) -> None:
    path, summary = whole
    last = summary["phases"][-1]
    measured = {k: v for k, v in asdict(evaluate_run(path)).items() if k not in ("seconds", "name")}
    assert measured == {k: v for k, v in last.items() if k not in ("seconds", "name")}
    middle = next(p for p in list_checkpoints(path / "checkpoints") if p.name == "step-000008")
    expected = summary["phases"][2]
    got = evaluate_run(middle)
    assert (got.step, got.success, got.turns) == (4, expected["success"], expected["turns"])


def test_evaluation_takes_other_settings(whole: Whole) -> None:
    path, _ = whole
    before = without_times(path)
    greedy = [evaluate_run(path, tasks=10, temperature=0.0, seed=s) for s in (1, 2)]
    assert greedy[0].tasks == 10
    assert asdict(greedy[0]) | {"seconds": 0} == asdict(greedy[1]) | {"seconds": 0}
    other = evaluate_run(path, tasks=3, env_id="roll/FrozenLakeSlippery-v0")
    assert other.name.startswith("roll/FrozenLakeSlippery-v0")
    assert without_times(path) == before


def test_evaluation_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder"):
        evaluate_run(tmp_path / "nope")


def test_a_run_in_another_thread_than_the_main_one(tmp_path: Path) -> None:
    """Signals are left alone there; a notebook may do so."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(run(tmp_path, steps=1, warm_start={"steps": 0})))
    thread.start()
    thread.join(60)
    assert result[0][1]["steps"] == 1


def test_train_needs_no_warm_start(tmp_path: Path) -> None:
    config = configured(tmp_path, steps=1, warm_start={"steps": 0}, evaluation={"every": 0}, checkpoint={"every": 0})
    with RunFolder.create(config) as folder:
        summary = train(config, folder, Report.silent())
    assert [p["name"] for p in summary["phases"]] == ["before training", "after training"]
