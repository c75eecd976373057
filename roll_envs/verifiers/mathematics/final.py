r"""The final answer of a mathematical text: boxed, announced, or the last mathematics in it."""

from __future__ import annotations

import re

from roll_envs.verifiers.extract import answer_phrase, boxed, plain, reply

_SPAN = re.compile(  # lengths are limited, so that delimiters without an end take linear time
    r"(?<!\\)\$\$((?:\\.|[^$\\]){1,1000})\$\$|(?<!\\)\$((?:\\.|[^$\n\\]){1,1000})\$"
    r"|\\\[((?:[^\\]|\\(?![\[\]])){1,1000})\\\]|\\\(((?:[^\\]|\\(?![()])){1,1000})\\\)"
)
_WHITESPACE, _LINES = re.compile(r"[^\S\n]+"), re.compile(r"(?: ?\n)+ ?")
# What follows these words explains the answer.
_EXPLAINED = re.compile(
    r"\.\s|\s+(?:because|since|which|I hope)\b|,\s+(?:because|since|as|so|which)\b"
    r"|\s+\((?=i\.e|(?:\d+\s)?[a-z]{2,}[\s.,)-])|,\si\.e\.|,\sor\s(?=[\d.]{1,9}%)"
)
_STOP = re.compile(rf"{_EXPLAINED.pattern}|\.$|\s+(?:where|when|as|so|for|by|after)\b")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z}])")
# 1,234.5 or .5, 3/4, 2e3; with a sign of money before it or a percent sign behind it.
_NUMBER = re.compile(
    r"[$€£]?-?(?:\d+ (?=\d+/\d))?(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:\s*/\s*\d+(?:\.\d+)?)?(?:[eE][+-]?\d+)?\s*(?:\\?%)?"
)
# Words before an answer: "so we get", "The area is: ".
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|it'?s|that'?s|it is|this is|we get|we have|we find|i get|equals?|answer|ans\.|donc"
    r"|entonces|por lo tanto|portanto|quindi|il y a|il reste|son|são|hay)\b[,:\s]*)+"
    r"|(?:[A-Za-z]{2,}[\s,]+){0,3}(?:[A-Za-z]{2,}|A):\s+|(?:when|if|for)\s[^,.\n]{1,30},\s+|(?:=>|[=≈→∴⇒])\s*",
    re.IGNORECASE,
)
# "He earned $72": a subject and a verb before the number.
# "paying $660, she has $711" and "$2 + $3 = $5": signs of money, which begin no mathematics.
_MONEY = re.compile(
    r"(?<![\\$])\$(?=\d[\d,.]{0,20}(?:,?\s(?:[^$\n\\{}]{0,200}\s)?[a-zA-Z]{2,}\s[^$\n\\{}]{0,200}|\s*[-+*/=×]\s*)\$)"
)
_PRICE = re.compile(r"(\\?[$€£]\d[\d,.]*\d|\\?[$€£]\d)\s+(?:per|a|each|every|in|for|left)\b[^$]*")
# "3/4 of a cup", "12 of the students".
_SHARE_OF = re.compile(
    r"((?:\d++\s+)?(?=[^\s=]*\d)[^\s=]++)\s+of\s+(?:an?|the|all|his|her|its|their|our|them|those|these)\b[^$\\=]*"
)
_BECAUSE = re.compile(r"(?<=\w),?\s(?:because|since|as)\s")
# What an answer is said not to be: "9, not 8", "9 rather than 8", "not 8 but 9".
_CONTRAST = re.compile(
    r",?\s\(?(?:and not|not|n't|rather than|instead of)\s(?:the\s(?:[a-z]+\s)?)?[-\\$€£]{0,3}\d[\d.,/]{0,20}\)?"
    r"(?:\sbut\b)?"
)
# "x = 4. Check: 3 * 4 = 12": what verifies an answer holds other numbers.
_CHECKED = re.compile(
    r"(?<=[\d.)}$*])\s*\n\W{0,4}(?:Check|Verification|Verify|Checking|Sanity check)\b\W{0,3}[: ].*", re.DOTALL
)
_ABOVE = re.compile(r"([^\n]{0,80}\d[^\n]{0,40})\n\s?(?:Explanation|Reason(?:ing)?|Justification|Confidence)\b")
_END_OF_PROOF = re.compile(r"\$?\\(?:blacksquare|qed)\b\$?")
# "the vertex is at (3, -2)", "which gives us 9": verbs before the answer of a sentence.
_SAYS = re.compile(
    r"\b(?:is|are|was|be|equals?|gives?|yields|get|makes|so|thus|hence|therefore|ist|est|es|son|é|è)"
    r"(?:\s(?:us|at|now|then|therefore|exactly|only|just|approximately|about|donc)){0,3}\s|[→⇒]\s"
)
# "9 apples in 2 baskets", "is 9 when x = 3": numbers that only say where, when or of what.
_WHERE = re.compile(
    r"(?<=\w),?\s(?:in|over|after|within|during|when|where|for|at(?: the end of)?|attained at|reached at)"
    r"(?:\s(?!total|all)[A-Za-z]+){0,2}\s(?:\$?[A-Za-z]\s?=\s?)?-?\d[\d.,]*\$?(?:\s[A-Za-z]+)?[.\s]*$"
)
_SUBJECT = re.compile(
    r"(?!sin|cos|tan|log|ln|sqrt|pi\b)(?:[A-Z][a-z]+\s+(?:[a-z]+\s+)+|there\s+\w+\s+)(?=\\?[$€£¥]?-?\d)"
)
# "7 boxes × 8 pens = ": words may stand in it, but no variables.
_CALCULATION = re.compile(
    r"(?:[A-Za-z]{2,}|\\(?:times|cdot|div|\$)|[^A-Za-z\\=])*+=(?:(?:[A-Za-z]{2,}|[^A-Za-z\\=])*+=)*+\s*(?=[^=\s])"
)
_OPERATION = re.compile(r"^\W*=|\d\s*[-+*/×÷]\s*[$€£]?[\d(]|×|\\times|\\cdot")
_STATED = re.compile(
    r"[A-Z][^\d]{0,60}\b(?:has|have|had|is|are|was|were|will|takes|costs|needs)\b[^\d]{0,40}", re.IGNORECASE
)
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u0900-\u097f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_STYLE = r"\\(?:text(?:bf|it|rm|sf|tt|up)?|math(?:bf|rm|it|sf|tt)|boldsymbol|bm)"
_STYLED = re.compile(_STYLE + r"\s*\{\s*([^{}A-Za-z\\]*\d[^{}A-Za-z\\]*)\}")
_LABEL = re.compile(_STYLE + r"\s*\{\s*\(?([A-J])[).]?\s*\}\s*(?:\\[ ~,;:!]|~|:|\s)*(?=[^\s}])")
_LABEL_ALONE = re.compile(rf"\$?(?:{_STYLE}\s*\{{)?\s*\(?[A-J]\)?\s*\}}?\$?")
_BETWEEN = re.compile(r"\s*(?:,|;|,?\s*and|,?\s*or|\.)?\s*", re.IGNORECASE)
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
    return _unstyled(_unboxed(_MONEY.sub(r"\\$", plain(text))))


