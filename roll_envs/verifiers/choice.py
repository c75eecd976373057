r"""``choice``: multiple choice, A to J.

A letter counts where the answer commits to it: in ``\boxed{}``, after "the answer is", alone, at the start of the last
line, or in brackets. An answer that commits to two letters is wrong where one was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.verifiers.extract import announced, boxed, plain, reply
from roll_envs.verifiers.matching import normalize
from roll_envs.verifiers.types import Failed, Score, Verdict

LETTERS = "ABCDEFGHIJ"
_LINE_CHARS = 600

# Text styles of LaTeX, and signs of Markdown.
_MARKUP = re.compile(
    r"\\(?:text(?:bf|rm|it)?|mathrm|mathbf|textsf|left|right)\b|[*_`${}\\\"“”«»「」]|(?<![A-Za-z])'|'(?![A-Za-z])"
)
_LEADING = re.compile(r"(?:the\s+)?(?:options?|choices?|letters?|answers?)\b[\s:]*", re.IGNORECASE)
# A letter in brackets, or a bare one that begins no word, number or contraction ("I'm").
_LETTER = r"(?:[\(\[]\s*([A-Z])\s*[\)\]]|([A-Z])(?![A-Za-z0-9'’]))"
# Groups 3 and 4, in the look-ahead, are the next letter: a separator counts only before one.
_LIST = re.compile(rf"{_LETTER}(?:\s*(?:,|;|/|&|\band\b|\bor\b|,\s*and\b|,\s*or\b)?\s*(?={_LETTER}))?")
_BRACKETED = re.compile(r"[\(\[]\s*([A-Z])\s*[\)\]]")
# A denial at most two words before the end of the text: "it is not option".
_DENIAL = re.compile(
    r"(?:\bnot|\bn?either|\bnor|n't|\brule[sd]?\s+out|\beliminate[sd]?|\bexcept|\bincorrect|\bwrong)\W{0,3}(?:\w+\W+){0,2}$",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(r"\b(?:if|whether|suppose|assume|why|how)\b[^.\n]{0,20}$", re.IGNORECASE)

_NOT = re.compile(
    r"(?:(?:definitely\s+|clearly\s+)?not\s+|nicht\s+|pas\s+|не\s+|不是\s*)(?:option\s+|choice\s+)?[\(\[]?([A-Z])(?![A-Za-z0-9])[\)\]]?"
    r"([,;\s]*(?:(?:but(?:\s+rather)?|sondern|mais|а)\s+|而是\s*)?)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.!?;\n]\s*")
# The letter in a statement of a choice: "I choose B", "it must be B.", "B is the correct answer".
_COMMITS = (
    r"\b(?:choose|chose|pick|select|go(?:ing)?\s+with|correct\s+(?:option|choice)\s+is)\s+(?:option\s+|choice\s+)?\**"
    r"[\(\[]?([A-Z])\b(?![a-z'’])",
    r"(?<![A-Za-z0-9'’])[\(\[]?([A-Z])[\)\]]?(?:[:.)]\s*(?![A-Z]\b)[^.\n]{1,60}?)?\s+"
    r"(?:is|must\s+be|has\s+to\s+be|would\s+be|should\s+be)\s+"
    r"(?:(?:therefore|thus|clearly|indeed|definitely)\s+)?(?:the\s+)?(?:only\s+)?(?:correct|right|best|answer)\b",
    r"(?m)\b(?:must|has\s+to|can\s+only)\s+be\s+(?:option\s+|choice\s+)?[\(\[]?([A-Z])[\)\]]?(?=\s*(?:[.,;]|$))",
)

# Where one statement about options ends and the next begins: "A and B are wrong, so C", "ruling out A, leaving D".
_STATEMENT = re.compile(
    r"[.!?;:\n]+(?:\s|$)|,?\s+(?:so|thus|hence|therefore|but|while|whereas|leaving|which\s+leaves)\b", re.IGNORECASE
)
# A letter that stands for an option: not the article ("A big cat") and not the pronoun ("I think").
_MENTION = re.compile(
    r"[\(\[]([A-Z])[\)\]]|(?<![A-Za-z0-9'’])(?:([B-HJ-Z])|(A)(?=\W*$|\s*[,;:/)]|\s+(?:and|or|is|are|it|makes?|fits?|works?|seems?"
    r"|looks?|can|can't|cannot|does|doesn't|must|remains?|has|satisf\w+|match\w*|holds?|fails?)\b))(?![A-Za-z0-9'’])"
)
_DENIED = re.compile(
    r"\bnot\b|n't\b|n’t\b|\bneither\b|\bnor\b|\bcannot\b|\brul(?:e[sd]?|ing)\s+out\b|\beliminat\w+|\bexclud\w+|\bexcept\b"
    r"|\bincorrect\b|\bwrong\b|\bfalse\b|\bfails?\b|\bunlike\w*|\bdiscard\w*"
    r"|不|非|没|\bnicht\b|\bkeine?\b|\bpas\b|\bне\b|\bno es\b|\bnão\b|\bnon è\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(r"\b(?:maybe|might|could|perhaps|possibly|either|unsure|if)\b|\?", re.IGNORECASE)


class ChoiceVerifier:
    """1.0 when the letters that the answer commits to are the reference's.

    ``reference``: a letter (``"B"``, ``"(b)"``), several for questions with several right answers (``"A, C"``), the
    number of the option from 0 on, or the text of an option. ``options``: texts of the options in order, where they are
    the same for all rows; else ``context[options_key]`` may hold them (a list, or a mapping from letters).
    """

    def __init__(
        self, *, options: Sequence[str] | None = None, letters: str = LETTERS, options_key: str = "options"
    ) -> None:
        if not letters or len(set(letters)) != len(letters) or not set(letters) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            raise ConfigError(f"letters must be different capital letters, such as 'ABCD', not {letters!r}")
        if options is not None and len(options) > len(letters):
            raise ConfigError(f"there are {len(options)} options for {len(letters)} letters")
        self.letters, self.options_key = letters, options_key
        self.options = None if options is None else tuple(map(str, options))

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        options = self._options(context)
        letters = self.letters[: len(options)] if options else self.letters
        wanted = _reference_letters(reference, letters, options)
        if not wanted:
            return Failed(reason=f"the reference {str(reference)[:100]!r} names none of the choices {letters}")
        said = read_choice(answer, letters, options)
        right = said == wanted
        detail = "" if right else f"read {', '.join(sorted(said)) or 'no choice'}"
        return Score(value=float(right), passed=right, detail=detail)

    def _options(self, context: Mapping[str, Any] | None) -> tuple[str, ...]:
        if self.options is not None:
            return self.options
        given = (context or {}).get(self.options_key)
        if isinstance(given, Mapping):
            given = [given[letter] for letter in self.letters if letter in given]
        if isinstance(given, Sequence) and not isinstance(given, str):
            return tuple(map(str, given))[: len(self.letters)]
        return ()


def _reference_letters(reference: Any, letters: str, options: Sequence[str]) -> frozenset[str]:
    if isinstance(reference, int) and not isinstance(reference, bool):
        return frozenset(letters[reference]) if 0 <= reference < len(letters) else frozenset()
    if isinstance(reference, list | tuple | set | frozenset):
        each = [_reference_letters(item, letters, options) for item in reference]
        return frozenset().union(*each) if all(each) else frozenset()
    if not isinstance(reference, str):
        return frozenset()
    by_text = _by_text(reference, letters, options)
    bare = re.sub(r"[\s()\[\].,;:/&]|\band\b", "", _MARKUP.sub("", reference).strip())
    # "AC" is two letters; a word in small letters, or one with a letter twice, is a text.
    letters_only = set(bare.upper()) <= set(letters) and len(set(bare)) == len(bare)
    if bare and letters_only and (bare.isupper() or len(bare) == 1):
        return frozenset(bare.upper())
    return by_text or _committed(reference, letters, options)


def read_choice(answer: str, letters: str = LETTERS, options: Sequence[str] = ()) -> frozenset[str]:
    """The letters an answer commits to; empty when it commits to none.

    ``read_choice("It is not (A). The answer is (B).")`` is ``{"B"}``.
    """
    text = plain(reply(answer)).strip()
    boxes = boxed(text)
    if boxes:
        each = [_committed(box, letters, options) for box in boxes]
        return frozenset().union(*each) if all(each) else frozenset()
    # A longer text explains first, so the letter that it begins with is no answer.
    whole = _committed(text, letters, options) if len(text) <= 400 else frozenset()
    if whole and len(text.split()) <= 3:
        return whole
    commits: list[tuple[int, frozenset[str]]] = []
    denials: list[tuple[int, str]] = []
    bare = _MARKUP.sub("", text)
    for said in announced(bare):
        no = _NOT.match(said.text)
        if no is not None:
            denials.append((said.start, no[1]))
        if no is None or no[2].strip(" ,;"):
            commits.append((said.start, _committed(said.text[no.end() if no else 0 :], letters, options)))
    for pattern in _COMMITS:
        for match in re.finditer(pattern, bare):
            before = _SENTENCE.split(bare[max(0, match.start() - 40) : match.start()])[-1]
            if match[1] in letters and not _DENIAL.search(before) and not _SUPPOSED.search(before):
                commits.append((match.start(), frozenset(match[1])))
    for start, found in sorted(commits, key=lambda commit: commit[0], reverse=True):
        if found and not any(letter in found for at, letter in denials if at > start):
            return found
    if whole and "\n" not in text:
        return whole
    lines = [line for line in text.splitlines() if line.strip()]
    last = _committed(lines[-1], letters, options) if lines else frozenset()
    return last or whole or (_left(lines[-1], letters) if lines else frozenset()) or _bracketed(text, letters)


def _left(line: str, letters: str) -> frozenset[str]:
    """The one letter that the statements of a line leave: not denied by any, and in the last that names one."""
    kept: list[str] = []
    denied: set[str] = set()
    bare = _MARKUP.sub("", line[-_LINE_CHARS:])
    for statement in _STATEMENT.split(bare):
        named = ["".join(filter(None, groups)) for groups in _MENTION.findall(statement)]
        if _DENIED.search(statement):
            denied.update(named)
        elif _HEDGED.search(statement + bare[bare.find(statement) + len(statement) :][:1]):
            return frozenset()
        else:
            kept += named
    left = frozenset(kept) - denied
    return left if len(left) == 1 and left <= set(letters) else frozenset()


def _committed(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """Letters at the start of a short text, or those of the option whose text it is."""
    exact = _by_text(text, letters, options)
    if exact:
        return exact
    bare = _LEADING.sub("", _MARKUP.sub("", text).strip(), count=1).strip()
    found: list[str] = []
    at = 0
    while match := _LIST.match(bare, at):
        found.append(match[1] or match[2])
        at = match.end()
        # No further letter follows.
        if match[3] is None and match[4] is None:
            break
    if not found:
        lone = bare.strip("()[]. ")
        return frozenset(lone.upper()) if len(lone) == 1 and lone.upper() in letters else frozenset()
    rest = bare[at:]
    # "A big cat" and "I think" begin with words, not with choices.
    if rest and not re.match(
        r"\s*(?:[.):,\]\-–—]|$|\n|because\b|since\b|as\b|is\b(?!\s+(?:not|wrong|incorrect|false)\b)|\(|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af])",
        rest,
    ):
        return frozenset()
    return frozenset(found) if set(found) <= set(letters) else frozenset()


def _by_text(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    said = normalize(_MARKUP.sub("", text))
    return frozenset(
        x for x, option in zip(letters, options, strict=False) if normalize(_MARKUP.sub("", option)) == said
    )


def _bracketed(text: str, letters: str) -> frozenset[str]:
    """The last letter in brackets, unless the words before it deny it."""
    found = [match for match in _BRACKETED.finditer(text) if match[1] in letters]
    named = "".join(match[1] for match in found)
    # "(A) red (B) blue (C) green" lists the choices and makes none.
    if not found or (len(found) > 2 and letters.startswith(named)):
        return frozenset()
    last = found[-1]
    if _DENIAL.search(text[max(0, last.start() - 40) : last.start()]):
        return frozenset()
    return frozenset(last[1])
