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
_FENCE = re.compile(r"^([ \t]*)(`{3,}+|~{3,}+)([^\n`]*)$", re.MULTILINE)
_WITHIN = re.compile(r"^([ \t]*[^\s`][^`\n]*+)(?=```[\w+#-]*[ \t]*$)|(?<=```)(?=<)", re.MULTILINE)
"""Where a fence shares its line with the text before it, or with a tag behind it."""
_DEFINES = re.compile(r"^[ \t]*(async def|def|class)\b", re.MULTILINE)


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
        # As in CommonMark, a closing fence is of the same sign, at least as long as the opening one, has no name and
        # is not indented four more: that one is in the code.
        elif mark[2].startswith(opened[2]) and not mark[3].strip() and len(mark[1]) < len(opened[1]) + 4:
            found.append(_fence(opened, text[opened.end() + 1 : mark.start()], True))
            opened, at = None, mark.end()
    if opened is None:
        outside.append(text[at:])
    else:
        found.append(_fence(opened, text[opened.end() + 1 :], False))
    return found, "".join(outside)


def _fence(opened: re.Match[str], body: str, closed: bool) -> Fence:
    """In a list all lines are indented as the fence is. Pandoc writes {.python} as a name."""
    if opened[1]:
        body = re.sub(f"^[ \t]{{1,{len(opened[1])}}}", "", body, flags=re.MULTILINE)
    return Fence(opened[3].strip().split(" ")[0].strip("{}."), body, closed)


def code_of(answer: str, language: str = "python", *, defines: bool = False) -> str:
    """The last block named after the language, else the last block without a name, else the text after the thoughts.

    A block that is opened and never closed reaches to the end (the answer was cut off). ``defines``: blocks without a
    function or class, such as an example of its use, count only where no other has one.
    """
    text = _WITHIN.sub(r"\1\n", after_thinking(answer).replace("\r\n", "\n"))
    names = ("", *FENCE_WORDS.get(language, (language,)))
    blocks = [block for block in fences(text)[0] if block.language.lower() in names]
    blocks = [block for block in blocks if defines and _DEFINES.search(block.body)] or blocks
    blocks = [block for block in blocks if block.language] or blocks
    return blocks[-1].body if blocks else text
