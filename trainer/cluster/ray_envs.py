"""Environment workers that are Ray actors: few, each with many environments, on any node of a cluster.

An actor is an :class:`~roll_envs.managers.host.EnvHost`, so that a node needs the hub and the environment's package,
and nothing of the trainer. Ray is imported when it is used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from roll_envs.errors import ConfigError, RollError
from roll_envs.managers import EpisodeLimits
from roll_envs.managers.host import EnvHost
from roll_envs.managers.workers import EnvWorkers
from trainer.cluster.ray_cluster import ClusterWish, check_cluster, connect
from trainer.config import RolloutConfig

_START_S = 300.0
"""A runtime_env may install packages."""
_THREADS = 4
"""Calls of an actor at one time: one waits for results all the time."""


def cluster_wish(config: RolloutConfig, kept_cpus: float = 0.0) -> ClusterWish:
    """The cluster that ``rollout.manager: ray`` asks for, where other parts of the run have ``kept_cpus`` of it."""
    ray = config.ray
    return ClusterWish(
        asks="rollout.manager 'ray'",
        section="rollout.ray",
        address=ray.address,
        workers=config.workers,
        num_cpus=ray.num_cpus,
        kept_cpus=kept_cpus,
        resources=ray.resources,
        runtime_env=ray.runtime_env,
    )


@contextlib.contextmanager
def ray_workers(config: RolloutConfig, limits: EpisodeLimits, kept_cpus: float = 0.0) -> Iterator[EnvWorkers]:
    """Actors as ``config`` says, on a cluster that is there or is started for them, of whose processors other parts of
    the run have ``kept_cpus``.

    Raises :class:`ConfigError` for a cluster that does not answer or has no room, and for actors that do not start.
    """
    wish = cluster_wish(config, kept_cpus)
    check_cluster(wish)
    wanted, ours = config.ray, connect(wish)
    import ray

    try:
        room = ray.cluster_resources()
        room["CPU"] = room.get("CPU", 0.0) - kept_cpus
        size = config.workers or max(1, int(room["CPU"] // wanted.num_cpus))
        _check_room(config, size, room, kept_cpus)
        options: dict[str, Any] = {
            "num_cpus": wanted.num_cpus,
            "resources": wanted.resources,
            "scheduling_strategy": "SPREAD",
        }
        if wanted.runtime_env and not ours:
            options["runtime_env"] = wanted.runtime_env
        actor_class = ray.remote(EnvHost).options(max_concurrency=_THREADS, max_restarts=0, **options)
        try:
            workers = EnvWorkers(lambda: RayLink(actor_class.remote()), size, limits, _START_S)
        except RollError as error:
            raise ConfigError(
                f"rollout.manager 'ray': {error}. Every node needs this Python, Ray {ray.__version__} and roll-envs, "
                "or a rollout.ray.runtime_env that brings them"
            ) from error
        with workers:
            yield workers
    finally:
        if ours:
            ray.shutdown()


def _check_room(config: RolloutConfig, size: int, room: dict[str, float], kept_cpus: float) -> None:
    for name, amount in {"CPU": config.ray.num_cpus, **config.ray.resources}.items():
        if size * amount > room.get(name, 0.0):
            beside = f" beside the {kept_cpus:g} of placement.learner" if kept_cpus and name == "CPU" else ""
            raise ConfigError(
                f"rollout.workers {size} with {amount:g} {name} each need {size * amount:g}, but the Ray cluster has "
                f"{room.get(name, 0.0):g}{beside}; lower rollout.workers, rollout.ray.num_cpus or "
                "rollout.ray.resources, or add nodes"
            )


class RayLink:
    """A :class:`~roll_envs.managers.workers.Link` to an actor, which is ended with it."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._greeted, self._reason = actor, False, ""
        self._over = threading.Event()

    def send(self, frame: bytes) -> None:
        try:
            self._actor.put.remote(frame)
        except Exception as error:  # Ray was shut down
            raise OSError(str(error)) from error

    def receive(self) -> bytes:
        import ray

        method = self._actor.take if self._greeted else self._actor.hello
        try:
            said = ray.get(method.remote())
        except Exception as error:  # the actor, its node or the whole cluster is gone, or it could not be made
            self._reason = _reason(error)
            self._over.set()
            raise EOFError from error
        if self._greeted:
            return bytes(said)
        self._greeted = True
        return str(said).encode()

    def ended(self) -> str:
        return f"was lost ({self._reason})"

    def end(self, wait_s: float) -> None:
        import ray

        if wait_s > 0 and self._greeted and not self._over.is_set():
            with contextlib.suppress(Exception):  # it has ended, or an environment takes too long to close
                ray.get(self._actor.close.remote(), timeout=wait_s)
        with contextlib.suppress(Exception):
            ray.kill(self._actor)
        self._over.wait(2.0)


def _reason(error: Exception) -> str:
    """The line of Ray's long texts that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    saying = [line for line in lines if "dead because" in line or "died because its node" in line]
    return (saying or lines)[-1][:300]
