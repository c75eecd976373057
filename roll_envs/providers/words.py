"""Words for games that ask NLTK for them: lists and a tagger from packages, where NLTK would download its own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from roll_envs.providers.packages import folder_of

__all__ = ["HOW_TO_GET_WORDS", "words_at_hand"]

HOW_TO_GET_WORDS = "pip install 'roll-envs[words]'"
_PACKAGES = ("nltk", "english_words", "smallwords", "textblob_aptagger")
_SPELT = {
    "behavior": "behaviour",
    "color": "colour",
    "gray": "grey",
    "harbor": "harbour",
    "humor": "humour",
    "i": "I",
    "plow": "plough",
}
"""Basic English as NLTK spells it, which is the same list otherwise."""
_ABSENT = object()


@contextlib.contextmanager
def words_at_hand() -> Iterator[None]:
    """What is imported and made within takes NLTK's words from packages, and downloads nothing.

    Where the packages are not installed, NLTK is left to itself.
    """
    if any(folder_of(package) is None for package in _PACKAGES):
        yield
        return
    nltk, corpus = importlib.import_module("nltk"), importlib.import_module("nltk.corpus")
    # The list and the tagger themselves, too: whoever imported a game before has names of its own for them.
    places: tuple[tuple[Any, str, Any], ...] = (
        (nltk, "download", lambda *arguments, **settings: True),
        (nltk, "pos_tag", _pos_tag),
        (importlib.import_module("nltk.tag"), "_get_tagger", lambda language=None: _tagger()),
        (corpus.words, "words", _words),
    )
    kept = [vars(place).get(name, _ABSENT) for place, name, _ in places]
    for place, name, ours in places:
        setattr(place, name, ours)
    try:
        yield
    finally:
        for (place, name, _), own in zip(places, kept, strict=True):
            if own is _ABSENT:  # NLTK reads a list when it is first asked for
                delattr(place, name)
            else:
                setattr(place, name, own)


def _words(name: str | None = None) -> list[str]:
    """The words of a list, ``en`` or ``en-basic``; of both without a name."""
    return [word for each in ((name,) if name else ("en", "en-basic")) for word in _LISTS[each]()]


@functools.cache
def _webster() -> Sequence[str]:
    """Webster's second dictionary, of which NLTK has another edition: 84 words fewer."""
    found: set[str] = importlib.import_module("english_words").get_english_words_set(["web2"])
    return sorted(found, key=lambda word: (word.lower(), word))


@functools.cache
def _basic() -> Sequence[str]:
    """The 850 words of Ogden's Basic English, to the letter those of NLTK."""
    found = importlib.import_module("smallwords.wordlists").BASIC_850_WORDS
    return sorted(_SPELT.get(word, word) for word in found)


_LISTS = {"en": _webster, "en-basic": _basic}


def _pos_tag(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """NLTK's function, by the tagger that NLTK's comes from."""
    return list(_tagged(tuple(tokens)))


@functools.cache  # games ask for each word of a list, for each instance
def _tagged(tokens: tuple[str, ...]) -> Sequence[tuple[str, str]]:
    found: Sequence[tuple[str, str]] = _tagger().tag(tokens)
    return found


@functools.cache
def _tagger() -> Any:
    folder = folder_of("textblob_aptagger")
    assert folder is not None
    tagger = importlib.import_module("nltk.tag.perceptron").PerceptronTagger(load=False)
    weights, tags, classes = pickle.loads((folder / "trontagger-0.1.0.pickle").read_bytes())
    tagger.model.weights, tagger.tagdict, tagger.classes = weights, tags, classes
    tagger.model.classes = classes
    return tagger
