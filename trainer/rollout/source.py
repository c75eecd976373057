"""The source of groups: which tasks are played, the groups of a training step as they finish, and what is in flight.

Tasks are functions of their index, so a run's position in its endless list of tasks is a :class:`Ledger`: a few
integers in the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_envs.types import Group, Metrics, Task, Trajectory
from trainer.algorithms.shaping import keep_groups
from trainer.config import EnvConfig
from trainer.config.parts import ESTIMATORS
from trainer.rollout.session import Session

__all__ = ["HELD_OUT_SEEDS", "Collected", "GroupSource", "Ledger", "draw_tasks", "held_out_tasks"]

HELD_OUT_SEEDS = 1_000_000_000
"""Seeds from here on are held out; train seeds lie below."""


def draw_tasks(env: EnvConfig, *, seed: int, indices: Iterable[int], split: str = "train") -> list[Task]:
    """The tasks of ``indices`` in a run's endless list: the same on any host."""
    return [_task(env, split, index, _train_seed(seed, split, index)) for index in indices]


def held_out_tasks(env: EnvConfig, count: int, *, first: int = 0) -> list[Task]:
    """The held-out tasks ``first`` to ``first + count - 1``: the same for every run."""
    return [_task(env, "held-out", index, HELD_OUT_SEEDS + index) for index in range(first, first + count)]


def _task(env: EnvConfig, split: str, index: int, seed: int) -> Task:
    return Task(env_id=env.id, split=split, index=index, seed=seed, kwargs=env.kwargs)


def _train_seed(run_seed: int, split: str, index: int) -> int:
    digest = hashlib.blake2b(f"{run_seed}|{split}|{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SEEDS


@dataclass(slots=True)
class Ledger:
    """Which training tasks were drawn, and which of them are in flight: not yet trained on, nor dropped by a filter.

    A run that is killed and resumed from any checkpoint draws the tasks in flight again, in the order of their index,
    before new ones: none is skipped, and none is trained on twice.
    """

    cursor: int = 0
    """Index of the next task that was never drawn."""
    in_flight: set[int] = field(default_factory=set)
    _again: list[int] = field(default_factory=list)
    """What was in flight when the ledger was saved and has not been drawn again."""

    @classmethod
    def load(cls, cursor: int, saved: Mapping[str, Any]) -> Ledger:
        """The ledger of a checkpoint. Raises ValueError for an index that was never drawn."""
        in_flight = {int(index) for index in saved.get("in_flight", ())}
        if not all(0 <= index < cursor for index in in_flight):
            raise ValueError(f"tasks {sorted(in_flight)} cannot be in flight when only {cursor} were drawn")
        return cls(cursor=cursor, in_flight=in_flight, _again=sorted(in_flight))

    def save(self) -> dict[str, Any]:
        """What a checkpoint's ``progress`` holds beside the cursor."""
        return {"in_flight": sorted(self.in_flight)}

    def draw(self, count: int) -> list[int]:
        """``count`` indices to play now, those of an earlier process first."""
        again, self._again = self._again[:count], self._again[count:]
        fresh = range(self.cursor, self.cursor + count - len(again))
        self.cursor = fresh.stop
        self.in_flight.update(fresh)
        return [*again, *fresh]

    def settle(self, indices: Iterable[int]) -> None:
        """Note that these were trained on or dropped. Raises ValueError when one is not in flight."""
        for index in indices:
            if index not in self.in_flight:
                raise ValueError(f"task {index} is not in flight; it was trained on before, or never drawn")
            self.in_flight.remove(index)


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

    @property
    def greedy_returns(self) -> tuple[float | None, ...]:
        """Their returns; None where one failed."""
        return tuple(episode.total_reward if episode.scored else None for episode in self.greedy)

    @property
    def indices(self) -> tuple[int, ...]:
        """The tasks that this step settles, those of dropped groups too."""
        return tuple(group.task.index for group in self.played)


class GroupSource:
    """Plays the tasks that a ledger draws with the engine's current weights."""

    def __init__(self, session: Session, ledger: Ledger) -> None:
        self._session, self._ledger = session, ledger
        self._needs_greedy: bool = ESTIMATORS.find(session.config.advantage.name).needs_greedy

    def next_step(self) -> Collected:
        """The groups of one training step, and of further rounds while the filter leaves too few.

        Their tasks stay in flight until :meth:`Ledger.settle`.
        """
        config = self._session.config
        played: list[Group] = []
        kept: list[Group] = []
        metrics: Metrics = {}
        rounds = 0
        while rounds <= config.filter.refill_rounds and len(kept) < config.rollout.groups_per_step:
            played += self._play(config.rollout.groups_per_step - len(kept))
            kept, metrics = keep_groups(config.filter, played)
            rounds += 1
        if config.filter.refill_rounds:
            metrics["filter/rounds"] = float(rounds)
        greedy: Sequence[Trajectory] = ()
        if self._needs_greedy and kept:
            greedy = self._session.collect_greedy([group.task for group in kept])
        return Collected(played=tuple(played), kept=tuple(kept), greedy=tuple(greedy), metrics=metrics)

    def _play(self, count: int) -> list[Group]:
        """The next ``count`` groups: a stream drained, in the order of its tasks, whichever came first."""
        config = self._session.config
        tasks = draw_tasks(config.env, seed=config.seed, indices=self._ledger.draw(count))
        places = {task.index: place for place, task in enumerate(tasks)}
        stream = self._session.start(tasks, config.rollout.group_size)
        return sorted(stream, key=lambda group: places[group.task.index])
