"""``em`` and ``f1``: question answering after SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), several references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.verifiers.extract import short_answer
from roll_envs.verifiers.references import texts_of
from roll_envs.verifiers.types import Failed, Score, Verdict

# string.punctuation, as in SQuAD's own script.
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_ARTICLES = frozenset({"a", "an", "the"})


def squad_normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces: ``"The U.S.A."`` is ``"usa"``."""
    bare = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return " ".join(word for word in bare.split() if word not in _ARTICLES)


def squad_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the words, as bags; two texts without words are the same."""
    said, wanted = squad_normalize(answer).split(), squad_normalize(reference).split()
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted))


class ExactMatchVerifier:
    """1.0 when the answer is a reference after :func:`squad_normalize`."""

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference)
        if isinstance(wanted, str):
            return Failed(reason=wanted)
        said = squad_normalize(short_answer(answer))
        same = said in {squad_normalize(w) for w in wanted}
        return Score(value=float(same), passed=same, detail="" if same else f"read {said[:200]!r}")


class F1Verifier:
    """The best :func:`squad_f1` over the references; passed from ``threshold`` on."""

    def __init__(self, *, threshold: float = 1.0) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
            raise ConfigError(f"threshold, the F1 that passes, must be above 0 and at most 1, not {threshold!r}")
        self.threshold = float(threshold)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference)
        if isinstance(wanted, str):
            return Failed(reason=wanted)
        said = short_answer(answer)
        best = max(squad_f1(said, w) for w in wanted)
        same = float(squad_normalize(said) in {squad_normalize(w) for w in wanted})
        return Score(value=best, passed=best >= self.threshold, parts={"f1": best, "em": same})
