r"""``choice``: multiple choice, A to J.

A letter counts where the answer commits to it: in ``\boxed{}``, after "the answer is", alone, at the start of the last
line, or in brackets; so does the text of an option. An answer that commits to two letters is wrong where one was asked
for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.verifiers.announced import announced, answer_phrase
from roll_envs.verifiers.boxed import boxed
from roll_envs.verifiers.choice_patterns import LETTERS, SAYS
from roll_envs.verifiers.choice_texts import JUDGES_IN_BOLD, lettered, restated
from roll_envs.verifiers.extract import BOLD, plain, reply
from roll_envs.verifiers.matching import normalize
from roll_envs.verifiers.types import Failed, Score, Verdict

_PLACES = dict(zip("first second third fourth fifth".split(), LETTERS, strict=False))

_ARABIC = dict(zip("أبجده", LETTERS, strict=False))
_BOLD_LINE = re.compile(rf"(?m)^{BOLD.pattern}$")
_Statement = tuple[int, frozenset[str]]


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
    bare = re.sub(r"[\s()\[\].,;:/&]|\band\b", "", SAYS["markup"].sub("", reference).strip())
    # "AC" is two letters; a word in small letters, or one with a letter twice, is a text.
    letters_only = set(bare.upper()) <= set(letters) and len(set(bare)) == len(bare)
    if bare and letters_only and (bare.isupper() or len(bare) == 1):
        return frozenset(bare.upper())
    return _committed(reference, letters, options) or read_choice(reference, letters, options)


def read_choice(answer: str, letters: str = LETTERS, options: Sequence[str] = ()) -> frozenset[str]:
    """The letters an answer commits to; empty when it commits to none.

    ``read_choice("It is not (A). The answer is (B).")`` is ``{"B"}``.
    """
    whole = SAYS["arabic"].sub(lambda match: _ARABIC[match[0]], reply(answer))
    text = plain(JUDGES_IN_BOLD.sub(r'"\1"', _pointed(whole, letters, options))).strip()
    repeated = SAYS["repeated"].match(text)
    text = SAYS["reason"].sub(r"\1", SAYS["answer label"].sub("", repeated[0] if repeated else text))
    places = {**_PLACES, "last": letters[len(options) - 1]} if options else _PLACES
    text = SAYS["place"].sub(lambda match: f"option {places.get(match[1].lower(), '')}", text)
    found = _read(text, letters, ())
    if not (found or options):
        options, after = _listed(whole, letters)
        text = plain(after).strip() if options else text
    if len(found) != 1 and options:
        found = _read(lettered(text, letters, options), letters, options)
        said = (boxed(text) or [answer_phrase(text) or re.split(r"(?<=[.!?])\s+|\n+", text)[-1]])[-1]
        found = found or (restated(said, letters, options) if _settled(said) else found)
    if not found:
        things = Counter(name.lower() for name, _ in set(SAYS["thing"].findall(text)))
        often = {name for name, times in things.items() if times > 2}
        named = SAYS["thing"].sub(lambda match: f"{match[1]} option " if match[1].lower() in often else match[0], text)
        found = _read(named, letters, ()) if named != text else found
    return found


def _listed(text: str, letters: str) -> tuple[Sequence[str], str]:
    """The texts of the options that a reply lists once, each on a line of its own, without what it says of one that is
    in bold; and what stands behind them. No texts where nothing does."""
    listed = [*SAYS["listed option"].finditer(text)]
    after = text[listed[-1].end() :].partition("\n")[2].strip() if listed else ""
    once = len(listed) > 2 and letters.startswith("".join(match[1] for match in listed))
    goes_on = after and not re.match(r"\W{0,4}[A-J][.):]", after)
    return [match[2] or match[3] for match in listed] if once and goes_on else (), after


def _pointed(text: str, letters: str, options: Sequence[str]) -> str:
    """A text with ``→ (B)`` for the words in bold that are the choice B: those of the one line that is bold as a whole,
    else the last ones, where no others are in their line and they end a clause that settles on them."""
    lines = [*_BOLD_LINE.finditer(text)]
    bold = lines[0] if len(lines) == 1 else next(reversed([*BOLD.finditer(text)]), None)
    if bold is None:
        return text
    start, end = bold.span()
    before, after = text[:start].rpartition("\n")[2], text[end:].partition("\n")[0]
    found = (
        _committed(bold[1], letters, options)
        or restated(bold[1], letters, options, bold=True)
        or _committed(bold[1].rpartition(":")[2], letters, options)
        or frozenset(SAYS["in the end"].findall(bold[1]))
    )
    subject = not before and re.match(r" (?:is|are|was|were)\b", after)
    alone = len(lines) == 1 or ((subject or re.search(r"[^\W\d_]", before)) and "**" not in before + after)
    if len(found) != 1 or not alone or not _settled(SAYS["clause"].split(before)[-1] + SAYS["clause"].split(after)[0]):
        return text
    comma = "," if re.match(r" ?\w", after) else ""  # a letter is chosen where a word behind it is set apart
    return f"{text[:start]}→ ({min(found)}){comma}{text[end:]}"


def _read(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letters that a text without what surrounds its answer commits to."""
    if boxes := boxed(text):
        each = [_committed(box, letters, options) for box in boxes]
        if any(each) or any(re.search(r"\b[A-Z]\b", box) for box in boxes):
            return frozenset().union(*each) if all(each) else frozenset()
    taken_back = list(SAYS["taken back"].finditer(text))
    if taken_back and len(found := _read(text[taken_back[-1].end() :].strip(), letters, options)) == 1:
        return found
    bare = _bare(SAYS["in quotes"].sub(r"\1", text))
    bare = SAYS["remarks"].sub(r"\1", SAYS["all of"].sub("x", bare))
    if SAYS["labels alone"].fullmatch(bare) or bare == letters or _cut_in_list(bare):
        return frozenset()
    if SAYS["refuses"].search(re.split(r"[.!?]\s+|\n", bare.rstrip(".!"))[-1]):
        return frozenset()
    small = SAYS["small"] if bare == bare.lower() else SAYS["small alone"]
    bare = small.sub(lambda match: match[0].upper(), bare)
    denied = {letter: match.start() for match in SAYS["denied"].finditer(bare) for letter in _last_group(match)}
    bare = SAYS["denied"].sub(lambda match: "…" * len(match[0]), bare)
    statements, likely = _statements(bare, letters, options)
    sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+|\n+", bare) if sentence.strip()] or ["…"]
    cut_off = (len(sentences) > 1 or len(bare.split()) > 10) and (text[-1].isalnum() or text[-1] in ",:(")
    settled_from = max((match.start() for match in SAYS["checks"].finditer(bare)), default=0) if cut_off else 0
    for start, found in reversed(statements):
        if found <= set(letters) and start >= max(settled_from, *(denied.get(letter, 0) for letter in found)):
            return found
    # A base model that begins with the text of an option says more of it, and of others.
    if (begun := SAYS["begins with"].match(bare)) and _settled(sentences[0]):
        return _named(begun[1])
    listed_on = SAYS["listed on"].match(bare)
    if listed_on and _consecutive(listed := [*map(str.upper, listed_on.groups())]) and not denied:
        return frozenset(listed[0]) & set(letters)
    lines = [line for line in bare.splitlines() if line.strip()]
    if settled_from or _consecutive(SAYS["of list"].findall(bare)):
        lines = []
    for line in [*lines[-1:], *lines[:1]]:
        if found := _committed(line.rstrip("?"), letters, options):
            return found
    if cut_off or "?" in sentences[-1] or SAYS["undecided"].search(bare):
        return frozenset()
    left = [likely, *map(_mentioned, _concluding(sentences, listed=_consecutive(SAYS["of list"].findall(_bare(text)))))]
    left = [found - denied.keys() for found in left]
    return next((found for found in left if len(found) == 1 and found <= set(letters)), frozenset())


