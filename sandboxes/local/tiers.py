"""How much isolation there is to be had on this machine: the tiers, strongest first, and what each is made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation

from .cgroups import CgroupPlace, find_place
from .host import View, executable, interpreter_paths, readable_by_all, readable_parts
from .inside import landlock, seccomp
from .inside.kernel import MACHINE

__all__ = ["TIERS", "Offer", "Tier", "offers"]

Tier = Literal["full", "no-cgroup", "landlock", "rlimits"]
TIERS: tuple[Tier, ...] = ("full", "no-cgroup", "landlock", "rlimits")

_JAIL = (
    "user-namespace pid-namespace mount-namespace network-namespace ipc-namespace uts-namespace read-only-root"
).split()
_ALWAYS = ("no-capabilities", "no-new-privileges", "seccomp", "rlimits")
_CGROUP = ("cgroup-memory", "cgroup-pids")
_TEXTS = ("/etc/ssl/openssl.cnf", "/etc/nsswitch.conf", "/etc/localtime", "/etc/hosts")
"""Read by languages and libraries, and no secret."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One tier, as it can be had here if what it needs works."""

    isolation: Isolation
    place: CgroupPlace | None
    lacking: str = ""
    """Why there is no cgroup; empty where there is one."""
    ground: dict[str, Any] | None = None
    """Plan of ``inside.ground`` without the folder; ``None`` for tiers with namespaces."""
    refused: str = ""
    """Why it is not even tried; empty where it is."""

    @property
    def tier(self) -> Tier:
        return next(tier for tier in TIERS if tier == self.isolation.tier)

    def filter(self) -> str:
        """For the zygote, or for each program on the ground; in hexadecimal digits."""
        if self.ground is None:
            rules = seccomp.Rules(hidden_memory=self.place is not None, makes_jails=True)
        else:
            own_user = self.ground["user"]
            rules = seccomp.Rules(
                internet=False,
                unix_sockets=False,
                hidden_memory=self.place is not None,
                signals=own_user or (self.ground["landlock"] and landlock.abi() >= landlock.SIGNALS_ABI),
                apart=False,
                attributes=own_user,
            )
        return seccomp.build(MACHINE, rules).hex()

    def view(self, view: View) -> View:
        """What programs see: on the ground everything is where it is on this machine."""
        if self.ground is None:
            return view
        return replace(view, packages=tuple(source for source, target in view.binds if target in view.packages))


def offers(view: View) -> Iterator[Offer]:
    """Strongest first. Raises :class:`SandboxError` where nothing can be had at all."""
    if MACHINE not in seccomp.MACHINES:
        raise SandboxError(f"no filter of system calls for {MACHINE}; the local sandbox runs on {seccomp.MACHINES}")
    own = ("own-user",) if os.geteuid() == 0 else ()
    place, lacking = find_place()
    if place is not None:
        place.sweep()
        yield Offer(isolation=Isolation(tier="full", layers=(*_JAIL, *_ALWAYS, *own, *_CGROUP)), place=place)
    else:
        layers = (*_JAIL, *_ALWAYS, *own, "memory-watchdog")
        yield Offer(isolation=Isolation(tier="no-cgroup", layers=layers, missing=_CGROUP), place=None, lacking=lacking)
    yield from _on_the_ground(view, place, lacking)


def _on_the_ground(view: View, place: CgroupPlace | None, lacking: str) -> Iterator[Offer]:
    own_user = os.geteuid() == 0 and all(readable_by_all(p) for p in interpreter_paths() if os.path.exists(p))
    counted = _CGROUP if place is not None else ("memory-watchdog",)
    missing = [*_JAIL, *(() if own_user else ("own-user",)), *(() if place is not None else _CGROUP)]
    version = landlock.abi()
    refused = "" if Path("/proc/self/task").is_dir() and _tells_children() else "the kernel does not list children"
    for tier in ("landlock", "rlimits"):
        walls = [*_ALWAYS, *(("own-user",) if own_user else ()), *counted, "files-watchdog"]
        lost = list(missing)
        if tier == "landlock":
            walls.append("landlock")
            refused_here = refused or ("" if version else "this kernel has no Landlock, or does not use it")
        else:
            lost.append("landlock")
            refused_here = refused
            if os.geteuid() == 0 and not own_user:
                refused_here = f"programs would be root: other users cannot read {executable()}, so they cannot run it"
        ground = {"user": own_user, "landlock": tier == "landlock", "read": [*readable_parts(view), *_TEXTS]}
        isolation = Isolation(tier=tier, layers=tuple(walls), missing=tuple(lost))
        yield Offer(isolation=isolation, place=place, lacking=lacking, ground=ground, refused=refused_here)


def _tells_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()
