"""One container with this package's PID 1 in it: started, sent orders, removed; and which layers of isolation it really
has, as the engine and the kernel inside report, not as was requested.

The filter of system calls, which comes on top of the engine's default profile, is that of the local sandbox: no
io_uring, ptrace, keyrings, bpf and others. It also refuses objects that would outlive a program and reach the next one
in the same container (shared memory and queues of System V, POSIX queues), and changes of limits, priority or
processors of PID 1, which has the same user.
"""

from __future__ import annotations

import importlib.resources
import io
import secrets
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Isolation
from sandboxes.docker.channel import Channel, Reply
from sandboxes.docker.engine import Engine, Plan, Shape
from sandboxes.docker.pid1 import FIRST_FILE, MOST_RESIDUE, STDERR, STDOUT
from sandboxes.local.inside import seccomp
from sandboxes.local.sandbox import PRELOADED
from sandboxes.pool import Ended, NotBegunError
from sandboxes.programs import ROWS, Order
from sandboxes.slots import FETCH_BYTES


def judge(info: Mapping[str, Any], facts: Mapping[str, Any], *, runtime: str | None, unsafe: bool) -> Isolation:
    """Name the layers. Raises :class:`SandboxError` where one is missing and ``unsafe`` does not allow it.

    ``info`` is the engine's description of itself, ``facts`` come from PID 1 of a container.
    """
    security = [str(option) for option in info.get("SecurityOptions") or []]
    # Any more were installed by the engine.
    own_filters = 1
    layers = {
        "pid-namespace": facts["pid"] == 1,
        "network-none": set(facts["networks"]) <= {"lo"} | _UNROUTED,
        "read-only-root": facts["read_only"],
        "non-root": facts["uid"] != 0,
        "no-capabilities": facts["capabilities"] == 0,
        "no-new-privileges": facts["no_new_privileges"],
        "seccomp-default": any("seccomp" in option for option in security) and facts["seccomp_filters"] > own_filters,
        "seccomp-denials": facts["seccomp_filters"] >= own_filters,
        "cgroup-memory": bool(info.get("MemoryLimit")),
        "cgroup-pids": bool(info.get("PidsLimit")),
        "cgroup-cpu": bool(info.get("CpuCfsQuota")),
    }
    extra = {
        "apparmor": any("apparmor" in option for option in security),
        "user-namespace": any("userns" in option or "rootless" in option for option in security),
        f"runtime-{runtime}": runtime is not None,
    }
    missing = tuple(name for name, there in layers.items() if not there)
    if missing and not unsafe:
        raise SandboxError(
            f"on this engine a container lacks {', '.join(missing)}; turn that on in the engine or the kernel, or "
            "allow weaker isolation for programs that are trusted: unsafe=True"
        )
    return Isolation(
        tier="container-weak" if missing else "container",
        layers=tuple(name for name, there in {**layers, **extra}.items() if there),
        missing=missing,
    )


_UNROUTED = frozenset({"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"})
"""Network devices that some kernels create in every network namespace, down and without an address."""


START_S = 30.0
HELPER_S = 60.0
"""Time limit for copying files, and for emptying a container."""
GRACE_S = 15.0
"""PID 1 kills a program at its deadline; if it has not answered this long after, the container counts as stuck."""

# Reads a zip of modules from stdin into a memory file and imports from there; nothing of this package is installed in
# the image. The program is called at module level, so that no frame of PID 1 is left below its own.
_BOOT = """
import os, sys
def read(count):
    content = b""
    while len(content) < count:
        content += os.read(0, count - len(content)) or sys.exit(0)
    return content
code = os.memfd_create("code")
os.write(code, read(int(read(10))))
sys.path.insert(0, f"/proc/self/fd/{code}")
from sandboxes.docker import pid1
from sandboxes.local.inside import launch
os.close(code)
del sys.path[0], read, code
try:
    pid1.main()
except launch.Untrusted as leap:
    start = leap.start
start()
"""


def _code() -> bytes:
    """What runs inside, as a zip."""
    packed, root = io.BytesIO(), importlib.resources.files("sandboxes")
    with zipfile.ZipFile(packed, "w") as file:
        for name in ("sandboxes", "sandboxes/local", "sandboxes/docker"):
            file.writestr(f"{name}/__init__.py", "")
        inside = [f"local/inside/{module.name}" for module in root.joinpath("local/inside").iterdir()]
        for name in ("docker/pid1.py", *inside):
            if name.endswith(".py"):
                file.writestr(f"sandboxes/{name}", root.joinpath(name).read_bytes())
    return packed.getvalue()


