"""Audit of a data set before training: each reference is judged as if it were the answer.

A reference that its own verifier does not pass would give every right answer 0.0. Verifiers whose references are no
answers (tests of code, schemas, patterns, rubrics) are not audited.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from roll_envs.datasets.env import DatasetEnv, DatasetSettings
from roll_envs.datasets.tasks import DataTask
from roll_envs.errors import ConfigError
from roll_envs.verifiers import Failed, Score
from roll_envs.verifiers.matching import LISTED, texts_of
from roll_envs.verifiers.mathematics.final import is_sentence, reference_expression

__all__ = ["AUDITED", "NEEDED_SHARE", "Audit", "Finding", "audit", "refuse_unreadable"]

AUDITED = ("math", "choice", "em", "f1", "exact", "normalized")
"""Verifiers whose references are answers."""
NEEDED_SHARE = 0.99
"""Of the references must be right by themselves, else no run starts."""
_MOST = 20_000
_THREADS = 4
_SHOWN = 10
_OTHER_ANSWER = "\\boxed{-98765.4321}"


class Finding(NamedTuple):
    """A reference that is not right by itself."""

    row: int
    reference: str
    why: str


class Audit(NamedTuple):
    """How many references were judged, those that are not right, and how many rows have a verifier not audited."""

    judged: int
    findings: tuple[Finding, ...]
    skipped: int

    @property
    def share(self) -> float:
        """Of the judged references, those that are right; 1.0 without any."""
        return 1.0 - len(self.findings) / self.judged if self.judged else 1.0

    def shown(self) -> str:
        """The first findings, one a line."""
        lines = [f"row {f.row}: {f.reference!r}: {f.why}" for f in self.findings[:_SHOWN]]
        more = len(self.findings) - len(lines)
        return "\n".join([*lines, f"and {more} more"] if more else lines)


def audit(env: DatasetEnv, *, most: int | None = None) -> Audit:
    """Judge each reference as its own answer; beyond ``most`` rows, so many that are spread evenly over the data."""
    numbers = [n for n, task in enumerate(env.tasks) if env.verifier_of(task) in AUDITED]
    count = len(numbers) if most is None else min(most, len(numbers))
    chosen = [numbers[i * len(numbers) // count] for i in range(count)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="audit") as pool:
        reasons = list(pool.map(lambda n: _unreadable(env, env.tasks[n]), chosen))
    findings = [
        Finding(n, str(env.tasks[n].reference)[:200], why) for n, why in zip(chosen, reasons, strict=True) if why
    ]
    return Audit(len(chosen), tuple(findings), len(env.tasks) - len(numbers))


def _unreadable(env: DatasetEnv, task: DataTask) -> str:
    """Why a reference is not right by itself; empty when it is. Of several that will do, each must be."""
    name, reference = env.verifier_of(task), task.reference
    if reference is None:
        return f"no reference; name its field in reference_field: the row has {', '.join(map(repr, task.row))}"
    if name == "choice":
        answers: tuple[str, ...] | str = (reference if isinstance(reference, str) else _letter(reference),)
    else:
        answers = texts_of(reference, listed=LISTED.get(name, 0))
    if isinstance(answers, str):
        return answers
    for said in answers:
        verdict = env.judge_task(task, said)
        if name == "math" and isinstance(verdict, Score) and not verdict.passed:
            # Several formulas with words between them are one answer in a box only.
            verdict = env.judge_task(task, f"\\boxed{{{reference_expression(said)}}}")
        if isinstance(verdict, Failed):
            return verdict.reason
        if not verdict.passed:
            return verdict.detail or "it is not right by itself"
        if name == "math":
            # Equal texts are right unread, so another answer shows whether the reference can be graded.
            other = env.judge_task(task, _OTHER_ANSWER)
            if isinstance(other, Failed):
                return other.reason
            if is_sentence(said):
                return "it is a sentence that announces no answer; write the answer alone, after #### or in \\boxed{}"
    return ""


def _letter(reference: Any) -> str:
    """The number of an option, or several, as letters."""
    if isinstance(reference, list | tuple | set | frozenset):
        return ", ".join(map(_letter, reference))
    whole = isinstance(reference, int) and not isinstance(reference, bool) and 0 <= reference < 26
    return chr(ord("A") + reference) if whole else str(reference)


def refuse_unreadable(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Audit the rows of ``roll/Dataset-v0``, alone or within ``roll/ToolEnv-v0`` (any other environment has none): at
    most 20,000, evenly spread.

    Raises :class:`ConfigError` with the rows when fewer than :data:`NEEDED_SHARE` of the references are right.
    """
    if env_id == "roll/ToolEnv-v0" and isinstance(kwargs.get("env"), str):
        env_id, kwargs = kwargs["env"], kwargs.get("env_kwargs") or {}
    if env_id != "roll/Dataset-v0":
        return
    env = DatasetEnv(DatasetSettings(**kwargs))
    try:
        found = audit(env, most=_MOST)
    finally:
        env.close()
    if found.share < NEEDED_SHARE:
        raise ConfigError(
            f"{len(found.findings)} of {found.judged} references of {env_id} with {str(dict(kwargs))[:200]} are not "
            f"right by their own verifier, and at least {NEEDED_SHARE:.0%} must be, else right answers get no reward; "
            f"mend these rows or choose another verifier or reference_field (roll-envs data check shows all):\n"
            f"{found.shown()}"
        )
