"""How the place of a run is made and bounded: with namespaces, or, without them, with folders and Landlock.

With namespaces it has a root of its own: a small read-only tree with interpreter, shared libraries and a few devices.
Where no cgroup or file system limits memory, processes and files, a watchdog does by polling ``/proc``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import signal
from collections.abc import Callable, Mapping
from typing import Any

from . import kernel
from .cgroup import Cgroup
from .files import WORK
from .kernel import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT, PRIVATE
from .launch import Jail
from .workspace import Workspace

_BASE = "/sys"
"""A folder that every Linux has and of which nothing is shown: the root is mounted there first."""
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
    """Build the jail's root, in the calling process's own mount namespace.

    ``plan``: ``binds`` (source and target of bind mounts), ``masked`` (folders shown empty), ``links`` (path ->
    target), ``texts`` (path -> content).
    """
    base = _BASE
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


def enter_tree(*, hidden: bool) -> None:
    """Make the tree the root, with a /proc of the caller's PID namespace, and detach the old root.

    ``hidden``: /proc shows users their own processes only. The host's /proc must still be mounted when the new one is:
    in a user namespace the kernel allows a new /proc only where a fully visible one exists.
    """
    kernel.make_private("/")
    mount_proc(_BASE + "/proc", _HIDDEN if hidden else PROC_OPTIONS)
    kernel.bind(_BASE, _BASE)  # a mount that came from a namespace with more rights cannot itself become the root
    kernel.pivot_root(_BASE, _BASE + "/.old")
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
    with open("/proc/self/mountinfo", "rb") as lines:
        places = [mount_point(line) for line in lines]
    for place in places:
        if place == target or place.startswith(target + "/"):
            kernel.remount(place, _FIXED)


def mount_point(line: bytes) -> str:
    """The mount point of a line of mountinfo, which writes spaces and the like as octal escapes, such as ``\\040``."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]))


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def mount_proc(target: str, options: str = PROC_OPTIONS) -> None:
    """Mount the /proc of the caller's PID namespace, with process folders only (``subset=pid``)."""
    kernel.mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def inodes(files_mb: int) -> int:
    """Limit on the number of files: one for each 4 KB of the size limit, between 256 and 32768."""
    return max(256, min(256 * files_mb, 32768))


def mount_box(files_mb: int, owner: int, flags: int = 0) -> None:
    """Mount the tmpfs of a run; with ``MS_REMOUNT`` change its size limit."""
    options = f"mode=0711,size={files_mb}m,nr_inodes={inodes(files_mb)},uid={owner},gid={owner}"
    kernel.mount("box", RUN_FILESYSTEM, "tmpfs", MS_NOSUID | MS_NODEV | flags, options)


RUN_USER = 1000
"""User and group of programs inside a user namespace; outside it is mapped to an id that no other process has."""
_PAGE = resource.getpagesize()
_FILES_EVERY = 10
"""Polls of memory for each scan of the files, which takes longer."""


class Watchdog:
    """Sums the memory that the processes of a run do not share, and the size of their files. Polled by init.

    ``workspace``: the run has no file system of its own, so the number of its processes and its files are limited too.
    ``memory``: limit memory; the files of a run that has its own file system (tmpfs) count as memory.
    """

    interval_ms = 10

    def __init__(self, limits: Mapping[str, Any], workspace: Workspace | None, *, memory: bool) -> None:
        self._memory = limits["memory_mb"] << 20 if memory else None
        self._processes: int = limits["processes"]
        self._files: int = limits["files_mb"] << 20
        self._inodes = inodes(limits["files_mb"])
        self._workspace = workspace
        self._looks = 0
        self.peak = 0
        self.fired = False
        """Whether the memory limit was exceeded."""

    def exceeded(self, stopped: Callable[[], bool]) -> bool:
        """Poll once, as long as not ``stopped``.

        ``statm`` is cheap but ignores pages shared after a fork; only above the limit is the exact PSS read.
        """
        if self._workspace is None:
            # 1 is init, which is trusted and whose memory does not count.
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        else:
            pids = sorted(kernel.descendants())
        if self._memory is not None:
            used = self._sum(pids, stopped, exact=False)
            if used > self._memory:
                used = self._sum(pids, stopped, exact=True)
                self.fired = self.fired or used > self._memory
            self.peak = max(self.peak, used)
        return self.fired or (self._workspace is not None and self._too_many(pids, self._workspace))

    def _too_many(self, pids: list[int], workspace: Workspace) -> bool:
        self._looks += 1
        if len(pids) > self._processes:
            return True
        return self._looks % _FILES_EVERY == 0 and workspace.holds_more_than(self._files, self._inodes)

    def _sum(self, pids: list[int], stopped: Callable[[], bool], *, exact: bool) -> int:
        total = 0
        if self._workspace is None:
            state = os.statvfs(RUN_FILESYSTEM)
            total = (state.f_blocks - state.f_bfree) * state.f_frsize
        for pid in itertools.takewhile(lambda _: not stopped(), pids):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended meanwhile
                total += _proportional(pid) if exact else _private(pid)
        return total


def _private(pid: int) -> int:
    """Resident pages that are not shared with files or shared memory, in bytes."""
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        _, resident, shared, *_ = (int(number) for number in file.read().split())
    return (resident - shared) * _PAGE


