"""Instructions on words, letters, lengths and the language, with their public ids and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from roll_envs.errors import ConfigError
from roll_envs.verifiers.instructions.arguments import Arguments, Check, Relation, Text, Texts, Whole, holds
from roll_envs.verifiers.instructions.text import count_sentences, count_words, tokens
from roll_envs.verifiers.language import LANGUAGES, identify


def _letter(arguments: Arguments, name: str) -> str:
    letter = arguments.text(name).lower()
    if len(letter) != 1:
        raise ConfigError(f"{arguments.instruction}: {name} must be one character, not {letter!r}")
    return letter


def _language(arguments: Arguments, name: str) -> str:
    language = arguments.text(name)
    if language not in LANGUAGES:
        raise ConfigError(f"{arguments.instruction}: {name} must be one of {', '.join(LANGUAGES)}, not {language!r}")
    return language


def existence(text: str, keywords: Texts) -> bool:
    """``keywords``: each occurs, in any case, inside longer words too."""
    return all(re.search(re.escape(word), text, re.IGNORECASE) for word in keywords)


def frequency(text: str, keyword: Text, relation: Relation, frequency: Whole) -> bool:
    """``keyword`` occurs ``relation`` ``frequency`` times, in any case, inside longer words too."""
    found = sum(1 for _ in re.finditer(re.escape(keyword), text, re.IGNORECASE))
    return holds(found, relation, frequency)


def forbidden_words(text: str, forbidden_words: Texts) -> bool:
    """None of ``forbidden_words`` occurs as a word of its own, in any case."""
    # Not \b, which would need a letter or digit at the edge of the forbidden word.
    patterns = (rf"(?<!\w){re.escape(word.strip())}(?!\w)" for word in forbidden_words)
    return not any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def letter_frequency(text: str, letter: Annotated[str, _letter], let_relation: Relation, let_frequency: Whole) -> bool:
    """The character ``letter`` occurs ``let_relation`` ``let_frequency`` times, in any case."""
    return holds(text.lower().count(letter), let_relation, let_frequency)


def response_language(text: str, language: Annotated[str, _language]) -> bool:
    """The answer is in ``language``, an ISO 639-1 code."""
    return identify(text).language == language


def number_sentences(text: str, relation: Relation, num_sentences: Whole) -> bool:
    """``relation`` ``num_sentences`` sentences."""
    return holds(count_sentences(text), relation, num_sentences)


def number_words(text: str, relation: Relation, num_words: Whole) -> bool:
    """``relation`` ``num_words`` words."""
    return holds(count_words(text), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: Whole, divider: str = "***") -> bool:
    """``num_paragraphs`` paragraphs between dividers; none in the middle is empty."""
    parts = [bool(part.strip()) for part in text.split(divider)]
    return all(parts[1:-1]) and sum(parts) == num_paragraphs


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


def capital_word_frequency(text: str, capital_relation: Relation, capital_frequency: Whole) -> bool:
    """``capital_relation`` ``capital_frequency`` words in capital letters."""
    return holds(sum(token.isupper() for token in tokens(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """English, without a small letter."""
    return text.isupper() and identify(text).language == "en"


def english_lowercase(text: str) -> bool:
    """English, without a capital letter."""
    return text.islower() and identify(text).language == "en"


WORDS: dict[str, Callable[..., bool]] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
}
