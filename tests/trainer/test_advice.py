"""What a run says when its numbers show that it cannot learn much."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from loop_runs import configured
from rich.console import Console

from trainer.run.advice import PATIENCE, Adviser
from trainer.run.folder import RunFolder
from trainer.run.loop import train
from trainer.run.report import Report

pytestmark = pytest.mark.usefixtures("no_pictures")
FINE = {"rollout/length_finish_rate": 0.1, "rollout/valid_action_rate": 0.9, "advantage/abs_mean": 0.3}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"rollout/length_finish_rate": 0.9}, "90% of the answers were cut off at sampling.max_new_tokens = 3"),
        ({"rollout/valid_action_rate": 0.02}, "only 2% of the answers had the form"),
        ({"advantage/abs_mean": 0.0}, "all advantages were 0"),
        ({"rollout/length_finish_rate": 1.0, "rollout/valid_action_rate": 0.0}, "100% of the answers were cut off"),
    ],
)
def test_what_stays_bad_is_said_once(tmp_path: Path, metrics: dict[str, float], words: str) -> None:
    adviser = Adviser(configured(tmp_path))
    said = [adviser.after({**FINE, **metrics}) for _ in range(2 * PATIENCE)]
    assert [len(each) for each in said] == [0] * (PATIENCE - 1) + [1] + [0] * PATIENCE
    assert words in said[PATIENCE - 1][0]


@pytest.mark.parametrize("between", [FINE, {}])
def test_what_is_bad_now_and_then_is_not_said(tmp_path: Path, between: dict[str, float]) -> None:
    adviser = Adviser(configured(tmp_path))
    bad: dict[str, Any] = {**FINE, "advantage/abs_mean": 0.0}
    said = [adviser.after(metrics) for metrics in [*[bad] * (PATIENCE - 1), between] * 3]
    assert said == [[]] * 3 * PATIENCE


def test_a_run_whose_answers_are_cut_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path, sampling={"max_new_tokens": 1}, steps=PATIENCE, warm_start={"steps": 0})
    out = io.StringIO()
    with RunFolder.create(config) as folder:
        train(config, folder, Report(Console(file=out, width=200)))
    assert out.getvalue().count("of the answers were cut off at sampling.max_new_tokens = 1") == 1
