"""Promise 7: a run killed at any point goes on to the same weights, to the bit, and skips or repeats no task.

Each run here is killed three times by SIGKILL: late in training, in a save, and in an evaluation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_runs import the_run, without_times, write_config
from mortal_runs import CARD, Death, mortal_run

from roll_envs.types import Group, Trajectory
from trainer.rollout.stream import RecordReader, StepRecord
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import read_metrics

SLOW = pytest.mark.slow
ENV = {"id": CARD.id, "kwargs": {"action_format": "word", "max_turns": 3, "format_penalty": -0.2}}
RUNS: dict[str, dict[str, Any]] = {
    "group": {"env": ENV},
    # Everything that has a state of its own: critic, reference, adaptive KL, running norms, a cursor with refills.
    "critic": {
        "env": {"id": CARD.id, "kwargs": {"action_format": "word", "max_turns": 4, "format_penalty": -0.1}},
        "algorithm": "ppo",
        "warm_start": {"steps": 25, "episodes_per_step": 12},
        "rollout": {"groups_per_step": 3, "group_size": 4},
        "reward": {"kl_coef": 0.05, "kl_target": 0.01, "kl_horizon": 100, "normalize_mean": "running",
                   "normalize_std": "running"},
        "filter": {"zero_variance": True, "refill_rounds": 2},
        "loss": {"kl_coef": 0.02},
        "critic": {"lr": 1e-2, "minibatches": 2, "epochs": 2, "warmup_steps": 1},
        "reference": {"refresh_every": 2},
        "checkpoint": {"every": 1, "keep": 2, "keep_best": 1},
        "optimizer": {"lr_schedule": "cosine", "lr_warmup_steps": 2},
    },
}  # fmt: skip


def ended(log: Path) -> dict[str, int]:
    """How often a run that ended by itself passed each place."""
    counts: dict[str, int] = json.loads(log.read_text().splitlines()[-1])
    return counts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, int]]]:
    """Each run uninterrupted, and how often it passed each place."""
    found = {}
    for name, changes in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        assert mortal_run([str(write_config(folder, **changes))], None, folder / "log") == 0, (
            folder / "log"
        ).read_text()
        path = the_run(folder)
        assert path is not None
        assert sum(r.get("learner/optimizer_steps", 0) for r in read_metrics(path, "train")) > 0
        found[name] = path, ended(folder / "log")
    return found


def deaths(seed: int, counts: dict[str, int]) -> list[Death]:
    """In the last steps of training (from seed 2 on, anywhere in it or in the warm start), then in the first saves and
    the first evaluation after that.

    Some of the first kind come a little later than the reset that they are counted by: while the step is learnt from.
    """
    rng = random.Random(seed)
    late = rng.randint(int(0.75 * counts["train"]) if seed < 2 else 1, counts["train"] - 1)
    return [
        Death(place="train", count=late, delay_s=rng.choice([0.0, rng.uniform(0.001, 0.02)])),
        Death(place="save", count=rng.randint(1, 8)),
        Death(place="evaluation", count=rng.randint(1, 12)),
    ]


def assert_same_to_the_bit(one: Path, other: Path) -> None:
    """Weights, tasks and all metrics but clocks, and but the sampler's rounding, which depends on who shared a pass."""
    first, second = without_times(one), without_times(other)
    assert [(r["phase"], r["step"]) for r in first] == [(r["phase"], r["step"]) for r in second]
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if name.startswith("mismatch/"):
                assert a[name] == pytest.approx(b[name], abs=1e-5), (a["phase"], a["step"], name)
            else:
                assert a[name] == b[name], (a["phase"], a["step"], name)
    left, right = load_checkpoint(one), load_checkpoint(other)
    assert (left.step, left.version, left.cursor) == (right.step, right.version, right.cursor)
    assert left.progress.get("algorithm") == right.progress.get("algorithm")
    assert left.others.keys() == right.others.keys()
    for first, second in [
        (left.model, right.model),
        *((left.others[name], right.others[name]) for name in left.others),
    ]:
        a, b = dict(first()), dict(second())
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name]), name


def recorded(path: Path) -> list[StepRecord]:
    """All episodes, but for clocks and log-probabilities, whose rounding depends on who shared a pass."""
    reader = RecordReader(path / "episodes" / "stream.jsonl.gz")
    assert reader.cut == 0

    def plain(episode: Trajectory) -> Trajectory:
        turns = (
            replace(t, timings={}, completion=replace(t.completion, logprobs=(0.0,) * len(t.completion.ids)))
            for t in episode.turns
        )
        return replace(episode, turns=tuple(turns))

    def plain_groups(groups: Sequence[Group]) -> tuple[Group, ...]:
        return tuple(replace(g, trajectories=tuple(map(plain, g.trajectories))) for g in groups)

    found = [reader.read(member) for member in reader.members]
    return [replace(r, groups=plain_groups(r.groups), kept=plain_groups(r.kept)) for r in found]


CASES = [
    *(("group", seed) if seed < 2 else pytest.param("group", seed, marks=SLOW) for seed in range(12)),
    *(("critic", seed) if seed < 1 else pytest.param("critic", seed, marks=SLOW) for seed in range(4)),
]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_killed_late_in_a_save_and_in_an_evaluation(
    whole: dict[str, tuple[Path, dict[str, int]]], tmp_path: Path, name: str, seed: int
) -> None:
    path, counts = whole[name]
    arguments = [str(write_config(tmp_path, **RUNS[name]))]
    for death in deaths(seed, counts):
        log = tmp_path / "log"
        assert mortal_run(arguments, death, log) == -9, (death, log.read_text())
        killed = the_run(tmp_path)
        assert killed is not None
        if death.place == "save":
            assert list((killed / "checkpoints").glob(".unfinished-*")), "the kill did not hit a save"
        assert not (killed / "summary.json").exists()
        arguments = ["resume", str(killed)]
    assert mortal_run(arguments, None, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert_same_to_the_bit(path, killed)
    assert not list((killed / "checkpoints").glob(".unfinished*"))
    assert recorded(path) == recorded(killed)
