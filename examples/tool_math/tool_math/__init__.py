"""The card of the word problems; the environment itself is in ``tool_math.env``."""

from __future__ import annotations

from roll_envs import EnvironmentCard

__all__ = ["WORD_PROBLEMS"]

WORD_PROBLEMS = EnvironmentCard(
    id="example/WordProblems-v0",
    entry_point="tool_math.env:WordProblemsEnv",
    kwargs={"digits": 3},
    summary="Word problems with numbers too large to compute in the head.",
    tests="Turning a text into an expression; with a calculator, calling it and giving its result.",
    turns="One answer.",
    reward_range=(0.0, 1.0),
    rewards="solved: 1 for the right number, else 0.",
    success="The answer is the right number.",
    versions={"v0": "First version."},
)
