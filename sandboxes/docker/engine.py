"""The Docker engine: reaching it, its images, and containers made as strict as it can.

The only file that uses the SDK (the Python package ``docker``, not this one), which has no types: its objects are
``Any``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_envs.errors import ConfigError, MissingExtraError, SandboxError
from sandboxes.slots import chosen_cpus

DEFAULT_IMAGE = "python:3.12-slim"
"""Has Python and bash."""

LABEL = "roll-envs.sandbox"
"""Label of our containers."""
LEFT_S = 300
"""A container that has ended, and was made longer ago than this, is removed by the next sandbox: nobody else would,
where the process that owned it was killed. A younger one may be about to be started, or looked at, by its owner."""

# The unprivileged user and group of nearly every distribution (nobody).
USER = "65534:65534"
DEFAULT_URL = "unix:///var/run/docker.sock"
API_TIMEOUT_S = 60
RUNNER_MB = 24
"""Memory for PID 1 and the kernel's bookkeeping, on top of a program's own limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Limits that are fixed when a container is made; its memory can be changed later."""

    processes: int
    files_mb: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What all containers of a sandbox have in common."""

    image: str
    cpus: float
    runtime: str | None
    unsafe: bool
    memory_mb: int
    """The limit that they start with."""


class Engine:
    """One Docker engine; ``url`` is that of ``DOCKER_HOST``, which is used when it is ``None``.

    Raises :class:`MissingExtraError` without the SDK and :class:`SandboxError` without an engine.
    """

    def __init__(self, url: str | None = None) -> None:
        try:
            self._sdk = importlib.import_module("docker")
        except ImportError as error:
            raise MissingExtraError("the Docker sandbox", "docker") from error
        self._url = url
        self._where = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._version: str | None = None
        with self.client() as client, _engine_errors("ask for its properties"):
            self._version = client.api.api_version
            self.info: dict[str, Any] = client.info()

    def client(self) -> contextlib.closing[Any]:
        """A client, to be used by one thread."""
        options: dict[str, Any] = {"timeout": API_TIMEOUT_S}
        if self._version is not None:
            options["version"] = self._version  # else each client asks for it again
        try:
            _check_listening(self._where)
            if self._url is not None:
                return contextlib.closing(self._sdk.DockerClient(base_url=self._url, **options))
            return contextlib.closing(self._sdk.from_env(**options))
        except (OSError, self._sdk.errors.DockerException) as error:
            raise SandboxError(
                f"no Docker engine answers at {self._where} ({error}); start one (systemctl start docker, or "
                "dockerd), or name another: DOCKER_HOST=unix:///path/docker.sock, or the argument `engine`"
            ) from error

    # -- images --------------------------------------------------------------------------------------------------------

    def image_id(self, name: str) -> str:
        """What an image is, whatever its name; empty where the engine has none of that name."""
        with self.client() as client, _engine_errors(f"look for the image {name!r}"):
            try:
                return str(client.images.get(name).id)
            except self._sdk.errors.ImageNotFound:
                return ""

    def check_image(self, name: str) -> None:
        """Raise :class:`ConfigError` where the engine has no such image. Nothing is ever pulled."""
        if not self.image_id(name):
            with self.client() as client, _engine_errors("list its images"):
                have = sorted({tag for image in client.images.list() for tag in image.tags})
            raise ConfigError(
                f"the engine has no image {name!r} (it has: {', '.join(have) or 'none'}); get it: docker pull "
                f"{name} (the sandbox never does so by itself), or build one: docs/sandboxes.md"
            )

    def build(self, tag: str, *, dockerfile: str = "", folder: Path | None = None) -> None:
        """Build an image of ``folder``, or of the text of a Dockerfile, where there is none of that name yet.

        Its steps reach no network, and nothing is pulled. Raises :class:`ConfigError` with what a failed step said.
        """
        if self.image_id(tag):
            return
        with self.client() as client, _engine_errors(f"build the image {tag!r}"):
            text = io.BytesIO(dockerfile.encode())
            given: dict[str, Any] = {"fileobj": text} if folder is None else {"path": str(folder)}
            try:
                client.images.build(**given, tag=tag, pull=False, network_mode="none", rm=True, forcerm=True)
            except self._sdk.errors.BuildError as error:
                said = "".join(str(line.get("stream", "")) for line in error.build_log).strip()[-500:]
                raise ConfigError(
                    f"the image of {folder or dockerfile!r} cannot be built without a network: {error.msg}; it said: "
                    f"{said or 'nothing'}; build it where there is one, and name it"
                ) from error
            except self._sdk.errors.APIError as error:
                if error.is_client_error() or "not found" in str(error) or "pull" in str(error):
                    raise ConfigError(f"the image of {folder or dockerfile!r} cannot be built: {error}") from error
                raise

    # -- containers ----------------------------------------------------------------------------------------------------

    def spawn(self, plan: Plan, shape: Shape, command: list[str]) -> tuple[Any, Any]:
        """Make a container, attach to its streams, and start it: the container, and the host's end of the streams."""
        with contextlib.ExitStack() as failed, _engine_errors("start a container"):
            client = failed.enter_context(self.client())
            name = f"roll-sandbox-{uuid.uuid4().hex[:12]}"
            container = client.containers.create(plan.image, command, entrypoint="", name=name, **_options(plan, shape))
            failed.callback(self._remove, container)
            # Attached before the start, so that no output is missed.
            streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            stream = client.api.attach_socket(container.id, params=streams)
            container.start()
            failed.pop_all()
        return container, stream

    def set_memory(self, container: Any, memory_mb: int) -> None:
        """Change the limit of a container that runs."""
        with _engine_errors("change the memory of a container"):
            limit = _memory(memory_mb)
            container.update(mem_limit=limit, memswap_limit=limit)

    def state(self, container: Any) -> dict[str, Any]:
        """``State`` of the container: ``Running``, ``ExitCode``, ``OOMKilled``; empty where it is gone."""
        try:
            _check_listening(self._where)
            container.reload()
        except Exception:  # the caller is about to report the container's end, with or without its state
            return {}
        state: dict[str, Any] = container.attrs["State"]
        return state

    def discard(self, container: Any, stream: Any) -> None:
        """Kill and remove; if the engine does not answer, a later start removes the container."""
        # The SDK's wrapper closes neither the connection below it nor the response that it came from.
        for part in (stream, getattr(stream, "_sock", None), getattr(stream, "_response", None)):
            with contextlib.suppress(Exception):
                if part is not None:
                    part.close()
        self._remove(container)
        container.client.close()

    def remove_ended(self) -> None:
        """Remove what is left of processes that were killed; their containers have ended with them, because PID 1 then
        reads end-of-file."""
        busy = contextlib.suppress(self._sdk.errors.APIError)  # another process does it just now
        with self.client() as client, _engine_errors("look for left-over containers"), busy:
            client.containers.prune(filters={"label": f"{LABEL}=1", "until": f"{LEFT_S}s"})

    def _remove(self, container: Any) -> None:
        with contextlib.suppress(Exception):  # gone already, being removed, or the engine is; no more can be done here
            _check_listening(self._where)
            container.remove(force=True, v=True)


