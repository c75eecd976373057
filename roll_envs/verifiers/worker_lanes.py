"""Whose turn it is in a :class:`~roll_envs.verifiers.workers.WorkerPool`: lanes with places, and what shapes cost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from roll_envs.recent import Recent

Kind = Literal["quick", "slow", "endless"]


Shapes = Recent[str, Kind]
"""How the last task of each shape went."""


@dataclass(kw_only=True, eq=False)
class _Ticket:
    shape: str
    costly: bool
    turn: threading.Condition
    said: Literal["in", "late", "hopeless"] = "late"


class Lane:
    """``places`` tasks at one time, and at most ``most`` that wait.

    Quick shapes go first, then new ones of which none is being tried, then new ones, then those that look costly or
    were slow; among equals the first come. Where a place is awaited, endless shapes are refused.
    """

    def __init__(self, places: int, most: int, shapes: Shapes) -> None:
        self._lock = threading.RLock()
        self._places, self._most, self._shapes = places, most, shapes
        self._waiting: list[_Ticket] = []
        """In the order in which they came, so that the first of equal ones is the next."""
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
        with self._lock:
            if self._at_work.total() < self._places:
                self._at_work[shape] += 1
                return "in"
            if self._shapes.get(shape) == "endless":
                return "hopeless"
            if len(self._waiting) >= self._most:
                return "full"
            turn = threading.Condition(self._lock)
            ticket = _Ticket(shape=shape, costly=costly, turn=turn)
            self._waiting.append(ticket)
            self.most_waited = max(self.most_waited, len(self._waiting))
            try:
                turn.wait_for(lambda: ticket.said != "late", timeout_s)
            except BaseException:
                if ticket.said == "in":
                    self.leave(shape)
                raise
            finally:
                if ticket.said == "late":
                    self._waiting.remove(ticket)
            if ticket.said == "in":
                self.longest_s = max(self.longest_s, time.monotonic() - started)
            return ticket.said

    def leave(self, shape: str) -> None:
        """Give the place to the next."""
        with self._lock:
            self._at_work -= Counter([shape])
            following = min(self._waiting, key=self._rank, default=None)
            if following is not None:
                self._at_work[following.shape] += 1
                self._call(following, "in")

    def refuse(self, shape: str) -> None:
        """Send away all that wait with an endless shape."""
        with self._lock:
            for ticket in [each for each in self._waiting if each.shape == shape]:
                self._call(ticket, "hopeless")

    def _call(self, ticket: _Ticket, said: Literal["in", "hopeless"]) -> None:
        self._waiting.remove(ticket)
        ticket.said = said
        ticket.turn.notify()

    def _rank(self, ticket: _Ticket) -> int:
        kind = self._shapes.get(ticket.shape)
        if kind == "quick":
            return 0
        if kind is not None or ticket.costly:
            return 3
        return 2 if ticket.shape and ticket.shape in self._at_work else 1
