"""Runs whose episodes go on while a step learns: killed at any point, no task is lost or learnt from twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loop_runs import the_run, write_config
from mortal_runs import CARD, Death, mortal_run

from trainer.rollout.stream import RecordReader
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import RunFolder, read_metrics

ENV = {"id": CARD.id, "kwargs": {"action_format": "word", "max_turns": 3, "format_penalty": -0.2}}
STEPS, GROUPS = 8, 3
RUNS: dict[str, dict[str, Any]] = {
    "overlap": {"mode": "overlap"},
    "async": {"mode": "async", "max_staleness": 2},
    "redundancy": {"mode": "sync", "redundancy": 2},
}


@pytest.mark.parametrize("name", RUNS)
def test_no_task_is_lost_or_learnt_from_twice(tmp_path: Path, name: str) -> None:
    rollout = {"groups_per_step": GROUPS, "group_size": 3, **RUNS[name]}
    config = write_config(tmp_path, env=ENV, steps=STEPS, rollout=rollout, evaluation={"tasks": 4, "every": 3})
    arguments = [str(config)]
    # In the middle of training, in a save and in an evaluation beside which training episodes run.
    for death in (
        Death(place="train", count=30, delay_s=0.01),
        Death(place="save", count=2),
        Death(place="evaluation", count=1),
    ):
        assert mortal_run(arguments, death, tmp_path / "log") == -9, (tmp_path / "log").read_text()
        killed = the_run(tmp_path)
        assert killed is not None
        arguments = ["resume", str(killed)]
    assert mortal_run(arguments, None, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    with RunFolder.open(killed) as folder:
        reader = RecordReader(folder.stream_path)
    learnt = Counter(group.task.index for step in range(1, STEPS + 1) for group in reader.find("train", step).groups)
    state = load_checkpoint(killed)
    waiting = set(state.progress["in_flight"])
    assert set(learnt.values()) == {1}
    assert len(learnt) == STEPS * GROUPS
    assert set(learnt) | waiting == set(range(state.cursor))
    assert not set(learnt) & waiting
    assert len(waiting) == 0 or name == "redundancy"
    ended = state.progress["episodes"]
    assert ended.get("completed", 0) + ended.get("truncated", 0) >= 3 * len(learnt)
    lags = [record["staleness/lag_max"] for record in read_metrics(killed, "train")]
    assert max(lags) <= {"overlap": 1, "async": 2, "redundancy": 0}[name]
    assert (max(lags) > 0) is (name != "redundancy")