def _check_listening(where: str) -> None:
    """Fail at once where no engine listens: the SDK would leak the socket that it could not connect."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(API_TIMEOUT_S)
            probe.connect(where.removeprefix("unix://"))


def _options(plan: Plan, shape: Shape) -> dict[str, Any]:
    shm_mb = min(16, shape.files_mb)
    return {
        "runtime": plan.runtime,  # None: that of the engine
        "user": USER,
        "working_dir": "/",
        "environment": {"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        "use_config_proxy": False,  # else the host's proxy settings, passwords included, are in the environment
        "labels": {LABEL: "1"},
        "hostname": "sandbox",
        "stdin_open": True,
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": _memory(plan.memory_mb),
        # The sum of memory and swap: equal to the memory, so there is no swap.
        "memswap_limit": _memory(plan.memory_mb),
        "shm_size": shm_mb << 20,
        # One more for PID 1.
        "pids_limit": shape.processes + 1,
        "nano_cpus": int(plan.cpus * 1e9),
        "cpuset_cpus": ",".join(map(str, chosen_cpus())),
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 1024, "Hard": 4096}],
        "log_config": {"type": "none", "config": {}},  # do not let the engine write output to its disk
        "tmpfs": {
            # nr_inodes bounds the number of files, which take memory of the kernel even when they are empty.
            "/tmp": f"rw,exec,nosuid,nodev,size={shape.files_mb}m,nr_inodes=16384,mode=1777",
            "/dev/shm": f"rw,noexec,nosuid,nodev,size={shm_mb}m,nr_inodes=1024,mode=1777",
        },
    }


def _memory(memory_mb: int) -> int:
    return (memory_mb + RUNNER_MB) << 20


@contextlib.contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Turn errors of the SDK and its transport into :class:`SandboxError`."""
    try:
        yield
    except (SandboxError, ConfigError):
        raise
    except Exception as error:  # docker.errors.* and requests.* share no base class below Exception
        raise SandboxError(f"the Docker engine could not {what}: {error}") from error
