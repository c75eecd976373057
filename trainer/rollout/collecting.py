"""The episodes of one training step: tasks drawn, played, filtered, made up for; and greedy ones where they are asked.

Tasks are drawn in the order of their index, each once; how far a run has drawn is its cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roll_envs.types import Group, Metrics, Trajectory
from trainer.algorithms.filters import keep_groups
from trainer.config.parts import ESTIMATORS
from trainer.rollout.session import Session
from trainer.rollout.tasks import draw_tasks

__all__ = ["Collected", "collect_step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What one training step learns from."""

    played: tuple[Group, ...]
    """Every group, for the statistics of the rollout."""
    kept: tuple[Group, ...]
    """Those that passed the filter."""
    greedy: tuple[Trajectory, ...]
    """The greedy episode of each kept group's task; empty where none was asked for."""
    cursor: int
    """Index of the next task to draw."""
    metrics: Metrics

    @property
    def greedy_returns(self) -> tuple[float | None, ...]:
        """Their returns; None where one failed."""
        return tuple(episode.total_reward if episode.scored else None for episode in self.greedy)


def collect_step(session: Session, *, cursor: int) -> Collected:
    """Play the tasks from ``cursor`` on, and further rounds while the filter leaves too few groups."""
    config = session.config
    played: list[Group] = []
    kept: list[Group] = []
    metrics: Metrics = {}
    rounds = 0
    for _ in range(1 + config.filter.refill_rounds):
        missing = config.rollout.groups_per_step - len(kept)
        if missing <= 0:
            break
        tasks = draw_tasks(config.env, seed=config.seed, first=cursor, count=missing)
        cursor += missing
        rounds += 1
        played += session.collect(tasks, config.rollout.group_size)
        kept, metrics = keep_groups(config.filter, played)
    if config.filter.refill_rounds:
        metrics["filter/rounds"] = float(rounds)
    greedy: Sequence[Trajectory] = ()
    if ESTIMATORS.find(config.advantage.name).needs_greedy and kept:
        greedy = session.collect_greedy([group.task for group in kept])
    return Collected(played=tuple(played), kept=tuple(kept), greedy=tuple(greedy), cursor=cursor, metrics=metrics)
