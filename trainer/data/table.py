"""From trajectories to the table of a training step: token sequences, and aligned columns over what was sampled.

Sequences follow from trajectories by the exact-prefix rule (:func:`to_sequences`). Ids and log-probabilities are copied
from what the engine received and returned; nothing is tokenised here.

Everything else of a step is a column: rewards, log-probs, values, advantages, weights. What is known of an episode or a
turn reaches its tokens by indexing, ``x[table.episode_of_token]`` and ``x[table.turn_of_token]``, and back by
``np.bincount``. Tokens stand in the order of their sequences and, within a sequence, of time; so those of an episode,
of a turn and of a sequence are next to each other. Only ids that the policy sampled have a line: what the environment
said is no token here, and nothing has to skip it. Tensors start in :mod:`trainer.data.batches`.

Shapes: N sampled tokens, S sequences, M turns, E scored episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roll_envs.types import Group, Trajectory, Turn

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_SPREAD = 1e-9
"""Values whose range is at most this (times the largest, where that is above 1) are equal: their advantage is exactly 0
and their group is counted."""


# -- sequences ---------------------------------------------------------------------------------------------------------


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


def to_sequences(trajectory: Trajectory, *, group: int) -> list[TokenSequence]:
    """The sequences of one trajectory, in the order of its turns; ``group`` is copied into each.

    The exact-prefix rule: a turn whose prompt starts with the previous prompt + completion, id for id, joins the
    sequence; any other starts a new one. Prompts ``(1, 2)`` and ``(1, 2, 7, 3)`` with completions ``(7,)`` and ``(8,)``
    give one sequence ``(1, 2, 7, 3, 8)`` with mask ``(0, 0, 1, 0, 1)``; had the second prompt been ``(1, 2, 9, 3)``,
    two.

    Turns whose completion is empty (aborted requests) contribute nothing. A trajectory that is not ``scored`` (failed
    or cancelled) gives none.
    """
    if not trajectory.scored:
        return []
    empty = TokenSequence(ids=(), mask=(), logprobs=(), turns=(), versions=(), group=group, member=trajectory.member)
    sequences: list[TokenSequence] = []
    for index, turn in enumerate(trajectory.turns):
        if not turn.completion.ids:
            continue
        if not sequences or tuple(turn.prompt_ids[: len(sequences[-1])]) != sequences[-1].ids:
            sequences.append(empty)
        sequences[-1] = _continued(sequences[-1], index, turn)
    return sequences


def _continued(sequence: TokenSequence, index: int, turn: Turn) -> TokenSequence:
    """``sequence`` with turn ``index``, whose prompt begins with it."""
    said = turn.completion
    given = turn.prompt_ids[len(sequence) :]  # what the chat template and the environment put before the answer
    return replace(
        sequence,
        ids=(*sequence.ids, *given, *said.ids),
        mask=sequence.mask + (False,) * len(given) + (True,) * len(said.ids),
        logprobs=(*sequence.logprobs, *(0.0,) * len(given), *said.logprobs),
        turns=sequence.turns + (-1,) * len(given) + (index,) * len(said.ids),
        versions=sequence.versions + (-1,) * len(given) + tuple(v for v, tokens in said.spans for _ in range(tokens)),
    )


def sequences_of(groups: Iterable[Group]) -> list[TokenSequence]:
    """The sequences of all scored trajectories of a step; their ``group`` counts through ``groups`` from 0."""
    return [s for g, group in enumerate(groups) for t in group.trajectories for s in to_sequences(t, group=g)]


# -- columns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tokens:
    """Columns over the sampled tokens [N]; those that a step does not need stay None."""

    sequence: IntArray
    """Index of the sequence in the step's list; rises."""
    position: IntArray
    """Index of the token in the ids of its sequence."""
    turn_number: IntArray
    """Index of the turn in its episode."""
    version: IntArray
    """Weights that sampled it."""
    sampler_logp: FloatArray
    predicted: BoolArray
    """False for the first id of a sequence, which no position of the model predicts: no log-prob, value or loss."""
    trained: BoolArray
    """Whether it is in the loss; :func:`trainer.algorithms.shaping.apply_masks` leaves some out."""
    reward: FloatArray
    """Reward of the token itself beside that of its turn, such as the KL penalty."""
    proximal_logp: FloatArray | None = None
    """Under the policy that the ratio is taken to; 0 where it is not predicted, as the next two."""
    reference_logp: FloatArray | None = None
    value: FloatArray | None = None
    """The critic's, of the state in which the token was sampled."""
    return_: FloatArray | None = None
    """What that value shall become."""
    advantage: FloatArray | None = None
    weight: FloatArray | None = None
    """Factor of its advantage in the loss."""
    selected: BoolArray | None = None
    """What the loss chose among the tokens of an optimiser step."""
    episode_return: FloatArray | None = None
    """Undiscounted return of its episode, as the environment paid it."""
    success: BoolArray | None = None
    """Of its episode."""
    truncated: BoolArray | None = None
    """Whether its episode ended at the turn limit."""

    @property
    def learnt(self) -> BoolArray:
        """Tokens that have a loss: predicted and trained."""
        return self.predicted & self.trained

    def of(self, sequences: Sequence[int]) -> IntArray:
        """The lines of ``sequences``, in the order in which they are named."""
        last = max(sequences, default=0)
        bounds = np.searchsorted(self.sequence, np.arange(last + 2))
        return np.concatenate([np.empty(0, np.int64), *(np.arange(bounds[s], bounds[s + 1]) for s in sequences)])

    def with_columns(self, **columns: Any) -> Tokens:
        """The same tokens with other columns. Raises ValueError for one of another length."""
        for name, column in columns.items():
            if column is not None and len(column) != len(self.sequence):
                raise ValueError(f"column {name!r} has {len(column)} numbers for {len(self.sequence)} sampled tokens")
        return replace(self, **columns)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turns:
    """Columns over the turns of scored episodes [M], in order."""

    episode: IntArray
    reward: FloatArray
    """As it is learnt from: the environment's, until :func:`trainer.algorithms.shaping.shape_rewards`."""
    tokens: IntArray
    """How many were sampled; 0 for an aborted answer."""
    anchor: tuple[str | None, ...]
    """Observation that the turn answered; None where nothing was sampled (no part in statistics of states)."""
    cut: BoolArray
    """Whether the answer was cut at the longest length."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episodes:
    """Columns over the scored episodes [E] that have a turn, in the order of their groups."""

    group: IntArray
    """Index of the group in the step's list."""
    env: tuple[str, ...]
    """Environment id and arguments: levels of one environment are several."""
    environment_return: FloatArray
    """Undiscounted, as the environment paid it."""
    success: BoolArray
    truncated: BoolArray
    greedy_return: FloatArray
    """Return of the greedy episode of the same task; NaN where none was scored."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTable:
    """The three tables of a step and what joins them."""

    tokens: Tokens
    turns: Turns
    episodes: Episodes
    episode_of_token: IntArray
    """Line of :attr:`episodes` for each token [N]."""
    turn_of_token: IntArray
    """Line of :attr:`turns` for each token [N]."""
    groups: int
    """Groups that were collected, those without a scored episode too."""
    left_out: int
    """Episodes that are in no line: failed or cancelled ones, and those that ended before their first turn."""

    def with_tokens(self, **columns: Any) -> StepTable:
        """The same step with other columns of :attr:`tokens`."""
        return replace(self, tokens=self.tokens.with_columns(**columns))

    @property
    def episode_tokens(self) -> IntArray:
        """Sampled tokens of each episode [E]."""
        return np.bincount(self.episode_of_token, minlength=len(self.episodes.group))

    @property
    def turn_rewards(self) -> FloatArray:
        """Reward of each turn [M], with the rewards of its tokens."""
        return self.turns.reward + sum_by(self.turn_of_token, self.tokens.reward, len(self.turns.reward))

    @property
    def returns(self) -> FloatArray:
        """Undiscounted return of each episode [E], rewards of tokens included: what episodes are compared by."""
        return sum_by(self.turns.episode, self.turn_rewards, len(self.episodes.group))

    @property
    def token_rewards(self) -> FloatArray:
        """The rewards of the turns on their last tokens, added to the tokens' own [N].

        The reward of a turn without tokens goes to the last token before it, or to the first of its episode when there
        is none.
        """
        result = self.tokens.reward.copy()
        counts = self.episode_tokens
        first = np.cumsum(counts) - counts
        # The last token of turns up to this one: for a turn without tokens, that of an earlier turn of the episode.
        last = np.maximum(np.cumsum(self.turns.tokens) - 1, first[self.turns.episode])
        present = counts[self.turns.episode] > 0
        np.add.at(result, last[present], self.turns.reward[present])
        return result


def tokens_of(sequences: Sequence[TokenSequence]) -> Tokens:
    """The columns of the sampled tokens that the sequences know themselves."""
    lengths = np.array([len(s.ids) for s in sequences], dtype=np.int64)
    total = int(lengths.sum())

    def every_id(name: str, dtype: type) -> NDArray[Any]:
        return np.fromiter(chain.from_iterable(getattr(s, name) for s in sequences), dtype=dtype, count=total)

    sampled = every_id("mask", np.bool_)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    position = (np.arange(total) - starts)[sampled]
    return Tokens(
        sequence=np.repeat(np.arange(len(sequences)), lengths)[sampled],
        position=position,
        turn_number=every_id("turns", np.int64)[sampled],
        version=every_id("versions", np.int64)[sampled],
        sampler_logp=every_id("logprobs", np.float64)[sampled],
        predicted=position > 0,
        trained=np.ones(len(position), dtype=np.bool_),
        reward=np.zeros(len(position)),
    )


def make_table(
    groups: Sequence[Group], sequences: Sequence[TokenSequence], greedy: Sequence[float | None] = ()
) -> StepTable:
    """The table of a step; ``sequences`` are those of :func:`trainer.data.table.sequences_of`.

    ``greedy`` is the return of the greedy episode of each group, where one was played.

    Raises:
        ValueError: A reward is not finite, or two trajectories of a group claim the same place in it.
    """
    scored = [(g, t) for g, group in enumerate(groups) for t in group.trajectories if t.scored and t.turns]
    # Sequences know their group and member, tables count through the episodes that have a line.
    line = {(g, t.member): e for e, (g, t) in enumerate(scored)}
    if len(line) != len(scored):
        raise ValueError("two trajectories of a group have the same `member`; their sequences cannot be told apart")
    turns = [(e, turn) for e, (_, trajectory) in enumerate(scored) for turn in trajectory.turns]
    tokens = tokens_of(sequences)
    of_sequence = np.array([line[s.group, s.member] for s in sequences], dtype=np.int64)
    episode_of_token = of_sequence[tokens.sequence]
    counts = np.array([len(t.turns) for _, t in scored], dtype=np.int64)
    env = [repr((group.task.env_id, sorted(group.task.kwargs.items()))) for group in groups]
    episodes = Episodes(
        group=np.array([g for g, _ in scored], dtype=np.int64),
        env=tuple(env[g] for g, _ in scored),
        environment_return=np.array([_finite_return(t) for _, t in scored], dtype=np.float64),
        success=np.array([t.success for _, t in scored], dtype=np.bool_),
        truncated=np.array([t.outcome.kind == "truncated" for _, t in scored], dtype=np.bool_),
        greedy_return=np.array([greedy[g] if greedy else None for g, _ in scored], dtype=np.float64),  # None is NaN
    )
    return StepTable(
        tokens=tokens.with_columns(
            episode_return=episodes.environment_return[episode_of_token],
            success=episodes.success[episode_of_token],
            truncated=episodes.truncated[episode_of_token],
        ),
        turns=Turns(
            episode=np.array([e for e, _ in turns], dtype=np.int64),
            reward=np.array([turn.reward for _, turn in turns], dtype=np.float64),
            tokens=np.array([len(turn.completion.ids) for _, turn in turns], dtype=np.int64),
            anchor=tuple(turn.prompt_observation if turn.completion.ids else None for _, turn in turns),
            cut=np.array([turn.completion.finish == "length" for _, turn in turns], dtype=np.bool_),
        ),
        episodes=episodes,
        episode_of_token=episode_of_token,
        turn_of_token=(np.cumsum(counts) - counts)[episode_of_token] + tokens.turn_number,
        groups=len(groups),
        left_out=sum(len(g.trajectories) for g in groups) - len(scored),
    )


def _finite_return(trajectory: Trajectory) -> float:
    rewards = [float(turn.reward) for turn in trajectory.turns]
    if not np.isfinite(rewards).all():
        task = trajectory.task
        raise ValueError(f"{task.env_id} (index {task.index}, seed {task.seed}) gave rewards {rewards}: not finite")
    return float(np.sum(rewards))


# -- arithmetic on columns ---------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """What :func:`compare` found about the set that each value [n] belongs to."""

    mean: FloatArray
    std: FloatArray
    size: IntArray
    """Values in the set."""
    differs: BoolArray
    """Whether the set has two or more values that differ by more than rounding."""


def compare(values: FloatArray, label: IntArray, *, weight: NDArray[Any] | None = None, ddof: int = 1) -> Comparison:
    """Mean, deviation, size and spread of the values [n] that have the same label (0 or more), for each value.

    A value counts ``weight`` times (once without) in mean and deviation; ``differs`` and ``size`` look at values.
    Values 1, 0, 5 with labels 0, 0, 1 have means 0.5, 0.5, 5, deviations 0.707107, 0.707107, 0 and differ, differ, not.
    """
    labels = int(label.max(initial=-1)) + 1
    times = np.ones(len(values)) if weight is None else weight.astype(np.float64)
    low, high = np.full(labels, np.inf), np.full(labels, -np.inf)
    np.minimum.at(low, label, values)
    np.maximum.at(high, label, values)
    total = sum_by(label, times, labels)
    mean = sum_by(label, times * values, labels) / np.where(total > 0, total, 1.0)
    squares = sum_by(label, times * np.square(values - mean[label]), labels)
    std = np.sqrt(squares / np.maximum(total - ddof, 1.0))
    largest = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1.0)
    with np.errstate(invalid="ignore"):  # labels that no value has
        differs = high - low > NO_SPREAD * largest
    return Comparison(mean[label], std[label], np.bincount(label, minlength=labels)[label], differs[label])


def sum_by(label: IntArray, values: NDArray[Any], count: int) -> FloatArray:
    """Sum of the values [n] that have each label, for labels 0 to ``count`` - 1 [count]."""
    return np.asarray(np.bincount(label, weights=values, minlength=count), dtype=np.float64)


def moments(values: FloatArray) -> tuple[float, float]:
    """Mean and variance (ddof 1) of ``values``; a variance of exactly 0 where they have no spread but rounding, or are
    fewer than two."""
    count = len(values)
    mean = float(values.sum()) / max(count, 1)
    high, low = float(values.max(initial=-np.inf)), float(-values.min(initial=np.inf))
    if count < 2 or high + low <= NO_SPREAD * max(1.0, high, low):
        return mean, 0.0
    return mean, float(np.square(values - mean).sum()) / (count - 1)
