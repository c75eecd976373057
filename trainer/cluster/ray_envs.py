"""Environment workers that are Ray actors: few, each with many environments, on any node of a cluster.

An actor is an :class:`~roll_envs.managers.host.EnvHost`, so that a node needs the hub and the environment's package,
and nothing of the trainer. Ray is imported when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from roll_envs.managers import EpisodeLimits
from roll_envs.managers.host import EnvHost
from roll_envs.managers.workers import EnvWorkers
from trainer.config import RolloutConfig

_CONNECT_S = 5.0
_ANSWER_S = 20.0
"""Longest wait until what listens at the address of a cluster says that it is one."""
_START_S = 300.0
"""A runtime_env may install packages."""
_THREADS = 4
"""Calls of an actor at one time: one waits for results all the time."""
_OBJECT_STORE_BYTES = 100 << 20
"""Of a cluster that is started here: messages are small."""


def check_ray(config: RolloutConfig) -> None:
    """Raise :class:`MissingExtraError` without Ray, :class:`ConfigError` where no cluster answers at its address.

    Ray itself would try for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("rollout.manager 'ray'", "ray")
    address = config.ray.address
    if address in (None, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"rollout.ray.address is {address!r}; allowed: host:port (`ray start --head` prints it; its port is 6379 "
            "where none was chosen), ray://host:port, 'auto', or null to start a cluster here"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise _no_cluster(address, str(error)) from error


@contextlib.contextmanager
def ray_workers(config: RolloutConfig, limits: EpisodeLimits) -> Iterator[EnvWorkers]:
    """Actors as ``config`` says, on a cluster that is there or is started for them.

    Raises :class:`ConfigError` for a cluster that does not answer or has no room, and for actors that do not start.
    """
    check_ray(config)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray would take the GPUs from this process
    import ray

    wanted, ours = config.ray, not ray.is_initialized()
    if ours:
        _connect(config)
    try:
        size = config.workers or max(1, int(ray.cluster_resources().get("CPU", 0) // wanted.num_cpus))
        _check_room(config, size, ray.cluster_resources())
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


def _connect(config: RolloutConfig) -> None:
    import ray

    wanted = config.ray
    started: dict[str, Any] = {}
    if wanted.address is None:
        cores = os.cpu_count() or 1
        size = config.workers or max(1, int(cores // wanted.num_cpus))
        started = {
            "num_cpus": max(cores, math.ceil(size * wanted.num_cpus)),
            "resources": {name: size * amount for name, amount in wanted.resources.items()},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        _check_cluster(wanted.address)
    try:
        ray.init(
            address=wanted.address or "local",
            runtime_env=wanted.runtime_env or None,
            logging_level="ERROR",
            log_to_driver=False,
            **started,
        )
    except Exception as error:  # of many kinds: no cluster, another release of Ray or Python, a bad runtime_env
        if isinstance(error, ConnectionError):
            raise _no_cluster(wanted.address, str(error)) from error
        raise ConfigError(f"rollout.ray: Ray did not start ({type(error).__name__}: {error})") from error


def _check_cluster(address: str) -> None:
    """Raise :class:`ConfigError` where something listens that is no cluster: Ray would try for minutes."""
    if address.startswith("ray://") or address == "auto":
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _no_cluster(address, f"what listens there has not answered as Ray does within {_ANSWER_S:g} s") from error


def _no_cluster(address: str | None, reason: str) -> ConfigError:
    return ConfigError(
        f"rollout.ray.address {address!r}: no Ray cluster answers there ({reason}); start one with `ray start --head`, "
        "or leave the address out to start one here for as long as the run lasts"
    )


def _check_room(config: RolloutConfig, size: int, total: dict[str, float]) -> None:
    for name, amount in {"CPU": config.ray.num_cpus, **config.ray.resources}.items():
        if size * amount > total.get(name, 0.0):
            raise ConfigError(
                f"rollout.workers {size} with {amount:g} {name} each need {size * amount:g}, but the Ray cluster has "
                f"{total.get(name, 0.0):g}; lower rollout.workers, rollout.ray.num_cpus or rollout.ray.resources, or "
                "add nodes"
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