def _cut_in_list(text: str) -> bool:
    """Whether a text ends with the label of an option, of which there is no more."""
    last = SAYS["last label"].search(text)
    if last is None:
        return False
    labels = re.findall(rf"(?m)^\W{{0,3}}([A-J]){re.escape(last[2])} ?\S", text)
    return last[1] not in labels and chr(ord(last[1]) - 1) in labels


def _concluding(sentences: Sequence[str], *, listed: bool) -> list[str]:
    """The last and the first of the sentences that speak of letters, where a reply does not go through them all."""
    speaking = [each for each in sentences if SAYS["letter"].search(each) and not each.startswith("|")]
    walk = [match[1] for each in speaking if (match := SAYS["begins"].match(each)) and _settled(each)]
    concludes = bool(
        speaking and re.match(r"\W*(?:So|Thus|Hence|Therefore|Based on|Overall|In conclusion)\b", speaking[-1])
    )
    if not speaking or (_consecutive(walk) and not concludes) or SAYS["also"].search(speaking[-1]):
        return []
    last = [speaking[-1], SAYS["so then"].split(speaking[-1])[-1]]
    if len(speaking) > 1:
        last = [SAYS["verb after"].sub(r"\1(\2)", each) for each in last]
    first = [] if _consecutive(walk) or SAYS["of list"].match(speaking[0]) else speaking[:1]
    return [*(last if not listed or concludes else ()), *first]


