"""Instructions on words, letters, lengths and the language, with their public ids and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable

from roll_envs.errors import ConfigError
from roll_envs.verifiers.instructions.arguments import Arguments, Check, MakeCheck
from roll_envs.verifiers.instructions.text import count_sentences, count_words, tokens
from roll_envs.verifiers.language import LANGUAGES, identify

RELATIONS = ("less than", "at least")


def counted(count: Callable[[str], int], relation: str, threshold: int) -> Check:
    """Whether ``count`` of a text is ``relation`` (one of :data:`RELATIONS`) ``threshold``."""
    if relation == "less than":
        return lambda text: count(text) < threshold
    return lambda text: count(text) >= threshold


def existence(arguments: Arguments) -> Check:
    """``keywords``: each occurs, in any case, inside longer words too."""
    patterns = [re.compile(re.escape(word), re.IGNORECASE) for word in arguments.texts("keywords")]
    return lambda text: all(pattern.search(text) for pattern in patterns)


def frequency(arguments: Arguments) -> Check:
    """``keyword`` occurs ``relation`` ``frequency`` times, in any case, inside longer words too."""
    pattern = re.compile(re.escape(arguments.text("keyword")), re.IGNORECASE)
    return counted(
        lambda text: sum(1 for _ in pattern.finditer(text)),
        arguments.choice("relation", RELATIONS),
        arguments.whole("frequency"),
    )


def forbidden_words(arguments: Arguments) -> Check:
    """None of ``forbidden_words`` occurs as a word of its own, in any case."""
    words = arguments.texts("forbidden_words")
    # Not \b, which would need a letter or digit at the edge of the forbidden word.
    patterns = [re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE) for word in words]
    return lambda text: not any(pattern.search(text) for pattern in patterns)


def letter_frequency(arguments: Arguments) -> Check:
    """The character ``letter`` occurs ``let_relation`` ``let_frequency`` times, in any case."""
    letter = arguments.text("letter").lower()
    if len(letter) != 1:
        raise ConfigError(f"{arguments.instruction}: letter must be one character, not {letter!r}")
    relation, threshold = arguments.choice("let_relation", RELATIONS), arguments.whole("let_frequency")
    return counted(lambda text: text.lower().count(letter), relation, threshold)


def response_language(arguments: Arguments) -> Check:
    """The answer is in ``language``, an ISO 639-1 code."""
    language = arguments.text("language")
    if language not in LANGUAGES:
        raise ConfigError(f"{arguments.instruction}: language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    return lambda text: identify(text).language == language


def number_sentences(arguments: Arguments) -> Check:
    """``relation`` ``num_sentences`` sentences."""
    return counted(count_sentences, arguments.choice("relation", RELATIONS), arguments.whole("num_sentences"))


def number_words(arguments: Arguments) -> Check:
    """``relation`` ``num_words`` words."""
    return counted(count_words, arguments.choice("relation", RELATIONS), arguments.whole("num_words"))


def number_paragraphs(arguments: Arguments) -> Check:
    """``num_paragraphs`` paragraphs between dividers ``***``; none in the middle is empty."""
    wanted = arguments.whole("num_paragraphs")

    def check(text: str) -> bool:
        parts = [bool(part.strip()) for part in text.split("***")]
        return all(parts[1:-1]) and sum(parts) == wanted

    return check


def nth_paragraph_first_word(arguments: Arguments) -> Check:
    """``num_paragraphs`` paragraphs between empty lines, and the ``nth_paragraph`` (from 1) begins with
    ``first_word``, in any case."""
    wanted, nth = arguments.whole("num_paragraphs", 1), arguments.whole("nth_paragraph", 1)
    first_word = arguments.text("first_word").lower()
    if nth > wanted:
        raise ConfigError(f"{arguments.instruction}: nth_paragraph is {nth}, but there are to be {wanted} paragraphs")

    def check(text: str) -> bool:
        paragraphs = [part for part in text.split("\n\n") if part.strip()]
        if len(paragraphs) != wanted:
            return False
        word = paragraphs[nth - 1].split(maxsplit=1)[0].lstrip("'").lstrip('"')
        # IFEval cuts the word at the first of these signs.
        return re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower() == first_word

    return check


def capital_word_frequency(arguments: Arguments) -> Check:
    """``capital_relation`` ``capital_frequency`` words in capital letters."""
    return counted(
        lambda text: sum(token.isupper() for token in tokens(text)),
        arguments.choice("capital_relation", RELATIONS),
        arguments.whole("capital_frequency"),
    )


def english_capital(text: str) -> bool:
    """English, without a small letter."""
    return text.isupper() and identify(text).language == "en"


def english_lowercase(text: str) -> bool:
    """English, without a capital letter."""
    return text.islower() and identify(text).language == "en"


WORDS: dict[str, MakeCheck] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "change_case:capital_word_frequency": capital_word_frequency,
}
CASES: dict[str, Check] = {
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
}
