"""``regex``: the answer matches a pattern, matched in a worker process, since backtracking may never end.

A match that does not finish within the deadline is :class:`Failed`, not a wrong answer: the pattern is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll_envs.errors import ConfigError, UnknownNameError, check_number, check_one_of
from roll_envs.verifiers.types import Failed, Score, Verdict
from roll_envs.verifiers.workers import TEXT_TASKS, WorkerPool, shared_pool

FLAGS = {"ignorecase": re.IGNORECASE, "multiline": re.MULTILINE, "dotall": re.DOTALL, "verbose": re.VERBOSE}
MODES = ("search", "fullmatch", "match")


@dataclass(kw_only=True, eq=False)
class RegexVerifier:
    """1.0 when the pattern is found in the answer.

    ``pattern``: Python's syntax; without one the reference of each row is the pattern. With ``compare`` the pattern's
    first group (the whole match without groups) must also be the reference, whitespace around it aside; ``last``
    looks at the last match instead of the first. Answers beyond ``max_chars`` do not match.
    """

    pattern: str | None = None
    mode: Literal["search", "fullmatch", "match"] = "search"
    flags: Collection[str] = ()
    compare: bool = False
    last: bool = False
    max_chars: int = 100_000
    deadline_s: float = 2.0
    pool: WorkerPool | None = None

    def __post_init__(self) -> None:
        check_one_of("mode", self.mode, MODES)
        flags = {self.flags} if isinstance(self.flags, str) else set(self.flags)
        for flag in flags:
            if flag not in FLAGS:
                raise UnknownNameError("flag of a pattern", str(flag), FLAGS)
        if self.compare and self.pattern is None:
            raise ConfigError("compare needs a pattern: the reference is then the text to find, not the pattern")
        if self.last and self.mode != "search":
            raise ConfigError(f"last looks through all matches, so it needs mode='search', not {self.mode!r}")
        check_number("deadline_s", self.deadline_s, lambda s: 0 < s <= 3600, "above 0 and at most 3600")
        self._flags = int(sum(FLAGS[flag] for flag in flags))
        if self.pattern is not None:
            try:
                # Only to report a mistake in it at once; matching is done by the workers.
                re.compile(self.pattern, self._flags)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigError(f"the pattern {self.pattern!r} cannot be used: {error}") from error

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        pattern = reference if self.pattern is None else self.pattern
        if not isinstance(pattern, str):
            return Failed(reason=f"the reference must be a pattern, not {str(pattern)[:100]!r}")
        if self.compare and not isinstance(reference, str | int | float):
            return Failed(
                reason=f"the reference must be a text to compare the match with, not {str(reference)[:100]!r}"
            )
        if len(answer) > self.max_chars:
            return Score(value=0.0, passed=False, detail=f"{len(answer)} characters; at most {self.max_chars} are read")
        arguments = [pattern, self._flags, "last" if self.last else self.mode, answer]
        outcome = (self.pool or shared_pool(TEXT_TASKS)).call("find", arguments, deadline_s=self.deadline_s)
        if outcome.status != "ok":
            return Failed(reason=f"the pattern {pattern[:200]!r} gave no result: {outcome.detail}")
        found = outcome.value
        right = found is not None and (not self.compare or found.strip() == str(reference).strip())
        detail = "" if right else "no match" if found is None else f"found {found[:200]!r}"
        return Score(value=float(right), passed=right, detail=detail)
