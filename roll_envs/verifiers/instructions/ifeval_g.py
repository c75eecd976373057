"""The 29 kinds of instructions that IFEvalG (open-instruct, "Generalizing Verifiable Instruction Following", Pyatkin et
al. 2025) adds to IFEval's, by public id. Words of ``count:*`` and of places in a sentence are a Treebank tokeniser's,
for which each sign is a word."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from roll_envs.verifiers.instructions.arguments import Arguments, Check, MakeCheck
from roll_envs.verifiers.instructions.keywords import RELATIONS, counted, frequency, letter_frequency
from roll_envs.verifiers.instructions.text import split_sentences, tokens

_SIGNS = re.compile(r"[^\w\s]")
_LOWER_WORD = re.compile(r"\b[a-z]+\b")


def _same(text: str, other: str) -> bool:
    return text.strip().lower() == other.strip().lower()


def copied(arguments: Arguments) -> Check:
    """The answer is ``prompt_to_repeat``, in any case."""
    prompt = arguments.text("prompt_to_repeat")
    return lambda text: _same(text, prompt)


def copied_times(arguments: Arguments) -> Check:
    """``prompt_to_repeat``, ``N`` times with ``******`` between."""
    prompt, times = arguments.text("prompt_to_repeat"), arguments.whole("N", 1)
    return lambda text: text.count("******") == times - 1 and all(_same(p, prompt) for p in text.split("******"))


def copied_span(arguments: Arguments) -> Check:
    """Characters ``n_start`` (from 0) up to, not with, ``n_end`` of ``prompt_to_repeat``, in any case."""
    prompt = arguments.text("prompt_to_repeat", strip=False)
    span = prompt[arguments.whole("n_start") : arguments.whole("n_end", 1)]
    return lambda text: _same(text, span)


def repeat_phrase(arguments: Arguments) -> Check:
    """Runs from the first word of ``phrase`` to its last, on one line: ``small_n``, each with at most one word changed,
    and the last one with one."""
    phrase, times = arguments.text("phrase").split(), arguments.whole("small_n")

    def changes(run: str) -> int:
        words = run.split()
        return len(phrase) + 1 if len(words) > len(phrase) else sum(a != b for a, b in zip(words, phrase, strict=False))

    def check(text: str) -> bool:
        found = [changes(run) for line in text.split("\n") for run in _runs(line, phrase[0], phrase[-1])]
        return len(found) == times and max(found, default=0) <= 1 and found[-1:] == [1]

    return check


def _runs(line: str, first: str, last: str) -> Iterator[str]:
    start = line.find(f"{first} ")
    while start >= 0 and (end := line.find(f" {last}", start + len(first) + 1)) >= 0:
        yield line[start : end + 1 + len(last)]
        start = line.find(f"{first} ", end + 1 + len(last))


def word_once(arguments: Arguments) -> Check:
    """``keyword`` occurs once, in any case, inside longer words too."""
    word = arguments.text("keyword").lower()
    return lambda text: text.lower().count(word) == 1


def increment(arguments: Arguments) -> Check:
    """``keyword1`` occurs once and ``keyword2`` twice, in any case."""
    one, two = arguments.text("keyword1").lower(), arguments.text("keyword2").lower()
    return lambda text: text.lower().count(one) == 1 and text.lower().count(two) == 2


def excluded(arguments: Arguments) -> Check:
    """``keyword`` does not stand between spaces."""
    word = f" {arguments.text('keyword')} "
    return lambda text: word not in text


def place_of_keyword(arguments: Arguments) -> Check:
    """``keyword`` is word ``m`` of sentence ``n``, both from 1."""
    word, sentence, place = arguments.text("keyword"), arguments.whole("n", 1), arguments.whole("m", 1)
    return lambda text: (
        tokens("".join(split_sentences(text)[sentence - 1 : sentence]), signs=True)[place - 1 : place] == [word]
    )


def start_end(text: str) -> bool:
    """Begins and ends with the same word, in any case, without a sign after it."""
    words = tokens(text.lower(), signs=True)
    return len(words) > 1 and words[0] == words[-1]


def no_consecutive_letters(text: str) -> bool:
    """No word begins with the letter after that of the word before it."""
    return all(ord(b) - ord(a) != 1 for a, b in itertools.pairwise(word[0].lower()[0] for word in text.split()))


def two_paragraphs(text: str, divider: str = "***") -> bool:
    """Two paragraphs between dividers."""
    parts = [bool(part.strip()) for part in text.split(divider)]
    return all(parts[1:-1]) and sum(parts) == 2


def two_plain_paragraphs(text: str) -> bool:
    """Two paragraphs with an empty line between."""
    return two_paragraphs(text, "\n\n")


def palindrome_word(text: str) -> bool:
    """A word that reads the same backwards."""
    return any(word == word[::-1] for word in text.split())


def square_brackets(text: str) -> bool:
    """Every word in square brackets."""
    return all(word.startswith("[") and word.endswith("]") for word in text.split())


def no_dot(text: str) -> bool:
    """No full stop."""
    return "." not in text


def no_exclamation(text: str) -> bool:
    """No exclamation mark."""
    return "!" not in text


def _word_at(arguments: Arguments, name: str, parts: Callable[[str], list[str]]) -> Check:
    """The first or last word of each part is the argument ``name``, in any case; a last word without signs."""
    wanted, place = arguments.text(name).lower(), 0 if name == "first_word" else -1

    def check(text: str) -> bool:
        said = [part.split()[place].lower() for part in parts(text)]
        return all((_SIGNS.sub("", word) if place else word) == wanted for word in said)

    return check


def sentence_hyphens(text: str) -> bool:
    """Sentences joined by hyphens without spaces."""
    return all(
        one == one.strip() == sentence
        for one, sentence in zip(text.split("-"), split_sentences(text.replace("-", " ")), strict=False)
    )


def bigram_wrapping(text: str) -> bool:
    """Every two words stand in double angle brackets."""
    words = text.split()
    return all(a.startswith("<<") and b.endswith(">>") for a, b in zip(words[::2], words[1::2], strict=False))


def lowercase_counting(arguments: Arguments) -> Check:
    """At most ``N`` words in small letters."""
    most = arguments.whole("N")
    return lambda text: sum(1 for _ in _LOWER_WORD.finditer(text)) <= most


def letter_counting(arguments: Arguments) -> Check:
    """``relation`` ``N`` letters of the English alphabet."""
    return counted(
        lambda text: sum(c.isascii() and c.isalpha() for c in text),
        arguments.choice("relation", RELATIONS),
        arguments.whole("N"),
    )


def composition(arguments: Arguments) -> Check:
    """Three paragraphs between ``***`` of ``n_sent`` sentences of ``n_words`` words."""
    sentences, words = arguments.whole("n_sent", 1), arguments.whole("n_words", 1)

    def check(text: str) -> bool:
        parts = [split_sentences(part) for part in text.split("***")]
        return len(parts) == 3 and all(
            len(part) == sentences and all(len(tokens(one, signs=True)) == words for one in part) for part in parts
        )

    return check


def count_unique(text: str) -> bool:
    """No word or sign twice."""
    words = tokens(text, signs=True)
    return len(words) == len(set(words))


IFEVAL_G: dict[str, MakeCheck] = {
    "copy:repeat_phrase": repeat_phrase,
    "copy:copy": copied,
    "copy:copying_simple": copied,
    "copy:copying_multiple": copied_times,
    "new:copy_span_idx": copied_span,
    "keywords:word_once": word_once,
    "keywords:word_count_different_numbers": frequency,
    "keywords:exclude_word_harder": excluded,
    "keywords:keyword_specific_position": place_of_keyword,
    "count:lowercase_counting": lowercase_counting,
    "count:counting_composition": composition,
    "count:count_increment_word": increment,
    "letters:letter_counting": letter_counting,
    "letters:letter_counting2": letter_frequency,
}
IFEVAL_G |= {
    "first_word:first_word_sent": lambda arguments: _word_at(arguments, "first_word", split_sentences),
    "first_word:first_word_answer": lambda arguments: _word_at(arguments, "first_word", lambda text: [text]),
    "last_word:last_word_sent": lambda arguments: _word_at(arguments, "last_word", split_sentences),
    "last_word:last_word_answer": lambda arguments: _word_at(arguments, "last_word", lambda text: [text]),
}
IFEVAL_G_PLAIN: dict[str, Check] = {
    "keywords:no_adjacent_consecutive": no_consecutive_letters,
    "keywords:palindrome": palindrome_word,
    "keywords:start_end": start_end,
    "paragraphs:paragraphs": two_paragraphs,
    "paragraphs:paragraphs2": two_plain_paragraphs,
    "detectable_format:sentence_hyphens": sentence_hyphens,
    "detectable_format:square_brackets": square_brackets,
    "detectable_format:bigram_wrapping": bigram_wrapping,
    "punctuation:punctuation_dot": no_dot,
    "punctuation:punctuation_exclamation": no_exclamation,
    "count:count_unique": count_unique,
}
