"""Finds where this process may make cgroups for its sandboxes, of version 2 or 1; the supervisor removes them."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .inside.cgroup import path_of, paths_of_tasks, remove_folders

PREFIX = "roll-sandbox-"


class CgroupParent:
    """Parent folders of the cgroups of slots: one (version 2), or one for memory and one for pids (version 1)."""

    def __init__(self, parents: Mapping[str, Path]) -> None:
        self.parents = dict(parents)

    def make(self) -> dict[str, str]:
        """Make a cgroup with a unique name; returns controller -> folder."""
        remove_later([])
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        made: dict[str, str] = {}
        try:
            for controller, parent in self.parents.items():
                folder = parent / name
                folder.mkdir()
                made[controller] = str(folder)
        except OSError:
            remove_later(made.values(), timeout_s=0.0)
            raise
        return made

    def sweep(self, older_s: float = 60.0) -> None:
        """Remove cgroups left after caller and supervisor were killed together; those in use stay."""
        for parent in self.parents.values():
            for folder in parent.glob(f"{PREFIX}*"):
                with contextlib.suppress(OSError):
                    owner = int(folder.name.removeprefix(PREFIX).split("-")[0])
                    # An owner in another PID namespace is not in our /proc, so young groups are spared; rmdir refuses
                    # groups with processes.
                    if not Path(f"/proc/{owner}").exists() and time.time() - folder.stat().st_mtime > older_s:
                        folder.rmdir()


_busy: set[str] = set()


def remove_later(folders: Iterable[str], timeout_s: float = 5.0) -> None:
    """Remove cgroups, and those of earlier calls that the kernel reported busy; what is busy now stays on the list.

    The list is worked off when a slot is made or closed and at the end of the process, so that no group outlives it.
    """
    left = remove_folders(folders, timeout_s)
    for folder in [*left, *_busy]:
        (_busy.add if remove_folders([folder], 0.0) else _busy.discard)(folder)


atexit.register(remove_later, [])


def find_cgroup_parent() -> tuple[CgroupParent | None, str]:
    """A parent that works (tried by making, limiting and entering a cgroup), or ``None`` and the reason."""
    reasons = []
    for parents in _candidates():
        place, folders = CgroupParent(parents), dict[str, str]()
        try:
            folders = place.make()
            _try_out(folders)
        except OSError as error:
            reasons.append(f"{error.strerror}: {error.filename or folders}")
        else:
            return place, ""
        finally:
            remove_later(folders.values())
    return None, "; ".join(dict.fromkeys(reasons)) or "no cgroup file system with memory and pids is mounted"


def _try_out(folders: Mapping[str, str]) -> None:
    """Raise ``OSError`` where a controller is missing or a process may not be moved in."""
    Path(path_of(folders, "limit")).write_text(str(1 << 30), encoding="ascii")
    Path(path_of(folders, "processes")).write_text("64", encoding="ascii")
    for tasks in paths_of_tasks(folders):
        # ``sh`` moves itself in (0 stands for the process that writes it); a fork of this process, which may have
        # threads, would not be safe.
        enter = ["/bin/sh", "-c", 'echo 0 > "$0"', tasks]
        if subprocess.run(enter, env={}, stderr=subprocess.DEVNULL, timeout=10, check=False).returncode:
            raise PermissionError(1, "no process may be moved to", tasks)


def _candidates() -> Iterator[dict[str, Path]]:
    mounts, own = _mounts(), _own_groups()
    # Where both versions are mounted, a controller belongs to one of them only: those of version 1 are not in version
    # 2.
    if "memory" in mounts and "pids" in mounts:
        # With cpu, slots share the processor equally, however many processes each has; it can be done without.
        for more in (("cpu",), ()):
            if set(more) <= set(mounts):
                yield {c: _below(mounts[c], own.get(c, "/")) for c in ("memory", "pids", *more)}
    if "unified" in mounts:
        # In version 2 a group has processes or controlled children, not both: so go up from the own group to the
        # nearest one that passes memory and pids on to its children.
        here = _below(mounts["unified"], own.get("", "/"))
        root = mounts["unified"][1]
        while True:
            with contextlib.suppress(OSError):
                if {"memory", "pids"} <= set((here / "cgroup.subtree_control").read_text("ascii").split()):
                    yield {"unified": here}
            if here in (root, here.parent):
                return
            here = here.parent


def _mounts() -> dict[str, tuple[str, Path]]:
    """Controller (``unified`` for version 2) -> root of the mount within the hierarchy, and where it is mounted."""
    found: dict[str, tuple[str, Path]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
            # proc(5): id, parent, device, root, mount point, options and optional fields, then " - ", type, source,
            # options.
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            _, _, _, root, place, *_ = left.split(" ")
            for controller in {"cgroup2": ["unified"], "cgroup": options.split(",")}.get(kind, ()):
                found.setdefault(controller, (root, Path(place)))
    return found


def _own_groups() -> dict[str, str]:
    """Controller (empty for version 2) -> the group that this process is in."""
    groups = dict[str, str]()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def _below(mount: tuple[str, Path], group: str) -> Path:
    # In a container the mount may show only a part of the hierarchy, while /proc/self/cgroup has the whole path.
    root, place = mount
    if root != "/" and (group + "/").startswith(root.rstrip("/") + "/"):
        group = group[len(root.rstrip("/")) :]
    folder = place / group.strip("/")
    return folder if folder.is_dir() else place
