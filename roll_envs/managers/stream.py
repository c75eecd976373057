"""The groups of one collection, in the order in which they finish, and how the rest of them is cancelled."""

from __future__ import annotations

import contextlib
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from roll_envs.errors import RollError
from roll_envs.types import Group, Task, Trajectory

OnDone = Callable[[Trajectory], None]

_LISTEN_S = 0.2
"""How long a wait for groups may stay deaf to Ctrl-C, where a signal does not end it."""


class Cancellation(NamedTuple):
    """What is to end of a stream."""

    stream: GroupStream
    numbers: frozenset[int]
    """Indices of its tasks."""
    reason: str


class GroupStream(Iterator[Group]):
    """Groups of tasks in the order in which they end. Iterate over it in one thread.

    Whatever the iteration raises, an error of ``on_done`` for one, ends with ``close``, the driver's; ``tell`` gives
    the driver a cancellation.
    """

    def __init__(
        self,
        group_size: int,
        on_done: OnDone | None,
        close: Callable[[], None],
        tell: Callable[[Cancellation], None],
    ) -> None:
        self._size, self._on_done, self._close, self._tell = group_size, on_done, close, tell
        self._begun = 0
        """Tasks until now."""
        self._tasks: dict[int, Task] = {}
        """Those whose groups have not come out, by their numbers."""
        self._played: defaultdict[int, list[Trajectory]] = defaultdict(list)
        """Ended episodes of the groups that have not ended, by the number of their task."""
        self._awaited = 0
        """Groups that have not come out."""
        self._groups: deque[tuple[int, Group]] = deque()
        """Groups to come out next."""
        self._missing = 0
        """Episodes that have not been delivered."""
        self.ended: list[tuple[int, Trajectory]] = []
        """Written by the driving thread; delivered in batches."""
        self._delivered: queue.SimpleQueue[list[tuple[int, Trajectory]] | RollError] = queue.SimpleQueue()

    def extend(self, tasks: Sequence[Task]) -> range:
        """Await the groups of further tasks; returns their numbers. Not at the same time as :meth:`deliver`."""
        numbers = range(self._begun, self._begun + len(tasks))
        self._begun = numbers.stop
        self._tasks.update(zip(numbers, tasks, strict=True))
        self._awaited += len(tasks) if self._size else 0
        self._missing += len(tasks) * self._size
        return numbers

    def deliver(self) -> bool:
        """Hand over what ended since the last time; whether that is all."""
        ended, self.ended = self.ended, []
        self._missing -= len(ended)
        self._delivered.put(ended)
        return self._missing == 0

    def fail(self, error: RollError) -> None:
        """Raise ``error`` where the groups are waited for."""
        self._delivered.put(error)

    def cancel(self, numbers: Iterable[int], reason: str = "no longer needed") -> None:
        """End the episodes of the tasks with these numbers that have not ended, as ``cancelled`` for ``reason``.

        Their groups still come out of the stream. Returns at once, and may be called from any thread. Raises
        ValueError for a number of no task.
        """
        wanted = frozenset(numbers)
        if wrong := sorted(n for n in wanted if not 0 <= n < self._begun):
            raise ValueError(f"no tasks {wrong} to cancel: the stream has {self._begun}, counted from 0")
        self._tell(Cancellation(self, wanted, reason))

    def cancel_all(self) -> None:
        """End all episodes that have not ended, as :meth:`cancel` does."""
        self.cancel(range(self._begun))

    def __next__(self) -> Group:
        return self._next()[1]

    def _next(self) -> tuple[int, Group]:
        while not self._groups:
            if not self._awaited:
                raise StopIteration
            try:
                self._receive()
            except BaseException:
                self._close()
                raise
        self._awaited -= 1
        return self._groups.popleft()

    def _receive(self) -> None:
        """Wait for episodes that ended, and sort them into their groups."""
        delivered: list[tuple[int, Trajectory]] | RollError | None = None
        while delivered is None:
            with contextlib.suppress(queue.Empty):
                delivered = self._delivered.get(timeout=_LISTEN_S)
        if isinstance(delivered, RollError):
            raise delivered
        for number, trajectory in delivered:
            self._played[number].append(trajectory)
            if self._on_done is not None:
                self._on_done(trajectory)
            if len(self._played[number]) == self._size:
                members = tuple(sorted(self._played.pop(number), key=attrgetter("member")))
                self._groups.append((number, Group(task=self._tasks.pop(number), trajectories=members)))

    def in_order(self) -> list[Group]:
        """Wait for all groups; returns them in the order of the tasks."""
        found: dict[int, Group] = {}
        with contextlib.suppress(StopIteration):
            while True:
                number, group = self._next()
                found[number] = group
        return [found[number] for number in sorted(found)]
