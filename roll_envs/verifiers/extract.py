r"""Extracts the final answer from a model's text: after its thoughts, in ``<answer>``, in ``\boxed{...}`` or announced.

Takes time linear in the text. Left out: what the answer means.
"""

from __future__ import annotations

import json
import re

from roll_envs.verifiers.announced import answer_phrase
from roll_envs.verifiers.boxed import boxed
from roll_envs.verifiers.continued import own_part

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
_TAGS = ("answer", "ans", "final_answer", "solution", "final")
_KEY = re.compile(
    r"(?i)(?:(?:final|correct|selected)_)?(?:answer|choice|option|prediction|result|solution|final)(?:_letter)?"
)
# Special tokens of chat templates, emphasis of HTML, and a tag that was cut off.
_TOKENS = re.compile(
    r"<[|｜][^<>|｜]{1,40}[|｜]>|</?s>|\[/?[A-Z]{3,12}\]|<(?:eo\w|end_of_turn|br ?/?|/?(?:b|i|em|strong|p))>"
    r"|</[a-z_]{0,12}$"
)
# Emphasis of Markdown; between letters or digits two stars are a power.
_STARS = re.compile(r"\*\*(?![A-Za-z0-9(])|(?<![A-Za-z0-9)])\*\*|(?<![A-Za-z0-9_])__|__(?![A-Za-z0-9_])|`")
_ITALICS = re.compile(r"(?<![\w)*\\^])\*(?=[^\s*])([^*\n]{1,80}?)(?<=[^\s*])\*(?![\w(*])")
BOLD = re.compile(r"\*\*([^*\n]{1,100})\*\*")
"""Words in bold, which :func:`plain` leaves without their marks."""
_CLOSED = re.compile("|".join({re.escape(closing) for _, closing in _THOUGHTS}))
_CLOSED_LAST = re.compile(rf"(?:{_CLOSED.pattern})\s*\Z")
_TURN = re.compile(r"(?:\n\W{0,6}|(?<=>))(?:Human|User)\b\W{0,3}:|<\|(?:im_end|eot_id|endoftext)\|>")
_HEADING = re.compile(r"^[ \t]*(?:#{1,3}|#{5,6}|>|\*)[ \t]+", re.MULTILINE)
_FULL_WIDTH = str.maketrans("：，；（）［］＝％？！０１２３４５６７８９", ":,;()[]=%?!0123456789")


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
        if begun and not closed:
            return ""
        unclosed = opening in text and re.search(rf"(?:\A\s*|\n){re.escape(opening)}", text)
        if unclosed and not first:
            return text[: unclosed.start()]
    return text


def reply(text: str) -> str:
    """The part of a model's text where its answer is: the end of it, after thoughts, in the last ``<answer>``."""
    # Where nothing follows the end of thoughts that never began, it has ended the reply.
    text = own_part(after_thinking(_first_turn(_CLOSED_LAST.sub("", tail(text)))))
    lower = text.lower()
    for tag in _TAGS if len(lower) == len(text) else ():
        end = lower.rfind(f"</{tag}>")
        start = lower.rfind(f"<{tag}>", 0, end if end >= 0 else len(text))
        if start >= 0 or end >= 0:  # one that was cut off reaches to the end; a prompt may have opened one
            text = text[start + len(tag) + 2 if start >= 0 else 0 : end if end >= 0 else len(text)]
            text = text.strip().removeprefix(f"{tag}>")
            break
    answer = _in_json(text)
    return _TOKENS.sub("\n", text) if answer is None else answer


def _first_turn(text: str) -> str:
    """A text without the turns of others that a model wrote itself after the end of its thoughts."""
    closings, last = _CLOSED.finditer(text), dict[str, int]()
    closing = next(closings, None)
    for turn in _TURN.finditer(text) if closing else ():
        while closing and closing.end() <= turn.start():
            last[closing[0]], closing = closing.end(), next(closings, None)
        if any(text[end : turn.start()].strip() for end in last.values()):
            return text[: turn.start()]
    return text


def _in_json(text: str) -> str | None:
    """The answer in a JSON object that the text ends with, fenced or not; ``None`` where there is none."""
    body = text.rstrip("` \n\t,")
    # One that the prompt has opened is continued, and may be cut off.
    body = "{" + body.rstrip("}") + "}" if body.startswith('"') else body
    try:
        found = json.loads(body[max(0, body.rfind("{")) :]) if body.endswith("}") else None
    except (ValueError, RecursionError):
        return None
    named = found if isinstance(found, dict) else {}
    values = [value for name, value in named.items() if len(named) == 1 or _KEY.fullmatch(name)]
    if not values:
        return None
    answers = values[0] if isinstance(values[0], list) else values[:1]
    return ", ".join(str(answer) for answer in answers if isinstance(answer, str | int | float))


def plain(text: str) -> str:
    """``text`` without the emphasis, code marks and headings of Markdown, full-width signs as ASCII ones."""
    text = _HEADING.sub("", text.translate(_FULL_WIDTH).replace("。", ". ").replace("।", ". ").replace("、", ", "))
    return _ITALICS.sub(r"\1", _STARS.sub("", text))


def short_answer(text: str) -> str:
    r"""A short answer in words: in ``<answer>`` or ``\boxed{}``, after "the answer is", or the whole reply.

    ``short_answer("It is old. **The answer is Paris.**")`` is ``"Paris."``.
    """
    text = reply(text)
    boxes = boxed(text)
    return ", ".join(boxes) if boxes else answer_phrase(plain(text)) or text.strip()
