"""``exact``, ``normalized``, ``em`` and ``f1``: compare the answer with the texts of the reference.

``em`` and ``f1`` are those of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), with several references.
"""

from __future__ import annotations

import abc
import contextlib
import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from roll_envs.verifiers.extract import after_thinking, short_answer, tail
from roll_envs.verifiers.types import Failed, Score, Verdict

_PUNCTUATION = string.punctuation + "“”‘’«»…。、，！？；：·¿¡–—"
# A hyphen at the edge may be a minus sign.
_EDGES = _PUNCTUATION.replace("-", "") + " "
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)
_MARKS = str.maketrans(dict.fromkeys(_PUNCTUATION, " "))


LISTED: Mapping[str, float] = {"math": 1, "em": math.inf, "f1": math.inf}
"""By the name of a verifier, how many texts its reference may hold as a JSON list in a text; of others, none."""


def texts_of(reference: Any, *, listed: float = 0) -> tuple[str, ...] | str:
    """The references as texts, or the reason (a ``str``) why they cannot be used.

    A text that is a JSON list of at most ``listed`` texts is what it holds, as in the columns of Skywork-OR1 and PopQA.
    """
    if listed and isinstance(reference, str) and re.match(r'\s*\[\s*"', reference):
        with contextlib.suppress(ValueError, RecursionError):
            items = texts_of(json.loads(reference))
            if not isinstance(items, str) and len(items) <= listed:
                return items
    if isinstance(reference, str | int | float) and not isinstance(reference, bool):
        return (str(reference),)
    if isinstance(reference, Iterable) and not isinstance(reference, bytes | dict):
        found: list[str] = []
        for item in reference:
            inner = texts_of(item)
            if isinstance(inner, str):
                return inner
            found += inner
        if found:
            return tuple(found)
    return f"the reference must be a text, a number or a list of them, not {repr(reference)[:100]}"


class _TextVerifier(abc.ABC):
    """Base of the verifiers here: compares the answer with the texts of the reference."""

    listed: float = 0
    """How many texts the reference may hold as a JSON list in a text, as in :data:`LISTED`."""

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference, listed=self.listed)
        return Failed(reason=wanted) if isinstance(wanted, str) else self._compare(answer, wanted)

    @abc.abstractmethod
    def _compare(self, answer: str, wanted: tuple[str, ...]) -> Score:
        """The score of an answer with one or more references."""


def _equal_to_one(said: str, wanted: set[str]) -> Score:
    same = said in wanted
    return Score(value=float(same), passed=same, detail="" if same else f"read {said[:200]!r}")


class ExactVerifier(_TextVerifier):
    """1.0 when the answer is a reference, letter for letter; whitespace around it counts only with ``strip=False``."""

    def __init__(self, *, strip: bool = True) -> None:
        self.strip = strip

    def _compare(self, answer: str, wanted: tuple[str, ...]) -> Score:
        same = answer.strip() in {w.strip() for w in wanted} if self.strip else answer in wanted
        return Score(value=float(same), passed=same)


@dataclass(kw_only=True, eq=False)
class NormalizedVerifier(_TextVerifier):
    """1.0 when answer and a reference are the same text after :func:`normalize`.

    Thoughts before ``</think>`` are not part of the answer.
    """

    ignore_case: bool = True
    ignore_punctuation: bool = False
    ignore_articles: bool = False

    def _compare(self, answer: str, wanted: tuple[str, ...]) -> Score:
        said, *references = (normalize(text, **asdict(self)) for text in (after_thinking(tail(answer)), *wanted))
        return _equal_to_one(said, set(references))


def normalize(
    text: str, *, ignore_case: bool = True, ignore_punctuation: bool = False, ignore_articles: bool = False
) -> str:
    """NFKC, one space for any whitespace, no punctuation around it; on request without any punctuation, without
    capitals, without ``a``, ``an`` and ``the``. ``normalize(" “Paris”. ")`` is ``"paris"``.

    A text of nothing but punctuation keeps it, so that ``+`` and ``-`` stay apart.
    """
    text = unicodedata.normalize("NFKC", text)
    if ignore_case:
        # Folding can leave text that is not in the normal form.
        text = unicodedata.normalize("NFKC", text.casefold())
    text = " ".join(text.split())
    bare = text.translate(_MARKS) if ignore_punctuation else text.strip(_EDGES)
    if ignore_articles:
        bare = _ARTICLES.sub(" ", bare)
    return " ".join(bare.split()) or text


# string.punctuation, as in SQuAD's own script.
_SQUAD_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_SQUAD_ARTICLES = frozenset({"a", "an", "the"})


def squad_normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces: ``"The U.S.A."`` is ``"usa"``."""
    bare = "".join(letter for letter in text.lower() if letter not in _SQUAD_PUNCTUATION)
    return " ".join(word for word in bare.split() if word not in _SQUAD_ARTICLES)


def squad_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the words, as bags; two texts without words are the same."""
    said, wanted = squad_normalize(answer).split(), squad_normalize(reference).split()
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted))


class ExactMatchVerifier(_TextVerifier):
    """1.0 when the answer is a reference after :func:`squad_normalize`."""

    listed = LISTED["em"]

    def _compare(self, answer: str, wanted: tuple[str, ...]) -> Score:
        return _equal_to_one(squad_normalize(short_answer(answer)), set(map(squad_normalize, wanted)))


class F1Verifier(_TextVerifier):
    """The best :func:`squad_f1` over the references; passed from ``threshold`` on."""

    listed = LISTED["f1"]

    def __init__(self, *, threshold: Annotated[float, Field(gt=0, le=1)] = 1.0) -> None:
        self.threshold = threshold

    def _compare(self, answer: str, wanted: tuple[str, ...]) -> Score:
        said = short_answer(answer)
        best = max(squad_f1(said, w) for w in wanted)
        same = float(squad_normalize(said) in {squad_normalize(w) for w in wanted})
        return Score(value=best, passed=best >= self.threshold, parts={"f1": best, "em": same})
