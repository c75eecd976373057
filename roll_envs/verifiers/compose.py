"""Verifiers made of verifiers: weighted sum, all, any, and a gate before the rest.

Parts have names; the numbers of part ``answer`` are ``answer`` and, below it, ``answer/...`` in ``Score.parts``. A part
is a verifier, a name, or ``{"name": ..., **arguments}``. Where the reference of a row is a mapping, a part given as a
mapping with ``reference_key`` gets that item of it.

A part that could not judge makes the whole :class:`Failed` wherever its verdict was needed.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import FiniteFloat

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.verifiers.judging import close_verifier, judge
from roll_envs.verifiers.registry import as_verifier
from roll_envs.verifiers.types import Failed, Score, Verdict, Verifier

PartSpec = str | Mapping[str, Any] | Verifier


class Keyed:
    """A verifier that is given one item of a mapping as its reference."""

    def __init__(self, verifier: Verifier, key: str) -> None:
        self.verifier, self.key = verifier, key

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        if not isinstance(reference, Mapping) or self.key not in reference:
            return Failed(reason=f"the reference has no item {self.key!r}: {str(reference)[:100]!r}")
        return self.verifier(answer, reference[self.key], context)

    def close(self) -> None:
        close_verifier(self.verifier)


class _Composite(abc.ABC):
    """Base of the composed verifiers: named parts, judged in order."""

    def __init__(self, *, parts: Mapping[str, PartSpec]) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise ConfigError(f"parts must name at least one verifier, such as {{'answer': 'math'}}, not {parts!r}")
        for name in parts:
            # The slash joins the names of nested parts in Score.parts.
            if not isinstance(name, str) or not name or "/" in name:
                raise ConfigError(f"the name of a part is a text without '/', not {name!r}")
        self.parts = {name: _make_part(spec) for name, spec in parts.items()}

    def close(self) -> None:
        """Close every part that can be closed."""
        for part in self.parts.values():
            close_verifier(part)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        scores: dict[str, Score] = {}
        reasons: dict[str, str] = {}
        for name, part in self.parts.items():
            verdict = judge(part, answer, reference, context)
            if isinstance(verdict, Failed):
                reasons[name] = verdict.reason
            else:
                scores[name] = verdict
            if self._ends(verdict):
                break
        needed = [f"{name}: {reason}" for name, reason in reasons.items() if self._needs(name, scores)]
        if needed:
            return Failed(reason="; ".join(needed))
        value, passed = self._sum(scores)
        parts: dict[str, float] = {}
        for name, score in scores.items():
            parts[name] = float(score.value)
            parts |= {f"{name}/{key}": number for key, number in score.parts.items()}
        if not math.isfinite(value):
            return Failed(reason=f"the parts add up to {value!r}: {parts!r}")
        lines = [f"{name}: {score.detail}" for name, score in scores.items() if score.detail]
        lines += [f"{name}: no verdict ({reason})" for name, reason in reasons.items()]
        return Score(value=float(value), passed=passed, detail="\n".join(lines), parts=parts)

    def _ends(self, verdict: Verdict) -> bool:
        """Whether no part is judged after one with this verdict."""
        return False

    def _needs(self, name: str, scores: Mapping[str, Score]) -> bool:
        """Whether a part that could not judge leaves the whole without a verdict."""
        return True

    @abc.abstractmethod
    def _sum(self, scores: Mapping[str, Score]) -> tuple[float, bool]:
        """Value of the whole, and whether it passed."""


def _make_part(spec: PartSpec) -> Verifier:
    if isinstance(spec, Mapping) and "reference_key" in spec:
        rest = {key: value for key, value in spec.items() if key != "reference_key"}
        return Keyed(as_verifier(rest), str(spec["reference_key"]))
    return as_verifier(spec)


class WeightedSum(_Composite):
    """``value``: the sum of weight times value; ``passed``: every part of ``required`` passed.

    ``weights`` are 1 for parts that are not named; a part of weight 0 that is not required is a metric only, and the
    only kind whose failure does not fail the whole. ``required``: by default every part with a weight above 0.
    """

    def __init__(
        self,
        *,
        parts: Mapping[str, PartSpec],
        weights: Mapping[str, FiniteFloat] | None = None,
        required: Sequence[str] | None = None,
    ) -> None:
        super().__init__(parts=parts)
        given = weights or {}
        for name in (*given, *(required or ())):
            if name not in self.parts:
                raise UnknownNameError("part", name, self.parts)
        self.weights = {name: float(given.get(name, 1.0)) for name in self.parts}
        self.required = [n for n, w in self.weights.items() if w > 0] if required is None else required

    def _needs(self, name: str, scores: Mapping[str, Score]) -> bool:
        return self.weights[name] != 0 or name in self.required

    def _sum(self, scores: Mapping[str, Score]) -> tuple[float, bool]:
        value = sum(self.weights[name] * score.value for name, score in scores.items())
        return value, all(scores[name].passed for name in self.required)


class AllOf(_Composite):
    """``value``: the lowest of the parts; ``passed``: all passed. Every part is needed."""

    def _sum(self, scores: Mapping[str, Score]) -> tuple[float, bool]:
        return min(score.value for score in scores.values()), all(score.passed for score in scores.values())


class AnyOf(_Composite):
    """``value``: the highest of the parts; ``passed``: some part passed.

    Parts are judged in order until one passes with at least ``enough``; later ones are skipped. A failed part does not
    matter once another has reached ``enough``, since it could not change the verdict; otherwise the whole is
    :class:`Failed`, since the failed part might have passed.
    """

    def __init__(self, *, parts: Mapping[str, PartSpec], enough: FiniteFloat = 1.0) -> None:
        super().__init__(parts=parts)
        self.enough = enough

    def _ends(self, verdict: Verdict) -> bool:
        return isinstance(verdict, Score) and verdict.passed and verdict.value >= self.enough

    def _needs(self, name: str, scores: Mapping[str, Score]) -> bool:
        # Where no part has reached `enough`, one that failed might have changed the verdict.
        return not any(map(self._ends, scores.values()))

    def _sum(self, scores: Mapping[str, Score]) -> tuple[float, bool]:
        return max(score.value for score in scores.values()), any(score.passed for score in scores.values())


class Gate(_Composite):
    """``then`` judges only answers that pass every gate of ``parts`` (in order); others get ``closed``, not passed.

    With all gates passed the verdict is that of ``then``, whose numbers are those of the part ``answer``. Behind a
    closed gate nothing is judged, so failures there do not matter.
    """

    def __init__(self, *, parts: Mapping[str, PartSpec], then: PartSpec, closed: FiniteFloat = 0.0) -> None:
        super().__init__(parts=parts)
        if _THEN in self.parts:
            raise ConfigError(f"{_THEN!r} is the name of `then`; choose another for that gate")
        self.parts[_THEN], self.closed = _make_part(then), closed

    def _ends(self, verdict: Verdict) -> bool:
        return isinstance(verdict, Failed) or not verdict.passed

    def _sum(self, scores: Mapping[str, Score]) -> tuple[float, bool]:
        last = scores.get(_THEN)
        return (self.closed, False) if last is None else (last.value, last.passed)


_THEN = "answer"
