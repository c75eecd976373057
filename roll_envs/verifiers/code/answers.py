"""Extracts the code from an answer: the last fenced block of the language, or the whole text without a fence."""

from __future__ import annotations

import re

from roll_envs.verifiers.extract import after_thinking

_NAMES = {
    "python": ("python", "python3", "py", "py3"),
    "cpp": ("cpp", "c++", "cc", "cxx", "c"),
    "javascript": ("javascript", "js", "node"),
    "bash": ("bash", "sh", "shell"),
    "go": ("go", "golang"),
    "rust": ("rust", "rs"),
    "typescript": ("typescript", "ts"),
}
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)


def code_of(answer: str, language: str = "python") -> str:
    """The last block named after the language, else the last block without a name, else the text after the thoughts.

    A block that is opened and never closed reaches to the end (the answer was cut off).
    """
    text = after_thinking(answer).replace("\r\n", "\n")
    named: list[str] = []
    plain: list[str] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        # As in CommonMark, a closing fence is at least as long as the opening one and has no name.
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            _keep(opened, text[opened.end() + 1 : fence.start()], language, named, plain)
            opened = None
    if opened is not None:
        _keep(opened, text[opened.end() + 1 :], language, named, plain)
    return (named or plain or [text])[-1]


def _keep(fence: re.Match[str], body: str, language: str, named: list[str], plain: list[str]) -> None:
    # Pandoc writes the name as {.python}.
    name = fence[2].strip().split(" ")[0].strip("{}.").lower()
    if name in _NAMES.get(language, (language,)):
        named.append(body)
    elif not name:
        plain.append(body)
