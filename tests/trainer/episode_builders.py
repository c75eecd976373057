"""Short ways to write turns, trajectories and groups by hand, and a hypothesis strategy that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from roll_envs.types import Completion, Group, Outcome, OutcomeKind, Task, Trajectory, Turn
from trainer.data.batches import Batch, Denominators, denominators_of, make_batches, scatter_back
from trainer.data.table import TokenSequence, tokens_of

TASK = Task(env_id="roll/Test-v0", split="train", index=0, seed=7)


def turn(
    prompt: Sequence[int] = (1,),
    sampled: Sequence[int] = (2,),
    *,
    reward: float = 0.0,
    anchor: str = "start",
    version: int = 0,
    info: Mapping[str, Any] | None = None,
    logprobs: Sequence[float] | None = None,
) -> Turn:
    completion = Completion(
        ids=tuple(sampled),
        logprobs=tuple(-0.01 * (i + 1) for i in sampled) if logprobs is None else tuple(logprobs),
        finish="stop" if sampled else "abort",
        weight_version=version,
    )
    return Turn(
        prompt_ids=tuple(prompt),
        completion=completion,
        prompt_observation=anchor,
        text="",
        observation="",
        reward=reward,
        terminated=False,
        truncated=False,
        info={} if info is None else info,
        timings={},
    )


def trajectory(*turns: Turn, member: int = 0, kind: OutcomeKind = "completed", attempts: int = 1) -> Trajectory:
    return Trajectory(task=TASK, member=member, turns=turns, outcome=Outcome(kind=kind), attempts=attempts)


def group(*trajectories: Trajectory) -> Group:
    return Group(task=TASK, trajectories=trajectories)


def group_of_returns(*returns: float) -> Group:
    """One-turn episodes with these returns."""
    return group(*(trajectory(turn(reward=r), member=i) for i, r in enumerate(returns)))


def row(ids: Sequence[int], mask: Sequence[int], *, group: int = 0, member: int = 0, version: int = 0) -> TokenSequence:
    """A sequence of one turn with log-prob -0.01 * id on sampled ids."""
    return TokenSequence(
        ids=tuple(ids),
        mask=tuple(bool(m) for m in mask),
        logprobs=tuple(-0.01 * i if m else 0.0 for i, m in zip(ids, mask, strict=True)),
        turns=tuple(0 if m else -1 for m in mask),
        versions=tuple(version if m else -1 for m in mask),
        group=group,
        member=member,
    )


def on_ids(sequences: Sequence[TokenSequence], column: np.ndarray) -> list[np.ndarray]:
    """A column of tokens as one array per sequence, aligned with its ids, 0 where nothing was sampled."""
    tokens, found = tokens_of(sequences), [np.zeros(len(s.ids), dtype=column.dtype) for s in sequences]
    for s, position, value in zip(tokens.sequence, tokens.position, column, strict=True):
        found[s][position] = value
    return found


def on_tokens(sequences: Sequence[TokenSequence], values: Sequence[Sequence[float] | np.ndarray]) -> np.ndarray:
    """One array per sequence, aligned with its ids, as a column of its sampled tokens."""
    kept = [np.asarray(v)[np.array(s.mask, dtype=bool)] for s, v in zip(sequences, values, strict=True)]
    return np.concatenate([np.empty(0), *kept]) if kept else np.empty(0)


def batches_of(
    sequences: Sequence[TokenSequence],
    advantages: Sequence[Sequence[float] | np.ndarray] | None = None,
    *,
    pack_tokens: int,
    tokens_per_microbatch: int,
    returns: Sequence[Sequence[float] | np.ndarray] | None = None,
    **columns: Sequence[Sequence[float] | np.ndarray],
) -> list[Batch]:
    """Batches of all sequences; advantages, ``returns`` for the critic and other columns as one array per sequence,
    aligned with its ids."""
    given = {name: on_tokens(sequences, values) for name, values in columns.items()}
    if advantages is not None:
        given["advantage"] = on_tokens(sequences, advantages)
    return make_batches(
        sequences,
        tokens_of(sequences).with_columns(**given),
        range(len(sequences)),
        pack_tokens=pack_tokens,
        tokens_per_microbatch=tokens_per_microbatch,
        returns=None if returns is None else on_tokens(sequences, returns)[None],
    )


def counted(sequences: Sequence[TokenSequence]) -> Denominators:
    """Of an optimiser step on all of ``sequences``."""
    return denominators_of(tokens_of(sequences), range(len(sequences)))


def scattered(sequences: Sequence[TokenSequence], batches: Sequence[Batch], values: Any) -> list[np.ndarray]:
    """What batches of all ``sequences`` give, as one array per sequence, aligned with its ids."""
    return on_ids(sequences, scatter_back(batches, values, tokens_of(sequences)))


# What is drawn is few choices each, because drawing takes most of the time of these tests: ids are the bytes of a text
# modulo 16, a mask is the bits of one number.
_TEXTS = [st.binary(min_size=1, max_size=4), st.binary(max_size=4)]
_TURNS, _MEMBERS = st.integers(0, 5), st.integers(1, 4)
_REWARDS, _ANCHORS = st.floats(-2, 2), st.sampled_from("abc")
_FIRST_LOGPROBS = st.integers(0, 88)


@st.composite
def trajectories(draw: st.DrawFn, kind: OutcomeKind = "completed", member: int = 0) -> Trajectory:
    """Episodes whose prompts sometimes extend what came before, sometimes not; completions are sometimes empty."""
    turns: list[Turn] = []
    seen: list[int] = []
    for index in range(draw(_TURNS)):
        fresh, sampled = ([byte % 16 for byte in draw(texts)] for texts in _TEXTS)
        prompt = seen + fresh if draw(st.booleans()) else fresh
        first = draw(_FIRST_LOGPROBS)
        turns.append(
            turn(
                prompt,
                sampled,
                logprobs=[-0.1 * (1 + (first + 37 * i) % 89) for i in range(len(sampled))],  # all different
                version=index,
                reward=draw(_REWARDS),
                anchor=draw(_ANCHORS),
            )
        )
        if sampled:
            seen = prompt + sampled
    return trajectory(*turns, kind=kind, member=member)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """One to four scored episodes of one task."""
    return group(*(draw(trajectories(member=m)) for m in range(draw(_MEMBERS))))


@st.composite
def rows(draw: st.DrawFn, max_rows: int = 12, max_length: int = 12) -> list[TokenSequence]:
    """Sequences of one to ``max_length`` ids with any mask, in up to five groups."""
    result = []
    for member in range(draw(st.integers(1, max_rows))):
        ids = [byte % 16 for byte in draw(st.binary(min_size=1, max_size=max_length))]
        bits = draw(st.integers(0, 2 ** len(ids) - 1))
        mask = [bits >> i & 1 for i in range(len(ids))]
        result.append(row(ids, mask, group=draw(st.integers(0, 4)), member=member))
    return result
