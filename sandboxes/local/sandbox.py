"""``LocalSandbox``: a pool of slots on this machine, each with a jail of the strongest tier of isolation that works."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits
from sandboxes.programs import Place
from sandboxes.slots import Slots, SlotSandbox

from . import host
from .cgroups import CgroupParent, find_cgroup_parent, remove_later
from .inside import seccomp, workspace
from .inside.kernel import MACHINE
from .slot import LocalSlot

Tier = Literal["full", "no-cgroup", "landlock"]
TIERS: tuple[Tier, ...] = ("full", "no-cgroup", "landlock")

_JAIL = (
    "user-namespace pid-namespace mount-namespace network-namespace ipc-namespace uts-namespace read-only-root"
).split()
_ALWAYS = ("no-capabilities", "no-new-privileges", "seccomp", "rlimits")
_CGROUP = ("cgroup-memory", "cgroup-pids")
_TEXTS = ("/etc/ssl/openssl.cnf", "/etc/nsswitch.conf", "/etc/localtime", "/etc/hosts")
"""Configuration that language runtimes and libraries read; nothing in it is secret."""
START_S = 60.0


class LocalSandbox(SlotSandbox):
    """Runs programs in jails on this machine; see docs/sandboxes.md for what that guarantees.

    ``slots``: programs at one time (default: one per processor). ``limits``: for runs that bring none.
    ``languages``: default all that are installed. ``python_paths``: folders that programs may import from, shown
    read-only; ``preload``: modules that are imported ahead, so that programs find them ready.
    ``minimum_isolation``: the weakest tier to accept, one of ``TIERS``; where only a weaker one works the constructor
    raises :class:`SandboxError`, which says what is missing.

    Not usable after a fork of the process that made it: make a new one there.
    """

    def __init__(
        self,
        *,
        slots: Slots | None = None,
        limits: Limits | None = None,
        languages: Sequence[Language] | None = None,
        python_paths: Sequence[str] = (),
        preload: Sequence[str] = (),
        minimum_isolation: Tier = "full",
    ) -> None:
        if sys.platform != "linux":
            raise SandboxError(
                f"the local sandbox needs Linux, and this is {sys.platform}; "
                "use make_sandbox('docker'), or make_sandbox('remote', url=...) with a service on another machine"
            )
        super().__init__(slots, limits)
        view = host.view_of_host(host.installed_languages() if languages is None else languages, python_paths)
        self.isolation = self._choose_isolation(view, minimum_isolation, preload)
        """The isolation tier in use, its layers, and the layers that are missing."""

    def _choose_isolation(self, view: host.View, minimum: Tier, preload: Sequence[str]) -> Isolation:
        """Start the first slot with the strongest tier that works here; raise if that is below the minimum."""
        failed = []
        for candidate in candidates(view):
            tier = candidate.isolation.tier
            self._place = _place(candidate.view)
            try:
                if candidate.refused:
                    raise SandboxError(candidate.refused)
                # Whether a tier works is known only by trying: kernels and containers restrict namespaces in many
                # ways. The other slots are made when they are needed.
                self._begin(functools.partial(_new_slot, _plan(preload, candidate), candidate), 1, START_S)
            except SandboxError as error:
                failed.append(f"{tier!r}: {error}")
                continue
            if TIERS.index(tier) <= TIERS.index(minimum):
                return candidate.isolation
            self.close()
            why = "; ".join(failed)
            if tier == "no-cgroup":
                why = f"no cgroup can be made here ({candidate.lacking})"
            raise SandboxError(
                f"isolation {minimum!r} cannot be had here: {why}; what works here is {tier!r} "
                f"(without {', '.join(candidate.isolation.missing)}): allow it with "
                f"minimum_isolation={tier!r}, or see docs/sandboxes.md for what the stronger ones need"
            )
        raise SandboxError(f"no local sandbox works here: {'; '.join(failed)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One tier as this machine may support it; whether it works is found out by starting a slot with it."""

    isolation: Isolation
    """The layers that the tier consists of."""
    view: host.View
    """What programs see."""
    rules: seccomp.Rules
    place: CgroupParent | None
    lacking: str = ""
    """Why there is no cgroup; empty where there is one."""
    workspace: dict[str, Any] | None = None
    """Plan of ``inside.workspace`` without its folder; ``None`` for tiers with namespaces."""
    refused: str = ""
    """Why the tier is not tried; empty where it is."""


def candidates(view: host.View) -> Iterator[Candidate]:
    """All tiers, strongest first. Raises :class:`SandboxError` on machines that no filter is known for."""
    if MACHINE not in seccomp.MACHINES:
        raise SandboxError(f"no filter of system calls for {MACHINE}; the local sandbox runs on {seccomp.MACHINES}")
    own = ("own-user",) if os.geteuid() == 0 else ()
    place, lacking = find_cgroup_parent()
    rules = seccomp.Rules(anonymous_memory=place is not None, sets_up_jails=True)
    layers = (*_JAIL, *_ALWAYS, *own)
    if place is not None:
        place.sweep()
        isolation = Isolation(tier="full", layers=(*layers, *_CGROUP))
    else:
        isolation = Isolation(tier="no-cgroup", layers=(*layers, "memory-watchdog"), missing=_CGROUP)
    yield Candidate(isolation=isolation, view=view, rules=rules, place=place, lacking=lacking)
    yield _without_namespaces(view, place, lacking)


