"""What an untrusted process gives up before it begins: descriptors, users, capabilities, system calls, resources."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import kernel

__all__ = ["Confinement"]

RUN_USER = 1000
_OPEN_FILES = 1024
_STACK = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """For the calling process and all it starts; there is no way back."""

    limits: Mapping[str, Any]
    filter_hex: str
    many_users: bool

    def enter(self) -> None:
        """Everything but 0, 1 and 2 is closed; the process is a session of its own."""
        os.closerange(3, 1 << 20)
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
            resource.RLIMIT_CPU: math.ceil(self.limits["wall_s"] * 4) + 2,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 1 << 16,
            resource.RLIMIT_MSGQUEUE: 1 << 16,
            resource.RLIMIT_NICE: 0,
            resource.RLIMIT_RTPRIO: 0,
            resource.RLIMIT_SIGPENDING: 1024,
        }
        for name, bound in bounds.items():
            _bound(name, bound)
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(hard, _STACK), hard))
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if name != signal.SIGINT:
                signal.signal(name, signal.SIG_DFL)


def _bound(name: int, bound: int) -> None:
    """Never above what we have ourselves."""
    _, hard = resource.getrlimit(name)
    value = bound if hard < 0 else min(bound, hard)
    resource.setrlimit(name, (value, value))
