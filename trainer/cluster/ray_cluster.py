"""A Ray cluster: one that is there, or one that is started on this machine. Ray is imported when it is used."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_envs.errors import ConfigError, MissingExtraError

_CONNECT_S = 5.0
_ANSWER_S = 20.0
"""Longest wait until what listens at the address of a cluster says that it is one."""
_LOOK_S, _REACH_S = 3.0, 1.0
"""How often it is looked whether the head of a cluster is there, and how long each look waits for it."""
_RECONNECT, _RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0
"""Ray's own variable for how long it waits for a head before it ends this process, and its default."""
_LEFT_S, _LEAST_S = 45.0, 12.0
"""How long before that end a head is given up, so that the run can be saved; but not before it was away so long."""
_OBJECT_STORE_BYTES = 100 << 20
"""Of a cluster that is started here: messages are small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterWish:
    """The cluster that a part of a run asks for."""

    asks: str
    """What asks for it, for people: "rollout.manager 'ray'"."""
    section: str
    """Of the configuration, where the address stands."""
    address: str | None
    """None starts one here."""
    workers: int | None
    """Actors that it must have room for; None for as many as there are processors for."""
    num_cpus: float
    """Of each."""
    kept_cpus: float = 0.0
    """Processors for other parts of the run."""
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


def check_cluster(wish: ClusterWish) -> None:
    """Raise :class:`MissingExtraError` without Ray, :class:`ConfigError` where no cluster answers at its address.

    Ray itself would try for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(wish.asks, "ray")
    if wish.address in (None, "auto"):
        return
    host, _, port = wish.address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"{wish.section}.address is {wish.address!r}; allowed: host:port (`ray start --head` prints it; its port "
            "is 6379 where none was chosen), ray://host:port, 'auto', or null to start a cluster here"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise _no_cluster(wish, str(error)) from error


def connect(wish: ClusterWish) -> bool:
    """Be connected to the cluster; whether it was done here, so that who called ends it with ``ray.shutdown``.

    Raises :class:`ConfigError` where it does not answer or start.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray would take the GPUs from this process
    import ray

    if ray.is_initialized():
        return False
    started: dict[str, Any] = {}
    if wish.address is None:
        cores = os.cpu_count() or 1
        size = wish.workers or max(1, int(cores // wish.num_cpus))
        started = {
            "num_cpus": max(cores, math.ceil(size * wish.num_cpus + wish.kept_cpus)),
            "resources": {name: size * amount for name, amount in wish.resources.items()},
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        _check_answer(wish, wish.address)
    try:
        with _own_handlers():
            ray.init(
                address=wish.address or "local",
                runtime_env=dict(wish.runtime_env) or None,
                logging_level="ERROR",
                log_to_driver=False,
                **started,
            )
    except Exception as error:  # of many kinds: no cluster, another release of Ray or Python, a bad runtime_env
        if isinstance(error, ConnectionError):
            raise _no_cluster(wish, str(error)) from error
        raise ConfigError(f"{wish.section}: Ray did not start ({type(error).__name__}: {error})") from error
    return True


@contextlib.contextmanager
def head_watched(lost: Callable[[str], None]) -> Iterator[None]:
    """Call ``lost``, in another thread, with what to say where the head of the cluster that this process is connected
    to is lost while the body runs, before Ray itself ends the process, at once: a minute after the loss, or as
    ``RAY_gcs_rpc_server_reconnect_timeout_s`` says for a head that may come back.

    A head that cannot be reached from here to begin with is not watched."""
    address = _head_address()
    if address is None or not _reached(address, _REACH_S):
        yield
        return
    over, waits_s = threading.Event(), max(_LEAST_S, float(os.environ.get(_RECONNECT, _RECONNECT_S)) - _LEFT_S)

    def watch() -> None:
        seen = time.monotonic()
        while time.monotonic() - seen < waits_s:
            if over.wait(_LOOK_S):
                return
            if _reached(address, _REACH_S):
                seen = time.monotonic()
        lost(f"The head of the Ray cluster, {address}, does not answer")

    thread = threading.Thread(target=watch, name="ray-head-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * _REACH_S)


def _head_address() -> str | None:
    """Of the cluster that this process is a driver of; None for none, and by way of ray://, where it is the address
    within the cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.util.client.ray.is_connected():
        return None
    return str(ray.get_runtime_context().gcs_address)


def _reached(address: str, timeout_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keeps this process's handlers of signals, in whose place Ray sets one of its own that aborts it."""
    main = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)


def _check_answer(wish: ClusterWish, address: str) -> None:
    """Raise :class:`ConfigError` where something listens that is no cluster, for which Ray would try for minutes, or
    one that asks for a token, of which ``ray.init`` says that it does not answer."""
    if address.startswith("ray://") or address == "auto":
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _no_cluster(wish, f"what listens there has not answered as Ray does within {_ANSWER_S:g} s") from error
    if said.returncode and b"AuthenticationError" in said.stderr:
        raise ConfigError(
            f"{wish.section}.address {wish.address!r}: the Ray cluster there asks for a token, and this process has "
            "not given the right one; set RAY_AUTH_MODE=token here, with what `ray get-auth-token` prints on the head "
            "in RAY_AUTH_TOKEN or ~/.ray/auth_token, or start the cluster with RAY_AUTH_MODE=disabled"
        )


def _no_cluster(wish: ClusterWish, reason: str) -> ConfigError:
    return ConfigError(
        f"{wish.section}.address {wish.address!r}: no Ray cluster answers there ({reason}); start one with `ray start "
        "--head`, or leave the address out to start one here for as long as the run lasts"
    )
