"""Ctrl-C at a safe point: an interrupt during an optimiser step waits until the step is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """SIGINT and SIGTERM become ``KeyboardInterrupt``, at once outside of :meth:`whole`, after it inside.

    In another thread than the main one (a notebook's, a test's) signals are left as they are.
    """

    def __init__(self) -> None:
        self.torn = False
        """Whether an interrupt ended the body of a :meth:`whole` half-way: what it changed must not be saved."""
        self._depth = 0
        self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth and not self._pending:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Run the body to its end before an interrupt takes effect; a second interrupt does not wait. May be nested."""
        self._depth += 1
        try:
            yield
        except KeyboardInterrupt:
            self.torn = True
            raise
        finally:
            self._depth -= 1
        if self._pending and not self._depth:
            self._pending = False
            raise KeyboardInterrupt
