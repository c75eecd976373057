"""Nouns of a product title, by rule: no model, no data.

The original asks a statistical tagger which words of two titles are nouns or proper names, and compares the two sets.
In a title nearly every word is one, above all with a capital; what must go are numbers, sizes, joining words and a few
verbs, and among words in lower case those that describe or tell what happens. A wrong guess matters when it makes two
titles share a word, so the lists are about words that many titles share.
"""

from __future__ import annotations

import re

__all__ = ["nouns_of"]

_MAX_TITLE_CHARS = 10_000

# Never nouns: determiners, pronouns, prepositions, conjunctions, auxiliaries, adverbs, numbers, forms of verbs.
_FUNCTION_WORDS = """
a about above across after against all almost along already also although always am amid among an and any anymore
anyone anything anywhere are around as at away be because been before behind being below beneath beside besides between
beyond both but by can cannot could did do does doing done down during each either else enough especially etc even ever
every everyone everything everywhere exactly except far few for forever from get gets getting go goes going gone got
had has have having he her here hers herself him himself his how however i if in instead into is it its itself just let
lets like many may me might mine more most much must my myself near nearly neither never no nobody none nor not nothing
now of off often on once only onto or other others our ours ourselves out outside over own per perfectly quite rather
really same shall she should simply since so some something sometimes soon still such than that the their theirs them
themselves then there these they this those though through throughout thru till to together too toward towards under
underneath unlike until up upon us versus very via vs was we well were what whatever when whenever where wherever
whether which while who whole whom whose why will with within without would yet you your yours yourself yourselves
one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty hundred thousand
million first second third fourth fifth half full
applies based become becoming bringing brings built carried chosen comes containing contains created creates designed
ensures ensuring fitted gave given gives giving helped helping included includes including keeping kept known knows
made makes making met needed preventing provided provides providing reduces reducing removes removing saw seen served
shown stays taken takes taking trying used using wants wearing worn
"""

# Nouns with a capital only: words for size, age, worth and state, and verbs.
_DESCRIBING_WORDS = """
available bad better big bigger biggest bright broad cheap clean clear comfortable comfy common compatible complete
cool correct cute dark deep different difficult dirty durable easier easy effective empty excellent extra fabulous
famous fancy fast faster fat fine flat free fresh funny general gentle genuine good gorgeous great handmade happy hard
heavy high higher hot huge ideal important large larger largest light little long longer loose loud lovely low lower
main major medium mini minor modern multiple natural new newest next nice normal official old older open original
perfect pleasant poor popular possible pretty previous proper pure quick quiet rare ready real recent regular rich
right round sexy sharp short similar simple single slim slow small smaller smart smooth soft solid special stable
straight strong stronger stylish suitable super sweet tall thick thin tight tiny tough traditional true typical ultra
unique universal unusual usual various vast vivid warm weak wet wide wild wonderful wrong young younger
add allow apply become bring buy carry choose come contain create ensure fit give hang help hold keep kill know leave
look make meet prevent protect provide reduce remove replace save see serve stay stop take try use want wear
"""
_DESCRIBING_ENDINGS = ("ing", "ed", "able", "ible", "ful", "less", "ous", "ive", "ly")
_SHORTEST_ENDED = 6  # ring, string, bed and table are no forms of anything

_FUNCTION, _DESCRIBING = frozenset(_FUNCTION_WORDS.split()), frozenset(_DESCRIBING_WORDS.split())

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
