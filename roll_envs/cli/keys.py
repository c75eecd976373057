"""Single keys of a terminal: raw reading, and which key plays which action."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence

try:
    import termios
    import tty
except ImportError:  # not a Unix terminal: play falls back to typed lines
    HAVE_KEYS = False
else:
    HAVE_KEYS = True

__all__ = ["HAVE_KEYS", "action_keys", "raw_keys", "read_key"]

_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_WASD = {"w": "up", "s": "down", "d": "right", "a": "left"}


def action_keys(actions: Sequence[str]) -> dict[str, str]:
    """Key -> action name: arrows and wasd where the actions are directions, digits 1 to 9 for the others.

    ``action_keys(["Up", "Jump"])`` is ``{"up": "Up", "w": "Up", "1": "Jump"}``.
    """
    directions = {name.lower(): name for name in actions if name.lower() in _ARROWS.values()}
    keys = dict(directions)
    keys.update({key: directions[way] for key, way in _WASD.items() if way in directions})
    others = [name for name in actions if name.lower() not in directions]
    if len(others) <= 9:
        keys.update({str(i): name for i, name in enumerate(others, start=1)})
    return keys


@contextlib.contextmanager
def raw_keys() -> Iterator[Callable[[str], str]]:
    """The terminal gives every key at once and shows none, until the end of the block; Ctrl-C still interrupts.

    Yields a function that asks for a whole line in between, shown and edited as usual.
    """
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def ask(prompt: str) -> str:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        try:
            return input(prompt)
        except EOFError:
            return ""
        finally:
            tty.setcbreak(handle)

    tty.setcbreak(handle)
    try:
        yield ask
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def read_key() -> str:
    """The next key: a character, ``up``/``down``/``left``/``right``, or empty at the end of the input."""
    handle = sys.stdin.fileno()
    first = os.read(handle, 1)
    if first != b"\x1b":
        while first and not _whole(first) and len(first) < 4:
            first += os.read(handle, 1)
        return first.decode(errors="replace")
    # An arrow is ESC [ A or ESC O A; a lone ESC is followed by nothing.
    rest = b""
    while len(rest) < 6 and select.select([handle], [], [], 0.03)[0]:
        rest += os.read(handle, 1)
        if len(rest) > 1 and rest[-1:].isalpha():
            break
    return _ARROWS.get(rest[-1:].decode(errors="replace"), "esc") if rest[:1] in (b"[", b"O") else "esc"


def _whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
