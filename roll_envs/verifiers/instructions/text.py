"""Sentences, words and lines as instructions count them, with no data to download. Time is linear in the text.

A sentence ends at ``.``, ``!``, ``?`` or the marks of other scripts, together with the quotes and brackets that close
after it, where whitespace follows (Chinese and Japanese marks need none). A full stop ends no sentence

* after an abbreviation (``Dr.``, ``e.g.``, ``U.S.``) or an initial, unless a word follows that begins sentences
  (``It was the U.S. They ...``), nor in a number or a name (``3.5``, ``example.com``),
* before a small letter; three dots and more likewise.

A new line alone ends nothing; what follows the last mark is a sentence when it has a letter or digit. The number of a
list (``1.``) is one too: all this is what Punkt, which IFEval uses, does on most English text.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
# Possessive quantifiers (++, *+) never backtrack, which keeps the time linear.
_END = re.compile(r"(?<![.!?…؟।۔])[.!?…؟।۔]++[\"'”’»)\]}*]*+(?=\s|$)|[。！？]+[”’」』）]*")
_BEFORE = re.compile(r"[\w.&-]*\Z")
_STARTERS = frozenset(
    "a an the he she it they we you i this that these those there here then but and however when while if in on at for "
    "as so after before his her its their our my your what who why how where no not yes all many most some".split()
)
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt cpt lt sgt gov sen rep pres fr mt ft vs etc e.g i.e eg ie cf al "
    "approx dept est fig figs no nos vol pp ed eds inc ltd co corp bros jan feb mar apr jun jul aug sep sept oct nov "
    "dec mon tue wed thu fri sat sun ph.d m.d b.a m.a b.sc m.sc a.m p.m u.s u.k u.n e.u d.c p.s p.p.s".split()
)
# Abbreviations that a sentence may end with.
_CAN_END = frozenset("etc inc ltd co corp bros jr sr al u.s u.k u.n e.u d.c ph.d m.d b.a m.a b.sc m.sc a.m p.m".split())
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_NEXT = re.compile(r"[\s\"'“‘«(\[*_#>-]*")
# Characters looked at before and after a mark; a fixed number keeps the time linear.
_REACH = 40


def words(text: str) -> list[str]:
    """Runs of letters, digits and ``_``: ``words("don't")`` is ``["don", "t"]``, as IFEval counts."""
    return _WORD.findall(text)


def count_words(text: str) -> int:
    """How many :func:`words` there are."""
    return sum(1 for _ in _WORD.finditer(text))


def count_sentences(text: str) -> int:
    """How many sentences there are."""
    return len(split_sentences(text))


def split_sentences(text: str) -> list[str]:
    """The sentences, without whitespace around them.

    ``split_sentences("Dr. Li met J. Doe at 5 p.m. on May 3. Fine!")`` has two.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        if _ends(text, start, match):
            found.append(text[start : match.end()].strip())
            start = match.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if _WORD.search(sentence)]


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    mark = match.group()
    if "." not in mark and "…" not in mark:
        return True
    after = _NEXT.match(text, match.end(), match.end() + _REACH)
    following = text[after.end() : after.end() + _REACH] if after else ""
    if following[:1].islower():
        return False
    if not mark.startswith(".") or mark.startswith(".."):
        return True
    before = _BEFORE.search(text[max(start, match.start() - _REACH) : match.start()])
    word = before.group().strip("-&") if before else ""
    low = word.lower()
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":
        return False  # an initial
    if low not in _ABBREVIATIONS and not _DOTTED.fullmatch(word):
        return True
    begun = _WORD.match(following)
    return (low in _CAN_END or low not in _ABBREVIATIONS) and (begun is None or begun.group().lower() in _STARTERS)


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
