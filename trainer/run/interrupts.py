"""Signals that end a run: it stops between two steps, where its state is whole."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """SIGINT, SIGTERM and SIGHUP (the terminal is gone; not where ``nohup`` has it ignored) become
    ``KeyboardInterrupt``, at once outside of :meth:`whole`, after it inside.

    In another thread than the main one (a notebook's, a test's) signals are left as they are.
    """

    def __init__(self) -> None:
        self.interrupted_midway = False
        """Whether an interrupt ended the body of a :meth:`whole` half-way: what it changed must not be saved."""
        self._inside = self._pending = self._came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Python lets no other thread set handlers.
        if threading.current_thread() is threading.main_thread():
            hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, None) else []
            self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM, *hangup)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def interrupt(self, why: str) -> None:
        """What a first SIGTERM does, from another thread; nothing after an interrupt, or where signals are left as they
        are."""
        if self._before and not self._came:
            print(f"{why}: the run is saved and ends.", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._came:
            return  # a terminal that ends may send two
        self._came = True
        if not self._inside or self._pending:
            raise KeyboardInterrupt
        self._pending = True

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Run the body to its end before an interrupt takes effect; a second interrupt does not wait. Not nested."""
        self._inside = True
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted_midway = True
            raise
        finally:
            self._inside = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
