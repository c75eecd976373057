"""How a process becomes the untrusted one: by leaving all frames of the harness, and then starting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__all__ = ["Untrusted"]


class Untrusted(BaseException):
    """Raised in the freshly forked child; caught at the very top, which calls :attr:`start`.

    So no frame of the harness lies below the program's own, but the one that calls it.
    """

    def __init__(self, start: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.start = start
