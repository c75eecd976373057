"""GroupStream: the groups of one :meth:`EpisodeDriver.start`, as they finish."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from roll_envs.errors import RollError
from roll_envs.types import Group, Task, Trajectory

__all__ = ["GroupStream", "OnDone"]

OnDone = Callable[[Trajectory], None]

_LISTEN_S = 0.2
"""How long a wait for groups may stay deaf to Ctrl-C, where a signal does not end it."""


class GroupStream:
    """Groups of ``tasks`` in the order in which they finish. Iterate over it once.

    Whatever the iteration raises, an error of ``on_done`` for one, ends with ``close``, the driver's.
    """

    def __init__(
        self, tasks: Sequence[Task], group_size: int, on_done: OnDone | None, close: Callable[[], None]
    ) -> None:
        self.tasks = list(tasks)
        self._size, self._on_done, self._close = group_size, on_done, close
        self._missing = len(self.tasks) * group_size
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

    def _receive(self) -> list[tuple[int, Trajectory]]:
        while True:
            try:
                delivered = self._delivered.get(timeout=_LISTEN_S)
            except queue.Empty:
                continue
            if isinstance(delivered, RollError):
                raise delivered
            return delivered

    def __iter__(self) -> Iterator[Group]:
        return map(itemgetter(1), self.numbered())

    def numbered(self) -> Iterator[tuple[int, Group]]:
        """Each group with its task's place in the tasks that were started. Whatever this raises closes the driver."""
        members: dict[int, dict[int, Trajectory]] = {place: {} for place in range(len(self.tasks))}
        if not self._size:
            return
        try:
            while members:
                delivered = self._receive()
                for place, trajectory in delivered:
                    members[place][trajectory.member] = trajectory
                    if self._on_done is not None:
                        self._on_done(trajectory)
                for place in {place for place, _ in delivered}:
                    if len(members[place]) == self._size:
                        whole = members.pop(place)
                        yield (
                            place,
                            Group(task=self.tasks[place], trajectories=tuple(whole[m] for m in range(self._size))),
                        )
        except GeneratorExit:
            raise
        except BaseException:
            self._close()
            raise
