"""Calls verifiers, also of other packages: any exception or invalid result becomes ``Failed``, never a score."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roll_envs.verifiers.types import Failed, Score, Verdict, Verifier

if TYPE_CHECKING:
    from concurrent.futures import Executor

_MOST_AT_ONCE = 1024
"""Answers that :func:`ajudge` judges at one time."""


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
