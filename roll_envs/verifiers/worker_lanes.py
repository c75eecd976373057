"""Whose turn it is in a :class:`~roll_envs.verifiers.workers.WorkerPool`: lanes with places, and what shapes cost."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Literal

from roll_envs.recent import Recent

Kind = Literal["quick", "slow", "endless"]


Shapes = Recent[str, Kind]
"""How the last task of each shape went."""


class _Ticket:
    def __init__(self, number: int, shape: str, costly: bool) -> None:
        self.number, self.shape, self.costly = number, shape, costly
        self.called = threading.Event()
        self.refused = False


class Lane:
    """``places`` tasks at one time, and at most ``most`` that wait.

    Quick shapes go first, then new ones of which none is being tried, then new ones, then those that look costly or
    were slow; among equals the first come. Where a place is awaited, endless shapes are refused.
    """

    def __init__(self, places: int, most: int, shapes: Shapes) -> None:
        self._lock = threading.Lock()
        self._free, self._most, self._shapes = places, most, shapes
        self._numbers = itertools.count()
        self._waiting: list[_Ticket] = []
        self._at_work: Counter[str] = Counter()
        self.most_waited = 0
        """Tasks that waited at one time, at most."""
        self.longest_s = 0.0
        """Longest wait for a place that was given."""

    @property
    def waiting(self) -> int:
        """Tasks that wait now."""
        return len(self._waiting)

    def enter(self, shape: str, timeout_s: float, *, costly: bool = False) -> Literal["in", "full", "late", "hopeless"]:
        """Wait for a place.

        ``in`` must be followed by :meth:`leave`. ``full``: too many wait; ``late``: timed out; ``hopeless``: there is
        none to spare for an endless shape.
        """
        started = time.monotonic()
        ticket = _Ticket(next(self._numbers), shape, costly)
        with self._lock:
            if self._free:
                self._free -= 1
                self._at_work[shape] += 1
                return "in"
            if self._shapes.get(shape) == "endless":
                return "hopeless"
            if len(self._waiting) >= self._most:
                return "full"
            self._waiting.append(ticket)
            self.most_waited = max(self.most_waited, len(self._waiting))
        try:
            ticket.called.wait(timeout_s)
        except BaseException:
            if not self._withdrawn(ticket) and not ticket.refused:
                self.leave(shape)
            raise
        if self._withdrawn(ticket):
            return "late"
        if ticket.refused:
            return "hopeless"
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        return "in"

    def _withdrawn(self, ticket: _Ticket) -> bool:
        """Withdraw a ticket that was not called."""
        with self._lock:
            if ticket.called.is_set():
                return False
            self._waiting.remove(ticket)
            return True

    def leave(self, shape: str) -> None:
        """Give the place to the next."""
        with self._lock:
            self._at_work[shape] -= 1
            if self._at_work[shape] <= 0:
                del self._at_work[shape]
            following = min(self._waiting, key=self._rank, default=None)
            if following is None:
                self._free += 1
                return
            self._waiting.remove(following)
            self._at_work[following.shape] += 1
            following.called.set()

    def refuse(self, shape: str) -> None:
        """Send away all that wait with an endless shape."""
        with self._lock:
            for ticket in [each for each in self._waiting if each.shape == shape]:
                self._waiting.remove(ticket)
                ticket.refused = True
                ticket.called.set()

    def _rank(self, ticket: _Ticket) -> tuple[int, int]:
        kind = self._shapes.get(ticket.shape)
        if kind == "quick":
            return 0, ticket.number
        if kind is not None or ticket.costly:
            return 3, ticket.number
        return 2 if ticket.shape and ticket.shape in self._at_work else 1, ticket.number
