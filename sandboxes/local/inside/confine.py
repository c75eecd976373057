"""What an untrusted process gives up before it begins: its user, capabilities, and unlimited resources."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Mapping
from typing import Any

from . import kernel

RUN_USER = 1000
"""User and group of programs inside a user namespace; outside it is mapped to an id that no other process has."""

_OPEN_FILES = kernel.ZYGOTE_NAMESPACE_FD
_STACK = 8 << 20


def give_up_rights(user: int, *, many_users: bool) -> None:
    """Become ``user`` for good, without capabilities.

    The zygote has set what is inherited: an empty capability bounding set, no_new_privs, and the seccomp filter.
    """
    # The zygote ignores SIGINT; a Python program expects KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Groups first: without the user id 0 there is no right to change them.
    if many_users:
        os.setgroups([])
    group = user if many_users else os.getgid()
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    # Where the namespace has one user its id does not change above, so that all its capabilities would be kept.
    kernel.capabilities_drop()
    kernel.dumpable(True)  # so that its own /proc entries belong to it; other users cannot see them
    with contextlib.suppress(OSError):
        # The OOM killer must choose the program before any trusted process.
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
        # The limit is per process; a run with several threads may use more processor time than wall time.
        bounds[resource.RLIMIT_CPU] = math.ceil(cpu_s) * limits["processes"] + 2
    for name, bound in bounds.items():
        _, hard = resource.getrlimit(name)
        value = bound if hard < 0 else min(bound, hard)  # raising a hard limit needs a capability
        resource.setrlimit(name, (value, value))
    # Only the soft limit, at Linux's usual 8 MB: programs with deep recursion may raise it.
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(hard, _STACK), hard))
