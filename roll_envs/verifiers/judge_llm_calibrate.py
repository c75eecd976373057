"""Measures how far a judge can be trusted: compares its verdicts with labels that people gave.

    calibrate(judge, read_labelled(samples.path("judge"))).table()

Works for any verifier. A judge of ``pairwise`` is labelled with ``better``, ``tie`` and ``worse``, others with
``right`` and ``wrong``.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.verifiers.judging import judge as ask
from roll_envs.verifiers.types import Failed, Score, Verifier

SINGLE, PAIRS = ("right", "wrong"), ("better", "tie", "worse")


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """An answer with a label given by people."""

    answer: str
    label: str
    reference: Any = None
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.label not in SINGLE + PAIRS:
            raise ConfigError(f"a label is one of {', '.join(SINGLE + PAIRS)}, not {self.label!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """How the verdicts agree with the labels. Failed ones are counted and in no other number."""

    count: int
    failed: int
    accuracy: float
    kappa: float
    """Cohen's: agreement beyond chance, 1 for full, 0 for none."""
    confusion: Mapping[str, Mapping[str, int]]
    """Label -> verdict -> how many."""
    threshold: float | None
    """The least ``probability`` (``value`` for a rubric) to pass that would give the highest kappa; ``None`` for pairs
    and for judges that give no such number."""
    threshold_kappa: float | None
    position_bias: float | None
    """For pairs, how much more often than half the answer that stood first won, -0.5 to 0.5."""
    flipped: float | None
    """For pairs, the share whose winner changed with the order."""
    reasons: tuple[str, ...] = ()
    """Why verdicts failed, each once."""

    def table(self) -> str:
        """The numbers for people."""
        columns = list(next(iter(self.confusion.values()), {}))
        lines = ["label \\ verdict  " + "  ".join(f"{name:>7}" for name in columns)]
        lines += [
            f"{label:<15}  " + "  ".join(f"{row[c]:>7}" for c in columns) for label, row in self.confusion.items()
        ]
        lines.append(f"{self.count} answers, {self.failed} without a verdict")
        lines.append(f"accuracy {self.accuracy:.3f}, kappa {self.kappa:.3f}")
        if self.threshold is not None:
            lines.append(f"best threshold {self.threshold:.3g}: kappa {self.threshold_kappa:.3f}")
        if self.position_bias is not None:
            lines.append(f"position bias {self.position_bias:+.3f}, flipped by the order {self.flipped:.1%}")
        return "\n".join([*lines, *(f"failed: {reason}" for reason in self.reasons)])


def read_labelled(path: str | os.PathLike[str]) -> list[Labelled]:
    """Rows of JSON with ``answer`` and ``label``, and where needed ``reference``; all of a row becomes the context."""
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append(Labelled(answer=row["answer"], label=row["label"], reference=row.get("reference"), context=row))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: a row needs 'answer' and 'label': {error!r}") from None
    return rows


def calibrate(judge: Verifier, labelled: Iterable[Labelled], *, workers: int = 16) -> Calibration:
    """Ask the judge about every row, ``workers`` at one time, and compare.

    Raises :class:`ConfigError` for no rows, or labels of both sorts.
    """
    rows = list(labelled)
    labels = PAIRS if rows and rows[0].label in PAIRS else SINGLE
    for row in rows:
        if row.label not in labels:
            raise ConfigError(f"labels are all of {', '.join(labels)}, or none is; there is {row.label!r}")
    if not rows:
        raise ConfigError("there is no labelled row to compare with")
    with ThreadPoolExecutor(max_workers=workers) as pool:
        verdicts = list(pool.map(lambda row: ask(judge, row.answer, row.reference, row.context), rows))
    scored = [(row.label, v) for row, v in zip(rows, verdicts, strict=True) if isinstance(v, Score)]
    reasons = tuple(dict.fromkeys(v.reason for v in verdicts if isinstance(v, Failed)))
    # Failed verdicts are in `reasons` and in no number from here on.
    pairs = [(label, _said(score, labels)) for label, score in scored]
    threshold, best = (None, None) if labels is PAIRS else _threshold(scored)
    orders = [s for _, s in scored if "first_wins" in s.parts] if labels is PAIRS else []
    return Calibration(
        count=len(rows),
        failed=len(rows) - len(scored),
        accuracy=sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0,
        kappa=kappa(pairs),
        confusion={a: {b: sum(pair == (a, b) for pair in pairs) for b in labels} for a in labels},
        threshold=threshold,
        threshold_kappa=best,
        position_bias=sum(s.parts["first_wins"] for s in orders) / len(orders) - 0.5 if orders else None,
        flipped=sum(1 - s.parts["consistent"] for s in orders) / len(orders) if orders else None,
        reasons=reasons,
    )


def kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Cohen's kappa of label and verdict (Cohen 1960): ``(agreed - by chance) / (1 - by chance)``; 0 where chance
    alone explains all, and without pairs."""
    if not pairs:
        return 0.0
    count = len(pairs)
    agreed = sum(a == b for a, b in pairs) / count
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[name] * second[name] for name in first) / count**2
    return (agreed - chance) / (1 - chance) if chance < 1 else 0.0


def _said(score: Score, labels: Sequence[str]) -> str:
    if labels is SINGLE:
        return "right" if score.passed else "wrong"
    return "better" if score.value > 0.5 else "worse" if score.value < 0.5 else "tie"


def _threshold(scored: Sequence[tuple[str, Score]]) -> tuple[float | None, float | None]:
    """The middle between two neighbouring numbers (or one of the ends) that gives the highest kappa; of several, the
    lowest."""
    numbers = [(score.parts.get("probability", score.value), label) for label, score in scored]
    known = sorted({number for number, _ in numbers})
    if len(known) < 2:
        return None, None
    cuts = [(low + high) / 2 for low, high in itertools.pairwise(known)]
    found = [(kappa([(label, "right" if n >= cut else "wrong") for n, label in numbers]), cut) for cut in cuts]
    best = max(value for value, _ in found)
    return next(cut for value, cut in found if value == best), best
