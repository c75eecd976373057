"""The groups of one collection, in the order in which they finish, and how the rest of them is cancelled."""

from __future__ import annotations

import contextlib
import queue
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


class GroupStream:
    """Groups of ``tasks`` in the order in which they finish. Iterate over it once.

    Whatever the iteration raises, an error of ``on_done`` for one, ends with ``close``, the driver's; ``tell`` gives
    the driver a cancellation.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        on_done: OnDone | None,
        close: Callable[[], None],
        tell: Callable[[Cancellation], None],
    ) -> None:
        self._tasks, self._size, self._on_done, self._close, self._tell = tasks, group_size, on_done, close, tell
        self._played: list[list[Trajectory]] = [[] for _ in tasks]
        self._missing = len(tasks) * group_size
        self.ended: list[tuple[int, Trajectory]] = []
        """Written by the driving thread; delivered in batches."""
        self._delivered: queue.SimpleQueue[list[tuple[int, Trajectory]] | RollError] = queue.SimpleQueue()

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
        """End the episodes of the tasks at these indices that have not ended, as ``cancelled`` for ``reason``.

        Their groups still come out of the stream. Returns at once, and may be called from any thread. Raises
        ValueError for an index of no task.
        """
        wanted = frozenset(numbers)
        if wrong := sorted(n for n in wanted if not 0 <= n < len(self._tasks)):
            raise ValueError(f"no tasks {wrong} to cancel: the stream has {len(self._tasks)}, counted from 0")
        self._tell(Cancellation(self, wanted, reason))

    def _receive(self) -> list[tuple[int, Trajectory]]:
        while True:
            with contextlib.suppress(queue.Empty):
                delivered = self._delivered.get(timeout=_LISTEN_S)
                if isinstance(delivered, RollError):
                    raise delivered
                return delivered

    def __iter__(self) -> Iterator[Group]:
        missing = len(self._tasks) if self._size else 0
        try:
            while missing:
                for number, trajectory in self._receive():
                    self._played[number].append(trajectory)
                    if self._on_done is not None:
                        self._on_done(trajectory)
                    if len(self._played[number]) == self._size:
                        missing -= 1
                        yield self._group(number)
        except GeneratorExit:
            raise
        except BaseException:
            self._close()
            raise

    def _group(self, number: int) -> Group:
        members = sorted(self._played[number], key=attrgetter("member"))
        return Group(task=self._tasks[number], trajectories=tuple(members))

    def in_order(self) -> list[Group]:
        """Wait for all groups; returns them in the order of the tasks."""
        waited = sum(1 for _ in self)
        return [self._group(number) for number in range(waited)]
