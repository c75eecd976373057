"""Verifiers made of verifiers: weighted sum, all, any, and a gate before the rest.

Parts have names; the numbers of part ``answer`` are ``answer`` and, below it, ``answer/...`` in ``Score.parts``. A part
is a verifier, a name, or ``{"name": ..., **arguments}``. Where the reference of a row is a mapping, a part given as a
mapping with ``reference_key`` gets that item of it.

A part that could not judge makes the whole :class:`Failed` wherever its verdict was needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

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


class _Composite:
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

    def _ask(
        self, answer: str, reference: Any, context: Mapping[str, Any] | None, ends: Callable[[Verdict], bool]
    ) -> tuple[dict[str, Score], dict[str, str]]:
        """Judge the parts in order, up to one whose verdict ``ends`` it; scores by name, and reasons of failures."""
        scores, reasons = {}, {}
        for name, part in self.parts.items():
            verdict = judge(part, answer, reference, context)
            if isinstance(verdict, Failed):
                reasons[name] = verdict.reason
            else:
                scores[name] = verdict
            if ends(verdict):
                break
        return scores, reasons


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

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        scores, reasons = self._ask(answer, reference, context, lambda verdict: False)
        needed = {name: why for name, why in reasons.items() if self.weights[name] != 0 or name in self.required}
        if needed:
            return _failed(needed)
        value = sum(self.weights[name] * score.value for name, score in scores.items())
        return _score(value, all(scores[name].passed for name in self.required), scores, reasons)


class AllOf(_Composite):
    """``value``: the lowest of the parts; ``passed``: all passed. Every part is needed."""

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        scores, reasons = self._ask(answer, reference, context, lambda verdict: False)
        if reasons:
            return _failed(reasons)
        return _score(min(s.value for s in scores.values()), all(s.passed for s in scores.values()), scores)


class AnyOf(_Composite):
    """``value``: the highest of the parts; ``passed``: some part passed.

    Parts are judged in order until one passes with at least ``enough``; later ones are skipped. A failed part does not
    matter once another has reached ``enough``, since it could not change the verdict; otherwise the whole is
    :class:`Failed`, since the failed part might have passed.
    """

    def __init__(self, *, parts: Mapping[str, PartSpec], enough: FiniteFloat = 1.0) -> None:
        super().__init__(parts=parts)
        self.enough = enough

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        scores, reasons = self._ask(answer, reference, context, self._settles)
        # Where no part has reached `enough`, one that failed might have changed the verdict.
        if reasons and not any(map(self._settles, scores.values())):
            return _failed(reasons)
        return _score(max(s.value for s in scores.values()), any(s.passed for s in scores.values()), scores, reasons)

    def _settles(self, verdict: Verdict) -> bool:
        return _passed(verdict) and verdict.value >= self.enough


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

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        scores, reasons = self._ask(answer, reference, context, lambda verdict: not _passed(verdict))
        if reasons:
            return _failed(reasons)
        last = scores.get(_THEN)
        return _score(self.closed, False, scores) if last is None else _score(last.value, last.passed, scores)


_THEN = "answer"


def _passed(verdict: Verdict) -> TypeGuard[Score]:
    return isinstance(verdict, Score) and verdict.passed


def _failed(reasons: Mapping[str, str]) -> Failed:
    return Failed(reason="; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _score(
    value: float, passed: bool, scores: Mapping[str, Score], reasons: Mapping[str, str] | None = None
) -> Verdict:
    parts: dict[str, float] = {}
    for name, score in scores.items():
        parts[name] = float(score.value)
        parts |= {f"{name}/{key}": number for key, number in score.parts.items()}
    lines = [f"{name}: {score.detail}" for name, score in scores.items() if score.detail]
    lines += [f"{name}: no verdict ({reason})" for name, reason in (reasons or {}).items()]
    if not math.isfinite(value):
        return Failed(reason=f"the parts add up to {value!r}: {parts!r}")
    return Score(value=float(value), passed=passed, detail="\n".join(lines), parts=parts)
