"""Episodes as estimators see them, by hand and drawn, and the table of a step that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trainer.algorithms.estimators import Estimate
from trainer.config.parts import ESTIMATORS
from trainer.data.table import Episodes, StepTable, Tokens, Turns

__all__ = [
    "EpisodeView",
    "by_group",
    "close",
    "estimated",
    "flat",
    "of_returns",
    "per_episode",
    "table_of",
    "view",
    "views",
]


@dataclass(frozen=True, kw_only=True)
class EpisodeView:
    """One scored episode of T >= 1 turns and N sampled tokens, before it stands in a table."""

    group: int
    rewards: np.ndarray
    lengths: tuple[int, ...]
    anchors: tuple[str | None, ...]
    success: bool = False
    truncated: bool = False
    token_rewards: np.ndarray | None = None
    values: np.ndarray | None = None
    greedy_return: float | None = None
    env: str = ""
    cut: tuple[bool, ...] = ()


def view(
    *rewards: float,
    anchors: Sequence[str | None] = (),
    lengths: Sequence[int] = (),
    group: int = 0,
    values: Sequence[float] | None = None,
    tokens: Sequence[float] | None = None,
    greedy: float | None = None,
    env: str = "",
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
        env=env,
    )


def of_returns(*returns: float, group: int = 0) -> list[EpisodeView]:
    """One-turn episodes of one token."""
    return [view(r, group=group, values=(0.0,), greedy=0.0) for r in returns]


def table_of(episodes: Sequence[EpisodeView]) -> StepTable:
    """A step of these episodes, each in one sequence of which every sampled id is predicted."""
    counts = np.array([sum(e.lengths) for e in episodes], dtype=np.int64)
    turns = np.array([len(e.lengths) for e in episodes], dtype=np.int64)
    lengths = np.array([n for e in episodes for n in e.lengths], dtype=np.int64)
    total = int(counts.sum())
    given = [e.values for e in episodes if e.values is not None]
    rewards = [
        np.zeros(n) if e.token_rewards is None else e.token_rewards for e, n in zip(episodes, counts, strict=True)
    ]
    episode = np.repeat(np.arange(len(episodes)), counts)
    turn = np.repeat(np.arange(len(lengths)), lengths)
    tokens = Tokens(
        sequence=episode,
        position=1 + np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts),
        turn_number=turn - np.repeat(np.cumsum(turns) - turns, counts),
        version=np.zeros(total, dtype=np.int64),
        sampler_logp=np.full(total, -1.0),
        predicted=np.ones(total, dtype=np.bool_),
        trained=np.ones(total, dtype=np.bool_),
        reward=np.concatenate([np.empty(0), *rewards]),
    )
    return StepTable(
        tokens=tokens.with_columns(value=np.concatenate([np.empty(0), *given]) if given or not episodes else None),
        turns=Turns(
            episode=np.repeat(np.arange(len(episodes)), turns),
            reward=np.concatenate([np.empty(0), *(e.rewards for e in episodes)]),
            tokens=lengths,
            anchor=tuple(a for e in episodes for a in e.anchors),
            cut=np.array([c for e in episodes for c in e.cut or (False,) * len(e.lengths)], dtype=np.bool_),
        ),
        episodes=Episodes(
            group=np.array([e.group for e in episodes], dtype=np.int64),
            env=tuple(e.env for e in episodes),
            environment_return=np.array([e.rewards.sum() for e in episodes]),
            success=np.array([e.success for e in episodes], dtype=np.bool_),
            truncated=np.array([e.truncated for e in episodes], dtype=np.bool_),
            greedy_return=np.array([np.nan if e.greedy_return is None else e.greedy_return for e in episodes]),
        ),
        episode_of_token=episode,
        turn_of_token=turn,
        groups=len({e.group for e in episodes}),
        left_out=0,
    )


def estimated(name: str, step: Sequence[EpisodeView] | StepTable, **settings: Any) -> Estimate:
    """What the estimator ``name`` gives with ``settings`` of its own, of episodes or of the table that holds them."""
    part = ESTIMATORS.find(name)
    found: Estimate = part.estimate(step if isinstance(step, StepTable) else table_of(step), part.settings(**settings))
    return found


def close(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray, *, rel: float, abs: float) -> bool:
    """Numbers as equal as ``pytest.approx`` has it, which takes many times as long over long lists."""
    one, other = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    return one.shape == other.shape and bool((np.abs(one - other) <= np.maximum(abs, rel * np.abs(other))).all())


def per_episode(episodes: Sequence[EpisodeView], column: np.ndarray) -> list[np.ndarray]:
    """A column of tokens cut into episodes."""
    return np.split(column, np.cumsum([sum(e.lengths) for e in episodes])[:-1]) if episodes else []


def by_group(episodes: Sequence[EpisodeView]) -> dict[int, list[int]]:
    """Indices of the episodes of each group."""
    return {g: [i for i, e in enumerate(episodes) if e.group == g] for g in {e.group for e in episodes}}


def flat(numbers: Sequence[np.ndarray]) -> list[float]:
    """All numbers of all episodes, one after the other."""
    return np.concatenate([np.empty(0), *numbers]).tolist()


_QUARTERS = st.integers(-8, 8)
GRID = _QUARTERS.map(lambda n: n / 4)
"""Coarse enough that numbers are equal or clearly not."""
_ANCHORS = st.sampled_from("abc")


@st.composite
def _episode(draw: st.DrawFn) -> EpisodeView:
    turns = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(0, 3), min_size=turns, max_size=turns))
    tokens = sum(lengths)

    def numbers(count: int) -> np.ndarray:
        # Divided together: to draw each number through GRID takes twice as long.
        return np.array(draw(st.lists(_QUARTERS, min_size=count, max_size=count)), dtype=np.float64) / 4

    return EpisodeView(
        rewards=numbers(turns),
        lengths=tuple(lengths),
        anchors=tuple(draw(_ANCHORS) if n else None for n in lengths),
        group=draw(st.integers(0, 2)),
        values=numbers(tokens),
        token_rewards=numbers(tokens) if draw(st.booleans()) else None,
        greedy_return=draw(st.none() | GRID),
    )


def views(min_size: int = 0) -> st.SearchStrategy[list[EpisodeView]]:
    """Up to eight episodes of up to three groups; some turns have no token, some episodes token rewards."""
    return st.lists(_episode(), min_size=min_size, max_size=8)
