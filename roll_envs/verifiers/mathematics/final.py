r"""The final answer of a mathematical text: boxed, announced, or the last mathematics in it."""

from __future__ import annotations

import re

from roll_envs.verifiers.announced import announced, answer_phrase
from roll_envs.verifiers.boxed import boxed
from roll_envs.verifiers.extract import BOLD, plain, reply
from roll_envs.verifiers.mathematics.prose import RESTATED, SPAN, says, stated
from roll_envs.verifiers.mathematics.sentences import CONCLUDES, EMOJI, OTHER_SCRIPT, REVISED

_WHITESPACE, _LINES = re.compile(r"[^\S\n]+"), re.compile(r"(?: ?\n)+ ?")
# "The answer is $65$.I hope it is right": a full stop that ends a sentence without a space.
_STUCK = re.compile(r"(?<=[\d$)}])\.(?=[A-Z][a-z ])")
_PROSE = re.compile(rf"(?<![\\A-Za-z{{])[A-Za-zÀ-ỹ]{{2,}}(?![A-Za-z}}])|\bi\.e|{OTHER_SCRIPT.pattern}")
# A last line that only checks what stands before it: "3 · 4 = 12 ✓".
_CHECKED = re.compile(r"(?<=\S)\s*\n[^A-Za-z\n]{1,80}=[^A-Za-z\n]{1,80}[✓✔]$")
_CALCULATOR = re.compile(r"<<[^<>\n]{1,100}>>")  # GSM8K's notes
_END_OF_PROOF = re.compile(r"\$?\\(?:blacksquare|square|qed)\b\$?")
_STYLE = r"\\(?:text(?:bf|it|rm|sf|tt|up)?|math(?:bf|rm|it|sf|tt)|boldsymbol|bm)"
_STYLED = re.compile(_STYLE + r"\s*\{\s*([^{}A-Za-z\\]*\d[^{}A-Za-z\\]*)\}")
_BEGUN = re.compile(r"^(?:\\\[|\$+)?\s*\\text\s*\{\s*[A-Z][a-z ]+\}\s*(?=-?\d)")
_GAP = r"(?:\\[ ~,;:!]|~|:|\s)"
# The letter of a choice before its value: "\textbf{(C)}\ 72", "\mathrm{(C) \ } 72", "C. 72".
_LABEL = re.compile(
    rf"{_STYLE}\s*\{{\s*(?:{_STYLE}\s*\{{)?\(?([A-J])[).]?{_GAP}*\}}+{_GAP}*(?=[^\s}},;])"
    rf"|\(?([A-Ja-j])\){_GAP}+(?=[$\d.\\-])|([A-J])[.:]{_GAP}+(?=[$\d.\\-])"
)
_LABEL_ALONE = re.compile(rf"\$?(?:{_STYLE}\s*\{{)?\s*\(?[A-J]\)?\s*\}}?\$?")
_SENTENCES = re.compile(r"[.?!]\s|\n|[A-Za-z]:\s")
# Words that a sentence can conclude with: "no", "Leonardo da Vinci", "July 4, 1776", "B".
_AS_WORDS = re.compile(r"(?=.*[^\W\d_]{2}|[A-Z]$)[^\W\d_][^\W_]*(?:[ ,.'-]{1,2}[^\W_]+){0,5}\.?")
_EQUALS = re.compile(r"(?<![<>=])=(?![^{}]{0,200}\})")
_JOINED = re.compile(r",|;|\b(?:and|or)\b|\\text\s*\{[^{}]*\}")
_NAMED_VALUE = re.compile(
    r"(?:[\s$]|\\q?quad\b|\\[ ,;:!])*\\?[A-Za-z][\w₀-₉']{0,3}(?:_\S{1,9})?(?:\([^()]*\))?\s*(?:=|\\equiv)"
)
_IMPLIED = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow)(?![a-zA-Z])|[→⇒∴]|=>")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:align|aligned|gather|split|eqnarray)\*?\}")
# The left of an equation that is no answer itself: an integral, words, a calculation without unknowns, a quantity.
_CALCULATED = re.compile("|".join((
    r"^\\(?:sin|cos|tan|cot)(?![A-Za-z])",
    r"\\(?:int|sum|lim|prod|[dt]?frac\s*\{d\}|oint|iint)(?![A-Za-z])|[∫∩∪×]|d/d|\)'$|\\[lc]?dots|\.{3}",
    r"\\(?:b?mod|choose|oplus|ominus|otimes|star|diamond)(?![A-Za-z])|^P\b.*(?:\\[lg]eq?(?![A-Za-z])|[<>≤≥]).*\)$",
    r"^\d+:\d\d .*[-+]",
    r"(?<![\\A-Za-z])[A-Za-z]{2,} ",
    r"\d ?x ?[$(]*\d|\d [A-Za-z]{1,2}[²³]? [*×·÷/] \d",
    # A calculation with numbers only, and an amount or a quantity by itself.
    r"^(?=.*[-+*/^!(×÷√·²³\\−–|])(?:\\(?:times|cdot|div|sqrt|[dt]?frac|[dt]?binom|pi|left|right|[lc]?dots|circ|\$)(?![A-Za-z])"
    r"|sqrt|pi|(?<=\d)i\b|(?<=\d)h(?=\d)|[^A-Za-z\\])*$",
    r"^[$€£][\d.,]+$",
    r"^[\d.,]+(?:\s?[A-Za-z]{2,}|\s[a-zA-Z]|[°%]|[CP]\d+)(?:/[a-z]+)?[²³]?\s*$",
)))  # fmt: skip
_HEADS = re.compile(r"(?i)\W*(?:step|part|case|étape|schritt|paso|passo|шаг|步骤|第)|\d+[.)]\s|.*:\s*$")
_CONCLUDED = re.compile(r"(?i)\b(?:so|thus|hence|therefore|finally|total)\b[^\n]*\d")
_NUMBERED = re.compile(r"(?m)^ ?\d{1,2}\. (?=[^\W\d])")  # steps of a list
_BRACKETED = re.compile(r"^\((\d{1,3}(?:,\d{3})+|[\d.]+)\)$")
_CONDITION = re.compile(r",?\s*\\q?quad\s*\(?[A-Za-z]\s*(?:[<>≤≥≠]|\\(?:[lg]eq?|[lg]t|neq?|in)\b)[^$]{1,40}(?=\$*$)")
_LETTER_UNIT = re.compile(r"^(-?\d[\d.,]*(?: ?\\times ?10\^\{?-?\d+\}?)?)\$?\s([A-Za-z][²³]?|[A-Z]/[A-Z])\.?$")
# In a box a letter is more often a variable: R, d, a².
_BOXED_UNIT = re.compile(r"^(-?\d[\d.,]*)\s([mgshLNJWV])$")
_QUOTED = re.compile(r"^[\"'“‘]([^\"'“”‘’]+)[\"'”’]\.?$")
_DECIMAL = re.compile(r"\d\.\d")
_MOST_WORDS = 8
_LOOKED_AT = 20_000
"""Characters at the end that are searched for mathematics when no phrase announces the answer."""


