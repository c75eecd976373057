"""The 29 kinds of instructions that IFEvalG (open-instruct, "Generalizing Verifiable Instruction Following", Pyatkin et
al. 2025) adds to IFEval's, by public id. Words of ``count:*`` and of places in a sentence are a Treebank tokeniser's,
for which each sign is a word; sentences are cut at their marks, and not by Punkt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from roll_envs.verifiers.instructions.arguments import Lower, Positive, Relation, Text, Verbatim, Whole, holds
from roll_envs.verifiers.instructions.ifeval import frequency, letter_frequency, number_paragraphs
from roll_envs.verifiers.instructions.text import split_at_marks, tokens

_SIGNS = re.compile(r"[^\w\s]")
_LOWER_WORD = re.compile(r"\b[a-z]+\b")


def _same(text: str, other: str) -> bool:
    return text.strip().lower() == other.strip().lower()


def copied(text: str, prompt_to_repeat: Text) -> bool:
    """The answer is ``prompt_to_repeat``, in any case."""
    return _same(text, prompt_to_repeat)


def copied_times(text: str, prompt_to_repeat: Text, N: Positive) -> bool:
    """``prompt_to_repeat``, ``N`` times with ``******`` between."""
    return text.count("******") == N - 1 and all(_same(part, prompt_to_repeat) for part in text.split("******"))


def copied_span(text: str, prompt_to_repeat: Verbatim, n_start: Whole, n_end: Positive) -> bool:
    """Characters ``n_start`` (from 0) up to, not with, ``n_end`` of ``prompt_to_repeat``, in any case."""
    return _same(text, prompt_to_repeat[n_start:n_end])


def repeat_phrase(text: str, phrase: Text, small_n: Whole) -> bool:
    """Runs from the first word of ``phrase`` to its last, on one line: ``small_n``, each with at most one word changed,
    and the last one with one."""
    wanted = phrase.split()

    def changes(run: str) -> int:
        words = run.split()
        same = len(words) == len(wanted)
        return sum(a != b for a, b in zip(words, wanted, strict=True)) if same else len(wanted) + 1

    found = [changes(run) for line in text.split("\n") for run in _runs(line, wanted[0], wanted[-1])]
    return len(found) == small_n and max(found, default=0) <= 1 and found[-1:] == [1]


def _runs(line: str, first: str, last: str) -> Iterator[str]:
    start = line.find(f"{first} ")
    while start >= 0 and (end := line.find(f" {last}", start + len(first) + 1)) >= 0:
        yield line[start : end + 1 + len(last)]
        start = line.find(f"{first} ", end + 1 + len(last))


def word_once(text: str, keyword: Lower) -> bool:
    """``keyword`` occurs once, in any case, inside longer words too."""
    return text.lower().count(keyword) == 1


def increment(text: str, keyword1: Lower, keyword2: Lower) -> bool:
    """``keyword1`` occurs once and ``keyword2`` twice, in any case."""
    return text.lower().count(keyword1) == 1 and text.lower().count(keyword2) == 2


def excluded(text: str, keyword: Text) -> bool:
    """``keyword`` does not stand between spaces."""
    return f" {keyword} " not in text


def place_of_keyword(text: str, keyword: Text, n: Positive, m: Positive) -> bool:
    """``keyword`` is word ``m`` of sentence ``n``, both from 1."""
    return tokens("".join(split_at_marks(text)[n - 1 : n]))[m - 1 : m] == [keyword]


def start_end(text: str) -> bool:
    """Begins and ends with the same word, in any case, without a sign after it."""
    words = tokens(text)
    return len(words) > 1 and words[0].lower() == words[-1].lower()


def no_consecutive_letters(text: str) -> bool:
    """No word begins with the letter after that of the word before it."""
    return all(ord(b) - ord(a) != 1 for a, b in itertools.pairwise(word[0].lower()[0] for word in text.split()))


def two_paragraphs(text: str) -> bool:
    """Two paragraphs between dividers ``***``."""
    return number_paragraphs(text, 2)


def two_plain_paragraphs(text: str) -> bool:
    """Two paragraphs with an empty line between."""
    return number_paragraphs(text, 2, "\n\n")


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


def first_word_sent(text: str, first_word: Lower) -> bool:
    """Every sentence begins with ``first_word``, in any case."""
    return all(first_word_answer(sentence, first_word) for sentence in split_at_marks(text))


def first_word_answer(text: str, first_word: Lower) -> bool:
    """The answer begins with ``first_word``, in any case."""
    return text.split()[0].lower() == first_word


def last_word_sent(text: str, last_word: Lower) -> bool:
    """Every sentence ends with ``last_word``, in any case and without signs."""
    return all(last_word_answer(sentence, last_word) for sentence in split_at_marks(text))


def last_word_answer(text: str, last_word: Lower) -> bool:
    """The answer ends with ``last_word``, in any case and without signs."""
    return _SIGNS.sub("", text.split()[-1].lower()) == last_word


def sentence_hyphens(text: str) -> bool:
    """Sentences joined by hyphens without spaces."""
    return all(
        one == one.strip() == sentence
        for one, sentence in zip(text.split("-"), split_at_marks(text.replace("-", " ")), strict=False)
    )


def bigram_wrapping(text: str) -> bool:
    """Every two words stand in double angle brackets."""
    words = text.split()
    return all(a.startswith("<<") and b.endswith(">>") for a, b in zip(words[::2], words[1::2], strict=False))


def lowercase_counting(text: str, N: Whole) -> bool:
    """At most ``N`` words in small letters."""
    return sum(1 for _ in _LOWER_WORD.finditer(text)) <= N


def letter_counting(text: str, relation: Relation, N: Whole) -> bool:
    """``relation`` ``N`` letters of the English alphabet."""
    return holds(sum(c.isascii() and c.isalpha() for c in text), relation, N)


def composition(text: str, n_sent: Positive, n_words: Positive) -> bool:
    """Three paragraphs between ``***`` of ``n_sent`` sentences of ``n_words`` words."""
    parts = [split_at_marks(part) for part in text.split("***")]
    sizes = [[len(tokens(sentence)) for sentence in part] for part in parts]
    return sizes == [[n_words] * n_sent] * 3


def count_unique(text: str) -> bool:
    """No word or sign twice."""
    words = tokens(text)
    return len(words) == len(set(words))


IFEVAL_G: dict[str, Callable[..., bool]] = {
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
    "first_word:first_word_sent": first_word_sent,
    "first_word:first_word_answer": first_word_answer,
    "last_word:last_word_sent": last_word_sent,
    "last_word:last_word_answer": last_word_answer,
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
