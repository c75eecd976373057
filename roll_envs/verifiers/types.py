"""The contract of verifiers: answer, reference and context in, a score or a failure of the verifier out.

:func:`judge` calls one, also of another package: any exception or invalid result becomes ``Failed``, never a score.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Executor

_MOST_AT_ONCE = 1024
"""Answers that :func:`ajudge` judges at one time."""


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
        may carry the prompt and whatever else the row of the data set holds."""


def judge(verifier: Verifier, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
    """The verdict of ``verifier``; an exception of it, or a verdict that no verifier may give, is :class:`Failed`."""
    try:
        verdict = verifier(answer, reference, context)
    except Exception as error:  # a verifier of another package may raise anything
        return Failed(reason=f"{name_of(verifier)} raised {type(error).__name__}: {error}")
    if isinstance(verdict, Failed):
        return verdict
    if not isinstance(verdict, Score):
        return Failed(reason=f"{name_of(verifier)} returned a {type(verdict).__name__}, not a Score or Failed")
    if not math.isfinite(verdict.value):  # a subclass, or a value that was put in by force
        return Failed(reason=f"{name_of(verifier)} returned the value {verdict.value!r}; it must be finite")
    return verdict


async def ajudge(
    verifier: Verifier, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None
) -> Verdict:
    """:func:`judge` in a thread, for asynchronous callers.

    The threads are its own, and many: whose turn it is at the workers of a verifier is decided by their queue, which
    must see all that wait, and not by a few threads shared with other work.
    """
    import asyncio  # imported here because it would double the import time of roll_envs

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), judge, verifier, answer, reference, context)


@functools.cache
def _threads() -> Executor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="judge")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # the parent's threads are not there


def close_verifier(verifier: Verifier) -> None:
    """Call ``verifier.close()`` where it has one: a verifier may hold a sandbox or worker processes."""
    close = getattr(verifier, "close", None)
    if callable(close):
        close()


def name_of(verifier: Verifier) -> str:
    """How messages name a verifier."""
    return f"verifier {getattr(verifier, '__name__', type(verifier).__name__)}"
