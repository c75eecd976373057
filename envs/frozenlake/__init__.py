"""FrozenLake as text: the cards of the registered variants. The environment itself is in ``envs.frozenlake.env``."""

from __future__ import annotations

from roll_envs.env import EnvironmentCard

__all__ = ["FROZEN_LAKE", "FROZEN_LAKE_SLIPPERY"]

ENTRY_POINT = "envs.frozenlake.env:FrozenLakeEnv"
REWARDS = (
    "goal: +1 for reaching the goal, else 0; format: the argument format_penalty (0 by default) for an answer that "
    "cannot be read."
)
SUCCESS = "The player stands on the goal."
CITATION = (
    "gymnasium FrozenLake-v1 (Towers et al. 2024, arXiv:2407.17032) with random maps, start and goal as in RAGEN (Wang "
    "et al. 2025, arXiv:2504.20073) and ROLL (Wang et al. 2025, arXiv:2506.06122)."
)
DIFFERENCES = (
    "An answer that cannot be read counts towards the turn limit; in ROLL it does not, so that an episode of such "
    "answers never ends.",
    "Termination and truncation are never both set; ROLL sets both for a hole that is entered past the limit.",
    "info['format_penalty'] is what this answer was charged; ROLL reports the configured penalty at every step.",
    "No global random generator is touched; the originals seed the global ones.",
)
VERSIONS = {"v0": "First version."}

FROZEN_LAKE = EnvironmentCard(
    id="roll/FrozenLake-v0",
    entry_point=ENTRY_POINT,
    drawing="envs.frozenlake.drawing:draw",
    kwargs={"size": 4, "p": 0.8, "is_slippery": False},
    summary="Walk over a random 4x4 frozen lake to the goal without falling into a hole.",
    tests="Finding a safe path on a grid given as text.",
    turns="10 turns of one move (more on larger lakes); an answer that cannot be read takes a turn.",
    reward_range=(0.0, 1.0),
    rewards=REWARDS,
    success=SUCCESS,
    versions=VERSIONS,
    citation=CITATION,
    differences=DIFFERENCES,
)

FROZEN_LAKE_SLIPPERY = EnvironmentCard(
    id="roll/FrozenLakeSlippery-v0",
    entry_point=ENTRY_POINT,
    drawing="envs.frozenlake.drawing:draw",
    kwargs={"size": 4, "p": 0.8, "is_slippery": True},
    summary="FrozenLake on slippery ice: one move in three goes where it was meant to, the others to a side of it.",
    tests="Acting safely when moves go astray, on a grid given as text.",
    turns="10 turns of one move (more on larger lakes); an answer that cannot be read takes a turn.",
    reward_range=(0.0, 1.0),
    rewards=REWARDS,
    success=SUCCESS,
    versions=VERSIONS,
    citation=CITATION,
    differences=DIFFERENCES,
)
