"""Isolation of containers: the filter of system calls, and which layers one really has, as the engine and the kernel
inside report, not as was requested.

The filter, which comes on top of the engine's default profile, is that of the local sandbox: no io_uring, ptrace,
keyrings, bpf and others. It also refuses objects that would outlive a program and reach the next one in the same
container (shared memory and queues of System V, POSIX queues), and changes of limits, priority or processors of PID 1,
which has the same user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation


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
