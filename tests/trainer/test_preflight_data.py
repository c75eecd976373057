"""A run on a data set whose references cannot be graded does not start; an evaluation does."""

from __future__ import annotations

import pytest

from roll_envs.errors import ConfigError
from trainer.config.load import parse_config
from trainer.run.preflight import check_evaluation, preflight

TEXT = """
format: 1
name: a
steps: 1
env:
  id: roll/Dataset-v0
  kwargs: {verifier: em, action_format: word, rows: [{question: a, answer: x}, {question: b, answer: [null]}]}
"""


def test_references_are_audited_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"1 of 2 references(?s:.*)row 1: "):
        preflight(parse_config(TEXT))


def test_an_evaluation_counts_such_rows_apart() -> None:
    check_evaluation(parse_config(TEXT))
