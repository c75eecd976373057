"""How an answer must look, and how it is read: one small object shared by every environment with named actions.

``make_action_format("answer", ("Up", "Down"))`` reads ``<answer>Up</answer>`` (ROLL); the other forms are those of
RAGEN (several actions a turn), verl-agent and GEM, and the bare word. Reading never raises, whatever the text, and
takes time linear in its length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_envs.errors import UnknownNameError

MAX_ANSWER_CHARS = 100_000
"""Longer texts are read up to here only, so that a huge answer costs no time."""

CACHED_CHARS = 200
CACHED_ANSWERS = 4096
"""Short answers are remembered (agents repeat themselves); the memory is emptied when it is full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedAnswer:
    """What was read from an answer: indices into the format's actions; empty when the answer is invalid."""

    actions: tuple[int, ...]
    content: str
    """What stood between the tags, stripped."""

    @property
    def valid(self) -> bool:
        """Whether at least one action was read and none was unknown."""
        return bool(self.actions)


NOTHING = ParsedAnswer(actions=(), content="")


@dataclass(frozen=True, kw_only=True)
class ActionFormat:
    """A way to write one or more named actions in text.

    ``tag`` is the XML-like tag around the answer, of which the first counts, or a TeX command (``\\boxed``), of which
    the last does; empty: the whole text is the answer. ``think`` says whether a ``<think>`` part is asked for. With
    ``after_thought`` the answer must follow the end of one, and what is quoted in it is no answer; the opening
    ``<think>`` may be missing, since it may be part of the prompt. Up to ``max_actions`` names joined by ``separator``
    are read.
    """

    name: str
    actions: tuple[str, ...]
    tag: str = "answer"
    think: bool = False
    after_thought: bool = False
    max_actions: int = 1
    separator: str = "||"
    _lookup: dict[str, int] = field(init=False, repr=False, compare=False)
    _cache: dict[str, ParsedAnswer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_actions < 1:
            raise ValueError(f"max_actions must be 1 or more, not {self.max_actions}")
        if not self.separator.strip():
            raise ValueError(f"separator must have a character that is not a space, not {self.separator!r}")
        lookup = {a.lower(): i for i, a in enumerate(self.actions)}
        if len(lookup) != len(self.actions) or not lookup:
            raise ValueError(f"action names must be unique when case is ignored, and at least one: {self.actions!r}")
        for action in self.actions:
            if not action or action != action.strip() or self.separator in action:
                raise ValueError(
                    f"action name {action!r} cannot be read back: it must not be empty, start or end with a space, "
                    f"or contain the separator {self.separator!r}"
                )
        object.__setattr__(self, "_lookup", lookup)
        object.__setattr__(self, "_cache", {})

    def parse(self, text: str) -> ParsedAnswer:
        """Read an answer (any text); names match whatever their case."""
        found = self._cache.get(text)
        return self._read(text) if found is None else found

    def _read(self, text: str) -> ParsedAnswer:
        content = _tagged(text, self.tag, self.after_thought)
        answer = NOTHING
        if content is not None:
            # One part more than can be used, so that a huge answer is not split to the end.
            several = self.max_actions > 1
            parts = content.split(self.separator, self.max_actions)[: self.max_actions] if several else [content]
            # One unknown name makes the whole answer invalid: playing the rest would be another answer.
            actions = tuple(self._lookup.get(part.strip().lower(), -1) for part in parts)
            answer = ParsedAnswer(actions=() if -1 in actions else actions, content=content)
        if len(text) < CACHED_CHARS:
            if len(self._cache) >= CACHED_ANSWERS:
                self._cache.clear()
            self._cache[text] = answer
        return answer

    def format(self, actions: Sequence[int], thought: str = "") -> str:
        """The text of an answer that plays ``actions`` (indices)."""
        body = f" {self.separator} ".join(self.actions[a] for a in actions)
        return _wrapped(body, self.tag, thought if self.think else None)

    @property
    def instructions(self) -> str:
        """One sentence that tells an agent how to answer."""
        example = self.format([len(self.actions) - 1], thought="..." if self.think else "")
        if self.max_actions == 1:
            return f"Answer with one action, in this form: {example}"
        several = self.format(list(range(min(2, len(self.actions)))), thought="..." if self.think else "")
        return f"Answer with 1 to {self.max_actions} actions joined by '{self.separator}', in this form: {several}"


@dataclass(frozen=True, kw_only=True)
class FreeFormat:
    """A way to write one action that may be any text, such as ``search[red shoes]``.

    Tags and thoughts are those of :class:`ActionFormat`; what the action means is the environment's business.
    """

    name: str
    example: str
    """An action, shown in the instructions."""
    tag: str = "answer"
    think: bool = False
    after_thought: bool = False
    actions: tuple[str, ...] = field(default=(), init=False)
    """No action has a name here; :meth:`roll_envs.env.TextEnv.legal_answers` lists what can be done now."""
    max_actions: int = field(default=1, init=False)
    separator: str = field(default="||", init=False)

    def read(self, text: str) -> str | None:
        """The action in an answer (any text), stripped; ``None`` when the tags are missing or nothing is in them."""
        return _tagged(text, self.tag, self.after_thought) or None

    def write(self, action: str, thought: str = "") -> str:
        """The text of an answer that plays ``action``."""
        return _wrapped(action, self.tag, thought if self.think else None)

    @property
    def instructions(self) -> str:
        """One sentence that tells an agent how to answer."""
        return f"Answer with one action, in this form: {self.write(self.example, thought='...')}"


def tag_marks(tag: str) -> tuple[str, str]:
    """What stands before and after an answer in ``tag``."""
    return (f"{tag}{{", "}") if tag.startswith("\\") else (f"<{tag}>", f"</{tag}>")


@functools.lru_cache(maxsize=64)
def _tag_patterns(tag: str, after_thought: bool) -> tuple[re.Pattern[str], re.Pattern[str]]:
    flags = re.IGNORECASE | re.ASCII
    opens, closes = map(re.escape, tag_marks(tag))
    return re.compile(r"</think>\s*" * after_thought + opens, flags), re.compile(closes, flags)


def _tagged(text: str, tag: str, after_thought: bool) -> str | None:
    """What stands in the tags (the whole text where there are none to look for), stripped."""
    if not isinstance(text, str):
        raise TypeError(f"an answer is a text (str), not {type(text).__name__}: {text!r}")
    content = text[:MAX_ANSWER_CHARS]
    if tag.startswith("\\"):
        return _last_braces(content, tag_marks(tag)[0])
    if tag:
        # Opening and closing tag are sought one after the other: one pattern with `.*?` between them would take
        # quadratic time on a text of many opening tags.
        opens, closes = _tag_patterns(tag, after_thought)
        opening = opens.search(content)
        closing = closes.search(content, opening.end()) if opening else None
        if opening is None or closing is None:
            return None
        content = content[opening.end() : closing.start()]
    return content.strip()


def _last_braces(text: str, opening: str) -> str | None:
    """What stands between the last ``opening``, which ends with a brace, and the brace that closes it."""
    if opening not in text:
        return None
    start, depth = text.rindex(opening) + len(opening), 1
    for brace in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[start : brace.start()].strip()
    return None


_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
"""Escaped ones are passed over."""


def _wrapped(body: str, tag: str, thought: str | None) -> str:
    before, after = tag_marks(tag) if tag else ("", "")
    answer = f"{before}{body}{after}"
    return answer if thought is None else f"<think>{thought}</think>{answer}"


ACTION_FORMATS: dict[str, dict[str, Any]] = {
    "answer": {"tag": "answer"},
    "think-answer": {"tag": "answer", "think": True, "after_thought": True},
    "action": {"tag": "action", "think": True},
    "boxed": {"tag": "\\boxed"},
    "word": {"tag": ""},
}
"""Named forms: ROLL, RAGEN, verl-agent, GEM, and the bare word."""


def make_action_format(name: str, actions: Sequence[str], *, max_actions: int = 1) -> ActionFormat:
    """Build a named form over ``actions``. Raises :class:`UnknownNameError` for a name not in ``ACTION_FORMATS``."""
    return ActionFormat(name=name, actions=tuple(actions), max_actions=max_actions, **_form(name))


def make_free_format(name: str, *, example: str) -> FreeFormat:
    """Build a named form for actions of any text. Raises :class:`UnknownNameError` as above."""
    return FreeFormat(name=name, example=example, **_form(name))


def _form(name: str) -> dict[str, Any]:
    if name not in ACTION_FORMATS:
        raise UnknownNameError("action format", name, ACTION_FORMATS)
    return ACTION_FORMATS[name]
