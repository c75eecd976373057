"""Text to search terms: split into words, drop the possessive 's, lower case, drop stop words, stem.

The same terms as Lucene 9's English chain (StandardTokenizer, EnglishPossessiveFilter, LowerCaseFilter, StopFilter,
PorterStemFilter). Words are those of Unicode's word breaks (UAX #29), with a token per Han or Hiragana character and
per emoji sequence. To find them, every character is turned into a letter for its class, and one regular expression runs
over those letters: linear in the length of any text. Whitespace ends a word always (Lucene lets U+202F join).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from unicodedata import category

from envs.webshop.porter import stem

__all__ = ["STOP_WORDS", "analyse", "split_words"]

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Lucene's English stop words."""

_MAX_TOKEN = 255
"""UTF-16 units: a longer word is cut here, as Lucene's buffer does."""

# Texts of a shop repeat their words: what lies between whitespace is remembered when short. A full cache of these
# and of the stems takes about 10 MB.
_CACHED_CHUNKS = 1 << 15
_CACHED_LENGTH = 32

# The classes of characters, a letter each. Most follow from the general category; the rest are listed by code point.
_BY_CATEGORY = {
    **dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "A"),  # letter
    **dict.fromkeys(("Mn", "Mc", "Me", "Cf"), "X"),  # goes with the character before it
    "Nd": "N",  # digit
    "Pc": "E",  # joins words: _
}
_SINGLES = {
    ":·\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a": "L",  # between letters
    ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b": "C",  # between digits
    ".\u2018\u2019\u2024\ufe52\uff07\uff0e": "D",  # between letters or digits
    "'": "Q",  # the same, and after a Hebrew letter
    '"': "W",  # between Hebrew letters
    "#*": "B",  # with a key cap after it
    "\u20e3": "Y",  # key cap
    "\u200b": " ",
    "\u200d": "Z",  # joins emoji
    "\ufe0e\ufe0f": "V",  # text or emoji presentation
    "\u066b": "N",
    "\u05f3": "A",
    "\uff9e\uff9f": "X",
    "ℹ": "A",
}


def _read_ranges() -> list[tuple[int, int, str]]:
    """(first, last, class) of the code points whose class their category does not tell, sorted, without overlap.

    Classes: A letters in circles and squares, H Hebrew, S South-east Asian scripts, whose words are not separated, I
    Han, G Hiragana, K Katakana, P pictographs, O pictographs that take a skin tone, M skin tones, R half a flag.
    """
    ranges = json.loads(Path(__file__).with_name("word_breaks.json").read_text(encoding="utf-8"))
    spans = ((*span.partition("-")[::2], kind) for kind, spans in ranges.items() for span in spans)
    return sorted((int(first, 16), int(last or first, 16), kind) for first, last, kind in spans)


_SPANS = _read_ranges()
_FIRSTS = [first for first, _, _ in _SPANS]


def _class_of(code: int) -> str:
    kind = category(chr(code))
    _, last, listed = _SPANS[bisect_right(_FIRSTS, code) - 1]
    # Of the South-east Asian scripts only letters and marks are joined; their digits and signs are as all others.
    if _FIRSTS[0] <= code <= last and (listed != "S" or kind[0] in "LM"):
        return listed
    return _BY_CATEGORY.get(kind, " ")


class _Classes(dict[int, str]):
    """Code point -> letter of its class, worked out when first needed; a space where no word goes on."""

    most = 1 << 14

    def __missing__(self, code: int) -> str:
        kind = _class_of(code)
        if len(self) < self.most:  # limits memory for a text with every Unicode character
            self[code] = kind
        return kind


_CLASSES = _Classes((ord(char), kind) for chars, kind in _SINGLES.items() for char in chars)


def _word_pattern() -> re.Pattern[str]:
    """A regular expression for word breaks over class letters. Group 1 is a token; other matches are skipped.

    Every repetition is possessive: nothing is tried twice, so that no text takes more than linear time.
    """
    also = "[XVZY]*+"  # goes with the character before it
    emoji_also = "[XZY]*+"
    joiners = f"(?:E{also})"
    letters = f"(?:H{also}(?:Q{also}|W{also}(?=H)|[LD]{also}(?=[AH]))?+|A{also}(?:[LDQ]{also}(?=[AH]))?+)"
    digits = f"N{also}(?:[CDQ]{also}(?=N))?+"
    unit = f"(?:(?:{letters}|{digits})++|(?:K{also})++)"
    word = f"{joiners}*+{unit}(?:{joiners}++{unit})*+{joiners}*+"
    emoji = f"(?:O{emoji_also}M{emoji_also}|[PO]{emoji_also}V?+|M{emoji_also})"
    emojis = f"(?:Z++)?+{emoji}(?:(?:(?<=Z)|Z++){emoji})*+"
    key_cap = f"B[XZ]*+V?+Y{emoji_also}"
    flag = f"R{also}R{also}"
    single = f"[IG]{also}|(?:S{also})++"
    return re.compile(f"({word}|{emojis}|{key_cap}|{flag}|{single})|{joiners}++|Z++")


_WORD = _word_pattern()


def split_words(text: str) -> list[str]:
    """The words of ``text`` as they stand: ``split_words("It's 3.5 (x-large)") == ["It's", "3.5", "x", "large"]``."""
    words = []
    classes = text.translate(_CLASSES)
    for match in _WORD.finditer(classes):
        start, end = match.span(1)
        # Short enough even if each character takes two UTF-16 units.
        if end - start <= _MAX_TOKEN // 2:
            if end > start:
                words.append(text[start:end])
        else:
            words += _cut(text, classes, start, end)
    return words


def _cut(text: str, classes: str, start: int, end: int) -> list[str]:
    """A long word in pieces, each as much as fits into Lucene's buffer."""
    words = []
    while start < end:
        room, stop = _MAX_TOKEN, start
        while stop < end and (room := room - (2 if text[stop] > "\uffff" else 1)) >= 0:
            stop += 1
        match = _WORD.match(classes, start, stop)
        stop = match.end() if match else start + 1
        if match and match.group(1):
            words.append(text[start:stop])
        start = stop
    return words


def analyse(text: str) -> list[str]:
    """Search terms of ``text`` in order, repeats kept: ``analyse("The women's running shoes")`` is
    ``["women", "run", "shoe"]``. Any text is taken, lone surrogates and NULs too."""
    terms: list[str] = []
    for chunk in text.split():
        if len(chunk) <= _CACHED_LENGTH:
            terms += _short_terms(chunk)
        else:
            terms += _terms(chunk)
    return terms


def _terms(chunk: str) -> tuple[str, ...]:
    # Most chunks are plain words, which have no breaks inside.
    words = (chunk,) if chunk.isascii() and chunk.isalpha() and len(chunk) <= _MAX_TOKEN else split_words(chunk)
    terms = []
    for word in words:
        if word[-1] in "sS" and word[-2:-1] in ("'", "\u2019", "\uff07"):
            word = word[:-2]
        word = word.lower() if word.isascii() else _lower(word)
        if word and word not in STOP_WORDS:
            terms.append(stem(word))
    return tuple(terms)


_short_terms = lru_cache(maxsize=_CACHED_CHUNKS)(_terms)


def _lower(word: str) -> str:
    """Lower case character by character, as in Java: a final Σ is not special, and İ becomes a plain i."""
    return word.replace("İ", "i").replace("Σ", "σ").lower()
