"""Kinds of instructions from IFBench (Pyatkin et al. 2025, arXiv:2507.02833), by public id: those that need no model,
no word list to download and no single task of their own."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Callable

from roll_envs.verifiers.instructions.arguments import Lower, Positive, Text, Whole
from roll_envs.verifiers.instructions.text import count_words, split_at_marks, tokens

_SIGNS = string.punctuation + " "
_NO_SIGNS = str.maketrans("", "", string.punctuation)
_CONJUNCTIONS = frozenset("and but for nor or so yet".split())
_PRONOUNS = frozenset(
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves".split()
)
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
# Words of 100 letters and more count as not prime.
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_PAIRS = {")": "(", "]": "[", "}": "{"}


def _bare_words(text: str) -> list[str]:
    return text.translate(_NO_SIGNS).lower().split()


def word_count_range(text: str, min_words: Whole, max_words: Whole) -> bool:
    """``min_words`` to ``max_words`` words."""
    return min_words <= count_words(text) <= max_words


def unique_word_count(text: str, N: Whole) -> bool:
    """At least ``N`` different words, ignoring case and punctuation around them."""
    return len({word.strip(_SIGNS) for word in text.lower().split()}) >= N


def conjunctions(text: str, small_n: Whole) -> bool:
    """At least ``small_n`` different ones of and, but, for, nor, or, so, yet."""
    return len({word.strip(_SIGNS).lower() for word in text.split()} & _CONJUNCTIONS) >= small_n


def numbers(text: str, N: Whole) -> bool:
    """Exactly ``N`` numbers; punctuation inside (``1,000.5``) does not split them."""
    return len(re.findall(r"\d+", text.translate(_NO_SIGNS))) == N


def pronouns(text: str, N: Whole) -> bool:
    """At least ``N`` personal pronouns."""
    return sum(word in _PRONOUNS for word in _bare_words(text.replace("/", " "))) >= N


def punctuation(text: str) -> bool:
    """Each of ``. , ! ? ; :``, and besides ``!?``, ``?!`` or an interrobang."""
    mark = next((mark for mark in ("?!", "!?", "‽") if mark in text), None)
    return mark is not None and set(".,!?;:") <= set(text.replace(mark, "", 1))


def keywords_multiple(
    text: str, keyword1: Lower, keyword2: Lower, keyword3: Lower, keyword4: Lower, keyword5: Lower
) -> bool:
    """``keyword1`` to ``keyword5`` occur 1, 2, 3, 5 and 7 times as whole words, in any case."""
    words = (keyword1, keyword2, keyword3, keyword4, keyword5)
    found = [re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in words]
    return list(map(len, found)) == [1, 2, 3, 5, 7]


def overlap(text: str, percentage: Whole, reference_text: Text) -> bool:
    """``percentage`` of the trigrams of words and signs are also in ``reference_text``, within 2 points."""
    runs = _threes(text)
    return bool(runs) and abs(100 * len(runs & _threes(reference_text)) / len(runs) - percentage) <= 2


def _threes(text: str) -> set[tuple[str, ...]]:
    words = tokens(text)
    return set(zip(words, words[1:], words[2:], strict=False))


def alphabet(text: str) -> bool:
    """Each word begins with the letter after that of the word before it; a follows z."""
    letters = [word[0] for word in _bare_words(text)]
    first = string.ascii_lowercase.find(letters[0]) if letters else -1
    wanted = (string.ascii_lowercase[(first + place) % 26] for place in range(len(letters)))
    return first >= 0 and all(a == b for a, b in zip(letters, wanted, strict=True))


def vowel(text: str) -> bool:
    """One line with at most three different vowels."""
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    """Each word has two consonants in a row."""
    return all(_CLUSTER.search(word) for word in text.lower().split())


def palindrome(text: str) -> bool:
    """At least ten words of five letters or more that read the same backwards."""
    return sum(len(word) >= 5 and word == word[::-1] for word in _bare_words(text)) >= 10


def prime_lengths(text: str) -> bool:
    """The length of each word is a prime number."""
    return all(len(word) in _PRIMES for word in _bare_words(text))


def repeats(text: str, small_n: Whole) -> bool:
    """No word occurs more than ``small_n`` times."""
    return max(Counter(_bare_words(text)).values(), default=0) <= small_n


def no_consecutive(text: str) -> bool:
    """No two words in a row begin with the same letter."""
    words = _bare_words(text)
    return all(a[0] != b[0] for a, b in itertools.pairwise(words))


def paragraph_last_first(text: str) -> bool:
    """Each line with a word ends with the word it begins with."""
    lines = [line.strip().lower().strip(_SIGNS).split() for line in text.split("\n") if line.strip()]
    return all(words[0] == words[-1] for words in lines if words)


def parentheses(text: str) -> bool:
    """Brackets nested at least five deep, and closed."""
    opened: list[str] = []
    deepest = 0
    for sign in text:
        if sign in "([{":
            opened.append(sign)
            deepest = max(deepest, len(opened))
        elif sign in _PAIRS:
            # As in the published code: a bracket that closes no other starts the count anew.
            if not opened or opened.pop() != _PAIRS[sign]:
                opened, deepest = [], 0
            elif deepest >= 5:
                return True
    return False


def options(text: str, options: Text) -> bool:
    """The answer is one of ``options`` (a text with ``/``, ``or`` or commas between them); letters to the sign."""
    separator = "/" if "/" in options else "or" if "or" in options else ","
    allowed = [option.strip() for option in options.split(separator)]
    if re.match(r"\W*a\W*b\W*c\W*", options, re.IGNORECASE):
        return text in allowed
    return text.strip(_SIGNS).lower() in {option.strip(_SIGNS).lower() for option in allowed}


def newline(text: str) -> bool:
    """Each word stands on a line of its own."""
    bare = text.translate(_NO_SIGNS).strip()
    return sum(line != "" for line in bare.split("\n")) == len(bare.split())


def marked_list(text: str, sep: Text) -> bool:
    """``sep`` occurs at least twice."""
    return text.count(sep) >= 2


def output_template(text: str) -> bool:
    """``My Answer:``, ``My Conclusion:`` and ``Future Outlook:`` occur."""
    return all(part in text for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


def no_whitespace(text: str) -> bool:
    """No whitespace at all."""
    return not any(map(str.isspace, text))


def sentence_keyword(text: str, word: Lower, N: Positive) -> bool:
    """``word`` occurs in the ``N``-th sentence, in any case."""
    return word in "".join(split_at_marks(text)[N - 1 : N]).lower()


def repeat_change(text: str, prompt_to_repeat: Text) -> bool:
    """The answer is ``prompt_to_repeat`` with another first word."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


def repeat_span(text: str, prompt_to_repeat: Lower, n_start: Whole, n_end: Whole) -> bool:
    """The answer is words ``n_start`` (from 0) to ``n_end``, both included, of ``prompt_to_repeat``, in any case."""
    return text.strip().lower() == " ".join(prompt_to_repeat.split()[n_start : n_end + 1])


IFBENCH: dict[str, Callable[..., bool]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_word_count,
    "count:conjunctions": conjunctions,
    "count:numbers": numbers,
    "count:pronouns": pronouns,
    "count:keywords_multiple": keywords_multiple,
    "ratio:overlap": overlap,
    "words:repeats": repeats,
    "format:options": options,
    "format:list": marked_list,
    "sentence:keyword": sentence_keyword,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_span": repeat_span,
    "count:punctuation": punctuation,
    "words:alphabet": alphabet,
    "words:vowel": vowel,
    "words:consonants": consonants,
    "words:palindrome": palindrome,
    "words:prime_lengths": prime_lengths,
    "words:no_consecutive": no_consecutive,
    "words:paragraph_last_first": paragraph_last_first,
    "format:parentheses": parentheses,
    "format:newline": newline,
    "format:output_template": output_template,
    "format:no_whitespace": no_whitespace,
}