def final_expression(text: str, *, require_boxed: bool = False) -> str:
    r"""The part of ``text`` that is the answer; empty where there is none.

    ``final_expression("We get $x=2$, so the answer is $\\frac12$ cm.")`` is ``"\\frac12 cm"``.
    """
    text = _written(text)
    boxes = [_BOXED_UNIT.sub(r"\1\\text{ \2}", box) for box in boxed(text)]
    return _unstyled(", ".join(boxes) if boxes or require_boxed else _unboxed(text))


def _written(text: str) -> str:
    text = _STUCK.sub(". ", _CHECKED.sub("", _CALCULATOR.sub("", reply(text)).rstrip()))
    return _LINES.sub("\n", _WHITESPACE.sub(" ", EMOJI.sub(" ", text.replace("’", "'"))))


def _unboxed(text: str) -> str:
    marked, text = text, plain(text)
    said = [one for one in announced(text) if one.text]
    if said:
        corrected = REVISED.search(text, said[-1].start)
        first = CONCLUDES.match(said[-1].text) is None  # "Answer: Therefore, of the 5 there are 2 left."
        return (corrected and _read(text[corrected.end() :])) or _read(said[-1].text, first=first)
    return _emphasised(marked) or _read(text)


def _emphasised(text: str) -> str:
    """The last value in bold, unless it is a step's heading, one of several in its line, or a conclusion follows it."""
    bold = next((each for each in reversed([*BOLD.finditer(text)]) if re.search(r"\d", each[1])), None)
    if bold is None or _HEADS.match(bold[1]) or _CONCLUDED.search(text, bold.end()):
        return ""
    line = text[text.rfind("\n", 0, bold.start()) + 1 : bold.end()] + text[bold.end() :].partition("\n")[0]
    alone = len(BOLD.findall(line)) == 1 or re.match(r"\|.*\*\*\s*\|$", line)
    return _side(stated(plain(bold[1]))) if alone else ""


