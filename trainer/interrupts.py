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
        self._shielded = False
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
        if self._shielded and not self._pending:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Run the body to its end before an interrupt takes effect; a second interrupt does not wait."""
        self._shielded, self._pending = True, False
        try:
            yield
        finally:
            self._shielded = False
        if self._pending:
            raise KeyboardInterrupt
