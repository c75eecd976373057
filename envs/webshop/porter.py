"""The Porter stemmer (M. F. Porter, "An algorithm for suffix stripping", 1980) with two later rules.

Lucene has these two also: ``bli -> ble`` (the paper: ``abli -> able``) and ``logi -> log``. Words of one or two
letters stay as they are. Any text can be stemmed; whatever is not one of a, e, i, o, u, y counts as a consonant.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["stem"]

_CACHED_WORDS = 1 << 14

# Suffix -> what takes its place when the part before it has a measure above 0, by the last letter but one (step 2) or
# the last letter (step 3). Of two suffixes that both fit, the longer stands first.
_STEP_2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP_3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
# Suffixes that go when the part before them has a measure above 1, by the last letter but one.
_STEP_4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}


class _Kinds(dict[int, str]):
    """Code point -> ``v`` (vowel), ``y`` (depends on the letter before) or ``c`` (all others)."""

    def __missing__(self, code: int) -> str:
        return "c"


_KINDS = _Kinds({ord(letter): "y" if letter == "y" else "v" for letter in "aeiouy"})


def _shape(word: str) -> str:
    """One ``v`` or ``c`` for each character: ``_shape("toys") == "cvcc"``, ``_shape("skies") == "ccvvc"``."""
    shape = word.translate(_KINDS)
    if "y" not in shape:
        return shape
    kinds: list[str] = []
    for kind in shape:
        # y is a vowel after a consonant only.
        kinds.append(("v" if kinds and kinds[-1] == "c" else "c") if kind == "y" else kind)
    return "".join(kinds)


def _measure(part: str) -> int:
    """Porter's m: how often a consonant follows a vowel (``_measure("oaten") == 2``)."""
    return _shape(part).count("vc")


def _has_vowel(part: str) -> bool:
    return "v" in _shape(part)


def _ends_double(word: str) -> bool:
    """Ends in two equal consonants."""
    return word[-1:] == word[-2:-1] and _shape(word)[-1:] == "c"


def _ends_cvc(word: str) -> bool:
    """Ends consonant, vowel, consonant, the last not w, x or y (``hop``, not ``snow``)."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


@lru_cache(maxsize=_CACHED_WORDS)
def stem(word: str) -> str:
    """The stem of a lower-case word: ``stem("relational") == "relat"``, ``stem("skies") == "ski"``."""
    if len(word) <= 2:
        return word
    word = _strip_past(_strip_plural(word))
    if word[-1] == "y" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    if len(word) > 1:
        word = _replace(word, _STEP_2.get(word[-2], ()))
    if word:
        word = _replace(word, _STEP_3.get(word[-1], ()))
    if len(word) > 1:
        word = _strip_ending(word)
    return _strip_final(word)


def _strip_plural(word: str) -> str:
    if word[-1] != "s":
        return word
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word[-2] == "s" else word[:-1]


def _strip_past(word: str) -> str:
    """Removes -ed and -ing and repairs the stem: ``hopping -> hop``, ``filing -> file``."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    part = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if not part or not _has_vowel(part):
        return word
    if part.endswith(("at", "bl", "iz")):
        return part + "e"
    if _ends_double(part):
        return part if part[-1] in "lsz" else part[:-1]
    return part + "e" if _measure(part) == 1 and _ends_cvc(part) else part


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, replacement in rules:
        # Only the first suffix that fits counts, whether its condition holds or not.
        if word.endswith(suffix):
            part = word[: -len(suffix)]
            return part + replacement if _measure(part) > 0 else word
    return word


def _strip_ending(word: str) -> str:
    for suffix in _STEP_4.get(word[-2], ()):
        if word.endswith(suffix) and (suffix != "ion" or word[-4:-3] in ("s", "t")):
            part = word[: -len(suffix)]
            return part if _measure(part) > 1 else word
    return word


def _strip_final(word: str) -> str:
    """Removes a final e and one l of a final ll: ``rate -> rate``, ``cease -> ceas``, ``controll -> control``."""
    measure = _measure(word)
    if word[-1:] == "e" and (measure > 1 or (measure == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word[-1:] == "l" and measure > 1 and _ends_double(word) else word