def _read(text: str, *, first: bool = False) -> str:
    """The answer in a text: the whole where it is mathematics, else what its prose states."""
    text = _CONDITION.sub("", _QUOTED.sub(r"\1", _END_OF_PROOF.sub("", text).strip()))
    # "(The answer is 20.)": a bracket that was opened before; that of [0, 1) was opened here.
    text = text if sum(map(text.count, "([")) >= text.count(")") else text.rstrip(").")
    steps = _NUMBERED.sub("", text) if re.search(r"(?m)^ ?2\. ", text) else text
    text = text if re.search(r"[\d=\\]", steps) else steps
    if not (SPAN.search(text) or _words(text) or _SENTENCES.search(text)):
        return _side(_LETTER_UNIT.sub(r"\1\\text{ \2}", RESTATED.sub("", text)))
    if found := stated(text[-_LOOKED_AT:], first=first):
        return _side(found)
    last = text.rpartition("\n")[2]
    is_prose = re.search(r"\d", text) or len(_words(last)) > _MOST_WORDS or "?" in last
    return "" if is_prose else last


def says_words(text: str, reference: str) -> bool:
    """Whether the conclusion of a reply without a box is the words of a reference, such as a name or "yes"."""
    words = re.sub(r"^\\text\s*\{([^{}]*)\}$", r"\1", reference_expression(reference).strip()).rstrip(".")
    text = _written(text) if _AS_WORDS.fullmatch(words) else ""
    if not text or boxed(text):
        return False
    text = plain(text)
    return says(answer_phrase(text) or text[-_LOOKED_AT:], words)


def reference_expression(reference: str) -> str:
    """The answer in a reference: after GSM8K's ``####``, in the box of a solution, or announced by a sentence; else the
    whole text."""
    text = reference.strip()
    if "\\boxed" in text or "\\fbox" in text or answer_phrase(text) is not None:
        return final_expression(text)
    return _unstyled(text)


def is_sentence(reference: str) -> bool:
    """Whether a reference is prose that announces no answer: no answer could be equal to it but itself."""
    return len(_words(reference_expression(reference))) > _MOST_WORDS


def for_reference(found: str, reference: str) -> str:
    r"""``found`` without the letter of its choice (``\textbf{(C)} 72``); that letter, where the reference is one.

    Of a value and its decimals (``\frac{1}{3} ≈ 0.333``) the decimals where the reference has some.
    """
    parts = re.split(r"≈|\\approx(?![a-z])", found)
    # In a list, each item may have decimals of its own.
    if len(parts) > 1 and not re.search(r"(?<![\\{])(?:,(?!\}?(?:\\!)?\d{3})|;)|[、或和]|\b(?:or|and)\b", found):
        sides = [side for side in parts if re.search(r"[\dπ]|pi", side)] or parts[-1:]
        exact = [side for side in sides if not _DECIMAL.search(side)]
        found = exact[0] if exact and not _DECIMAL.search(reference) else sides[-1]
    label = _LABEL.match(found)
    # Of several labels, each is that of a part of the problem.
    if label is None or re.search(r"(?:(?<![A-Za-z])\(|[\s,;])[A-Ja-j]\)|\b[A-J][.:]\s", found[label.end() :]):
        return found
    return (label[1] or label[2] or label[3]) if _LABEL_ALONE.fullmatch(reference.strip()) else found[label.end() :]


def _unstyled(text: str) -> str:
    """Numbers without the bold type they stand in, and without the beginning of a sentence before them."""
    return _BEGUN.sub("", _STYLED.sub(r"\1", text))


def _words(text: str) -> list[str]:
    return [w for w in _PROSE.findall(SPAN.sub(" ", text)) if w.lower() not in ("or", "and", "sqrt", "pi")]


def _side(text: str) -> str:
    """The last side of a chain of equal ones; an equation of two where its left is a name or holds unknowns."""
    if _ALIGNED.search(text):
        text = next(filter(str.strip, _ALIGNED.sub("", text).split("\\\\")[::-1]), "").replace("&", "")
    text = _IMPLIED.split(text)[-1].strip()
    # "x = 3, y = -1": each is an answer of its own.
    if sum(_NAMED_VALUE.match(piece) is not None for piece in _JOINED.split(text)) > 1:
        return text
    text = _BRACKETED.sub(r"\1", text)
    sides = _EQUALS.split(text)
    calculated = len(sides) > 2 or _CALCULATED.search(sides[0].strip())
    return sides[-1].strip() if len(sides) > 1 and all(sides) and calculated else text
