"""Data sets as environments: one row is one task, judged by a verifier. ``env`` has the environment itself."""

from __future__ import annotations

from roll_envs.env import EnvironmentCard

__all__ = ["DATASET"]

DATASET = EnvironmentCard(
    id="roll/Dataset-v0",
    entry_point="roll_envs.datasets.env:DatasetEnv",
    kwargs={},
    summary="Answer a question of a data set (yours, or 200 small sums without one); a verifier judges the answer.",
    tests="Whatever the rows ask and the verifier can judge.",
    turns="One answer, or max_attempts with feedback in between; an answer that cannot be read takes an attempt.",
    reward_range=(0.0, 1.0),
    rewards=(
        "score: the verifier's value for the last answer, which for verifiers of yours may leave 0 to 1; format: the "
        "argument format_penalty (0 by default) for an answer that cannot be read."
    ),
    success="The verifier passed the answer.",
    splits=(
        "train, validation, test and all: by a field of the rows, or by a hash of the prompt (90 / 5 / 5 %); seed s "
        "takes row s of the split, counted round."
    ),
    versions={"v0": "First version."},
)
