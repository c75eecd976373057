"""When groups of episodes are begun, and which of them a training step learns from.

``rollout.mode`` says how playing and learning share time. ``sync``: a step plays its groups with the newest weights,
then learns. ``overlap``: the next groups are played while a step learns, and weights change only when no episode runs.
``async``: weights change in mid-episode. :class:`Window` bounds how old the weights may be that a group was begun with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll_envs.errors import ConfigError
from roll_envs.managers import GroupStream
from roll_envs.types import Group, Metrics, Trajectory
from trainer.config.parts import ESTIMATORS
from trainer.rollout.source import Ledger, Session

_LATE_ROUNDS = 3
"""Kinds of rounds for tasks that ended too late. More make steps shorter, and leave more tasks at a run's end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What one training step learns from."""

    played: tuple[Group, ...]
    """Every group, for the statistics of the rollout."""
    kept: tuple[Group, ...]
    """Those that passed the filter."""
    greedy: tuple[Trajectory, ...]
    """The greedy episode of each kept group's task; empty where none was asked for."""
    metrics: Metrics
    cancelled: tuple[Group, ...] = ()
    """Groups that the step did not wait for; their tasks wait for rounds of their own."""

    @property
    def greedy_returns(self) -> tuple[float | None, ...]:
        """Their returns; None where one failed."""
        return tuple(episode.total_reward if episode.scored else None for episode in self.greedy)

    @property
    def indices(self) -> tuple[int, ...]:
        """The tasks that this step settles, those of dropped groups too."""
        return tuple(group.task.index for group in self.played)


class Window:
    """The groups that were begun and not yet learnt from, so that none waits longer than ``max_staleness`` steps.

    A step learns from ``batch`` groups. While step ``s`` collects, ``(max_staleness + 1) * batch`` groups may be open:
    the capacity of AReaL (Fu et al. 2025, arXiv:2505.24298, section 4.1), ``(max_staleness + s + 1) * batch`` over the
    whole run. A step takes the oldest groups that have ended, and waits for others where the older ones that are left
    would be more than the steps until their last one can take. So no group is ever thrown away for its age.
    """

    def __init__(self, batch: int, max_staleness: int) -> None:
        self._batch, self._max_staleness = batch, max_staleness
        self._begun: dict[int, int] = {}  # the step in which each open group was begun, oldest first
        self._ended: set[int] = set()

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def running(self) -> int:
        """Open groups that have not ended."""
        return len(self._begun) - len(self._ended)

    @property
    def room(self) -> int:
        """How many groups may be begun now."""
        return max(0, (self._max_staleness + 1) * self._batch - len(self._begun))

    def begin(self, index: int, step: int) -> None:
        """A group was begun while ``step`` collects."""
        self._begun[index] = step

    def end(self, index: int) -> None:
        """All its episodes have ended."""
        self._ended.add(index)

    def drop(self, index: int) -> None:
        """A group will not be learnt from."""
        del self._begun[index]
        self._ended.discard(index)

    def take(self, step: int) -> list[int] | None:
        """The groups that ``step`` learns from, oldest first; None while others have to end before.

        With a batch of 1 and a staleness of 2: groups 0, 1, 2 begin in step 0. Step 0 may take any one of them, but
        step 1 only one of those left, since both must be learnt from by step 2.
        """
        taken = [index for index in self._begun if index in self._ended][: self._batch]
        if len(taken) < self._batch:
            return None
        chosen = set(taken)
        left = [begun for index, begun in self._begun.items() if index not in chosen]
        for last in range(step, step + self._max_staleness):
            due = sum(begun + self._max_staleness <= last for begun in left)
            if due > (last - step) * self._batch:
                return None
        for index in taken:
            self.drop(index)
        return taken


