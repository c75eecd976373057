"""Actions that an environment lists in ``info["available_actions"]``, made easy to type and shown beside its text.

An action with a ``<placeholder>`` is a form to fill in, any other can be chosen by its number:

>>> choices = Choices(["search[<words>]", "click[red]", "click[buy now]"])
>>> choices.read("s blue shoes"), choices.read("2"), choices.read("CLICK[red]"), choices.read("buy")
('search[blue shoes]', 'click[buy now]', 'click[red]', None)
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roll_envs.cli.common import paint

__all__ = ["Choices", "available_actions"]

_PLACEHOLDER = re.compile(r"<[^<>]*>")
_LEADING_WORD = re.compile(r"\w+")
_BRACKETED = re.compile(r"\w+\[(.*)\]", re.DOTALL)
_SEPARATOR = " [SEP] "
"""What text forms of web pages put between their parts; shown as line breaks."""

_BUTTON = re.compile(r"\[(clicked )?button\] (.*) \[\1?button_\]")
"""How they mark buttons; shown by the number, and the clicked ones in words."""


def available_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts in ``info["available_actions"]``; empty where an environment lists none."""
    found = info.get("available_actions", ())
    if isinstance(found, str) or not isinstance(found, Sequence):
        return ()
    return tuple(action for action in found if isinstance(action, str) and action.strip())


class Choices:
    """The actions of one turn: ``fixed`` ones by number from 1, and ``forms`` by the word they begin with."""

    def __init__(self, available: Sequence[str], taken: Collection[str] = ()) -> None:
        """``taken`` are letters that mean something else already; a form is then named by its whole word."""
        unique = list(dict.fromkeys(available))
        self.fixed = tuple(action for action in unique if not _PLACEHOLDER.search(action))
        self.forms: dict[str, str] = {}
        """Short name -> form, ``{"s": "search[<words>]"}``."""
        for form in unique:
            word = _LEADING_WORD.match(form)
            if form not in self.fixed and word is not None:
                letter = word.group()[0].lower()
                short = letter if letter not in taken and letter not in self.forms else word.group().lower()
                self.forms.setdefault(short, form)

    def __bool__(self) -> bool:
        return bool(self.fixed or self.forms)

    def read(self, typed: str) -> str | None:
        """The action that ``typed`` stands for: a number, a form's name and words, or the action itself."""
        text = typed.strip()
        if text.isascii() and text.isdigit():
            return self.fixed[int(text) - 1] if 0 < int(text[:6]) <= len(self.fixed) else None
        same = {action.lower(): action for action in self.fixed}.get(text.lower())
        if same is not None:
            return same
        name, _, words = text.partition(" ")
        for short, form in self.forms.items():
            before, after = _PLACEHOLDER.split(form, maxsplit=1)
            long = _LEADING_WORD.match(form)
            if words.strip() and long is not None and name.lower() in (short, long.group().lower()):
                return f"{before}{words.strip()}{after}"
            inner = text[len(before) : len(text) - len(after)]
            if text.lower().startswith(before.lower()) and text.endswith(after) and inner.strip():
                return text
        return None

    def usage(self) -> str:
        """One line that says what can be typed."""
        numbers = f"a number from 1 to {len(self.fixed)}" if len(self.fixed) > 1 else "1" if self.fixed else ""
        words = [f"{short} and words for {form}" for short, form in self.forms.items()]
        return ", ".join([part for part in (numbers, *words) if part])

    def view(self, observation: str, *, width: int, on: bool) -> str:
        """The observation, wrapped, with each choice's number where its text stands; the other choices below."""
        numbers: dict[str, int] = {}
        for number, action in enumerate(self.fixed, start=1):
            inner = _BRACKETED.fullmatch(action)
            numbers.setdefault(_flat(inner.group(1) if inner else action), number)
        lines, shown = [], set()
        for line in observation.replace(_SEPARATOR, "\n").splitlines():
            button = _BUTTON.fullmatch(line.strip())
            number = numbers.get(_flat(button.group(2) if button else line), 0)
            if button:
                line = f"{button.group(2)}{' (clicked)' if button.group(1) else ''}"
            mark = f"[{number}]" if number else ""
            shown.add(number)
            wrapped = textwrap.wrap(line, max(20, width - 6), break_on_hyphens=False) or [""]
            gap = " " * (5 - len(mark))
            lines.append(f"{gap}{paint(mark, 'cyan', 'bold', on=on)} {wrapped[0]}".rstrip())
            lines += [f"      {more}" for more in wrapped[1:]]
        rest = [f"[{n}] {' '.join(a.split())}" for n, a in enumerate(self.fixed, start=1) if n not in shown]
        rest += [f"[{short} ...] {form}" for short, form in self.forms.items()]
        for entry in rest:
            lines += textwrap.wrap(entry, width, initial_indent="  ", subsequent_indent="      ")
        return "\n".join(lines)


def _flat(text: str) -> str:
    return " ".join(text.split()).lower()
