r"""The final answer of a mathematical text: boxed, announced, or the last mathematics in it."""

from __future__ import annotations

import re

from roll_envs.verifiers.extract import announced, answer_phrase, boxed, plain, reply
from roll_envs.verifiers.mathematics.prose import EMOJI, OTHER_SCRIPT, SPAN, says, stated
from roll_envs.verifiers.mathematics.structure import Unreadable, split

_WHITESPACE, _LINES = re.compile(r"[^\S\n]+"), re.compile(r"(?: ?\n)+ ?")
# What follows these words explains the answer.
_EXPLAINED = re.compile(
    r"\.\s|\s+(?:because|since|which|I hope)\b|,\s+(?:because|since|as|so|which|car|porque|weil)\b"
    r"|\s+\((?=i\.e|(?:\d+\s)?[a-z]{2,}[\s.,)-])|,\si\.e\.|,\sor\s(?=[\d.]{1,9}%)"
)
_STOP = re.compile(rf"{_EXPLAINED.pattern}|\.$|\s+(?:where|when|as|so|for|by|after)\b")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z}])")
# Words before an answer: "so we get", "The area is: ".
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|it'?s|that'?s|it is|this is|we get|we have|we find|i get|equals?|answer|ans\.|donc"
    r"|entonces|por lo tanto|portanto|quindi|il y a|il reste|son|são|hay)\b[,:\s]*)+"
    r"|(?:[A-Za-z]{2,}[\s,]+){0,3}(?:[A-Za-z]{2,}|A):\s+|(?:when|if|for)\s[^,.\n]{1,30},\s+|(?:=>|[=≈→∴⇒])\s*",
    re.IGNORECASE,
)
_PRICE = re.compile(r"(\\?[$€£]\d[\d,.]*\d|\\?[$€£]\d)\s+(?:per|a|each|every|in|for|left)\b[^$]*")
# "3/4 of a cup", "12 of the students".
_SHARE_OF = re.compile(
    r"((?:\d++\s+)?(?=[^\s=]*\d)[^\s=]++)\s+of\s+(?:an?|the|all|his|her|its|their|our|them|those|these)\b[^$\\=]*"
)
# What an answer is said not to be: "9, not 8", "9 rather than 8", "not 8 but 9".
_CONTRAST = re.compile(
    r",?\s\(?(?:and not|not|n't|rather than|instead of)\s(?:the\s(?:[a-z]+\s)?)?[-\\$€£]{0,3}\d[\d.,/]{0,20}\)?"
    r"(?:\sbut\b)?"
)
# What verifies or explains an answer holds other numbers: "x = 4. Check: 3 * 4 = 12".
_CHECKED = re.compile(
    r"(?<=[\w.)}$*!])\s*\n\W{0,4}(?:Check|Verification|Verify|Checking|Sanity check|Explanation|Reason(?:ing)?"
    r"|Justification|Confidence)\b\W{0,3}[: ].*|(?<=\d\.) (?:Explanation|Check|Verification):.*", re.DOTALL
)
_END_OF_PROOF = re.compile(r"\$?\\(?:blacksquare|square|qed)\b\$?")
_STYLE = r"\\(?:text(?:bf|it|rm|sf|tt|up)?|math(?:bf|rm|it|sf|tt)|boldsymbol|bm)"
_STYLED = re.compile(_STYLE + r"\s*\{\s*([^{}A-Za-z\\]*\d[^{}A-Za-z\\]*)\}")
_LABEL = re.compile(_STYLE + r"\s*\{\s*\(?([A-J])[).]?\s*\}\s*(?:\\[ ~,;:!]|~|:|\s)*(?=[^\s}])")
_LABEL_ALONE = re.compile(rf"\$?(?:{_STYLE}\s*\{{)?\s*\(?[A-J]\)?\s*\}}?\$?")
_BETWEEN = re.compile(r"\s*(?:,|;|,?\s*and|,?\s*or|\.)?\s*", re.IGNORECASE)
# Words behind a number may be its unit.
_TEXT = re.compile(r"\\text\s*\{[^{}]*\}")
_UNIT = re.compile(r"(?:\s(?!(?:is|are|was|means|equals|in|as|to|per|of|with)\b)[A-Za-z]+){1,3}\W*$")
# After an answer: another one follows.
_CORRECTED = re.compile(
    r"\b(?:oops|scratch that|correction|my mistake|on second thought)\b|(?:\.\.\.|…)\s?(?:no|wait|actually)\b|, but actually\b",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
_FEW_WORDS, _MOST_WORDS = 3, 8
_SHORT = 300
_LOOKED_AT = 20_000
"""Characters at the end that are searched for mathematics when no phrase announces the answer."""


def final_expression(text: str, *, require_boxed: bool = False) -> str:
    r"""The part of ``text`` that is the answer; empty where there is none.

    ``final_expression("We get $x=2$, so the answer is $\\frac12$ cm.")`` is ``"\\frac12 cm"``.
    """
    text = _LINES.sub("\n", _WHITESPACE.sub(" ", reply(text)))
    boxes = boxed(text)
    if boxes:
        return _unstyled(boxes[-1] if len(boxes) == 1 else ", ".join(boxes))
    if require_boxed:
        return ""
    return _unstyled(_unboxed(text))


def _unboxed(text: str) -> str:
    emphasised = [plain(one) for one in _BOLD.findall(text[-_LOOKED_AT:])]
    text = _CONTRAST.sub("", plain(EMOJI.sub("", text)))
    if found := [one for one in announced(text) if one.text]:
        corrected = _CORRECTED.search(text, found[-1].start)
        return (stated(text[corrected.end() :]) if corrected else "") or _result(_from_phrase(found[-1].text))
    text = _CHECKED.sub("", _END_OF_PROOF.sub("", text)).strip()
    lead = _LEAD.match(text)
    bare = text[lead.end() if lead else 0 :]
    # Long, and no prose at either end: one long expression, such as a list.
    if len(bare) > _SHORT and not _is_prose(bare[:_SHORT]) and not _is_prose(bare[-_SHORT:]):
        return bare
    if len(bare) <= _SHORT and not bare.casefold().startswith("a ") and "\n" not in bare and re.search(r"[\d\\$]", bare) and not _words(_TEXT.sub("", _UNIT.sub("", bare))):
        return _result(bare)
    found = stated(text[-_LOOKED_AT:], emphasised)
    return _side(found) if found else "" if not bare or re.search(r"\d", bare) else bare.splitlines()[-1]


_AS_WORDS = re.compile(r"(?=.*[^\W\d_]{2}|[A-Z]$)[^\W\d_][^\W_'’]*(?:[ ,.'-]{1,2}[^\W_]+){0,5}\.?")


def says_words(text: str, reference: str) -> bool:
    """Whether the conclusion of a reply without a box is the words of a reference, such as a name or "yes"."""
    words = re.sub(r"^\\text\s*\{([^{}]*)\}$", r"\1", reference_expression(reference).strip()).rstrip(".")
    if not _AS_WORDS.fullmatch(words) or words.islower() and len(words) < 2:
        return False
    text = _LINES.sub("\n", _WHITESPACE.sub(" ", reply(text)))
    text = text[-_LOOKED_AT:]
    if boxed(text):
        return False
    return says(answer_phrase(plain(text)) or plain(text), words)


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
    r"""``found`` without the letter of its choice (``\textbf{(C)} 72``); that letter, where the reference is one."""
    label = _LABEL.match(found)
    if label is None:
        return found
    return label[1] if _LABEL_ALONE.fullmatch(reference.strip()) else found[label.end() :]


def _unstyled(text: str) -> str:
    """Numbers without the bold type they stand in."""
    return _STYLED.sub(r"\1", text)


def _is_prose(text: str) -> bool:
    """More words than an answer with a unit has; words of LaTeX and within its braces do not count."""
    return len(_words(text)) > _FEW_WORDS


def _words(text: str) -> list[str]:
    return [w for w in _PROSE.findall(SPAN.sub(" ", text)) if w.lower() not in ("or", "and", "sqrt", "pi")]


def _from_phrase(phrase: str) -> str:
    spans = list(SPAN.finditer(phrase))
    if not spans:
        said = _STOP.split(phrase, maxsplit=1)[0].strip() if _is_prose(phrase) else phrase
        return (stated(said) if _is_prose(said) else "") or said  # "the shop has 56 pens"
    # "$x=1$ or $x=2$" is one answer; mathematics after further words does not belong to it.
    end, kept = spans[0].end(), [spans[0]]
    for span in spans[1:]:
        if not _BETWEEN.fullmatch(phrase[end : span.start()]):
            break
        kept.append(span)
        end = span.end()
    before = phrase[: spans[0].start()].strip()
    said, *reasons = _STOP.split(before + " ", maxsplit=1)
    if reasons and re.search(r"\d", said):
        return said.strip()
    if before and _is_prose(before):
        return _content(spans[0])
    after = _STOP.split(phrase[end:] + " ", maxsplit=1)[0].rstrip(" .")
    trailing = after if len(after) <= 40 and "$" not in after else ""
    middle = ", ".join(map(_content, kept))
    head = before if before and not _PROSE.search(before) else ""
    return f"{head} {middle}{trailing}".strip()


def _result(text: str) -> str:
    """The last side of a calculation (``8 * 9 = 72``), and the number in a sentence of another script."""
    if re.match(r"[-\\$€£]{0,3}\d", text):
        text = _EXPLAINED.split(text, maxsplit=1)[0]
    if share := _PRICE.fullmatch(text) or _SHARE_OF.fullmatch(text):
        return share[1]
    if OTHER_SCRIPT.search(text):
        return stated(text) or text
    return _side(text)


_JOINED = re.compile(r",|;|\b(?:and|or)\b|\\text\s*\{[^{}]*\}")
_NAMED_VALUE = re.compile(r"[\s$]*\\?[A-Za-z][\w₀-₉']{0,3}(?:_\S{1,9})?(?:\([^()]*\))?\s*=")
_IMPLIED = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow)(?![a-zA-Z])|[→⇒]|=>")
# The left of an equation that is no answer itself: a calculation without unknowns, of words, with a unit, an integral.
_OPERATORS = re.compile(r"\\(?:int|sum|lim|prod|[dt]?frac\s*\{d\}|oint|iint)(?![A-Za-z])|[∫∩∪×]|d/d")
_CALCULATED = re.compile(
    rf"{_OPERATORS.pattern}|[A-Za-z]{{2,}} "
    r"|^(?=.*[-+*/^!×÷√·\\])(?:\\(?:times|cdot|div|sqrt|[dt]?frac|pi|left|right|[lc]?dots|\$)(?![A-Za-z])|sqrt|pi|[^A-Za-z\\])*$"
    r"|^[\d.,]+\s?(?:[A-Za-z]{2,}|[°%])[²³]?\s*$|^[\d.,]+\s[a-zA-Z]\s*$"
)


def _side(text: str) -> str:
    """The last side of a chain of equal ones; an equation of two where its left is a name or holds unknowns."""
    span = SPAN.fullmatch(text.rstrip(" ."))
    inner = _content(span) if span else text
    text = inner if (implied := _IMPLIED.split(inner)[1:]) else text
    inner = implied[-1].strip() if implied else inner
    # "x = 3, y = -1": each is an answer of its own.
    if sum(_NAMED_VALUE.match(piece) is not None for piece in _JOINED.split(inner)) > 1:
        return inner
    sides = _parts(inner, "=")
    if span and len(sides) == 2 and not _OPERATORS.search(sides[0]):
        return inner if implied else text
    if len(sides) < 2 or not all(sides) or (len(sides) == 2 and not _CALCULATED.search(sides[0])):
        return inner if implied else text
    return sides[-1]


def _parts(text: str, separators: str) -> list[str]:
    try:
        return split(text, separators)
    except Unreadable:
        return [text]


def _content(span: re.Match[str]) -> str:
    return next(group for group in span.groups() if group is not None)
