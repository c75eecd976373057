"""Which replica of an engine a request goes to, and how many are at each at the same time.

Requests of one session (an episode) stay at one replica, whose prefix cache knows it; a new session goes where least is
to do. A replica with nothing to do takes from the longest queue. All of it happens on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_SESSIONS = 65_536
"""Sessions whose replica is remembered; the one that asked least lately is forgotten."""
_Queue = OrderedDict[asyncio.Future["Lane | None"], None]
"""Those that wait for a place, in their order; any of them may leave at once."""
_FULL, _ROOMY = 0.95, 0.85
"""Above the first share of key and value memory in use requests wait at the server, below the second there is room."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica says about itself."""

    memory_used: float
    """Share of the memory for keys and values that requests use, 0 to 1."""
    waiting: int
    """Requests that wait there."""
    preempted: int
    """Requests that had to give their memory back and start anew, since the replica started."""


@dataclass(slots=True, eq=False)
class Lane:
    """The way to one replica."""

    most: int
    """Requests that may ever be there at the same time."""
    limit: int = 0
    """Requests that may be there now."""
    running: int = 0
    queue: _Queue = field(default_factory=OrderedDict)
    open: bool = False
    sent_back: int = 0
    """Requests that updates of the weights sent back to the replica's queue, which counts them as preempted."""
    _preempted: int = 0

    def __post_init__(self) -> None:
        self.limit = self.limit or self.most

    @property
    def to_do(self) -> int:
        return self.running + len(self.queue)

    def follow(self, load: Load) -> None:
        """Let fewer requests run where the replica's memory is full, and more where there is room."""
        preempted, self._preempted = load.preempted - self._preempted, load.preempted
        short = preempted > self.sent_back or (load.waiting > 0 and load.memory_used > _FULL)
        if preempted:
            self.sent_back = 0
        if short:
            self.limit = max(1, min(self.limit, self.running) * 4 // 5)
        elif load.memory_used < _ROOMY and self.running >= self.limit:
            self.limit = min(self.most, self.limit + max(1, self.limit // 8))


class Router:
    """The lanes of an engine. Its methods are called on one event loop."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._waiting: _Queue = OrderedDict()  # as long as no lane is open
        self._sessions: OrderedDict[str, Lane] = OrderedDict()

    @asynccontextmanager
    async def place(self, session: str | None) -> AsyncIterator[Lane | None]:
        """A place in a lane, once there is one; None when :meth:`dismiss` was called meanwhile."""
        lane = await self._enter(session)
        if lane is None:
            yield None
            return
        if session is not None:
            self._sessions[session] = lane
            self._sessions.move_to_end(session)
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        try:
            yield lane
        finally:
            lane.running -= 1
            self.fill(lane)

    async def _enter(self, session: str | None) -> Lane | None:
        lane = self._sessions.get(session) if session is not None else None
        if lane is None or not lane.open:
            lane = min((each for each in self._lanes if each.open), key=lambda each: each.to_do, default=None)
        if lane is not None and not lane.queue and lane.running < lane.limit:
            lane.running += 1
            return lane
        other = next((each for each in self._lanes if each.open and each.to_do < each.limit), None)
        if other is not None:
            other.running += 1
            return other
        turn: asyncio.Future[Lane | None] = asyncio.get_running_loop().create_future()
        (self._waiting if lane is None else lane.queue)[turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            for queue in self._queues():
                queue.pop(turn, None)
            given = turn.result() if turn.done() and not turn.cancelled() else None
            if given is not None:  # at this very moment
                given.running -= 1
                self.fill(given)
            raise

    def fill(self, lane: Lane) -> None:
        """Give the free places of a lane to those that wait."""
        while lane.open and lane.running < lane.limit:
            queue = self._waiting or lane.queue or max((each.queue for each in self._lanes), key=len)
            if not queue:
                return
            turn, _ = queue.popitem(last=False)
            if not turn.done():  # else it was cancelled at this very moment
                lane.running += 1
                turn.set_result(lane)

    def open(self, lane: Lane) -> None:
        """Let requests into a lane."""
        lane.open = True
        self.fill(lane)

    def shut(self, lane: Lane) -> None:
        """Let no request in any more; those that wait there go elsewhere."""
        lane.open = False
        self._waiting.update(lane.queue)
        lane.queue.clear()
        for each in self._lanes:
            self.fill(each)

    def dismiss(self) -> None:
        """Let nobody wait any longer."""
        for queue in self._queues():
            while queue:
                turn, _ = queue.popitem(last=False)
                if not turn.done():
                    turn.set_result(None)

    def _queues(self) -> list[_Queue]:
        return [self._waiting, *(lane.queue for lane in self._lanes)]
