"""One container with this package's PID 1 in it: started, sent requests, removed."""

from __future__ import annotations

import importlib.resources
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll_envs.errors import ConfigError, SandboxError
from sandboxes.docker.channel import Channel, ChannelClosedError, ChannelTimeoutError, Reply
from sandboxes.docker.engine import Engine, Shape, Spawned
from sandboxes.docker.isolation import judge
from sandboxes.docker.syscall_filters import MACHINES, filters
from sandboxes.local.sandbox import PRELOADED

__all__ = ["OutOfMemoryError", "Plan", "Worker"]

START_S = 30.0
GRACE_S = 5.0
"""PID 1 kills a program at its deadline; if it has not answered this long after, the container counts as stuck."""

# Order of loading: each imports only those before it.
_LOCAL = ("kernel", "wire", "program", "files", "cells")
_OURS = ("facts", "processes", "watch", "files", "interpreter", "job", "pid1")

# Reads the source of modules from stdin and makes modules of it; nothing of this package is installed in the image.
# `__file__` is set because `program.show` leaves out frames of its own folder.
_BOOT = """
import json, os, sys, types
def read(count):
    content = b""
    while len(content) < count:
        content += os.read(0, count - len(content)) or sys.exit(0)
    return content
for name, text in json.loads(read(int(read(10)))):
    module = types.ModuleType(name)
    module.__package__ = name if text is None else name.rpartition(".")[0]
    module.__file__ = "/" + name.replace(".", "/") + ".py"
    if text is None:
        module.__path__ = []
    sys.modules[name] = module
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    if text is not None:
        exec(compile(text, module.__file__, "exec"), module.__dict__)
sys.modules["sandboxes.docker.inside.pid1"].main()
"""


class OutOfMemoryError(Exception):
    """The kernel killed the whole container because its one program had used up the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What all containers of a sandbox have in common."""

    image: str
    cpus: float
    runtime: str | None
    unsafe: bool


def _module_texts() -> list[tuple[str, str | None]]:
    packages = ("sandboxes", "sandboxes.local", "sandboxes.local.inside", "sandboxes.docker", "sandboxes.docker.inside")
    texts: list[tuple[str, str | None]] = [(name, None) for name in packages]
    for package, names in (("sandboxes.local.inside", _LOCAL), ("sandboxes.docker.inside", _OURS)):
        folder = importlib.resources.files(package)
        texts += [(f"{package}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return texts


class Worker:
    """A running container. Used by one thread at a time; ``alive`` tells whether it can be used again."""

    def __init__(self, engine: Engine, plan: Plan, shape: Shape, memory_mb: int) -> None:
        self._engine = engine
        self.image = plan.image
        self.shape = shape
        self.memory_mb = memory_mb
        machine = engine.info["Architecture"]
        if machine not in MACHINES:
            raise ConfigError(f"the engine's machine is {machine!r}; filters of system calls are known for {MACHINES}")
        self._spawned: Spawned = engine.spawn(
            plan.image,
            ["python3", "-s", "-c", _BOOT],
            shape=shape,
            memory_mb=memory_mb,
            cpus=plan.cpus,
            runtime=plan.runtime,
        )
        self._broken = self._retired = False
        try:
            self._channel = Channel(self._spawned.stream)
            texts = json.dumps(_module_texts()).encode()
            boot = [b"%010d" % len(texts), texts]
            hello = {"do": "hello", "preload": PRELOADED, "filters": [code.hex() for code in filters(machine)]}
            reply = self._hello(hello, boot)
            self.facts: dict[str, Any] = reply.result
            self.isolation = judge(engine.info, self.facts, runtime=plan.runtime, unsafe=plan.unsafe)
        except OutOfMemoryError:
            self.close()
            raise SandboxError(f"PID 1 itself does not fit into {memory_mb} MB; raise Limits.memory_mb") from None
        except BaseException:
            self.close()
            raise

    def _hello(self, header: Mapping[str, Any], boot: Sequence[bytes]) -> Reply:
        try:
            return self.request(header, [], wall_s=START_S, before=boot)
        except SandboxError as error:
            raise SandboxError(
                f"the runner did not start in a container of the image {self.image!r}, which needs a python3 of "
                f"release 3.11 or newer with ctypes: {error}"
            ) from error

    @property
    def id(self) -> str:
        """The container's id on the engine."""
        return str(self._spawned.container.id)

    @property
    def alive(self) -> bool:
        """Whether it can be used: running, not retired, with no unexpected output."""
        return not self._broken and not self._retired and self._channel.idle

    def retire(self) -> None:
        """Do not use it again after it is returned to the pool."""
        self._retired = True

    def set_memory(self, memory_mb: int) -> None:
        """Change the memory limit of the programs in this container."""
        if memory_mb != self.memory_mb:
            self._engine.set_memory(self._spawned, memory_mb)
            self.memory_mb = memory_mb

    def request(
        self, header: Mapping[str, Any], body: Sequence[bytes], *, wall_s: float, before: Sequence[bytes] = ()
    ) -> Reply:
        """Ask PID 1 for something that takes up to ``wall_s``.

        Raises :class:`SandboxError` when the container ends or is stuck, :class:`OutOfMemoryError` when the kernel
        killed it; in either case it cannot be used again.
        """
        number = secrets.token_hex(8)
        try:
            return self._channel.request(
                {"id": number, **header}, body, deadline=time.monotonic() + wall_s + GRACE_S, before=before
            )
        except ChannelTimeoutError:
            self._broken = True
            raise SandboxError(
                f"container {self.id[:12]} did not answer to {header['do']!r} within {wall_s + GRACE_S:g} s"
            ) from None
        except ChannelClosedError as error:
            self._broken = True
            state = self._engine.state(self._spawned)
            if state.get("OOMKilled"):
                raise OutOfMemoryError from error
            how = f"with exit code {state['ExitCode']}" if state.get("ExitCode") is not None else "and is gone"
            said = f"; it said: {error}" if str(error) else ""
            raise SandboxError(f"container {self.id[:12]} ended during {header['do']!r} {how}{said}") from error

    def close(self) -> None:
        """Kill and remove the container."""
        self._broken = True
        self._engine.discard(self._spawned)
