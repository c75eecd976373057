"""Where a run's parts live: in the trainer's process, in processes beside it, or on a Ray cluster.

Here are the environments; the learner's ranks are in :mod:`trainer.cluster.learner_ranks`.

Episodes are driven in the trainer's process in every case, so prompts and ids do not depend on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import NamedTuple

from roll_envs.managers import EpisodeLimits
from roll_envs.managers.processes import ProcessLink
from roll_envs.managers.workers import EnvWorkers
from roll_envs.sandbox import SANDBOX_CPUS
from roll_envs.types import Task
from trainer.cluster.ray_cluster import check_cluster
from trainer.cluster.ray_envs import cluster_wish, ray_workers
from trainer.config import RolloutConfig, RunConfig

__all__ = ["check_manager", "env_workers", "episode_limits", "manager_words", "rank_words", "sandboxes_on"]


def episode_limits(config: RolloutConfig) -> EpisodeLimits:
    """Deadlines and budgets of episodes."""
    return EpisodeLimits(**{limit.name: getattr(config, limit.name) for limit in fields(EpisodeLimits)})


@contextlib.contextmanager
def env_workers(
    config: RolloutConfig, tasks: Sequence[Task], cpus: Sequence[int] = (), kept_cpus: float = 0.0
) -> Iterator[EnvWorkers | None]:
    """The workers that hold the environments; None for manager 'thread'. Worker processes run on the processors
    ``cpus``; none: on any. Actors leave ``kept_cpus`` processors of a Ray cluster to other parts of the run.

    Raises :class:`ConfigError` where they do not start, or an environment of ``tasks`` cannot be made in one of them.
    """
    manager = _MANAGERS.get(config.manager)
    if manager is None:
        yield None
        return
    limits = episode_limits(config)
    opened = manager.open(config, limits, cpus, kept_cpus)
    with opened as workers:
        workers.check(tasks, limits.of_env("make"), manager.remedy)
        yield workers


@contextlib.contextmanager
def sandboxes_on(cpus: Sequence[int]) -> Iterator[None]:
    """Sandboxes that are made in the body, also by worker processes, run on the processors ``cpus``; none: on any."""
    if not cpus:
        yield
        return
    before = os.environ.get(SANDBOX_CPUS)
    os.environ[SANDBOX_CPUS] = ",".join(map(str, cpus))
    try:
        yield
    finally:
        os.environ.pop(SANDBOX_CPUS)
        if before is not None:
            os.environ[SANDBOX_CPUS] = before


def check_manager(config: RolloutConfig) -> None:
    """Raise :class:`ConfigError` or :class:`MissingExtraError` for a manager that cannot be used, before anything is
    started."""
    if config.manager == "ray":
        check_cluster(cluster_wish(config))


def manager_words(config: RolloutConfig, cpus: int | Sequence[int] | None = None) -> str:
    """Which workers hold the environments, for people; nothing for manager 'thread', which has none. ``cpus`` are the
    processors that they are given."""
    if cpus is not None and not config.workers:
        config = config.model_copy(update={"workers": cpus if isinstance(cpus, int) else len(cpus)})
    manager = _MANAGERS.get(config.manager)
    return "" if manager is None else manager.words(config)


def rank_words(config: RunConfig) -> str:
    """Which processes the learner is in, for people; nothing for this one."""
    count, address = config.placement.learner.ranks, config.placement.address
    if config.cluster == "ray":
        return f"{count} Ray actors, " + (f"cluster {address}" if address else "cluster started here")
    return f"{count} processes" if count > 1 else ""


@contextlib.contextmanager
def _process_workers(
    config: RolloutConfig, limits: EpisodeLimits, cpus: Sequence[int], kept_cpus: float
) -> Iterator[EnvWorkers]:
    with EnvWorkers(lambda: ProcessLink(cpus), config.workers or len(cpus) or _cores(), limits) as workers:
        yield workers


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _process_words(config: RolloutConfig) -> str:
    return f"{config.workers or _cores()} processes"


def _ray_words(config: RolloutConfig) -> str:
    size = config.workers or "one per processor"
    return f"Ray actors ({size}), " + (
        f"cluster {config.ray.address}" if config.ray.address else "cluster started here"
    )


class _Manager(NamedTuple):
    open: Callable[[RolloutConfig, EpisodeLimits, Sequence[int], float], AbstractContextManager[EnvWorkers]]
    words: Callable[[RolloutConfig], str]
    remedy: str
    """What to do about an environment that cannot be made in a worker."""


_MANAGERS: Mapping[str, _Manager] = {
    "process": _Manager(
        _process_workers,
        _process_words,
        "Worker processes know the environments of installed packages, and those of a module that the id names "
        "('module:namespace/Name-v0'); rollout.manager 'thread' keeps environments in the trainer's process",
    ),
    "ray": _Manager(
        lambda config, limits, cpus, kept_cpus: ray_workers(config, limits, kept_cpus),
        _ray_words,
        "Install the environment's package on every node, or send it along: rollout.ray.runtime_env, e.g. "
        "{py_modules: [path/of/package]} or {pip: [package]}",
    ),
}
