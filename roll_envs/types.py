"""The types that cross folders: tasks, turns, trajectories and groups.

All are small, frozen and picklable. Token ids are Python ints, log-probabilities natural logarithms at the sampling
temperature. What belongs to one folder alone (training rows, batches) lives in that folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Metrics = dict[str, float]
"""Named numbers of one step; the only free-form mapping that travels between modules besides an env's ``info``."""

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "abort"]
OutcomeKind = Literal["completed", "truncated", "failed", "cancelled"]


class Message(NamedTuple):
    """One chat message."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How an engine samples. ``temperature=0`` is greedy. No truncation (top-p, top-k): it would bias the ratio."""

    temperature: float = 1.0
    max_new_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What to play. The four fields (env_id, split, index, seed) and ``kwargs`` fix the start to the byte."""

    env_id: str
    split: str
    index: int
    seed: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class VersionSpan(NamedTuple):
    """So many consecutive ids of a completion were sampled by one version of the weights."""

    version: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine returned: ids exactly as sampled (stop token included), one log-prob per id.

    Weights may be replaced while a completion is sampled: ``spans`` says which version sampled which ids. Five ids, two
    of them by version 3 and the rest by version 4: ``spans=((3, 2), (4, 3))``, ``weight_version=3``.

    Raises ValueError when there is not one log-prob for each id, spans do not add up to the ids, or the oldest of them
    is not ``weight_version``.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    weight_version: int
    """The oldest version that sampled any of the ids; for no ids, the version in use when the completion ended."""
    spans: tuple[VersionSpan, ...] = ()
    """Versions in the order of the ids; made of ``weight_version`` when left out, and empty where there are no ids."""

    def __post_init__(self) -> None:
        count = len(self.ids)
        if len(self.logprobs) != count:
            raise ValueError(f"a completion has {count} ids and {len(self.logprobs)} log-probs; each id needs one")
        if not self.spans:
            if count:
                object.__setattr__(self, "spans", (VersionSpan(self.weight_version, count),))
            return
        if min(tokens for _, tokens in self.spans) < 1 or sum(tokens for _, tokens in self.spans) != count:
            raise ValueError(f"spans {self.spans} of a completion with {count} ids; each needs a token, together all")
        if min(version for version, _ in self.spans) != self.weight_version:
            raise ValueError(f"weight_version {self.weight_version} is not the oldest version of spans {self.spans}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One exchange: the exact prompt ids sent, the exact completion, and what the environment made of it."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    prompt_observation: str
    """Observation the policy answered (the anchor state of step-wise credit assignment)."""
    text: str
    """Decoded completion, special tokens left out."""
    observation: str
    """Observation after the step."""
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    timings: Mapping[str, float]
    """Seconds: ``generate_s``, ``env_s``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an episode ended. ``reason`` says why for ``failed``, ``cancelled`` and ``truncated``."""

    kind: OutcomeKind
    reason: str = ""
    traceback: str = ""
    """Of the error that made it fail, or the stack of the thread that was stuck in a call; empty for neither."""
    answer: str | None = None
    """The answer that the environment was playing when the episode ended without its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One episode of a task, ended exactly once. ``member`` is its place in the group.

    One that failed or was cancelled has the turns it had until then, for people: only where :attr:`scored` is true may
    they enter statistics or the loss.
    """

    task: Task
    member: int
    turns: tuple[Turn, ...]
    outcome: Outcome
    attempts: int = 1
    """How many times the episode was started (more than 1 after infrastructure failures)."""
    failed_attempts: tuple[Trajectory, ...] = ()
    """The earlier starts of this episode, which failed."""

    @property
    def scored(self) -> bool:
        """Whether this episode may enter statistics and the loss: it ended by the environment's own rules."""
        return self.outcome.kind in ("completed", "truncated")

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the turn rewards."""
        return float(sum(t.reward for t in self.turns))

    @property
    def success(self) -> bool:
        """What the environment reported as ``info["success"]`` at the last turn; false where not :attr:`scored`."""
        return bool(self.scored and self.turns and self.turns[-1].info.get("success", False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Episodes of one task from the same start, for group-relative estimators."""

    task: Task
    trajectories: tuple[Trajectory, ...]
