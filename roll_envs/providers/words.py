"""Words for games that ask NLTK for them: lists and a tagger from packages, where NLTK would download its own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.providers.packages import folder_of

__all__ = ["words_at_hand"]

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
_LOCK = threading.Lock()
_INSIDE: list[str] = []
"""Games that are within, in all threads: the first replaces, and the last to leave gives back."""
_REPLACED: list[tuple[Any, str, Any]] = []
"""Where NLTK's own are kept meanwhile."""


@contextlib.contextmanager
def words_at_hand(game: str) -> Iterator[None]:
    """What is imported, made and begun within takes NLTK's words from packages, and downloads nothing.

    Where the packages are not installed, NLTK is left to itself; :class:`ConfigError` says what ``game`` lacks where it
    has no words of its own.
    """
    if any(folder_of(package) is None for package in _PACKAGES):
        try:
            yield
        except LookupError as error:
            if type(error) is not LookupError:  # NLTK's own, with a page of words, is
                raise
            how = "pip install 'roll-envs[words]'"
            raise ConfigError(f"{game} needs word lists, which are not here: {how}") from error
        return
    with _LOCK:
        if not _INSIDE:
            _replace()
        _INSIDE.append(game)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            while not _INSIDE and _REPLACED:
                place, name, own = _REPLACED.pop()
                if own is _ABSENT:  # NLTK reads a list when it is first asked for
                    delattr(place, name)
                else:
                    setattr(place, name, own)


def _replace() -> None:
    nltk, corpus = importlib.import_module("nltk"), importlib.import_module("nltk.corpus")
    # The list and the tagger themselves, too: whoever imported a game before has names of its own for them.
    places: tuple[tuple[Any, str, Any], ...] = (
        (nltk, "download", lambda *arguments, **settings: True),
        (nltk, "pos_tag", _pos_tag),
        (importlib.import_module("nltk.tag"), "_get_tagger", lambda language=None: _tagger()),
        (corpus.words, "words", _words),
    )
    for place, name, ours in places:
        _REPLACED.append((place, name, vars(place).get(name, _ABSENT)))
        setattr(place, name, ours)


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
