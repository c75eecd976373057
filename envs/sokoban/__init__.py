"""Sokoban as text: the cards of the registered variants. The environment itself is in ``envs.sokoban.env``."""

from __future__ import annotations

from roll_envs.env import EnvironmentCard

__all__ = ["LARGER_SOKOBAN", "SIMPLE_SOKOBAN", "SOKOBAN_DIFFERENT_GRID_VOCAB"]

ENTRY_POINT = "envs.sokoban.env:SokobanEnv"
TESTS = "Planning several moves ahead where some mistakes cannot be undone, on a grid given as text."
REWARDS = (
    "step: -0.1 for every move (an answer that cannot be read counts as one); box: +1 when a box comes on a target, "
    "-1 when it leaves one; solved: +10; format: the argument format_penalty (0 by default) for such an answer."
)
SUCCESS = "All boxes stand on targets."
CITATION = (
    "Rooms and rewards: gym-sokoban (Schrader 2018, github.com/mpSchrader/gym-sokoban) as changed by RAGEN (Wang et "
    "al. 2025, arXiv:2504.20073) and ROLL (Wang et al. 2025, arXiv:2506.06122)."
)
DIFFERENCES = (
    "Reaching the turn limit truncates; ROLL also reports termination there, although the rules did not end the game.",
    "A room that fails to generate is drawn again from the seed alone; the originals use hash(), so that their rooms "
    "change with PYTHONHASHSEED.",
    "No global random generator is touched; the originals seed the global ones.",
)
VERSIONS = {"v0": "First version."}

SIMPLE_SOKOBAN = EnvironmentCard(
    id="roll/SimpleSokoban-v0",
    entry_point=ENTRY_POINT,
    drawing="envs.sokoban.drawing:draw",
    kwargs={"size": (6, 6), "num_boxes": 1, "search_depth": 300, "max_turns": 10},
    summary="Sokoban in 6x6 rooms with one box.",
    tests=TESTS,
    turns="10 turns of one move; an answer that cannot be read takes a turn.",
    reward_range=(-1.0, 10.9),
    rewards=REWARDS,
    success=SUCCESS,
    versions=VERSIONS,
    citation=CITATION,
    differences=DIFFERENCES,
)

LARGER_SOKOBAN = EnvironmentCard(
    id="roll/LargerSokoban-v0",
    entry_point=ENTRY_POINT,
    drawing="envs.sokoban.drawing:draw",
    kwargs={"size": (10, 10), "num_boxes": 2, "search_depth": 10, "max_turns": 10},
    summary="Sokoban in 10x10 rooms with two boxes (ROLL's report uses 8x8: pass size=(8, 8)).",
    tests=TESTS,
    turns="10 turns of one move; an answer that cannot be read takes a turn.",
    reward_range=(-1.0, 11.8),
    rewards=REWARDS,
    success=SUCCESS,
    versions=VERSIONS,
    citation=CITATION,
    differences=DIFFERENCES,
)

SOKOBAN_DIFFERENT_GRID_VOCAB = EnvironmentCard(
    id="roll/SokobanDifferentGridVocab-v0",
    entry_point=ENTRY_POINT,
    drawing="envs.sokoban.drawing:draw",
    kwargs={"size": (6, 6), "num_boxes": 1, "search_depth": 30, "max_turns": 10, "symbols": "W.GCBA@"},
    summary="SimpleSokoban drawn with other symbols (W . G C B A @).",
    tests=TESTS + " Does the skill survive a change of symbols?",
    turns="10 turns of one move; an answer that cannot be read takes a turn.",
    reward_range=(-1.0, 10.9),
    rewards=REWARDS,
    success=SUCCESS,
    versions=VERSIONS,
    citation=CITATION,
    differences=DIFFERENCES,
)