def _proportional(pid: int) -> int:
    """Proportional set size of anonymous pages, in bytes: pages shared by n processes count 1/n for each."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            for line in file:
                if line.startswith("Pss_Anon:"):
                    return int(line.split()[1]) << 10
    except PermissionError:  # another user's, and we have no right to look into it
        return _private(pid)
    return 0


FILES_MB = 64
"""Size of the file system that is mounted ahead of the order; a run that asks for another size remounts it."""


class LocalJail(Jail):
    """A place on this machine.

    ``shared``: runs share the PID namespace of the zygote, so that each process sets up its own file system; else an
    init with a PID namespace of its own (or without any, with ``workspace``) does so in :meth:`prepare`.
    """

    def __init__(
        self,
        cgroup: Cgroup | None,
        workspace: Workspace | None,
        *,
        many_users: bool,
        shared: bool = False,
        last_pid: int | None = None,
    ) -> None:
        self._cgroup, self.workspace, self._many_users = cgroup, workspace, many_users
        self._shared, self._last_pid = shared, last_pid
        # Where there are two users, the top of the run's file system belongs to init, so that programs cannot rename
        # or remove its folders.
        self._owner = 0 if many_users else RUN_USER
        self.user = RUN_USER if workspace is None else workspace.user
        self._files_mb = FILES_MB
        self._watchdog: Watchdog | None = None
        self.others = 0 if many_users else 3  # trusted processes of the same user, such as the zygote

    def prepare(self) -> None:
        """Make the place of this init, which carries out one order."""
        kernel.parent_death_signal(signal.SIGKILL)
        os.setpgid(0, 0)  # a program's signals to "my group" stay in the jail; init has handlers for none
        if self.workspace is None:
            self._make_file_system()
            mount_proc("/proc")
            return
        if self._cgroup is not None:
            self._cgroup.join()
        kernel.subreaper()  # no process of the run gets away by losing its parent
        self.workspace.make_folders()
        # The kernel does not enforce RLIMIT_NPROC for root.
        self.others = 0 if self.workspace.own_user or os.getuid() == 0 else kernel.tasks_of(os.getuid())

    def _make_file_system(self) -> None:
        """An empty tmpfs: /work, /tmp and /dev/shm share its size limit and belong to the program's user."""
        # Before the cgroup namespace is made below, whose root is the group that the process is in then.
        if self._cgroup is not None:
            self._cgroup.join()
        kernel.unshare(PRIVATE)
        kernel.loopback_up()
        mount_box(self._files_mb, self._owner)
        for name, place in _PARTS.items():
            inner = f"{RUN_FILESYSTEM}/{name}"
            os.mkdir(inner)
            os.chmod(inner, 0o1777 if name != "work" else 0o755)
            os.chown(inner, RUN_USER, RUN_USER)
            kernel.bind(inner, place)
        os.chdir(WORK)

    def before_fork(self) -> None:
        if self._shared and self._cgroup is not None:
            self._cgroup.reset_memory_limit()
            self._cgroup.begin()
        if self._shared and self._last_pid is not None:
            # Each program gets process id 2, which tells nothing about runs before it.
            os.pwrite(self._last_pid, b"1", 0)

    def enter(self, keep: int) -> None:
        if self._shared:
            self._make_file_system()
        after = keep + 1
        if self.workspace is not None:
            os.setsid()  # signals to "my group" and "my session" stay there
            self.workspace.move_ruleset(after)
            after += 1
        os.closerange(3, keep)
        os.closerange(after, 1 << 20)  # close_range(2) up to any number is one system call

    def give_up_rights(self) -> None:
        """Become ``user`` for good, without capabilities.

        The zygote has set what is inherited: an empty capability bounding set, no_new_privs, and the seccomp filter.
        """
        # The zygote ignores SIGINT; a Python program expects KeyboardInterrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Groups first: without the user id 0 there is no right to change them.
        if self._many_users:
            os.setgroups([])
        group = self.user if self._many_users else os.getgid()
        os.setresgid(group, group, group)
        os.setresuid(self.user, self.user, self.user)
        # Where the namespace has one user its id does not change above, so that all its capabilities would be kept.
        kernel.capabilities_drop()
        kernel.dumpable(True)  # so that its own /proc entries belong to it; other users cannot see them
        # The OOM killer must choose the program before any trusted process.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
        if self.workspace is not None:
            self.workspace.enter()

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ) if self.workspace is None else self.workspace.with_folders(environ)

    def resize(self, limits: Mapping[str, Any]) -> bool:
        if self.workspace is not None or limits["files_mb"] == self._files_mb:
            return True
        self._files_mb = limits["files_mb"]  # the next run probably has the same limits
        if not self._shared:
            mount_box(self._files_mb, self._owner, MS_REMOUNT)
        return not self._shared

    def limit(self, limits: Mapping[str, Any]) -> None:
        if self._cgroup is not None:
            # An init is in the cgroup too.
            self._cgroup.limit(limits["memory_mb"] << 20, limits["processes"] + (not self._shared))
        if self._cgroup is None or self.workspace is not None:
            self._watchdog = Watchdog(limits, self.workspace, memory=self._cgroup is None)
            self.tick_ms = Watchdog.interval_ms

    def over_limit(self, stopped: Callable[[], bool]) -> bool:
        return self._watchdog is not None and self._watchdog.exceeded(stopped)

    def usage(self) -> dict[str, Any]:
        if self._cgroup is not None:
            return {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        assert self._watchdog is not None
        return {"oom": int(self._watchdog.fired), "peak": self._watchdog.peak or None}
