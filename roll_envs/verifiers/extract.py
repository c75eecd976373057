r"""Extracts the final answer from a model's text: after its thoughts, in ``<answer>``, in ``\boxed{...}`` or announced.

Takes time linear in the text. Left out: what the answer means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from roll_envs.verifiers.announced import announced, answer_phrase
from roll_envs.verifiers.phrases import patterns

MAX_CHARS = 100_000
"""Of a longer text only the end is read, where a final answer is expected."""

_THOUGHTS = (  # how thoughts open and close in the chat formats of reasoning models
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
_TAGS = ("answer", "final_answer", "solution", "final")
_KEY = re.compile(
    r"(?i)(?:(?:final|correct|selected)_)?(?:answer|choice|option|prediction|result|solution|final)(?:_letter)?"
)
# Special tokens of chat templates, emphasis of HTML, and a tag that was cut off.
_TOKENS = re.compile(r"<[|｜][^<>|｜]{1,40}[|｜]>|</s>|<(?:eos|end_of_turn|br|/?(?:b|i|em|strong|p))>|</[a-z_]{0,12}$")
_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
# The first alternative passes over escaped braces.
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_WORD = re.compile(r"[^\s${}\\]+|\\[a-zA-Z]+")
# Emphasis of Markdown; between letters or digits two stars are a power.
_STARS = re.compile(r"\*\*(?![A-Za-z0-9(])|(?<![A-Za-z0-9)])\*\*|(?<![A-Za-z0-9_])__|__(?![A-Za-z0-9_])|`")
_ITALICS = re.compile(r"(?<![\w)*\\^])\*(?=[^\s*])([^*\n]{1,80}?)(?<=[^\s*])\*(?![\w(*])")
_HEADING = re.compile(r"^[ \t]*(?:#{1,3}|#{5,6}|>|\*)[ \t]+", re.MULTILINE)
_FULL_WIDTH = str.maketrans("：，；（）［］＝％？！０１２３４５６７８９", ":,;()[]=%?!0123456789")
# What may stand between two boxes that are one answer: "and", "or", a comma, a semicolon, and delimiters of
# mathematics.
_JOIN = re.compile(r"[\s$,;.\\()\[\]]*(?:and|or|,|;)?[\s$,;\\()\[\]]*", re.IGNORECASE)

_CONTINUED = {
    # A base model goes on with a question of its own after its answer.
    "next": (
        r"\n\s{0,3}(?:#{1,9}\s{1,3})?(?:(?:Q|(?:Next |Similar |Another )?(?:[Qq]uestion|[Pp]roblem)|Exercise|Passage"
        r"|Review|Instruction|Input|Human|User)\b[ \d]{0,4}[:.\n]|The following are |(?:Now |Next,? )?(?:[Ll]et's )?"
        r"[Tt]ry (?:another|this)\b|[^\n]{0,40}\bnext (?:one|question|problem)\b)"
        r"|(?<=[.!?>] )(?:Question|Problem|Exercise|Q): "
        r"|\n(?:[^\n]{10,300}\?|\d{1,3}[.)] [^\n]{10,300})\s{0,3}\n(?=\(?[Aa][.):] )"
        r"|\n\n(?![^\n?]{0,500}\b(?:[Ww]ait|[Bb]ut|[Hh]owever|I|[Ww]e|me|question|option|answer)\b)[A-Z][^\n]{10,300}"
        r"[.,] (?:How|What|Which|Who|When|Where) [^\n?]{5,200}\?"
    ),
    "short answer": (
        r"\W{0,3}(?:[A-J]\b(?:[.):,][^\n]*|[^\n]{0,20}|[.):]?\n(?s:.*))|-?[$\d][^\n]{0,20})"
        r"|(?![^\n]*(?:roblem|uestion|xercise|olv|tep))[A-Z][^\n:]{0,80}\d[^\n:]{0,40}\."
    ),
    "value": r"(?:=|\b(?:[Ss]o|[Tt]hus|[Tt]herefore|Ans)\b\.?)(?:\D{0,60}\d|,? \(?[A-J]\b)",
    "given": r"Given|Let (?!me )|If|Suppose",
}
_SAYS = patterns(_CONTINUED)


def tail(text: str) -> str:
    """The last :data:`MAX_CHARS` of a text."""
    return text[-MAX_CHARS:]


def after_thinking(text: str, *, first: bool = False) -> str:
    """What follows the last end of thoughts (with ``first`` the first, where what follows may quote one); nothing when
    a text, or a line of it, begins with thoughts that never end.

    A template may open the thoughts in the prompt, so that only their end is in the text.
    """
    for opening, closing in _THOUGHTS:
        begun = text.lstrip().startswith(opening)
        if first and not begun and opening != "<think>":
            continue
        _, closed, rest = text.partition(closing) if first else text.rpartition(closing)
        text = rest if closed else text
        if first:
            if begun and not closed:
                return ""
        elif opening in text:
            at = 0 if text.lstrip().startswith(opening) else text.find("\n" + opening)
            if at >= 0:
                return text[:at]
    return text


def reply(text: str) -> str:
    """The part of a model's text where its answer is: the end of it, after thoughts, in the last ``<answer>``."""
    text = after_thinking(tail(text))
    lower = text.lower()
    for tag in _TAGS if len(lower) == len(text) else ():
        end = lower.rfind(f"</{tag}>")
        start = lower.rfind(f"<{tag}>", 0, end if end >= 0 else len(text))
        if start >= 0 or end >= 0:  # one that was cut off reaches to the end; a prompt may have opened one
            text = text[start + len(tag) + 2 if start >= 0 else 0 : end if end >= 0 else len(text)]
            break
    following = _SAYS["next"].search(text)
    # It may also begin anew: with the words that its first answer began with.
    opening = " ".join(text.split(" ", 4)[:4])
    ends = [following.start() if following else -1, text.find("\n\n" + opening, 1) if len(opening) > 15 else -1]
    for end in sorted(ends):
        if end > 0 and _answers(text[:end].strip()):
            text = text[:end]
            break
    answer = _in_json(text)
    return _TOKENS.sub("\n", text) if answer is None else answer