def _without_namespaces(view: host.View, place: CgroupParent | None, lacking: str) -> Candidate:
    interpreter = [path for path in host.interpreter_paths() if os.path.exists(path)]
    own_user = os.geteuid() == 0 and all(map(host.readable_by_all, interpreter))
    counted = _CGROUP if place is not None else ("memory-watchdog",)
    layers = (*_ALWAYS, *(("own-user",) if own_user else ()), *counted, "files-watchdog", "landlock")
    missing = (*_JAIL, *(() if own_user else ("own-user",)), *(() if place is not None else _CGROUP))
    refused = "" if workspace.landlock_abi() else "this kernel has no Landlock, or does not use it"
    # Processes of a run are found by these lists, which need CONFIG_PROC_CHILDREN.
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        refused = "the kernel does not list children"
    rules = seccomp.Rules(
        on_host=True,
        anonymous_memory=place is not None,
        # Signals to other users' processes are refused by the kernel; with the caller's own user only Landlock can.
        signals=own_user or workspace.landlock_abi() >= workspace.SIGNALS_ABI,
        # The caller's files could be changed by chmod and the like, which Landlock does not restrict.
        attributes=own_user,
    )
    # Without a mount namespace every file has the path that it has on this machine.
    packages = tuple(source for source, target in view.binds if target in view.packages)
    return Candidate(
        isolation=Isolation(tier="landlock", layers=layers, missing=missing),
        view=replace(view, packages=packages),
        rules=rules,
        place=place,
        lacking=lacking,
        workspace={"user": own_user, "read": [*host.readable_parts(view), *_TEXTS]},
        refused=refused,
    )


def _place(view: host.View) -> Place:
    environ = {"PATH": view.path, "HOME": "/work", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": "sandbox"}
    if view.packages:
        environ["PYTHONPATH"] = ":".join(view.packages)
    return Place(environ=environ, tools=view.tools, python=host.executable(), refuse=_refuse)


def _refuse(language: Language) -> NoReturn:
    host.find_tool(language)
    raise ConfigError(f"language {language!r} is installed, but was left out of this sandbox's languages=...")


def _new_slot(plan: dict[str, Any], chosen: Candidate, shape: object) -> LocalSlot:
    try:
        folders = {} if chosen.place is None else chosen.place.make()
    except OSError as error:
        raise SandboxError(f"no cgroup can be made any more: {error}") from None
    try:
        return LocalSlot({**plan, **_slot_plan(chosen.workspace), "cgroup": folders}, chosen.isolation)
    except BaseException:
        remove_later(folders.values())
        raise


def _slot_plan(workspace: dict[str, Any] | None) -> dict[str, Any]:
    """The part of the plan that differs between slots: unused user ids, and the slot's folder."""
    # Two neighbouring ids in a high, normally unused range: for root of the namespace and for programs.
    first = 0x6000_0000 + 2 * int.from_bytes(os.urandom(3), "little")
    if workspace is None:
        # Lines of uid_map and gid_map: id inside, id outside, how many (user_namespaces(7)). An ordinary user may map
        # only its own id, and gid_map only after setgroups is denied.
        maps = {"setgroups": "deny", "uid_map": f"1000 {os.geteuid()} 1\n", "gid_map": f"1000 {os.getegid()} 1\n"}
        if many := os.geteuid() == 0:
            maps = dict.fromkeys(("uid_map", "gid_map"), f"0 {first} 1\n1000 {first + 1} 1\n")
        return {"many_users": many, "maps": maps, "workspace": None}
    folder = tempfile.mkdtemp(prefix="roll-sandbox-")
    os.chmod(folder, 0o711)  # the program's user must be able to reach the folders inside, which it owns
    user = first if workspace["user"] else None
    return {"many_users": user is not None, "workspace": {**workspace, "user": user, "folder": folder}}


def _plan(preload: Sequence[str], chosen: Candidate) -> dict[str, Any]:
    """The part of the plan that all slots have in common; the filter is for the zygote, or for each program without
    namespaces."""
    code = seccomp.build(MACHINE, chosen.rules).hex()
    return {**asdict(chosen.view), "preload": [*PRELOADED, *preload], "seccomp": code}


PRELOADED = (
    "abc array base64 bisect cmath collections collections.abc contextlib copy csv ctypes dataclasses datetime decimal "
    "enum fractions functools hashlib heapq inspect io itertools json math numbers operator os pathlib pickle queue "
    "random re shutil statistics string struct subprocess tempfile textwrap threading time traceback types typing uuid"
).split()
"""Modules of the standard library that are imported before a program starts."""
