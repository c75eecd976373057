"""The isolation tiers that this machine supports, strongest first, and the layers that each consists of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation

from .cgroups import CgroupParent, find_cgroup_parent
from .host import View, interpreter_paths, readable_by_all, readable_parts
from .inside import landlock, seccomp
from .inside.kernel import MACHINE

Tier = Literal["full", "no-cgroup", "landlock"]
TIERS: tuple[Tier, ...] = ("full", "no-cgroup", "landlock")

_JAIL = (
    "user-namespace pid-namespace mount-namespace network-namespace ipc-namespace uts-namespace read-only-root"
).split()
_ALWAYS = ("no-capabilities", "no-new-privileges", "seccomp", "rlimits")
_CGROUP = ("cgroup-memory", "cgroup-pids")
_TEXTS = ("/etc/ssl/openssl.cnf", "/etc/nsswitch.conf", "/etc/localtime", "/etc/hosts")
"""Configuration that language runtimes and libraries read; nothing in it is secret."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One tier as this machine may support it; whether it works is found out by starting a slot with it."""

    isolation: Isolation
    place: CgroupParent | None
    lacking: str = ""
    """Why there is no cgroup; empty where there is one."""
    workspace: dict[str, Any] | None = None
    """Plan of ``inside.workspace`` without its folder; ``None`` for tiers with namespaces."""
    refused: str = ""
    """Why the tier is not tried; empty where it is."""

    def filter(self) -> str:
        """The seccomp filter as hexadecimal digits, for the zygote, or for each program without namespaces."""
        if self.workspace is None:
            rules = seccomp.Rules(anonymous_memory=self.place is not None, sets_up_jails=True)
        else:
            own_user = self.workspace["user"]
            rules = seccomp.Rules(
                on_host=True,
                anonymous_memory=self.place is not None,
                # Signals to other users' processes are refused by the kernel; with the caller's own user only Landlock
                # can.
                signals=own_user or landlock.abi() >= landlock.SIGNALS_ABI,
                # The caller's files could be changed by chmod and the like, which Landlock does not restrict.
                attributes=own_user,
            )
        return seccomp.build(MACHINE, rules).hex()

    def view(self, view: View) -> View:
        """What programs see; without a mount namespace every file has the path that it has on this machine."""
        if self.workspace is None:
            return view
        return replace(view, packages=tuple(source for source, target in view.binds if target in view.packages))


def candidates(view: View) -> Iterator[Candidate]:
    """All tiers, strongest first. Raises :class:`SandboxError` on machines that no filter is known for."""
    if MACHINE not in seccomp.MACHINES:
        raise SandboxError(f"no filter of system calls for {MACHINE}; the local sandbox runs on {seccomp.MACHINES}")
    own = ("own-user",) if os.geteuid() == 0 else ()
    place, lacking = find_cgroup_parent()
    if place is not None:
        place.sweep()
        yield Candidate(isolation=Isolation(tier="full", layers=(*_JAIL, *_ALWAYS, *own, *_CGROUP)), place=place)
    else:
        layers = (*_JAIL, *_ALWAYS, *own, "memory-watchdog")
        yield Candidate(
            isolation=Isolation(tier="no-cgroup", layers=layers, missing=_CGROUP), place=None, lacking=lacking
        )
    yield _without_namespaces(view, place, lacking)


def _without_namespaces(view: View, place: CgroupParent | None, lacking: str) -> Candidate:
    own_user = os.geteuid() == 0 and all(readable_by_all(p) for p in interpreter_paths() if os.path.exists(p))
    counted = _CGROUP if place is not None else ("memory-watchdog",)
    layers = (*_ALWAYS, *(("own-user",) if own_user else ()), *counted, "files-watchdog", "landlock")
    missing = (*_JAIL, *(() if own_user else ("own-user",)), *(() if place is not None else _CGROUP))
    refused = "" if landlock.abi() else "this kernel has no Landlock, or does not use it"
    # Processes of a run are found by these lists, which need CONFIG_PROC_CHILDREN.
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        refused = "the kernel does not list children"
    return Candidate(
        isolation=Isolation(tier="landlock", layers=layers, missing=missing),
        place=place,
        lacking=lacking,
        workspace={"user": own_user, "read": [*readable_parts(view), *_TEXTS]},
        refused=refused,
    )
