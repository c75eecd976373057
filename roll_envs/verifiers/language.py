"""``language``: is the answer in the language asked for? By `py3langid` (extra ``verifiers``) and the letters' scripts.

The library gives the same answer on every machine, with nothing to download. A language that is not in
:data:`LANGUAGES` is taken for the nearest one that is.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from roll_envs.errors import MissingExtraError, UnknownNameError
from roll_envs.verifiers.extract import after_thinking, tail
from roll_envs.verifiers.types import Failed, Score, Verdict

LANGUAGES: dict[str, str] = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "cs": "Czech", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi",
    "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "kn": "Kannada", "ko": "Korean",
    "ml": "Malayalam", "mr": "Marathi", "ne": "Nepali", "nl": "Dutch", "pa": "Punjabi", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil",
    "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""ISO 639-1 code -> name of every language that is known."""

# Han signs and kana count as one script, since Japanese mixes them.
_ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "IDEOGRAPHIC": "CJK"}
# Letters of an alphabet that carry about as much text as one sign of the script.
_WEIGHTS = {"CJK": 2.5, "HANGUL": 2.5}
_MAX_CHARS = 20_000
_ADDRESSES = re.compile(r"https?://\S{1,500}|[\w.+-]{1,64}@[\w.-]{1,255}")
# Code and formulas, which are written alike in all languages; longer ones than these are prose.
_NO_PROSE = re.compile(
    r"```[^`]*(?:```|\Z)|`[^`\n]{1,100}`|\$\$[^$]{1,1000}\$\$|\$[^$\n]{1,300}\$|\\\((?:[^\\]|\\[^()]){1,300}+\\\)"
    r"|\\\[(?:[^\\]|\\[^][]){1,1000}+\\\]|\\[A-Za-z]+"
)


class Guess(NamedTuple):
    """The identified language of a text."""

    language: str
    """ISO 639-1 code; empty for a text without letters."""
    share: float
    """Share of the letters that belong to the script of most, which is the language's, 0 to 1."""


def identify(text: str) -> Guess:
    """Identify the language of the first 20,000 characters of a text, without web and mail addresses, and where it has
    other words also without code and formulas in LaTeX.

    Raises :class:`MissingExtraError` without `py3langid`.
    """
    classify = _classifier()
    text = _ADDRESSES.sub(" ", text[:_MAX_CHARS])
    prose = _NO_PROSE.sub(" ", text)
    text = prose if any(map(str.isalpha, prose)) else text
    weights: Counter[str] = Counter()
    for letter, count in Counter(filter(str.isalpha, text)).items():
        weights[_script(letter)] += count * _WEIGHTS.get(_script(letter), 1.0)  # type: ignore[assignment]
    if not weights:
        return Guess("", 0.0)
    script, most = weights.most_common(1)[0]
    # Without the letters of other scripts, such as those of names and formulas.
    kept = "".join(c if not c.isalpha() or _script(c) == script else " " for c in text)
    return Guess(classify(kept.lower()), most / weights.total())


@functools.cache
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "").split(" ")[0]
    return _ONE_SCRIPT.get(name, name)


@functools.cache
def _classifier() -> Callable[[str], str]:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise MissingExtraError("telling languages", "verifiers") from None
    # An instance of its own: the library's shared one may be set to other languages.
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(LANGUAGES)
    return lambda text: str(identifier.classify(text)[0])


class LanguageVerifier:
    """1.0 when the answer is in the language of the reference, an ISO 639-1 code such as ``"fr"``.

    ``language``: the same for all rows, instead of the reference. ``least_share``: the part of the letters that must
    be of that language's script (1 allows no foreign letter; names and formulas are usual, so the default is 0.8);
    it is also the part ``share``. An answer without letters is in no language.
    """

    def __init__(self, *, language: str | None = None, least_share: Annotated[float, Field(ge=0, le=1)] = 0.8) -> None:
        if language is not None and language not in LANGUAGES:
            raise UnknownNameError("language", str(language), LANGUAGES)
        _classifier()  # a missing library is told here, not in the first verdict
        self.language, self.least_share = language, least_share

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        wanted = self.language if self.language is not None else reference
        if not isinstance(wanted, str) or wanted not in LANGUAGES:
            return Failed(reason=f"the language must be one of {', '.join(LANGUAGES)}, not {str(wanted)[:100]!r}")
        guess = identify(after_thinking(tail(answer)))
        right = guess.language == wanted and guess.share >= self.least_share
        said = LANGUAGES.get(guess.language, "no language")
        detail = "" if right else f"{said}, {guess.share:.0%} in its script"
        return Score(value=float(right), passed=right, detail=detail, parts={"share": guess.share})