def _unboxed(text: str) -> str:
    text = _CONTRAST.sub("", text)
    phrase = answer_phrase(text)
    if phrase:
        return _result(_from_phrase(phrase))
    text = _CHECKED.sub("", _END_OF_PROOF.sub("", text)).strip()
    above = _ABOVE.match(text)
    text = above[1] if above else text
    lead = _LEAD.match(text)
    bare = text[lead.end() if lead else 0 :]
    bare = _BECAUSE.split(bare, maxsplit=1)[0] if re.match(r"-?\d", bare) else bare
    text = text[-_LOOKED_AT:]
    _, *said = _SAYS.split(re.split(r"[.?!]\s|\n", text.rstrip("$. "))[-1])
    if said and _is_plain(said[-1]):
        return _result(said[-1])
    where = _WHERE.search(text, max(0, len(text) - 80))
    if where and re.search(r"\d", text[: where.start()].rpartition("\n")[2]):
        text = text[: where.start()]
    spans = list(_SPAN.finditer(text))
    # Mathematics within prose: the last of it is the answer.
    if spans and (_words(text[: spans[-1].start()]) or re.match(r" (?:is|are)\b", text[spans[-1].end() :])):
        return _joined(text, spans)
    if len(bare) <= _SHORT and "\n" not in bare and not _is_prose(bare) and not _SUBJECT.match(bare):
        return _result(bare)
    # Long, and no prose at either end: one long expression, such as a list.
    if len(bare) > _SHORT and not _is_prose(bare[:_SHORT]) and not _is_prose(bare[-_SHORT:]):
        return bare
    if spans:
        return _joined(text, spans)
    numbers = _numbers(text)
    return numbers[-1] if numbers else bare.splitlines()[-1] if bare else ""


def _is_plain(text: str) -> bool:
    """Whether it is an answer without dollar signs: no words and no unit, or a few behind more than a number."""
    if len(text) > _SHORT or "$" in text or not re.search(r"\d", text):
        return False
    words = len(_words(text))
    return (
        words < _FEW_WORDS
        if re.search(r"[√π×^]", text)
        else not words and not re.search(r"\d\s[A-Za-z](?![A-Za-z])", text)
    )


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
    return [w for w in _PROSE.findall(_SPAN.sub(" ", text)) if w.lower() not in ("or", "and", "sqrt", "pi")]


def _from_phrase(phrase: str) -> str:
    spans = list(_SPAN.finditer(phrase))
    if not spans:
        said = _STOP.split(phrase, maxsplit=1)[0].strip() if _is_prose(phrase) else phrase
        numbers = _numbers(said)  # "the shop has 56 pens"
        return numbers[0] if len(numbers) == 1 and _STATED.match(said) else said
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
    sides = _CALCULATION.match(text)
    if sides and _OPERATION.search(sides[0]) and not (text.startswith("$") and text.rstrip(" .").endswith("$")):
        text = text[sides.end() :]
    if _OTHER_SCRIPT.search(text):
        numbers = _numbers(text)
        spans = list(_SPAN.finditer(text))
        return _content(spans[-1]) if spans else numbers[-1] if numbers else text
    return text


def _numbers(text: str) -> list[str]:
    return [match.group().strip() for match in _NUMBER.finditer(text) if match.group().strip()]


def _joined(text: str, spans: list[re.Match[str]]) -> str:
    """The last span, with those right before it that are joined to it by a comma or "and"."""
    chosen = [spans[-1]]
    for before in reversed(spans[:-1]):
        between = text[before.end() : chosen[0].start()]
        if not re.fullmatch(r"\s*(?:,|;|,?\s*and|,?\s*or)\s*", between, re.IGNORECASE):
            break
        chosen.insert(0, before)
    return ", ".join(map(_content, chosen))


def _content(span: re.Match[str]) -> str:
    return next(group for group in span.groups() if group is not None)
