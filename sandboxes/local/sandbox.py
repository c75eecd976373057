"""``LocalSandbox``: a pool of slots on this machine, each with a jail."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits
from sandboxes.programs import Place
from sandboxes.slots import Slots, SlotSandbox

from .cgroups import remove_later
from .host import View, executable, find_tool, installed_languages, view_of_host
from .slot import LocalSlot
from .tiers import TIERS, Candidate, Tier, candidates

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
        super().__init__(slots, limits)
        view = view_of_host(installed_languages() if languages is None else languages, python_paths)
        self.isolation = self._choose_isolation(view, minimum_isolation, preload)
        """The isolation tier in use, its layers, and the layers that are missing."""

    def _choose_isolation(self, view: View, minimum: Tier, preload: Sequence[str]) -> Isolation:
        """Start the first slot with the strongest tier that works here; raise if that is below the minimum."""
        failed = []
        for candidate in candidates(view):
            shown, tier = candidate.view(view), candidate.isolation.tier
            self._place = _place(shown)
            try:
                if candidate.refused:
                    raise SandboxError(candidate.refused)
                # Whether a tier works is known only by trying: kernels and containers restrict namespaces in many
                # ways. The other slots are made when they are needed.
                self._begin(functools.partial(_new_slot, _plan(shown, preload, candidate), candidate), 1, START_S)
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


def _place(view: View) -> Place:
    environ = {"PATH": view.path, "HOME": "/work", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": "sandbox"}
    if view.packages:
        environ["PYTHONPATH"] = ":".join(view.packages)
    return Place(environ=environ, tools=view.tools, python=executable(), refuse=_refuse)


def _refuse(language: Language) -> NoReturn:
    find_tool(language)
    raise ConfigError(f"language {language!r} is installed, but was left out of this sandbox's languages=...")


def _new_slot(plan: dict[str, Any], chosen: Candidate, shape: object) -> LocalSlot:
    try:
        folders = {} if chosen.place is None else chosen.place.make()
    except OSError as error:
        raise SandboxError(f"no cgroup can be made any more: {error}") from None
    try:
        return LocalSlot({**plan, **_slot_plan(plan, chosen)}, folders, chosen.isolation)
    except BaseException:
        remove_later(folders.values())
        raise


def _slot_plan(plan: dict[str, Any], chosen: Candidate) -> dict[str, Any]:
    """The part of the plan that differs between slots: unused user ids, and the slot's folder."""
    # Two neighbouring ids in a high, normally unused range: for root of the namespace and for programs.
    first = 0x6000_0000 + 2 * int.from_bytes(os.urandom(3), "little")
    workspace = chosen.workspace
    if workspace is None:
        # Lines of uid_map and gid_map: id inside, id outside, how many (user_namespaces(7)).
        ids = f"0 {first} 1\n1000 {first + 1} 1\n" if os.geteuid() == 0 else None
        return {"ids": ids, "workspace": None}
    folder = tempfile.mkdtemp(prefix="roll-sandbox-")
    os.chmod(folder, 0o711)  # the program's user must be able to reach the folders inside, which it owns
    user = first if workspace["user"] else None
    return {"ids": None, "workspace": {**workspace, "user": user, "folder": folder, "filter": plan["seccomp"]}}


def _plan(view: View, preload: Sequence[str], candidate: Candidate) -> dict[str, Any]:
    """The part of the plan that all slots have in common."""
    return {**asdict(view), "preload": [*PRELOADED, *preload], "seccomp": candidate.filter()}


PRELOADED = (
    "abc array base64 bisect cmath collections collections.abc contextlib copy csv ctypes dataclasses datetime decimal "
    "enum fractions functools hashlib heapq inspect io itertools json math numbers operator os pathlib pickle queue "
    "random re shutil statistics string struct subprocess tempfile textwrap threading time traceback types typing uuid"
).split()
"""Modules of the standard library that are imported before a program starts."""
