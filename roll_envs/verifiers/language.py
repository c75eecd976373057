"""``language``: is the answer in the language asked for? Decided by script, then by character n-grams and words.

Languages with a script of their own (Korean, Tamil, ...) are known by their letters. Those that share one are told
apart by naive Bayes over n-grams of one to three characters and whole words, counted in the small samples of
:mod:`roll_envs.verifiers.language_texts`: the same answer on every machine, with nothing to download. A language that
is not in :data:`LANGUAGES` is taken for the nearest one that is.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from roll_envs.errors import ConfigError, MissingExtraError, UnknownNameError
from roll_envs.verifiers.extract import after_thinking, tail
from roll_envs.verifiers.language_texts import TEXTS
from roll_envs.verifiers.types import Failed, Score, Verdict

__all__ = ["LANGUAGES", "Guess", "LanguageVerifier", "find_detector", "identify"]

LANGUAGES: dict[str, str] = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "cs": "Czech", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi",
    "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "kn": "Kannada", "ko": "Korean",
    "ml": "Malayalam", "mr": "Marathi", "ne": "Nepali", "nl": "Dutch", "pa": "Punjabi", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil",
    "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""ISO 639-1 code -> name of every language that is known."""

_LETTERS: dict[str, str] = {
    "latin": "A-Za-zªºÀ-ÖØ-öø-ɏḀ-ỿ",
    "cyrillic": "Ѐ-ԯ",
    "arabic": "\u0620-\u064a\u066e-\u06d3\u06fa-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc",
    "devanagari": "\u0900-\u0963\u0970-\u097f",
    "greek": "Ͱ-Ͽἀ-῿",
    "hebrew": "א-ת",
    "bengali": "\u0980-\u09e3",
    "gurmukhi": "\u0a00-\u0a65\u0a70-\u0a7f",
    "gujarati": "\u0a80-\u0ae3",
    "tamil": "\u0b80-\u0be5",
    "telugu": "\u0c00-\u0c65",
    "kannada": "\u0c80-\u0ce5",
    "malayalam": "\u0d00-\u0d65",
    "thai": "\u0e01-\u0e4e",
    "hangul": "가-힣ᄀ-ᇿㄱ-ㆎ",
    "kana": "ぁ-ゖァ-ヺー",
    "han": "一-鿿㐀-䶿々",
}
_SCRIPTS = {script: re.compile(f"[{letters}]") for script, letters in _LETTERS.items()}
_LANGUAGE_OF_SCRIPT = {
    "greek": "el", "hebrew": "he", "bengali": "bn", "gurmukhi": "pa", "gujarati": "gu", "tamil": "ta", "telugu": "te",
    "kannada": "kn", "malayalam": "ml", "thai": "th", "hangul": "ko",
}  # fmt: skip
_LANGUAGES_OF_SCRIPT: dict[str, tuple[str, ...]] = {
    "cyrillic": ("ru", "uk", "bg"),
    "arabic": ("ar", "fa", "ur"),
    "devanagari": ("hi", "mr", "ne"),
}
_LANGUAGES_OF_SCRIPT["latin"] = tuple(
    code for code in TEXTS if not any(code in codes for codes in _LANGUAGES_OF_SCRIPT.values())
)

_WEIGHTS = {"han": 3.0, "kana": 2.0, "hangul": 2.5}
"""Letters of an alphabet that carry about as much text as one sign of the script."""
# Japanese has kana in nearly every sentence; Chinese text only where it quotes Japanese.
_KANA_SHARE = 0.1
_MAX_CHARS = 20_000
_MOST_WORDS = 600
_ADDRESSES = re.compile(r"https?://\S{1,500}|[\w.+-]{1,64}@[\w.-]{1,255}")


class Guess(NamedTuple):
    """The identified language of a text."""

    language: str
    """ISO 639-1 code; empty for a text without letters of a known script."""
    share: float
    """Share of the letters that belong to the script of that language, 0 to 1."""


def identify(text: str) -> Guess:
    """Identify the language of the first 20,000 characters of a text, without web and mail addresses."""
    text = _ADDRESSES.sub(" ", text[:_MAX_CHARS])
    weights = {
        script: found * _WEIGHTS.get(script, 1.0)
        for script, pattern in _SCRIPTS.items()
        if (found := sum(1 for _ in pattern.finditer(text)))
    }
    if not weights:
        return Guess("", 0.0)
    total = sum(weights.values())
    # Japanese mixes the two scripts, so they are counted together.
    han_and_kana = weights.get("han", 0.0) + weights.get("kana", 0.0)
    script = max(weights, key=lambda name: weights[name])
    if han_and_kana >= weights[script]:
        return Guess("ja" if weights.get("kana", 0.0) > _KANA_SHARE * han_and_kana else "zh", han_and_kana / total)
    if script in _LANGUAGE_OF_SCRIPT:
        return Guess(_LANGUAGE_OF_SCRIPT[script], weights[script] / total)
    return Guess(_nearest(text, script), weights[script] / total)


# -- naive Bayes within a script ---------------------------------------------------------------------------------------

_WORD_WEIGHT = 3.0
_SMOOTHING = {1: 0.02, 2: 0.2, 3: 0.2}
"""Additive smoothing: added to each count, by length of the n-gram."""


def _words(text: str, script: str) -> list[str]:
    # Combining signs belong to their letters; U+200C joins the parts of Persian words.
    return re.findall(rf"[{_LETTERS[script]}\u0300-\u036f\u064b-\u0652\u200c'’]+", text.lower())


