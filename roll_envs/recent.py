"""A bounded memory by key, for caches: of verdicts, replies, compiled programs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from roll_envs.background import forget_in_children

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The ``most`` values that were kept last. Safe to use from many threads, and in a forked process."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Of a plain dict the first key is found by going over all that were deleted before it.
        self._known: OrderedDict[K, V] = OrderedDict()
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Begin with a free lock: in a child made by ``os.fork``, a thread that is not there may have held it."""
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, if it is known."""
        return self._known.get(key)

    def keep(self, key: K, value: V) -> None:
        """Remember a value, in place of an earlier one of this key."""
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = value
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget a key."""
        with self._lock:
            self._known.pop(key, None)
