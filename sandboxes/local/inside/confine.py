"""What an untrusted process gives up before it begins: users, capabilities, system calls, resources."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import kernel

__all__ = ["RUN_USER", "Confinement"]

RUN_USER = 1000
"""User and group of programs, as they see it; outside it is one that nobody else has."""
_OPEN_FILES = 1024
_STACK = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """For the calling process and all it starts; there is no way back."""

    limits: Mapping[str, Any]
    cpu_s: float | None
    """Processor time of each process; ``None`` for no bound (a session lives long)."""
    filter_hex: str
    many_users: bool

    def enter(self) -> None:
        """The process becomes a session of its own, too."""
        os.setsid()
        self._resources()
        kernel.drop_bounding_set()
        if self.many_users:
            os.setgroups([])
        os.setresgid(RUN_USER, RUN_USER, RUN_USER)
        os.setresuid(RUN_USER, RUN_USER, RUN_USER)
        kernel.capabilities_drop()
        kernel.no_new_privileges()
        kernel.dumpable(True)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("1000")
        kernel.set_seccomp(bytes.fromhex(self.filter_hex))

    def _resources(self) -> None:
        own = 0 if self.many_users else 2  # the zygote and init count as the same user then
        bounds = {
            resource.RLIMIT_NPROC: self.limits["processes"] + own,
            resource.RLIMIT_FSIZE: self.limits["files_mb"] << 20,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 1 << 16,
            resource.RLIMIT_MSGQUEUE: 1 << 16,
            resource.RLIMIT_NICE: 0,
            resource.RLIMIT_RTPRIO: 0,
            resource.RLIMIT_SIGPENDING: 1024,
        }
        if self.cpu_s is not None:
            bounds[resource.RLIMIT_CPU] = math.ceil(self.cpu_s) * self.limits["processes"] + 2
        for name, bound in bounds.items():
            _bound(name, bound)
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(hard, _STACK), hard))


def _bound(name: int, bound: int) -> None:
    """Never above what we have ourselves."""
    _, hard = resource.getrlimit(name)
    value = bound if hard < 0 else min(bound, hard)
    resource.setrlimit(name, (value, value))