def _answers(text: str) -> bool:
    """Whether what stands before a next question is an answer."""
    text = text.rstrip("-=*_# \n")
    last = text.rpartition("\n")[2]
    concludes = _SAYS["value"].search(last) and not _SAYS["given"].match(last)
    return bool(_SAYS["short answer"].fullmatch(text) or boxed(text) or announced(text) or concludes)


def _in_json(text: str) -> str | None:
    """The answer in a JSON object that the text ends with, fenced or not; ``None`` where there is none."""
    body = text.rstrip("` \n\t")
    try:
        found = json.loads(body[max(0, body.rfind("{")) :]) if body.endswith("}") else None
    except (ValueError, RecursionError):
        return None
    named = found if isinstance(found, dict) else {}
    values = [value for name, value in named.items() if _KEY.fullmatch(name)]
    if len(named) == 1:
        values = list(named.values())
    if not values:
        return None
    answers = values[0] if isinstance(values[0], list) else values[:1]
    return ", ".join(str(answer) for answer in answers if isinstance(answer, str | int | float))


def plain(text: str) -> str:
    """``text`` without the emphasis, code marks and headings of Markdown, full-width signs as ASCII ones."""
    text = _HEADING.sub("", text.translate(_FULL_WIDTH).replace("。", ". ").replace("、", ", "))
    return _ITALICS.sub(r"\1", _STARS.sub("", text))


def short_answer(text: str) -> str:
    r"""A short answer in words: in ``<answer>`` or ``\boxed{}``, after "the answer is", or the whole reply.

    ``short_answer("It is old. **The answer is Paris.**")`` is ``"Paris."``.
    """
    text = reply(text)
    boxes = boxed(text)
    if boxes:
        return ", ".join(boxes)
    said = answer_phrase(plain(text))
    return said or text.strip()


def boxed(text: str) -> list[str]:
    r"""What stands in the last ``\boxed{...}``, and in those that stand directly before it (``\boxed{1}`` and
    ``\boxed{2}``), in order; empty when there is none. ``\boxed 5`` is read as ``\boxed{5}``."""
    found: list[tuple[int, int, str]] = []
    closed_by = _closing(text)
    end_of_last = -1
    for match in _BOX.finditer(text):
        if match.start() < end_of_last:
            continue  # a box within a box
        content, end = _argument(text, match.end(), closed_by)
        if content is None:
            continue
        found.append((match.start(), end, content))
        end_of_last = end
    if not found:
        return []
    chosen = [found[-1]]
    for before in reversed(found[:-1]):
        between = text[before[1] : chosen[0][0]]
        # More text between two boxes separates two answers.
        if len(between) > 20 or not _JOIN.fullmatch(between) or not re.search(r"and|or|,|;", between):
            break
        chosen.insert(0, before)
    return [content.strip() for _, _, content in chosen]


def _closing(text: str) -> dict[int, int]:
    """Where each brace that is closed opens and closes; one pass, so that many open ones cost no more."""
    closed_by: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACES.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closed_by[opened.pop()] = match.start()
    return closed_by


def _argument(text: str, start: int, closed_by: Mapping[int, int]) -> tuple[str | None, int]:
    """The group in braces at ``start`` (``None`` when it never closes), or the one word there; and where it ends."""
    if text.startswith("{", start):
        end = closed_by.get(start)
        return (None, start) if end is None else (text[start + 1 : end], end + 1)
    word = _WORD.match(text, start)
    return (word.group().rstrip(".,;"), word.end()) if word else (None, start)
