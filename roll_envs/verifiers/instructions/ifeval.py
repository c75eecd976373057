"""The 25 kinds of instructions of IFEval, by public id and with its arguments; see the package for deviations.

Everything is read line by line or with ``str`` methods where the original's patterns take quadratic time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from roll_envs.tools.formats.reading import read_whole_json
from roll_envs.verifiers.instructions.arguments import Letter, Lower, Positive, Relation, Text, Texts, Whole, holds
from roll_envs.verifiers.instructions.text import count_sentences, count_words, tokens
from roll_envs.verifiers.language import LANGUAGES, identify

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
# In this order: without its name a fence would leave "json" behind.
_FENCES = ("```json", "```Json", "```JSON", "```")


def _known(language: str) -> str:
    if language not in LANGUAGES:
        raise ValueError(f"it must be one of {', '.join(LANGUAGES)}")
    return language


def _there(nth_paragraph: int, info: ValidationInfo) -> int:
    paragraphs = info.data.get("num_paragraphs", nth_paragraph)
    if nth_paragraph > paragraphs:
        raise ValueError(f"nth_paragraph is {nth_paragraph}, but there are to be {paragraphs} paragraphs")
    return nth_paragraph


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


def letter_frequency(text: str, letter: Letter, let_relation: Relation, let_frequency: Whole) -> bool:
    """The character ``letter`` occurs ``let_relation`` ``let_frequency`` times, in any case."""
    return holds(text.lower().count(letter), let_relation, let_frequency)


def response_language(text: str, language: Annotated[Text, AfterValidator(_known)]) -> bool:
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


def nth_paragraph_first_word(
    text: str, num_paragraphs: Positive, nth_paragraph: Annotated[Positive, AfterValidator(_there)], first_word: Lower
) -> bool:
    """``num_paragraphs`` paragraphs between empty lines, and the ``nth_paragraph`` (from 1) begins with
    ``first_word``, in any case."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    if len(paragraphs) != num_paragraphs:
        return False
    word = paragraphs[nth_paragraph - 1].split(maxsplit=1)[0].lstrip("'").lstrip('"')
    # IFEval cuts the word at the first of these signs.
    return re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower() == first_word


def capital_word_frequency(text: str, capital_relation: Relation, capital_frequency: Whole) -> bool:
    """``capital_relation`` ``capital_frequency`` words in capital letters."""
    return holds(sum(token.isupper() for token in tokens(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    """English, without a small letter."""
    return text.isupper() and identify(text).language == "en"


def english_lowercase(text: str) -> bool:
    """English, without a capital letter."""
    return text.islower() and identify(text).language == "en"


def number_placeholders(text: str, num_placeholders: Whole) -> bool:
    """At least ``num_placeholders`` texts in square brackets, each on one line."""
    return sum("[" in part for line in text.split("\n") for part in line.split("]")[:-1]) >= num_placeholders


def postscript(text: str, postscript_marker: Text) -> bool:
    """``postscript_marker`` occurs, in any case; ``P.S.`` and ``P.P.S`` with a space between the letters, too."""
    pattern = _POSTSCRIPTS.get(postscript_marker) or re.escape(postscript_marker.lower())
    return re.search(pattern, text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: Whole) -> bool:
    """Exactly ``num_bullets`` lines that begin with ``*`` (not ``**``) or ``-``."""
    # As in the original [^*] may be the end of a line: a lone star counts where a line follows.
    starred = re.findall(r"^[^\S\n]*\*[^*].*$", text, re.MULTILINE)
    return len(starred) + len(re.findall(r"^[^\S\n]*-", text, re.MULTILINE)) == num_bullets


def constrained_response(text: str) -> bool:
    """One of three fixed sentences occurs: my answer is yes, no, or maybe."""
    return any(option in text for option in OPTIONS)


def number_highlighted_sections(text: str, num_highlights: Whole) -> bool:
    """At least ``num_highlights`` texts between ``*`` or ``**``, each on one line."""
    # In linear time: what is between begins at a star and ends at the next.
    between = re.findall(r"\*([^\n*]*)\*", text) + re.findall(r"\*\*([^\n*]*)\*\*", text)
    return sum(bool(part.strip()) for part in between) >= num_highlights


def multiple_sections(text: str, section_spliter: Text, num_sections: Whole) -> bool:
    """At least ``num_sections`` times ``section_spliter`` with a number."""
    # The misspelt name is that of the public data.
    return sum(1 for _ in re.finditer(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """The answer is JSON, in a fence or not."""
    bare = text.strip()
    for fence in _FENCES:
        bare = bare.removeprefix(fence)
    return not read_whole_json(bare.removesuffix("```").strip()).problem


def title(text: str) -> bool:
    """A title in double angular brackets, on one line."""
    return any(map(_has_title, text.split("\n")))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end - 2 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def two_responses(text: str) -> bool:
    """Two answers that differ, with ``******`` between them."""
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(text: str, prompt_to_repeat: Lower) -> bool:
    """The answer begins with ``prompt_to_repeat``, in any case."""
    return text.strip().lower().startswith(prompt_to_repeat)


def end_checker(text: str, end_phrase: Lower) -> bool:
    """The answer ends with ``end_phrase``, in any case; quotes around the answer aside."""
    return text.strip().strip('"').lower().endswith(end_phrase)


def quotation(text: str) -> bool:
    """The answer stands in double quotation marks."""
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


def no_comma(text: str) -> bool:
    """No comma."""
    return "," not in text


IFEVAL: dict[str, Callable[..., bool]] = {
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
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "startend:quotation": quotation,
    "punctuation:no_comma": no_comma,
}