class ContainerSlot:
    """A running container; see :class:`sandboxes.pool.Slot`."""

    def __init__(self, engine: Engine, plan: Plan, shape: Shape) -> None:
        self._engine = engine
        self.shape = shape
        self._memory_mb = plan.memory_mb
        machine = engine.info["Architecture"]
        if machine not in seccomp.MACHINES:
            known = ", ".join(seccomp.MACHINES)
            raise ConfigError(f"the engine's machine is {machine!r}; filters of system calls are known for {known}")
        self._container, self._stream = engine.spawn(plan, shape, ["python3", "-s", "-c", _BOOT])
        self._broken = self._used_up = False
        try:
            code = _code()
            self._channel = Channel(self._stream, b"%010d" % len(code) + code)
            calls = seccomp.build(machine, seccomp.Rules(one_container=True)).hex()
            tools = [row.tool for row in ROWS.values()]
            hello = {"order": "hello", "preload": PRELOADED, "filter": calls, "tools": tools}
            reply = self._request(hello, wall_s=START_S)
            if reply is None:
                raise SandboxError(f"PID 1 itself does not fit into {plan.memory_mb} MB; raise Limits.memory_mb")
            self.facts = reply.answer
            self.isolation = judge(engine.info, self.facts, runtime=plan.runtime, unsafe=plan.unsafe)
        except BaseException as error:
            self.close()
            if not isinstance(error, SandboxError) or hasattr(self, "facts"):
                raise
            raise SandboxError(
                f"the runner did not start in a container of the image {plan.image!r}, which needs a python3 of "
                f"release 3.11 or newer with ctypes: {error}"
            ) from error

    @property
    def id(self) -> str:
        """The container's id on the engine."""
        return str(self._container.id)

    @property
    def alive(self) -> bool:
        """Whether it can be used: running, not given up, with no unexpected output."""
        return not self._broken and self._channel.idle

    def run(self, order: Order, wall_s: float) -> Ended:
        whole, bounds = order.message["order"] == "run", asdict(order.limits)
        try:
            self._set_memory(order.limits.memory_mb)
        except SandboxError:
            if whole or order.limits.memory_mb > self._memory_mb:
                raise
            bounds["held"] = True  # the session holds more than that
        started = time.monotonic()
        message = {**order.message, "limits": bounds, "fetch": order.fetch, "max_bytes": FETCH_BYTES}
        reply = self._request(message, order.parts, wall_s=wall_s)
        if reply is None:
            return Ended(oom=1, wall_s=time.monotonic() - started)
        told = reply.answer
        self._heed(told)
        self._broken |= whole and self._used_up
        return Ended(
            report=told,
            killed_for=told["killed_for"],
            oom=told["oom"],
            peak=told["peak"],
            wall_s=time.monotonic() - started,
            stdout=reply.parts.get(STDOUT, b""),
            stderr=reply.parts.get(STDERR, b""),
            stdout_dropped=told["dropped"][0],
            stderr_dropped=told["dropped"][1],
            files={order.fetch[n - FIRST_FILE]: content for n, content in reply.parts.items() if n >= FIRST_FILE},
        )

    def ask(self, message: Mapping[str, Any], content: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        if message["order"] == "session":
            self._set_memory(message["limits"]["memory_mb"])
        reply = self._simple(message, [] if content is None else [[content]])
        return reply.answer, reply.parts.get(FIRST_FILE, b"")

    def end(self) -> None:
        try:
            self._heed(self._simple({"order": "end"}).answer)
        except SandboxError:
            self.close()
        self._broken |= self._used_up

    def _set_memory(self, memory_mb: int) -> None:
        if memory_mb != self._memory_mb:
            self._engine.set_memory(self._container, memory_mb)
            self._memory_mb = memory_mb

    def _heed(self, answer: Mapping[str, Any]) -> None:
        """Give the container to no other program where its memory might be counted, or its kills be blamed, there."""
        self._used_up |= bool(answer.get("oom")) or answer.get("residue", 0) > MOST_RESIDUE

    def _simple(self, message: Mapping[str, Any], parts: Sequence[Sequence[bytes]] = ()) -> Reply:
        """A request that runs no program."""
        reply = self._request(message, parts, wall_s=HELPER_S)
        if reply is None:
            raise SandboxError(f"container {self.id[:12]} was ended by the kernel for want of memory")
        return reply

    def _request(
        self, message: Mapping[str, Any], parts: Sequence[Sequence[bytes]] = (), *, wall_s: float
    ) -> Reply | None:
        """Ask PID 1 for something that takes up to ``wall_s``; ``None``: the kernel killed the whole container.

        Raises :class:`SandboxError` when the container ends or is stuck.
        """
        order = message["order"]
        sizes = [sum(map(len, part)) for part in parts]
        header = {**message, "id": secrets.token_hex(8), "wall_s": wall_s, "parts": sizes}
        body = [piece for part in parts for piece in part]
        try:
            reply = self._channel.request(header, body, deadline=time.monotonic() + wall_s + GRACE_S)
        except TimeoutError:
            self._broken = True
            raise SandboxError(
                f"container {self.id[:12]} did not answer to {order!r} within {wall_s + GRACE_S:g} s"
            ) from None
        except OSError as error:
            self._broken = True
            state = self._engine.state(self._container)
            if state.get("OOMKilled"):
                return None
            how = f"with exit code {state['ExitCode']}" if state.get("ExitCode") is not None else "and is gone"
            said = f"; it said: {error}" if str(error) else ""
            raise SandboxError(f"container {self.id[:12]} ended during {order!r} {how}{said}") from error
        if reply.answer["event"] == "fault":
            self._broken = True
            failed = f"container {self.id[:12]} failed during {order!r}: {reply.answer['text']}"
            raise SandboxError(failed) if reply.answer["begun"] else NotBegunError(failed)
        return reply

    def close(self) -> None:
        """Kill and remove the container."""
        self._broken = True
        self._engine.discard(self._container, self._stream)
