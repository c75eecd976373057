"""A verifier: does an answer name the words that it should?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs import Score


class Keywords:
    """The share of ``words`` that an answer has in it; passed when it has them all."""

    def __init__(self, words: Sequence[str], ignore_case: bool = True) -> None:
        self._words, self._ignore_case = [self._form(w, ignore_case) for w in words], ignore_case

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Score:
        text = self._form(answer, self._ignore_case)
        found = sum(word in text for word in self._words)
        return Score(value=found / max(len(self._words), 1), passed=found == len(self._words))

    @staticmethod
    def _form(text: str, ignore_case: bool) -> str:
        return text.lower() if ignore_case else text
