"""What an untrusted process gives up before it begins: users, capabilities, system calls, resources."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Mapping
from typing import Any

from . import kernel
from .seccomp import ZYGOTE_NAMESPACE_FD

__all__ = ["RUN_USER", "bound_resources", "give_up_rights"]

RUN_USER = 1000
"""User and group of programs in a namespace of users, as they see it; outside it is one that nobody else has."""

_OPEN_FILES = ZYGOTE_NAMESPACE_FD
_STACK = 8 << 20


def give_up_rights(user: int, *, many_users: bool) -> None:
    """Become ``user``; no right is left but to compute and to use its own files, and there is no way back.

    The zygote has seen to what is inherited: no bounding set of capabilities, no new privileges, the filter.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if many_users:
        os.setgroups([])
    group = user if many_users else os.getgid()
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    kernel.capabilities_drop()
    kernel.dumpable(True)  # its own /proc entries belong to it; nobody else can see them
    with contextlib.suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)


def bound_resources(limits: Mapping[str, Any], *, cpu_s: float | None, others: int) -> None:
    """``cpu_s``: processor time of each process; ``None`` for no bound (a session lives long).

    ``others``: processes and threads that the same user has beside those of the run.
    """
    bounds = {
        resource.RLIMIT_NPROC: limits["processes"] + others,
        resource.RLIMIT_FSIZE: limits["files_mb"] << 20,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 1 << 16,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    if cpu_s is not None:
        bounds[resource.RLIMIT_CPU] = math.ceil(cpu_s) * limits["processes"] + 2
    for name, bound in bounds.items():
        _, hard = resource.getrlimit(name)
        value = bound if hard < 0 else min(bound, hard)  # never above what we have ourselves
        resource.setrlimit(name, (value, value))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(hard, _STACK), hard))
