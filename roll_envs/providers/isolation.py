"""What keeps the global state of other packages inside their calls."""

from __future__ import annotations

import contextlib
import decimal
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["isolated"]

_ONE_THREAD = threading.RLock()


@contextlib.contextmanager
def isolated(*seed: int) -> Iterator[None]:
    """One thread at a time, with global generators that follow from ``seed`` and are put back in the end, as the
    settings of decimal numbers are.

    What the thread prints meanwhile is dropped: stdout is for what commands report.
    """
    with _ONE_THREAD, decimal.localcontext(decimal.Context()):
        plain, numbers = random.getstate(), np.random.get_state(legacy=False)
        start = int(np.random.SeedSequence(seed).generate_state(1)[0])
        random.seed(start)
        np.random.seed(start)
        sys.stdout = without_ours = _OfOthers()
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numbers)
            if sys.stdout is without_ours:  # another thread may have put its own there meanwhile
                sys.stdout = without_ours.out


class _OfOthers:
    """Today's stdout without what this thread writes."""

    def __init__(self) -> None:
        self.out, self._thread = sys.stdout, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self.out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)