def _count_ngrams(words: Mapping[str, int]) -> Counter[str]:
    """Counts of the character n-grams of length 1 to 3 in words with a space at each end."""
    ngrams: Counter[str] = Counter()
    for word, count in words.items():
        padded = f" {word} "
        for n in _SMOOTHING:
            for i in range(len(padded) - n + 1):
                ngrams[padded[i : i + n]] += count
    # The padding alone says nothing about a language.
    del ngrams[" "]
    return ngrams


class _Model(NamedTuple):
    """Log-probabilities of words and n-grams in one language."""

    words: Mapping[str, float]
    unseen_word: float
    ngrams: Mapping[str, float]
    unseen_ngram: tuple[float, float, float]


@functools.cache
def _models(script: str) -> dict[str, _Model]:
    return {code: _learn(code, script) for code in _LANGUAGES_OF_SCRIPT[script]}


def _learn(code: str, script: str) -> _Model:
    listed, written = _words(TEXTS[code].words, script), _words(TEXTS[code].text, script)
    # A listed word counts once, a written one as often as it occurs.
    words = Counter(set(listed)) + Counter(written)
    ngrams = _count_ngrams(Counter(listed) + Counter(written))
    sizes = {n: sum(c for ngram, c in ngrams.items() if len(ngram) == n) for n in _SMOOTHING}
    kinds = {1: 120, 2: 1500, 3: 8000}  # assumed numbers of different n-grams, for the smoothing
    totals = {n: sizes[n] + _SMOOTHING[n] * kinds[n] for n in _SMOOTHING}
    all_words = sum(words.values())
    return _Model(
        # Additive smoothing, as if each language had some 2000 words more than its small sample.
        words={word: math.log((count + 0.5) / (all_words + 2000)) for word, count in words.items()},
        unseen_word=math.log(0.25 / (all_words + 2000)),
        ngrams={
            ngram: math.log((count + _SMOOTHING[len(ngram)]) / totals[len(ngram)]) for ngram, count in ngrams.items()
        },
        unseen_ngram=tuple(math.log(_SMOOTHING[n] / totals[n]) for n in (1, 2, 3)),  # type: ignore[arg-type]
    )


def _nearest(text: str, script: str) -> str:
    words = Counter(_words(text, script)[:_MOST_WORDS])
    ngrams = _count_ngrams(words)
    scores = {code: _log_likelihood(model, words, ngrams) for code, model in _models(script).items()}
    return max(scores, key=lambda code: scores[code])


def _log_likelihood(model: _Model, words: Mapping[str, int], ngrams: Mapping[str, int]) -> float:
    by_words = sum(count * model.words.get(word, model.unseen_word) for word, count in words.items())
    by_ngrams = sum(
        count * model.ngrams.get(ngram, model.unseen_ngram[len(ngram) - 1]) for ngram, count in ngrams.items()
    )
    return _WORD_WEIGHT * by_words + by_ngrams


# -- detectors and the verifier ----------------------------------------------------------------------------------------

_langdetect_lock = threading.Lock()


def find_detector(name: Literal["own", "langdetect"] = "own") -> Callable[[str], str]:
    """A function from a text to its ISO 639-1 code; empty when it cannot be identified.

    ``own`` is :func:`identify`. ``langdetect`` is the library that IFEval uses (extra ``verifiers``), with its seed
    reset for each text, since it samples at random. It gets nearly half of all sentences in capitals wrong.
    """
    if name == "own":
        return lambda text: identify(text).language
    if name != "langdetect":
        raise UnknownNameError("detector of languages", name, ("own", "langdetect"))
    try:
        factories = importlib.import_module("langdetect.detector_factory")
        nothing = importlib.import_module("langdetect.lang_detect_exception").LangDetectException
    except ImportError:
        raise MissingExtraError("the detector 'langdetect'", "verifiers") from None

    def detect(text: str) -> str:
        # The library fills a global at its first use, which is not safe in several threads.
        with _langdetect_lock:
            factories.init_factory()
            detector = factories._factory.create()
        detector.seed = 0
        detector.append(text[:_MAX_CHARS])
        try:
            return str(detector.detect()).partition("-")[0]
        except nothing:
            return ""

    return detect


class LanguageVerifier:
    """1.0 when the answer is in the language of the reference, an ISO 639-1 code such as ``"fr"``.

    ``language``: the same for all rows, instead of the reference. ``least_share``: the part of the letters that must
    be of that language's script (1 allows no foreign letter; names and formulas are usual, so the default is 0.8);
    it is also the part ``share``. An answer without letters is in no language.
    """

    def __init__(
        self,
        *,
        language: str | None = None,
        least_share: float = 0.8,
        detector: Literal["own", "langdetect"] = "own",
    ) -> None:
        if language is not None and language not in LANGUAGES:
            raise UnknownNameError("language", str(language), LANGUAGES)
        if isinstance(least_share, bool) or not isinstance(least_share, int | float) or not 0 <= least_share <= 1:
            raise ConfigError(f"least_share must be a number from 0 to 1, not {least_share!r}")
        self.language, self.least_share = language, float(least_share)
        self._detect = find_detector(detector)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = self.language if self.language is not None else reference
        if not isinstance(wanted, str) or wanted not in LANGUAGES:
            return Failed(reason=f"the language must be one of {', '.join(LANGUAGES)}, not {str(wanted)[:100]!r}")
        text = after_thinking(tail(answer))
        guess, said = identify(text), self._detect(text)
        right = said == wanted and guess.share >= self.least_share
        detail = "" if right else f"{LANGUAGES.get(said, said) or 'no language'}, {guess.share:.0%} in its script"
        return Score(value=float(right), passed=right, detail=detail, parts={"share": guess.share})
