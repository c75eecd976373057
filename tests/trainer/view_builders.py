"""Episodes as estimators see them, by hand and drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from trainer.algorithms.estimators import EpisodeView

__all__ = ["flat", "of_returns", "view", "views"]


def view(
    *rewards: float,
    anchors: Sequence[str | None] = (),
    lengths: Sequence[int] = (),
    group: int = 0,
    values: Sequence[float] | None = None,
    tokens: Sequence[float] | None = None,
    greedy: float | None = None,
) -> EpisodeView:
    """An episode with one token per turn and one state, unless told otherwise."""
    return EpisodeView(
        group=group,
        rewards=np.array(rewards, dtype=np.float64),
        lengths=tuple(lengths) or (1,) * len(rewards),
        anchors=tuple(anchors) or ("s",) * len(rewards),
        values=None if values is None else np.array(values, dtype=np.float64),
        token_rewards=None if tokens is None else np.array(tokens, dtype=np.float64),
        greedy_return=greedy,
    )


def of_returns(*returns: float, group: int = 0) -> list[EpisodeView]:
    """One-turn episodes of one token."""
    return [view(r, group=group, values=(0.0,), greedy=0.0) for r in returns]


def flat(numbers: Sequence[np.ndarray]) -> list[float]:
    """All numbers of all episodes, one after the other."""
    return np.concatenate([np.empty(0), *numbers]).tolist()


GRID = st.integers(-8, 8).map(lambda n: n / 4)
"""Coarse enough that numbers are equal or clearly not."""


@st.composite
def _episode(draw: st.DrawFn) -> EpisodeView:
    turns = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(0, 3), min_size=turns, max_size=turns))
    tokens = sum(lengths)
    numbers = st.lists(GRID, min_size=tokens, max_size=tokens)
    return view(
        *draw(st.lists(GRID, min_size=turns, max_size=turns)),
        lengths=lengths,
        anchors=[draw(st.sampled_from("abc")) if n else None for n in lengths],
        group=draw(st.integers(0, 2)),
        values=draw(numbers),
        tokens=draw(st.none() | numbers),
        greedy=draw(st.none() | GRID),
    )


def views(min_size: int = 0) -> st.SearchStrategy[list[EpisodeView]]:
    """Up to eight episodes of up to three groups; some turns have no token, some episodes token rewards."""
    return st.lists(_episode(), min_size=min_size, max_size=8)
