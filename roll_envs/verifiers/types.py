"""The contract of verifiers: answer, reference and context in, a score or a failure of the verifier out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What an answer is worth."""

    value: float
    """Usually 0 to 1; a penalty may be negative. Finite (:class:`ValueError` otherwise)."""
    passed: bool
    detail: str = ""
    """Why, for people, in one or a few lines."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers for metrics. Finite."""

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), *self.parts.items()):
            if not math.isfinite(number):
                raise ValueError(f"a score must be finite, but {name!r} is {number!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """No verdict: the verifier itself failed (a dead worker, a time limit of the infrastructure, an unusable
    reference).

    It must never become a reward: the episode is marked failed and left out of every statistic.
    """

    reason: str


Verdict = Score | Failed


class Verifier(Protocol):
    """Judges answers. Safe to call from many threads; never raises for what an answer says."""

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        """Judge ``answer``. ``reference`` is what the verifier compares with (an answer, tests, a schema); ``context``
        may carry the prompt and whatever else the row of the data set holds; ``row`` is all of it as it is there."""
