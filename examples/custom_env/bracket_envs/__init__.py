"""The card of the Brackets environment; the environment itself is in ``bracket_envs.env``."""

from __future__ import annotations

from roll_envs import EnvironmentCard

__all__ = ["BRACKETS"]

BRACKETS = EnvironmentCard(
    id="example/Brackets-v0",
    entry_point="bracket_envs.env:BracketsEnv",
    kwargs={"length": 3},
    summary="Close every open bracket, innermost first.",
    tests="Keeping track of nested structure over several turns.",
    turns="One bracket a turn; length + 2 turns (an answer that cannot be read takes a turn).",
    reward_range=(-0.5, 1.0),
    rewards="turn: -0.1 for every turn that closes nothing; closed: +1 when the last bracket is closed.",
    success="No bracket is open.",
    versions={"v0": "First version."},
)
