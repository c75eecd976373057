"""Sequences of token ids for the learner, made from trajectories by the exact-prefix rule.

Ids and log-probabilities are copied from what the engine received and returned; nothing is tokenised here. What is
known of each sampled token stands in :mod:`trainer.data.table`, tensors start in :mod:`trainer.data.batches`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from roll_envs.types import Group, Trajectory, Turn

__all__ = ["TokenSequence", "sequences_of", "to_sequences"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSequence:
    """A prompt and every completion that continues it to the letter. All tuples have the length of ``ids``."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True exactly on the ids that the policy sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled id under the sampler; 0.0 elsewhere."""
    turns: tuple[int, ...]
    """Index into ``Trajectory.turns`` of each sampled id; -1 elsewhere."""
    versions: tuple[int, ...]
    """Weight version that sampled each id; -1 elsewhere."""
    group: int
    """Position of the trajectory's group in the step's list of groups."""
    member: int
    """``Trajectory.member``."""

    def __len__(self) -> int:
        return len(self.ids)


class _Growing:
    """A sequence while turns are added."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[int] = []
        self.versions: list[int] = []

    def continues_to(self, prompt_ids: tuple[int, ...]) -> bool:
        return len(prompt_ids) >= len(self.ids) and list(prompt_ids[: len(self.ids)]) == self.ids

    def add(self, index: int, turn: Turn) -> None:
        completion = turn.completion
        if len(completion.ids) != len(completion.logprobs):
            raise ValueError(f"turn {index} has {len(completion.ids)} ids but {len(completion.logprobs)} log-probs")
        given = turn.prompt_ids[len(self.ids) :]
        self.ids += (*given, *completion.ids)
        self.mask += [False] * len(given) + [True] * len(completion.ids)
        self.logprobs += (*[0.0] * len(given), *completion.logprobs)
        self.turns += [-1] * len(given) + [index] * len(completion.ids)
        self.versions += [-1] * len(given) + [version for version, tokens in completion.spans for _ in range(tokens)]

    def freeze(self, group: int, member: int) -> TokenSequence:
        return TokenSequence(
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            turns=tuple(self.turns),
            versions=tuple(self.versions),
            group=group,
            member=member,
        )


def to_sequences(trajectory: Trajectory, *, group: int) -> list[TokenSequence]:
    """The sequences of one trajectory, in the order of its turns; ``group`` is copied into each.

    The exact-prefix rule: a turn whose prompt starts with the previous prompt + completion, id for id, joins the
    sequence; any other starts a new one. Prompts ``(1, 2)`` and ``(1, 2, 7, 3)`` with completions ``(7,)`` and ``(8,)``
    give one sequence ``(1, 2, 7, 3, 8)`` with mask ``(0, 0, 1, 0, 1)``; had the second prompt been ``(1, 2, 9, 3)``,
    two.

    Turns whose completion is empty (aborted requests) contribute nothing. A trajectory that is not ``scored`` (failed
    or cancelled) gives none.

    Raises:
        ValueError: A completion does not have one log-prob per id.
    """
    if not trajectory.scored:
        return []
    sequences: list[_Growing] = []
    for index, turn in enumerate(trajectory.turns):
        if not turn.completion.ids:
            continue
        if not sequences or not sequences[-1].continues_to(turn.prompt_ids):
            sequences.append(_Growing())
        sequences[-1].add(index, turn)
    return [growing.freeze(group, trajectory.member) for growing in sequences]


def sequences_of(groups: Iterable[Group]) -> list[TokenSequence]:
    """The sequences of all scored trajectories of a step; their ``group`` counts through ``groups`` from 0."""
    return [s for g, group in enumerate(groups) for t in group.trajectories for s in to_sequences(t, group=g)]
