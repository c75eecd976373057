"""Text to search terms: split into words, drop the possessive 's, lower case, drop stop words, stem.

The same terms as Lucene 9's English chain (StandardTokenizer, EnglishPossessiveFilter, LowerCaseFilter, StopFilter,
PorterStemFilter). Words are those of Unicode's word breaks (UAX #29), with a token per Han or Hiragana character and
per emoji sequence. To find them, every character is turned into a letter for its class, and one regular expression runs
over those letters: linear in the length of any text. Whitespace ends a word always (Lucene lets U+202F join).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
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

# Ranges of code points where the category does not tell, without overlap.
_RANGES = {
    # letters in circles and squares
    "A": "24B6-24E9 1F130-1F149 1F150-1F169 1F170-1F189",
    # Hebrew
    "H": "05D0-05EA 05F0-05F2 FB1D FB1F-FB28 FB2A-FB36 FB38-FB3C FB3E FB40-FB41 FB43-FB44 FB46-FB4F",
    # South-east Asian scripts, whose words are not separated
    "S": (
        "0E01-0E3A 0E40-0E4E 0E80-0ECF 0EDC-0EDF 1000-103F 1050-108F 109A-109F 1780-17D3 17D7 17DC-17DD 1950-1974 "
        "1980-19CF 19DE-19DF 1A20-1A7C AA60-AAC2 AADB-AADF 11700-1172B"
    ),
    # Han
    "I": "2E80-2E99 2E9B-2EF3 2F00-2FD5 3005 3007 3021-3029 3038-303B 3400-4DBF 4E00-9FFF F900-FAD9 20000-3FFFD",
    # Hiragana
    "G": "3041-3096 309D-309F 1B001-1B11E 1F200",
    # Katakana
    "K": "3031-3035 309B-309C 30A0-30FA 30FC-30FF 31F0-31FF 32D0-32FE 3300-3357 FF66-FF9D 1B000",
    # pictographs
    "P": (
        "00A9 00AE 203C 2049 2122 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 25AA-25AB 25B6 "
        "25C0 25FB-25FE 2600-2605 2607-2612 2614-261C 261E-2685 2690-26F8 26FA-2705 2708-2709 270E-2712 2714 2716 "
        "271D 2721 2728 2733-2734 2744 2747 274C 274E 2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF 2934-2935 "
        "2B05-2B07 2B1B-2B1C 2B50 2B55 3030 303D 3297 3299 1F000-1F0FF 1F10D-1F10F 1F12F 1F16C-1F16F 1F18E "
        "1F191-1F19A 1F1AD-1F1E5 1F201-1F20F 1F21A 1F22F 1F232-1F23A 1F23C-1F23F 1F249-1F384 1F386-1F3C1 "
        "1F3C5-1F3C6 1F3C8-1F3C9 1F3CD-1F3FA 1F400-1F441 1F444-1F445 1F451-1F465 1F479-1F47B 1F47D-1F480 1F484 "
        "1F488-1F48E 1F490 1F492-1F4A9 1F4AB-1F53D 1F546-1F573 1F576-1F579 1F57B-1F58F 1F591-1F594 1F597-1F644 "
        "1F648-1F64A 1F680-1F6A2 1F6A4-1F6B3 1F6B7-1F6BF 1F6C1-1F6CB 1F6CD-1F6FF 1F774-1F77F 1F7D5-1F7FF "
        "1F80C-1F80F 1F848-1F84F 1F85A-1F85F 1F888-1F88F 1F8AE-1F8FF 1F90D-1F90E 1F910-1F917 1F920-1F925 "
        "1F927-1F92F 1F93A 1F93F-1F945 1F947-1F976 1F978-1F9B4 1F9B7 1F9BA 1F9BC-1F9CC 1F9D0 1F9DE-1FAC2 "
        "1FAC6-1FAEF 1FAF7-1FAFF 1FC00-1FFFD"
    ),
    # pictographs that take a skin tone
    "O": (
        "261D 26F9 270A-270D 1F385 1F3C2-1F3C4 1F3C7 1F3CA-1F3CC 1F442-1F443 1F446-1F450 1F466-1F478 1F47C "
        "1F481-1F483 1F485-1F487 1F48F 1F491 1F4AA 1F574-1F575 1F57A 1F590 1F595-1F596 1F645-1F647 1F64B-1F64F "
        "1F6A3 1F6B4-1F6B6 1F6C0 1F6CC 1F90C 1F90F 1F918-1F91F 1F926 1F930-1F939 1F93C-1F93E 1F977 1F9B5-1F9B6 "
        "1F9B8-1F9B9 1F9BB 1F9CD-1F9CF 1F9D1-1F9DD 1FAC3-1FAC5 1FAF0-1FAF6"
    ),
    # skin tone
    "M": "1F3FB-1F3FF",
    # a pair of these is a flag
    "R": "1F1E6-1F1FF",
}


def _read_ranges() -> list[tuple[int, int, str]]:
    """(first, last, class), sorted."""
    spans = ((*span.partition("-")[::2], kind) for kind, spans in _RANGES.items() for span in spans.split())
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
