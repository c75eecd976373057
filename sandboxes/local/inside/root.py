"""The root file system of the jail: a small read-only tree with the interpreter, shared libraries and a few devices."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from . import kernel
from .kernel import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT

RUN_FILESYSTEM = "/.box"
"""Mount point of the tmpfs of a run; its folders appear as /work, /tmp and /dev/shm."""
_PARTS = {"work": "/work", "tmp": "/tmp", "shm": "/dev/shm"}
_DEVICES = ("null", "zero", "full", "random", "urandom")
# procfs: subset=pid leaves out all that is not about processes, hidepid the processes of other users.
PROC_OPTIONS = "subset=pid"
_HIDDEN = "subset=pid,hidepid=invisible"
# Small: it holds empty folders, links and a few texts; all else is mounted over them.
_ROOT_OPTIONS = "mode=0755,size=4m,nr_inodes=4096"
_FIXED = MS_RDONLY | MS_NOSUID | MS_NODEV


def build_tree(plan: Mapping[str, Any]) -> None:
    """Build the jail's root at ``base``, in the calling process's own mount namespace.

    ``plan``: ``base`` (an existing folder to mount over), ``binds`` (source and target of bind mounts), ``masked``
    (folders shown empty), ``links`` (path -> target), ``texts`` (path -> content).
    """
    base: str = plan["base"]
    kernel.make_private("/")
    kernel.mount("root", base, "tmpfs", MS_NOSUID | MS_NODEV, _ROOT_OPTIONS)
    for folder in ("/.old", "/.empty", RUN_FILESYSTEM, *_PARTS.values(), "/proc", "/etc", "/dev"):
        os.makedirs(base + folder, mode=0o755, exist_ok=True)
    for source, target in plan["binds"]:
        _show(source, base + target)
    for path in plan["masked"]:  # an empty folder mounted over it hides what is below
        kernel.bind(base + "/.empty", base + path)
        kernel.remount(base + path, _FIXED)
    for name in _DEVICES:
        _touch(f"{base}/dev/{name}")
        kernel.bind(f"/dev/{name}", f"{base}/dev/{name}")
        # A device on a read-only mount can still be written to: that does not change the file system.
        kernel.remount(f"{base}/dev/{name}", MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    for path, target in plan["links"].items():
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        os.symlink(target, base + path)
    for path, text in plan["texts"].items():
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        with open(base + path, "w", encoding="utf-8") as file:
            file.write(text)
    kernel.remount(base, _FIXED)


def enter_tree(base: str, *, hidden: bool) -> None:
    """Make the tree the root, with a /proc of the caller's PID namespace, and detach the old root.

    ``hidden``: /proc shows users their own processes only. The host's /proc must still be mounted when the new one is:
    in a user namespace the kernel allows a new /proc only where a fully visible one exists.
    """
    kernel.make_private("/")
    mount_proc(base + "/proc", _HIDDEN if hidden else PROC_OPTIONS)
    kernel.bind(base, base)  # a mount that came from a namespace with more rights cannot itself become the root
    kernel.pivot_root(base, base + "/.old")
    os.chdir("/")
    kernel.umount_detached("/.old")


def _show(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _touch(target)
    kernel.bind(path, target)
    # A recursive bind mount keeps the flags of each mount below it, so each is made read-only by itself.
    for place in _mounts_at_or_below(target):
        kernel.remount(place, _FIXED)


def _mounts_at_or_below(target: str) -> list[str]:
    found = []
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            place = mount_point(line)
            if place == target or place.startswith(target + "/"):
                found.append(place)
    return found


def mount_point(line: bytes) -> str:
    """The mount point of a line of mountinfo, which writes spaces and the like as octal escapes, such as ``\\040``."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]))


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def mount_proc(target: str, options: str = PROC_OPTIONS) -> None:
    """Mount the /proc of the caller's PID namespace, with process folders only (``subset=pid``)."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    kernel.mount("proc", target, "proc", flags, options)


def _filesystem_options(files_mb: int, owner: int) -> str:
    return f"mode=0711,size={files_mb}m,nr_inodes={inodes(files_mb)},uid={owner},gid={owner}"


def inodes(files_mb: int) -> int:
    """Limit on the number of files: one for each 4 KB of the size limit, between 256 and 32768."""
    return max(256, min(256 * files_mb, 32768))


def mount_run_filesystem(files_mb: int, owner: int, user: int) -> None:
    """Mount an empty tmpfs for one run: /work, /tmp and /dev/shm share its size limit and belong to ``user``."""
    kernel.mount("box", RUN_FILESYSTEM, "tmpfs", MS_NOSUID | MS_NODEV, _filesystem_options(files_mb, owner))
    for name, place in _PARTS.items():
        inner = f"{RUN_FILESYSTEM}/{name}"
        os.mkdir(inner)
        os.chmod(inner, 0o1777 if name != "work" else 0o755)
        os.chown(inner, user, user)
        kernel.bind(inner, place)


def resize_run_filesystem(files_mb: int, owner: int) -> None:
    """Change the size limit of the mounted tmpfs."""
    kernel.mount(
        "box", RUN_FILESYSTEM, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, _filesystem_options(files_mb, owner)
    )
