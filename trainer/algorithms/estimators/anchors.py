"""Anchor states: which turns of a group's episodes answered the same observation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rapidfuzz.distance import Indel

from roll_envs.types import Metrics
from trainer.algorithms.estimators.types import EpisodeView

__all__ = ["Place", "alike", "anchor_metrics", "anchor_states"]

Place = tuple[int, int]
"""Index of an episode, and of a turn in it."""


def anchor_states(episodes: Sequence[EpisodeView], similarity: float = 1.0) -> list[list[Place]]:
    """The turns that met one state, state by state; turns without a sample have none, and no state spans two groups.

    Observations are one state when they are identical, or, with a ``similarity`` below 1, by greedy leader clustering:
    an observation joins the first leader it is :func:`alike`, or leads a new state. Frequent observations come first,
    then the order of their texts, so that the order of the episodes does not matter.
    """
    identical: dict[int, dict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for i, episode in enumerate(episodes):
        for t, anchor in enumerate(episode.anchors):
            if anchor is not None:
                identical[episode.group][anchor].append((i, t))
    if similarity >= 1.0:
        return [places for texts in identical.values() for places in texts.values()]
    return [places for texts in identical.values() for places in _by_leaders(texts, similarity)]


def _by_leaders(texts: Mapping[str, list[Place]], similarity: float) -> list[list[Place]]:
    states: dict[str, list[Place]] = {}
    for text in sorted(texts, key=lambda text: (-len(texts[text]), text)):
        leader = next((leader for leader in states if alike(leader, text, similarity)), text)
        states.setdefault(leader, []).extend(texts[text])
    return list(states.values())


def alike(first: str, second: str, similarity: float) -> bool:
    """Whether the texts share enough in order: ``2 * LCS / (len(first) + len(second)) >= similarity``.

    LCS is the length of their longest common subsequence: 20 characters of which one differs are 0.95 alike. difflib's
    ratio, which verl-agent takes, is this or less: it follows the longest common block, which in a grid of few symbols
    is often a shifted one, and leaves frequent characters out of texts of 200 and more.
    """
    allowed = math.floor((1.0 - similarity) * (len(first) + len(second)) + 1e-9)
    return Indel.distance(first, second, score_cutoff=allowed) <= allowed


def anchor_metrics(sizes: Sequence[int]) -> Metrics:
    """How many states were met, and by how many turns; empty when there were none."""
    if not sizes:
        return {}
    turns = sum(sizes)
    return {
        "advantage/anchor_groups": float(len(sizes)),
        "advantage/anchor_size_mean": turns / len(sizes),
        "advantage/anchor_size_max": float(max(sizes)),
        "advantage/anchor_singleton_turns": sum(s for s in sizes if s == 1) / turns,
    }
