"""``length`` and ``repetition``: penalties for answers that are too long or repeat themselves.

Both need no reference, give values from ``-penalty`` to 0, and pass when nothing is taken off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from roll_envs.errors import ConfigError
from roll_envs.tools.search_index import WORD
from roll_envs.verifiers.types import Score, Verdict

Penalty = Annotated[float, Field(gt=0, lt=math.inf)]
"""What is taken off at most."""
_MAX_CHARS = 1_000_000
_WORD = re.compile(rf"{WORD.pattern}|\S")


@dataclass(kw_only=True, eq=False)
class LengthPenalty:
    """0 up to ``limit`` (and from ``least`` on), then linearly down to ``-penalty`` at ``limit + slack``.

    The soft punishment of over-long answers of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13) with ``limit`` =
    L_max - L_cache and ``slack`` = L_cache. ``unit``: ``words`` (by whitespace) or ``chars``. Below ``least`` the
    whole penalty is due.
    """

    limit: PositiveInt
    slack: NonNegativeInt = 0
    least: NonNegativeInt = 0
    penalty: Penalty = 1.0
    unit: Literal["words", "chars"] = "words"

    def __post_init__(self) -> None:
        if self.least > self.limit:
            raise ConfigError(f"least must be at most limit ({self.limit}), not {self.least}")

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        length = len(answer.split()) if self.unit == "words" else len(answer)
        over = max(length - self.limit, 0)
        # With slack 0 the whole penalty is due at once.
        share = 1.0 if length < self.least else min(over / max(self.slack, 1), 1.0)
        detail = f"{length} {self.unit}" if share else ""
        return Score(
            value=0.0 - self.penalty * share, passed=share == 0, detail=detail, parts={self.unit: float(length)}
        )


class RepetitionPenalty:
    """``-penalty`` times the share of repeated ``n``-grams of words above ``allowed``, scaled to reach ``-penalty``
    when all are repeats.

    The share is 1 - distinct / all, the measure of repetition of Welleck et al. 2019 (arXiv:1908.04319, seq-rep-n); an
    answer with fewer than two n-grams repeats nothing. Signs count as words, since endless punctuation is a repetition
    too, and so do characters of Chinese and Japanese.
    """

    def __init__(
        self, *, n: PositiveInt = 3, allowed: Annotated[float, Field(ge=0, lt=1)] = 0.0, penalty: Penalty = 1.0
    ) -> None:
        self.n, self.allowed, self.penalty = n, allowed, penalty

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        words = _WORD.findall(answer[:_MAX_CHARS].casefold())
        # Hashes instead of n-grams save memory: large n on a long text would copy each word n times.
        runs = [hash(tuple(words[i : i + self.n])) for i in range(len(words) - self.n + 1)]
        share = 1.0 - len(set(runs)) / len(runs) if runs else 0.0
        over = max(0.0, share - self.allowed) / (1.0 - self.allowed)
        detail = f"{share:.0%} of the runs of {self.n} words are repeats" if over else ""
        return Score(value=0.0 - self.penalty * over, passed=over == 0, detail=detail, parts={"repeated": share})
