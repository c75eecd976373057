"""``exact`` and ``normalized``: compare the answer with the references, exactly or after normalisation."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

from roll_envs.verifiers.extract import after_thinking, tail
from roll_envs.verifiers.references import texts_of
from roll_envs.verifiers.types import Failed, Score, Verdict

_PUNCTUATION = string.punctuation + "“”‘’«»…。、，！？；：·¿¡–—"
# A hyphen at the edge may be a minus sign.
_EDGES = _PUNCTUATION.replace("-", "") + " "
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)
_MARKS = str.maketrans(dict.fromkeys(_PUNCTUATION, " "))


class ExactVerifier:
    """1.0 when the answer is a reference, letter for letter; whitespace around it counts only with ``strip=False``."""

    def __init__(self, *, strip: bool = True) -> None:
        self.strip = strip

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference)
        if isinstance(wanted, str):
            return Failed(reason=wanted)
        same = answer.strip() in {w.strip() for w in wanted} if self.strip else answer in wanted
        return Score(value=float(same), passed=same)


class NormalizedVerifier:
    """1.0 when answer and a reference are the same text after :func:`normalize`.

    Thoughts before ``</think>`` are not part of the answer.
    """

    def __init__(
        self, *, ignore_case: bool = True, ignore_punctuation: bool = False, ignore_articles: bool = False
    ) -> None:
        self.options = {
            "ignore_case": ignore_case,
            "ignore_punctuation": ignore_punctuation,
            "ignore_articles": ignore_articles,
        }

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = texts_of(reference)
        if isinstance(wanted, str):
            return Failed(reason=wanted)
        said = normalize(after_thinking(tail(answer)), **self.options)
        same = said in {normalize(w, **self.options) for w in wanted}
        return Score(value=float(same), passed=same, detail="" if same else f"read {said[:200]!r}")


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
