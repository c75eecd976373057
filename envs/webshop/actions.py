"""Reads an action, ``search[words]`` or ``click[text]``, as the original does."""

from __future__ import annotations

__all__ = ["read_action"]


def read_action(action: str) -> tuple[str, str]:
    """Name and lower-case argument; an empty argument when the text is no action.

    Equal to matching ``(.+)\\[(.+)\\]`` at the start of the text, in linear time: both parts are as long as they can
    be, the name first, and neither crosses a line break.

    >>> read_action("click[Buy Now]"), read_action("search[]")
    (('click', 'buy now'), ('search[]', ''))
    """
    line = action.split("\n", 1)[0]
    closing = line.rfind("]")
    # Up to closing - 1: there is at least one character between the brackets.
    opening = line.rfind("[", 0, max(closing - 1, 0))
    if opening < 1:
        return action, ""
    return line[:opening], line[opening + 1 : closing].lower()
