"""Blocks of code between the fences of Markdown."""

from __future__ import annotations

import re
from typing import NamedTuple

from roll_envs.verifiers.extract import after_thinking

FENCE_WORDS = {
    "python": ("python", "python3", "py", "py3"),
    "cpp": ("cpp", "c++", "cc", "cxx", "c"),
    "javascript": ("javascript", "js", "node"),
    "bash": ("bash", "sh", "shell"),
    "go": ("go", "golang"),
    "rust": ("rust", "rs"),
    "typescript": ("typescript", "ts"),
}
_FENCE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)([^\n`]*)$", re.MULTILINE)


class Fence(NamedTuple):
    """A block of code between fences."""

    language: str
    """The word behind the fence, or nothing."""
    body: str
    closed: bool
    """False for one that reaches to the end, since the text was cut off."""


def fences(text: str) -> tuple[list[Fence], str]:
    """The fences of a text, in order, and what stands outside of them."""
    found: list[Fence] = []
    outside: list[str] = []
    at = 0
    opened: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opened is None:
            opened = mark
            outside.append(text[at : mark.start()])
        # As in CommonMark, a closing fence is of the same sign, at least as long as the opening one, and has no name.
        elif mark[1].startswith(opened[1]) and not mark[2].strip():
            found.append(Fence(_name_of(opened), text[opened.end() + 1 : mark.start()], True))
            opened, at = None, mark.end()
    if opened is None:
        outside.append(text[at:])
    else:
        found.append(Fence(_name_of(opened), text[opened.end() + 1 :], False))
    return found, "".join(outside)


def _name_of(fence: re.Match[str]) -> str:
    return fence[2].strip().split(" ")[0].strip("{}.")  # Pandoc writes {.python}


def code_of(answer: str, language: str = "python") -> str:
    """The last block named after the language, else the last block without a name, else the text after the thoughts.

    A block that is opened and never closed reaches to the end (the answer was cut off).
    """
    text = after_thinking(answer).replace("\r\n", "\n")
    names = ("", *FENCE_WORDS.get(language, (language,)))
    blocks = [block for block in fences(text)[0] if block.language.lower() in names]
    named = [block for block in blocks if block.language]
    return (named or blocks)[-1].body if blocks else text
