"""Isolation of containers: filters of system calls, and which layers one really has, as the engine and the kernel
inside report, not as was requested.

The filters come on top of the engine's default profile. The first is for containers only: it refuses objects that would
outlive a program and reach the next one in the same container (shared memory and queues of System V, POSIX queues), and
changes of limits, priority or processors of PID 1, which has the same user. The second is the local sandbox's list of
allowed calls: no io_uring, ptrace, keyrings, bpf and others.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Any

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation
from sandboxes.local.inside import seccomp


def judge(info: Mapping[str, Any], facts: Mapping[str, Any], *, runtime: str | None, unsafe: bool) -> Isolation:
    """Name the layers. Raises :class:`SandboxError` where one is missing and ``unsafe`` does not allow it.

    ``info`` is the engine's description of itself, ``facts`` come from PID 1 of a container.
    """
    security = [str(option) for option in info.get("SecurityOptions") or []]
    # Any more were installed by the engine.
    own_filters = 2
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

MACHINES = seccomp.MACHINES

# Numbers on x86_64 and aarch64.
_PERSISTENT_OBJECTS = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "ioprio_set": (251, 30),
}
_OWN_PROCESS_ONLY = {
    # call -> number on x86_64 and aarch64, and the arguments that must be 0: this process
    "prlimit64": (302, 261, (0,)),
    "setpriority": (141, 140, (0, 1)),
    "sched_setparam": (142, 118, (0,)),
    "sched_setscheduler": (144, 119, (0,)),
    "sched_setaffinity": (203, 122, (0,)),
    "sched_setattr": (314, 274, (0,)),
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM


def filters(machine: str) -> list[bytes]:
    """The filters for ``machine`` in the order of their installation: arrays of ``struct sock_filter``.

    The second filter kills calls of other architectures that the machine can run.
    """
    return [_docker_filter(machine), seccomp.build(machine)]


def _docker_filter(machine: str) -> bytes:
    column = MACHINES.index(machine)
    code = [(_LOAD, 0, 0, 0)]
    for numbers in _PERSISTENT_OBJECTS.values():
        code += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    for *calls, arguments in _OWN_PROCESS_ONLY.values():
        body = [step for index in arguments for step in _refuse_unless_zero(index)] + [(_RETURN, 0, 0, _ALLOW)]
        code += [(_EQUAL, 0, len(body), calls[column]), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in code)


def _refuse_unless_zero(index: int) -> list[tuple[int, int, int, int]]:
    """Only the low half of the argument is looked at: the kernel takes these as ``int``."""
    return [(_LOAD, 0, 0, 16 + 8 * index), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE)]