def _mentioned(sentence: str) -> frozenset[str]:
    """The letters of options that a sentence speaks of, where it settles on them."""
    mentions = list(SAYS["mentioned"].finditer(sentence))
    found = frozenset().union(*map(_last_group, mentions))
    # Where options are in brackets, "A" is an article, or a point of the problem.
    letters = re.findall(r"\[[A-J]\]|\([A-J]\)", sentence) or SAYS["letter"].findall(sentence)
    if not mentions or "?" in sentence or found != _named("".join(letters)):
        return frozenset()
    start = mentions[0].start(mentions[0].lastindex or 0)
    before = SAYS["condition first"].sub("", SAYS["clause"].split(sentence[:start])[-1])
    after = SAYS["clause"].split(sentence[mentions[-1].end() :])[0]
    if "[" in mentions[0][0]:  # "You keep [A] in it if you can."
        after = re.split(r"\b(?:if|when|than)\b", after)[0]
    return found if _settled(before + sentence[start : mentions[-1].end()] + after) else frozenset()


def _settled(sentence: str) -> bool:
    """Whether a sentence denies nothing, asks nothing and supposes nothing."""
    return "?" not in sentence and not any(SAYS[one].search(sentence) for one in ("no choice", "unsure", "supposed"))


def _statements(text: str, letters: str, options: Sequence[str]) -> tuple[list[_Statement], frozenset[str]]:
    """Where a text says that letters are the answer, and which, in order; and letters it says something fitting of."""
    likely: frozenset[str] = frozenset()
    said = [(one.start, one.start, _committed(one.text[:300], letters, options)) for one in announced(text)]
    for match in [*SAYS["so"].finditer(text), *SAYS["called right"].finditer(text), *SAYS["fits"].finditer(text)]:
        start, end, found = match.start(), match.end(match.lastindex or 0), _last_group(match)
        before = SAYS["clause"].split(text[max(0, start - 60) : start])[-1]
        if match.re is SAYS["so"] and text[max(0, start - 1) : start] == "(":
            continue  # "(réponse C)" only mentions it
        is_something = match.re is SAYS["so"] and match["is"] and not SAYS["subject"].search(f"{before}|{match[0]}")
        if match.re is not SAYS["fits"] and not is_something:
            said.append((start, match.end() if match.re is SAYS["called right"] else end, found))
        elif not found <= likely and _asserted(text, start, match.end()):
            likely |= found
    if verdicts := list(SAYS["verdict"].finditer(text)):  # of a list of verdicts, all the letters that are right
        found = frozenset().union(*map(_last_group, verdicts))
        # Several letters may be those that are true and not asked for, where another one is the answer.
        aside = len(found) > 1 and any(len(one[2]) == 1 and not one[2] <= found for one in said)
        start = -1 if aside else verdicts[-1].start(verdicts[-1].lastindex or 0)
        said.append((start, verdicts[-1].end(), found))
    for match in SAYS["rows"].finditer(text):
        said.append((match.end(), match.end(), _named("".join(re.findall(r"^[\W\d]*([A-J])", match[1], re.MULTILINE)))))
    kept: list[_Statement] = []
    for start, end, found in sorted(said, key=lambda one: one[0])[-200:]:  # the last ones decide
        if found and _asserted(text, start, end):  # "A is right. B is also right."
            also = kept and SAYS["also"].search(text[start:end])
            kept.append((start, found | kept[-1][1] if also else found))
    return kept, likely


def _asserted(text: str, start: int, end: int) -> bool:
    """Whether a statement is neither a condition nor a question, nor what others say."""
    clause = SAYS["clause"].split(text[max(0, start - 120) : end])[-1]
    unsure = SAYS["unsure"].search(SAYS["listed at end"].sub("", clause).rpartition(", ")[2])
    return not unsure and not SAYS["supposed"].search(clause) and not SAYS["condition"].match(text, end)


def _consecutive(labels: Sequence[str]) -> bool:
    """Whether the last two letters follow each other: "(A) red (B) blue" makes no choice."""
    return len(labels) > 1 and ord(labels[-1]) == ord(labels[-2]) + 1


def _committed(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """Letters at the start of a short text, or those of the option whose text it is."""
    bare = _bare(text)
    said = normalize(bare)
    if exact := {one for one, option in zip(letters, options, strict=False) if normalize(_bare(option)) == said}:
        return frozenset(exact)
    match = SAYS["chosen"].match(bare) or SAYS["small label"].match(bare) or SAYS["joined"].match(bare)
    found = _named(match[1].upper()) if match else frozenset()
    return found if found <= set(letters) else frozenset()


def _bare(text: str) -> str:
    return re.sub(r"[^\S\n]+|~", " ", SAYS["markup"].sub("", text)).strip().lstrip("•>→∴=✅✔️👉 ").removeprefix("- ")


def _last_group(match: re.Match[str]) -> frozenset[str]:
    """The letters of the group of a pattern that took part."""
    return _named(match[match.lastindex or 0])


def _named(group: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Z]", group))