class GroupSource:
    """Plays the tasks that a ledger draws, as ``rollout.mode`` says.

    ``update`` brings the newest weights to the engine. It is called when the mode allows it, at the beginning of
    :meth:`next_step` at the latest.
    """

    def __init__(self, session: Session, ledger: Ledger, update: Callable[[], None]) -> None:
        self._session, self._ledger, self._update = session, ledger, update
        config = session.config
        self._config, self._batch = config, config.rollout.groups_per_step
        self._needs_greedy: bool = ESTIMATORS.find(config.advantage.name).needs_greedy
        self._late: tuple[list[int], ...] = tuple([] for _ in range(_LATE_ROUNDS))
        """Tasks whose groups did not end in time, for rounds of their own: once, twice, ..."""
        self._cancelled: list[Group] = []
        """Groups that were cancelled since the last step."""
        self._window = Window(self._batch, config.rollout.max_staleness)
        self._stream: GroupStream | None = None
        self._open: dict[int, Group] = {}
        """Ended groups of the window."""
        self._dropped: list[Group] = []
        """Groups that a filter left out since the last step."""

    def next_step(self, step: int) -> Collected:
        """The groups of training step ``step``, counted from 0, and of what the filter asks for in their place.

        Their tasks stay in flight until :meth:`Ledger.settle`.
        """
        self.update()
        played, rounds = self._rounds() if self._config.rollout.mode == "sync" else self._from_window(step)
        kept, metrics = self._session.mix.keep(played)
        if self._config.filter.refill_rounds:
            metrics["filter/rounds"] = float(rounds)
        greedy: Sequence[Trajectory] = ()
        if self._needs_greedy and kept:
            greedy = self._session.collect_greedy([group.task for group in kept])
            self._ledger.count(greedy, "greedy_")
        cancelled, self._cancelled = tuple(self._cancelled), []
        return Collected(
            played=tuple(played), kept=tuple(kept), greedy=tuple(greedy), metrics=metrics, cancelled=cancelled
        )

    def update(self) -> None:
        """Bring the newest weights to the engine; in mode ``overlap`` once no episode runs that began with others."""
        if self._config.rollout.mode == "overlap":
            while self._window.running:
                self._receive()
        self._update()

    # -- mode sync ---------------------------------------------------------------------------------------------------

    def _rounds(self) -> tuple[list[Group], int]:
        """The groups of a step, and of further rounds while the filter leaves too few."""
        played: list[Group] = []
        kept, rounds = 0, 0
        while rounds <= self._config.filter.refill_rounds and kept < self._batch:
            played += self._round(self._batch - kept)
            kept, rounds = len(self._session.mix.keep(played)[0]), rounds + 1
        return played, rounds

    def _round(self, count: int) -> list[Group]:
        """The next ``count`` groups, in the order of their tasks, whichever ended first.

        With ``rollout.redundancy`` more are begun than are needed. Those that end last are cancelled and their tasks
        kept for rounds of their own (RollPacker, Gao et al. 2025, arXiv:2509.21009, section 4). Those leave their last
        for rounds of still longer ones, and only the last kind of round waits for all: so each task is learnt from,
        however long its episodes are, and few steps wait for their slowest. A group in which an episode failed comes in
        addition to the ``count``: failing is often quick, and would take the place of groups that take longer.
        """
        indices, late = self._drawn(count)
        stream = self._start(indices)
        played: list[Group] = []
        whole = 0
        for group in stream:
            self._ledger.count(group.trajectories)
            if whole < count:
                played.append(group)
                whole += all(episode.outcome.kind != "failed" for episode in group.trajectories)
                if whole == count and len(played) < len(indices):
                    ended = {group.task.index for group in played}
                    stream.cancel([place for place, index in enumerate(indices) if index not in ended])
            else:  # one that ended all the same just now is played again, too
                late.append(group.task.index)
                self._cancelled.append(group)
        return self._in_order(played, indices)

    def _drawn(self, count: int) -> tuple[list[int], list[int]]:
        """The tasks of a round, and where those of its groups go that end too late."""
        more = self._config.rollout.redundancy
        for place in range(_LATE_ROUNDS - 1, -1, -1):
            waiting = self._late[place]
            last = place == _LATE_ROUNDS - 1
            size = count if last else count + more
            if more and len(waiting) >= size:
                indices, waiting[:] = sorted(waiting[:size]), waiting[size:]
                return indices, [] if last else self._late[place + 1]
        return self._ledger.draw(count + more), self._late[0]

    @staticmethod
    def _in_order(groups: Sequence[Group], indices: Sequence[int]) -> list[Group]:
        places = {index: place for place, index in enumerate(indices)}
        return sorted(groups, key=lambda group: places[group.task.index])

    def _start(self, indices: Sequence[int]) -> GroupStream:
        tasks = self._session.training_tasks(indices)
        return self._session.start(tasks, self._config.rollout.group_size, into=self._stream)

    def cancel(self) -> None:
        """End the episodes that play; this source is not used any more. Their tasks stay in flight."""
        if self._stream is not None:
            self._stream.cancel_all()

    # -- modes overlap and async -------------------------------------------------------------------------------------

    def _from_window(self, step: int) -> tuple[list[Group], int]:
        """The groups of a step, while others go on."""
        self._begin(step)
        while (indices := self._window.take(step)) is None:
            self._receive()
            self._begin(step)
        taken = [self._open.pop(index) for index in indices]
        dropped, self._dropped = self._dropped, []
        for index, group in list(self._open.items()):  # those for which this step had no refill left
            if self._drops(group):
                del self._open[index]
        return [*dropped, *taken], 1 + -(-len(dropped) // self._batch)

    def _begin(self, step: int) -> None:
        """Begin as many groups as may be open, and as the run's remaining steps need."""
        needed = (self._config.steps - step) * self._batch - len(self._window)
        indices = self._ledger.draw(max(0, min(self._window.room, needed)))
        for index in indices:
            self._window.begin(index, step)
        if indices:
            self._stream = self._start(indices)

    def _receive(self) -> None:
        """Wait for the next group that ends."""
        assert self._stream is not None
        group = next(self._stream)
        self._ledger.count(group.trajectories)
        if not self._drops(group):
            self._window.end(group.task.index)
            self._open[group.task.index] = group

    def _drops(self, group: Group) -> bool:
        """Whether the filter leaves ``group`` out, so that it makes room for another task, as long as
        ``filter.refill_rounds`` allows in a step."""
        most = self._config.filter.refill_rounds * self._batch
        if len(self._dropped) >= most or self._session.mix.keep([group])[0]:
            return False
        self._window.drop(group.task.index)
        self._dropped.append(group)
        return True


def check_mode(session: Session) -> None:
    """Raise :class:`ConfigError` where the engine cannot do what ``rollout.mode`` needs."""
    rollout, can = session.config.rollout, session.engine.capabilities
    name = f"rollout.mode {rollout.mode!r}: engine {session.config.engine.name!r}"
    if rollout.mode != "sync" and can.sleep and not can.answers_asleep:
        raise ConfigError(
            f"{name} shares its device with the learner, so that one of them rests; give it a device of its own, or "
            "set rollout.mode: sync"
        )
    if rollout.mode == "async" and not can.updates_in_flight:
        raise ConfigError(f"{name} cannot take weights while it answers; set rollout.mode: overlap or sync")
