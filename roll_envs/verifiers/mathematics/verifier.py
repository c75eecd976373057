"""``math``: final answers of mathematics. Equal texts and plain numbers are decided here, the rest in worker processes.

An answer that cannot be graded within the deadline, or that kills the worker, is not correct if the reference alone can
be graded: then the answer is at fault. A reference that cannot be graded, or missing workers, give :class:`Failed`.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from roll_envs.background import forget_in_children
from roll_envs.errors import MissingExtraError, check_number, check_whole
from roll_envs.recent import Recent
from roll_envs.verifiers.matching import LISTED, texts_of
from roll_envs.verifiers.mathematics.final import final_expression, for_reference, reference_expression, says_words
from roll_envs.verifiers.mathematics.plain_numbers import plain_number, plain_root
from roll_envs.verifiers.mathematics.sizes import hopeless, looks_costly, shape_of
from roll_envs.verifiers.mathematics.tidy import tidy
from roll_envs.verifiers.types import Failed, Score, Verdict
from roll_envs.verifiers.workers import Outcome, PoolSettings, WorkerPool, shared_pool

_MODULE = "roll_envs.verifiers.mathematics.grading"
# "3,5", as decimals are written in many languages; three digits would be a group.
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d{1,2}(?![\d,]))|(?<=\b0),(?=\d+$)")
# "1.1444...", the digits of 1.1444 and more, unless all are equal, as in 0.333...
_CUT = re.compile(r"\s*(-?\d+\.(?!(\d)\2*\D)\d+)\s*(?:\\[lc]?dots|\.\.\.|…)\s*$")
_REMEMBERED = 20_000


@dataclass(kw_only=True, eq=False)
class MathVerifier:
    r"""1.0 when the final answer equals the reference (a text, a number, or a list of which any will do).

    The answer is looked for in ``\boxed{}`` (only there with ``require_boxed``), after "the answer is", and last in the
    text. Answers and references beyond ``max_chars`` are not read. ``deadline_s`` bounds the processor
    time of one comparison; ``workers`` and ``memory_mb`` are shared by all verifiers of this process with the same
    values. Verdicts are remembered. Raises :class:`MissingExtraError` without math-verify.
    """

    require_boxed: bool = False
    deadline_s: float = 3.0
    max_chars: int = 2000
    workers: int = 2
    uses: int = 1000
    memory_mb: int = 2048

    def __post_init__(self) -> None:
        check_number("deadline_s", self.deadline_s, lambda s: 0 < s <= 3600, "above 0 and at most 3600")
        check_whole("max_chars", self.max_chars)
        self._settings = PoolSettings(module=_MODULE, workers=self.workers, uses=self.uses, memory_mb=self.memory_mb)
        if any(importlib.util.find_spec(name) is None for name in ("math_verify", "latex2sympy2_extended")):
            raise MissingExtraError("verifier 'math'", "verifiers")
        self.forget()

    def forget(self) -> None:
        """Begin without verdicts: in a child, threads that are not there may hold the lock, or find a verdict."""
        self._lock = threading.Lock()
        self._checked: Recent[str, str] = Recent(_REMEMBERED)
        self._graded: Recent[tuple[str, str], Future[Verdict]] = Recent(_REMEMBERED)
        """Verdicts, and those that are being found, by reference and answer."""
        forget_in_children(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from the settings: locks and what waits for a verdict cannot be pickled."""
        return functools.partial(type(self), **asdict(self)), ()

    @property
    def pool(self) -> WorkerPool:
        """The worker processes that grade."""
        return shared_pool(self._settings)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference, listed=LISTED["math"])
        if isinstance(wanted, str):
            return Failed(reason=wanted)
        found = final_expression(answer, require_boxed=self.require_boxed)
        readable = found if len(found) <= self.max_chars else ""
        failure, ungraded = None, ""
        for text in itertools.chain.from_iterable(map(_accepted, wanted)):
            verdict = self._one(for_reference(readable, text), text)
            if isinstance(verdict, Failed):
                failure = failure or verdict
            elif verdict.passed or (not self.require_boxed and says_words(answer, text)):
                return Score(value=1.0, passed=True)
            elif verdict.parts.get("ungraded"):
                ungraded = verdict.detail
        if failure is not None:
            return failure
        if not found:
            return _wrong("no boxed answer" if self.require_boxed else "no answer")
        if not readable:
            return _wrong(f"the answer has {len(found)} characters; at most {self.max_chars} are read", ungraded=True)
        shown = found if len(found) <= 200 else found[:200] + "..."
        return _wrong(f"read {shown!r}{': ' + ungraded if ungraded else ''}", ungraded=bool(ungraded))

    def _one(self, said: str, reference: str) -> Verdict:
        gold = tidy(reference_expression(reference))
        cut = _CUT.match(said)
        said = gold if cut and cut[1] == gold else tidy(said)
        if not gold or len(gold) > self.max_chars:
            return Failed(reason=_about(reference, "it is empty" if not gold else f"it has {len(gold)} characters"))
        if said.count(",") == 1 and "(" not in said and (plain_number(gold) is not None or re.search(r"\d\.\d", gold)):
            said = _DECIMAL_COMMA.sub(".", said)
        elif re.fullmatch(r"-?\d+,\d+", gold) and re.search(r"\d\.\d", said):
            gold = _DECIMAL_COMMA.sub(".", gold)
        if said == gold:
            return Score(value=1.0, passed=True)
        if not said:
            return _wrong("no answer")
        for exact in (plain_number, plain_root):
            one, other = exact(gold), exact(said)
            # With a comma, one of two different texts may be a list: the workers decide.
            if None not in (one, other) and (one == other or "," not in gold + said):
                return Score(value=1.0, passed=True) if one == other else _wrong("another number")
        return self._remembered(gold, said)

    def _remembered(self, gold: str, said: str) -> Verdict:
        """The verdict on two tidied texts, found once, also for those who ask at the same time."""
        key = gold, said
        with self._lock:
            known = self._graded.get(key)
            if known is None:
                mine: Future[Verdict] = Future()
                self._graded.keep(key, mine)
        if known is not None:
            return known.result()  # whoever works on it has deadlines of its own
        try:
            verdict, lasting = self._grade(gold, said)
        except BaseException as error:
            self._graded.drop(key)
            mine.set_exception(error if isinstance(error, Exception) else RuntimeError("grading was interrupted"))
            raise
        if not lasting:
            self._graded.drop(key)
        mine.set_result(verdict)
        return verdict

    def _grade(self, gold: str, said: str) -> tuple[Verdict, bool]:
        """The verdict of the workers, and whether it would be the same another time."""
        why = self._known(gold)
        if hopeless(said) and not hopeless(gold):
            # The reference may be at fault all the same.
            why = self._check(gold)
            if not why:
                return _wrong("it is too large to be written out", ungraded=True), True
        if why:
            return self._unfit(gold, why)
        outcome = self._call("grade" if why is None else "compare", [gold, said])
        if outcome.status == "unavailable":
            return Failed(reason=outcome.detail), False
        if outcome.status == "ok":
            why = outcome.value if isinstance(outcome.value, str) else ""
            self._checked.keep(gold, why)
            if not why:
                return Score(value=float(outcome.value), passed=bool(outcome.value)), True
        else:
            # The answer is at fault, unless the reference alone cannot be graded either.
            why = self._check(gold)
        if why:
            return self._unfit(gold, why)
        return _wrong(outcome.detail, ungraded=True), not outcome.hurried

    def _unfit(self, gold: str, why: str) -> tuple[Verdict, bool]:
        return Failed(reason=_about(gold, why)), bool(self._known(gold))

    def _call(self, task: str, texts: list[str]) -> Outcome:
        shape = "|".join(map(shape_of, texts))
        costly = any(map(looks_costly, texts))
        return self.pool.call(task, texts, deadline_s=self.deadline_s, shape=shape, costly=costly)

    def _known(self, gold: str) -> str | None:
        """Why a reference cannot be graded, empty where it can; ``None`` when that has not been seen yet."""
        return "" if plain_number(gold) is not None else self._checked.get(gold)

    def _check(self, gold: str) -> str:
        """Why a reference cannot be graded, empty where it can; asked once for each reference."""
        known = self._known(gold)
        if known is not None:
            return known
        outcome = self._call("check", [gold])
        why = str(outcome.value) if outcome.status == "ok" else outcome.detail
        # A missing worker says nothing of the reference.
        if outcome.status != "unavailable" and not outcome.hurried:
            self._checked.keep(gold, why)
        return why


@functools.lru_cache(maxsize=4096)
def _accepted(reference: str) -> tuple[str, ...]:
    r"""A reference; of ``\textbf{(C)}\ 72`` its value and its letter, of ``\frac{1}{3} \approx 0.333`` both sides."""
    text = reference_expression(reference)
    value = for_reference(text, "")
    if value == text:
        return (reference,)
    return value, for_reference(text, "0.5") if "≈" in tidy(text) else text.removesuffix(value).rstrip("\\~: ")


def _about(reference: str, why: str) -> str:
    return f"the reference {reference[:200]!r} cannot be graded: {why}"


def _wrong(detail: str, *, ungraded: bool = False) -> Score:
    return Score(value=0.0, passed=False, detail=detail, parts={"ungraded": 1.0} if ungraded else {})
