"""Nouns of a product title, by rule and two lists of words (``nouns.json``): no model.

The original asks a statistical tagger which words of two titles are nouns or proper names, and compares the two sets.
In a title nearly every word is one, above all with a capital; what must go are numbers, sizes, joining words and a few
verbs, and among words in lower case those that describe or tell what happens. A wrong guess matters when it makes two
titles share a word, so the lists are about words that many titles share.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

__all__ = ["nouns_of"]

_MAX_TITLE_CHARS = 10_000

_WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# Never nouns: determiners, pronouns, prepositions, conjunctions, auxiliaries, adverbs, numbers, forms of verbs.
_FUNCTION = frozenset(_WORDS["function_words"])
# Nouns with a capital only: words for size, age, worth and state, and verbs.
_DESCRIBING = frozenset(_WORDS["describing_words"])
_DESCRIBING_ENDINGS = ("ing", "ed", "able", "ible", "ful", "less", "ous", "ive", "ly")
_SHORTEST_ENDED = 6  # ring, string, bed and table are no forms of anything

# Units that are a word of their own right after a number: 64GB is 64 and GB, but 75ml one word.
_UNITS = "km|km²|m|m²|dm|cm|cm²|mm|mm²|nm|µm|ha|yd|in|ft|kg|g|mg|t|lb|oz|mb|kb|gb|tb|k"
_SIZE = re.compile(rf"(\d[\d.,x*/]*?)({_UNITS})", re.IGNORECASE)
_NUMBERED = re.compile(r"\d+[^\W\d_]+")

# Signs that split a word: between letters, and a hyphen or stroke after a digit too.
_LETTER = r"[^\W\d_]"
_INSIDE = re.compile(
    rf"\.{{2,}}|…|(?<=\d)[+\-*^](?=[\d-])|(?<=[a-z])\.(?=[A-Z])|(?<={_LETTER}),(?={_LETTER})"
    rf"|(?<=[^\W_])(?:-+|[–—~:<>=/])(?={_LETTER})"
)
_AROUND = "<>\"'“”‘’«»*&%+=,;:!?/\\|~`^–—•…·。，、！？；：【】「」"
_BEFORE = _AROUND + "([{#$£€"
_AFTER = _AROUND + ")]}™®©°″"
_CONTRACTED = re.compile(r"(?:['’](?:s|ll|re|ve|d|m)|n['’]t)$", re.IGNORECASE)


def nouns_of(title: str) -> list[str]:
    """The words of ``title`` that count as nouns, in lower case, in order, repeats kept.

    ``nouns_of("Men's 2-Pack Shirts with a Pocket, soft")`` is ``["men", "pack", "shirts", "pocket"]``.
    """
    tokens = _tokens(title[:_MAX_TITLE_CHARS])
    return [token.lower() for before, token in zip(["", *tokens], tokens, strict=False) if _is_noun(token, before)]


def _tokens(title: str) -> list[str]:
    """Words and numbers, without the signs around them and between them (where spaCy splits)."""
    tokens: list[str] = []
    for chunk in title.split():
        for part in _INSIDE.split(chunk.lstrip(_BEFORE)):
            part = _CONTRACTED.sub("", part.strip(_AFTER))
            if part.endswith(".") and part[-2:-1].islower():
                part = part[:-1]
            size = _SIZE.fullmatch(part)
            tokens += size.groups() if size else (part,) if part else ()
    return tokens


def _is_noun(token: str, before: str) -> bool:
    word = token.lower()
    if token[0].isdigit():
        return _NUMBERED.fullmatch(token) is not None  # 3D, 75ml, 10pcs; not 39x49inch
    if len(token) == 1 and token.islower():
        return word != "x" and before[-1:].isdigit()  # a unit after a number
    if word in _FUNCTION:
        # The country, not the pronoun.
        return token == "US"
    if token[0].isupper():
        return True
    describing = word in _DESCRIBING or (len(word) > _SHORTEST_ENDED and word.endswith(_DESCRIBING_ENDINGS))
    return word[0].isalpha() and not describing
