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
_NAMED = re.compile(r"```[\w+#-]++[ \t]*$", re.MULTILINE)
_DEFINES = re.compile(r"^[ \t]*(?:(?:async )?def|class) +(\w+) *[(:[]", re.MULTILINE)
_ASSIGNS = re.compile(r"^(\w+) *(?::[^\n=]*)?=(?!=)", re.MULTILINE)


class Fence(NamedTuple):
    """A block of code between fences."""

    language: str
    """The word behind the fence, or nothing."""
    body: str
    closed: bool
    """False for one that reaches to the end, since the text was cut off."""


def fences(text: str) -> tuple[list[Fence], str]:
    """The fences of a text, in order, and what stands outside of them.

    As in CommonMark, a closing fence that is indented four more than the opening one is in the code, but where more
    fences make pairs otherwise.
    """
    return min(_read(text, 4), _read(text, len(text)), key=_faults)


def _faults(reading: tuple[list[Fence], str]) -> int:
    """How many blocks are left open, or opened within another block or a line of the text; one where there are none."""
    found, outside = reading
    texts = [outside, *(fence.body for fence in found)]
    return sum(not fence.closed for fence in found) + sum(bool(_NAMED.search(text)) for text in texts) + (not found)


def _read(text: str, indented: int) -> tuple[list[Fence], str]:
    found: list[Fence] = []
    outside: list[str] = []
    at = 0
    opened: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opened is None:
            opened = mark
            outside.append(text[at : mark.start()])
        # As in CommonMark, a closing fence is of the same sign, at least as long as the opening one, and has no name.
        elif mark[2].startswith(opened[2]) and not mark[3].strip() and len(mark[1]) < len(opened[1]) + indented:
            found.append(_fence(opened, text[opened.end() + 1 : mark.start()], True))
            opened, at = None, mark.end()
    if opened is None:
        outside.append(text[at:])
    else:
        found.append(_fence(opened, text[opened.end() + 1 :], False))
    return found, "".join(outside)


def _fence(opened: re.Match[str], body: str, closed: bool) -> Fence:
    """In a list the code is indented as the fence is. Pandoc writes {.python} as a name."""
    first = re.search(r"^[ \t]*(?=\S)", body, re.MULTILINE)
    indented = min(len(opened[1]), len(first[0]) if first else 0)
    if indented:
        body = re.sub(f"^[ \t]{{1,{indented}}}", "", body, flags=re.MULTILINE)
    return Fence(opened[3].strip().split(" ")[0].strip("{}."), body, closed)


def code_of(answer: str, language: str = "python", *, defines: bool = False) -> str:
    """The last block named after the language, else the last block without a name, else the text after the thoughts.

    A block that is opened and never closed reaches to the end (the answer was cut off). Fences that share their line
    with text count where so more of them make pairs. ``defines``: blocks that neither define a function or class nor
    assign one anew, such as an example of its use, count only where no other does.
    """
    text = after_thinking(answer).replace("\r\n", "\n")
    found, _ = min(fences(text), fences(_WITHIN.sub(r"\1\n", text)), key=_faults)
    names = ("", *FENCE_WORDS.get(language, (language,)))
    blocks = [block for block in found if block.language.lower() in names]
    if defines:
        defined = {name for block in blocks for name in _DEFINES.findall(block.body)}
        binding = [b for b in blocks if defined.intersection(_DEFINES.findall(b.body) + _ASSIGNS.findall(b.body))]
        blocks = binding or blocks
    blocks = [block for block in blocks if block.language] or blocks
    return blocks[-1].body if blocks else text
