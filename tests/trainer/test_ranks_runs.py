"""Whole runs whose learner is two processes: the curve of one process, through kills of the trainer and of a rank."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import roll_train
from loop_runs import configured, run, stop_when, the_run, without_times, write_config
from test_learner_ranks import rank_pids

from trainer.cluster.crew import RankError
from trainer.cluster.learner_ranks import RankSnapshot
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import train
from trainer.run.report import Report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("no_pictures", "forked_ranks")]

CHANGES: dict[str, Any] = {
    "algorithm": "ppo",
    "steps": 4,
    "warm_start": {"steps": 2, "episodes_per_step": 4},
    "loss": {"kl_coef": 0.02},
    "critic": {"lr": 1e-2},
    "reference": {"refresh_every": 2},
    "learner": {"pack_tokens": 32},
    "optimizer": {"lr_schedule": "constant"},
    "evaluation": {"tasks": 4, "every": 0},
}
"""Everything that ranks hold: critic and reference beside the policy, a second phase."""
RANKS = {"placement": {"learner": {"ranks": 2, "timeout_s": 60}}}


def learnt(path: Path) -> list[dict[str, Any]]:
    """All metrics but clocks and what the sampler's rounding shows in: which answers it samples together is a matter of
    time."""
    return [{k: v for k, v in record.items() if not k.startswith("mismatch/")} for record in without_times(path)]


def assert_close(found: Path, other: Path, tolerance: float) -> None:
    """Losses, norms and weights of two runs; of the last checkpoints everything that trains."""
    records = [without_times(path) for path in (found, other)]
    assert [(r["phase"], r["step"]) for r in records[0]] == [(r["phase"], r["step"]) for r in records[1]]
    compared = 0
    for one, alone in zip(*records, strict=True):
        for name in ("loss/total", "learner/grad_norm", "critic/loss", "critic/grad_norm", "rollout/return"):
            if name in alone:
                assert one[name] == pytest.approx(alone[name], rel=tolerance, abs=tolerance), (one["step"], name)
                compared += 1
    assert compared > 10
    a, b = load_checkpoint(found), load_checkpoint(other)
    assert a.others.keys() == b.others.keys() == {"critic", "reference"}
    for name in ("model", *a.others):
        left, right = ((s.model if name == "model" else s.others[name])() for s in (a, b))
        for (weight, value), (_, expected) in zip(left, right, strict=True):
            error = float((value.double() - expected.double()).norm())
            assert error <= tolerance * float(expected.norm()), (name, weight, error)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing disturbs."""
    folder, _ = run(tmp_path_factory.mktemp("whole"), **CHANGES, **RANKS)
    assert not rank_pids()
    return folder


def test_two_ranks_learn_what_one_process_learns(tmp_path: Path, whole: Path) -> None:
    alone, _ = run(tmp_path, **CHANGES)
    assert_close(whole, alone, 1e-5)
    imbalances = [record["learner/rank_imbalance"] for record in read_metrics(whole, "train")]
    assert all(1.0 <= one < 2.0 for one in imbalances)


def test_a_run_that_is_stopped_and_killed_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    """Ctrl-C, then SIGKILL, neither of which leaves a rank; then to the end, and once more in one process."""

    def trained(steps: int) -> bool:
        path = the_run(tmp_path)
        return path is not None and len(read_metrics(path, "train")) >= steps

    arguments = [str(write_config(tmp_path, **CHANGES, **RANKS))]
    for number, steps in ((signal.SIGINT, 1), (signal.SIGKILL, 2)):
        process = roll_train(*arguments, log=tmp_path / "log")
        ranks: set[int] = set()

        def due(steps: int = steps, pid: int = process.pid, ranks: set[int] = ranks) -> bool:
            ranks |= rank_pids(pid)
            return trained(steps)

        assert stop_when(process, due, number), (tmp_path / "log").read_text()
        process.wait(60)
        assert process.poll() == (130 if number == signal.SIGINT else -number), (tmp_path / "log").read_text()
        assert len(ranks) == 2
        until = time.monotonic() + 20
        while any(alive(pid) for pid in ranks) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in ranks)
        path = the_run(tmp_path)
        assert path is not None
        arguments = ["resume", str(path)]
    process = roll_train(*arguments, log=tmp_path / "log")
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    assert learnt(path) == learnt(whole)
    left, right = load_checkpoint(path), load_checkpoint(whole)
    for name in ("model", "critic", "reference"):
        weights = [(s.model if name == "model" else s.others[name])() for s in (left, right)]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(*weights, strict=True)), name
    assert equal(left.optimizer, right.optimizer)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path, whole: Path, ranks: tuple[int, int]) -> None:
    first, then = ranks
    config = configured(tmp_path, **CHANGES, placement={"learner": {"ranks": first}})
    with RunFolder.create(config.model_copy(update={"steps": 2})) as folder:
        path = folder.path
        train(folder.config, folder, Report.silent())
    text = (path / "config.yaml").read_text()
    assert f"ranks: {first}\n" in text
    (path / "config.yaml").write_text(text.replace(f"ranks: {first}\n", f"ranks: {then}\n"))
    process = roll_train("resume", str(path), "--steps", "4", log=tmp_path / "log")
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    trained = [[r["loss/total"] for r in read_metrics(p, "train")] for p in (path, whole)]
    assert trained[0] == pytest.approx(trained[1], rel=1e-5, abs=1e-6)


class Killer:
    """Kills a rank of this process after ``steps`` training steps, once."""

    def __init__(self, tmp_path: Path, steps: int) -> None:
        self.killed: list[int] = []
        self._over = threading.Event()
        self._tmp_path, self._steps = tmp_path, steps
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02) and not self.killed:
            path = the_run(self._tmp_path)
            if path is not None and len(read_metrics(path, "train")) >= self._steps and (pids := rank_pids()):
                self.killed.append(max(pids))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(max(pids), signal.SIGKILL)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_goes_on_by_itself_when_a_rank_dies(tmp_path: Path, whole: Path, mode: str) -> None:
    changes = {**CHANGES, "rollout": {"mode": mode}, "checkpoint": {"every": 1, "keep": 2}}
    with Killer(tmp_path, 1) as killer:
        path, summary = run(tmp_path, **changes, **RANKS)
    assert len(killer.killed) == 1
    assert summary["steps"] == 4
    assert [r["step"] for r in read_metrics(path, "train")] == [1, 2, 3, 4]
    assert not rank_pids()
    if mode == "sync":
        assert_close(path, whole, 1e-5)


def test_without_restarts_the_loss_of_a_rank_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    placed = {"placement": {"learner": {**RANKS["placement"]["learner"], "restarts": 0}}}
    with Killer(tmp_path, 2), pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) of the learner was killed"):
        run(tmp_path, **CHANGES, **placed)
    assert not rank_pids()
    path = the_run(tmp_path)
    assert path is not None
    assert load_checkpoint(path).progress["steps"] >= 1


def test_a_rank_that_dies_in_the_first_save_is_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no checkpoint yet from which the run could go on."""

    def die(snapshot: RankSnapshot, folder: Path) -> None:
        os.kill(max(rank_pids()), signal.SIGKILL)

    monkeypatch.setattr(RankSnapshot, "write", die)
    with pytest.raises(RankError, match=r"rank 1 of 2 .* was killed by SIGKILL in 'write_share'"):
        run(tmp_path, **CHANGES, **RANKS)
    assert not rank_pids()
