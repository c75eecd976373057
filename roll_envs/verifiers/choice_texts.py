"""Texts of options in an answer to a multiple choice question: as letters in brackets, and said in other words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from roll_envs.verifiers.extract import plain

# Texts of options that may judge others, or are words of any sentence.
_JUDGES = re.compile(r"[a-zà-ÿа-я]{1,2}|yes|not|and|the|are|was|has|true|false|right|wrong|maybe|none|both|one|all")
# Those in bold, which `lettered` reads in quotes.
JUDGES_IN_BOLD = re.compile(rf"\*\*((?:{_JUDGES.pattern})[.,]?)\*\*")
# "Statement 1 is true and statement 2 is false" is the option "True, False".
_BOTH = re.compile(r"(?i)\bstatement \w+ is (\w+)(?:,|;)?(?: (?:and|but|while))? statement \w+ is (\w+)")
_EDGE = "A-Za-zÀ-ʯͰ-ӿ0-9/"
_SMALL_WORDS = frozenset(
    "th s a an of to in on at by for with it is i ar was wer they h sh you w thi that becaus du so must b been".split()
)
_ARTICLE = re.compile(
    r"^(?:the|an?|it|they|he|she|this|there (?:is|are)|el|los|la|le|les|il|der|die|das) ", re.IGNORECASE
)


def restated(said: str, letters: str, options: Sequence[str], *, bold: bool = False) -> frozenset[str]:
    """The letter of the one option that a text says in other forms of its words, with more of them, or as a part of a
    name: "Newton." is the option "Isaac Newton" where no other one is a Newton. No numbers."""
    words, found = _words(said), set()
    for letter, option in zip(letters, options, strict=False):
        own = _words(option)
        name = option.istitle() and option.split()[-1] in said
        if words and (words == own or (words < own and (name or bold)) or (words > own and len(own) > 2 - bold)):
            found.add(letter)
    return frozenset(found) if len(found) == 1 and not re.search(r"\d", said) else frozenset()


def _words(text: str) -> set[str]:
    return {re.sub(r"(?:es?|s|ed|ing)$", "", word) for word in re.findall(r"\w+", text.casefold())} - _SMALL_WORDS


def _typed(text: str) -> str:
    """Simple mathematics of LaTeX as it is typed: ``\\dfrac{3}{4}`` is ``3/4``, ``30\\,\\text{m}`` is ``30 m``."""
    text = re.sub(r"\\(?:begin|end)\{align\*?\}|(?<= )&(?==)", "", text)
    text = re.sub(r"\\[dt]?frac\{([^{}]{1,40})\}\{([^{}]{1,40})\}", r"\1/\2", text)
    text = re.sub(r"(?:(?:\\[,;: ]|[ ~]){1,4})?\\(?:text|mathrm)\{([^{}]{1,80})\}", r" \1", text)
    return re.sub(r"\\sqrt\{([^{}]{1,40})\}", r"√\1", text).replace("\\pi", "π").replace("^\\circ", "°")


def lettered(answer: str, letters: str, options: Sequence[str]) -> str:
    """``answer`` with letters in brackets for the texts of options: "It's Rome, not Paris." is "It's [D], not [B].".

    Short texts, and those that may judge other options ("True"), are replaced in quotes, first and last only.
    """
    answer = _BOTH.sub(r"\1, \2", _typed(answer))
    texts = [
        (_ARTICLE.sub("", _typed(plain(text)).strip(' $."%')), letter)
        for letter, text in zip(letters, options, strict=False)
    ]
    texts = sorted((one for one in texts if len(one[0]) > 1 or one[0].isdigit()), key=lambda one: -len(one[0]))
    patterns = []
    for words, _ in texts:
        pattern = r"\s+".join(map(re.escape, words.split()))
        if _JUDGES.fullmatch(words.casefold()):
            patterns.append(
                rf'(["“]{pattern}[.,]?["”]|(?:^|(?<=^[A-J][.)] )|(?<=^\([A-J]\) )){pattern}(?=[.,;:!])'
                rf"|(?<=[.?!:] ){pattern}(?:, [^.,!?\n]{{1,80}})?[.!]?\Z"
                rf"|(?:(?<=: )|(?<=\bis )|(?<=['’]s )){pattern}(?=[.,:;!]|$| because| since))"
            )
        else:
            after = rf"(?![{_EDGE}]|[.,]\d| ?(?:[+*/×·÷=^]|[-−] ?\d|\\times|\\cdot))"
            patterns.append(rf"((?<![{_EDGE}.,-])(?<![+*×·÷^] ){pattern}{after})")
    if not patterns:
        return answer
    found = re.compile(rf"(?:(?<!\w){_ARTICLE.pattern[1:]})?(?:{'|'.join(patterns)})", re.IGNORECASE)
    return found.sub(lambda match: f"[{texts[(match.lastindex or 1) - 1][1]}]", answer)
