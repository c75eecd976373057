"""How the place of a run is made and bounded: with namespaces, or, without them, with folders and Landlock."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from . import kernel
from .cgroup import Cgroup
from .confine import RUN_USER, give_up_rights
from .files import WORK
from .launch import Jail
from .process_tree import tasks_of
from .root import mount_proc, mount_run_filesystem, resize_run_filesystem
from .seccomp import PRIVATE
from .watchdog import Watchdog
from .workspace import Workspace

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
        self._others = 0 if many_users else 3  # trusted processes of the same user, such as the zygote

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
        self._others = 0 if self.workspace.own_user or os.getuid() == 0 else tasks_of(os.getuid())

    def _make_file_system(self) -> None:
        # Before the cgroup namespace is made below, whose root is the group that the process is in then.
        if self._cgroup is not None:
            self._cgroup.join()
        kernel.unshare(PRIVATE)
        kernel.loopback_up()
        mount_run_filesystem(self._files_mb, self._owner, RUN_USER)
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
        give_up_rights(self.user, many_users=self._many_users)
        if self.workspace is not None:
            self.workspace.enter()

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ) if self.workspace is None else self.workspace.with_folders(environ)

    def resize(self, limits: Mapping[str, Any]) -> bool:
        if self.workspace is not None or limits["files_mb"] == self._files_mb:
            return True
        self._files_mb = limits["files_mb"]  # the next run probably has the same limits
        if not self._shared:
            resize_run_filesystem(self._files_mb, self._owner)
        return not self._shared

    def limit(self, limits: Mapping[str, Any]) -> None:
        if self._cgroup is not None:
            # An init is in the cgroup too.
            self._cgroup.limit(limits["memory_mb"] << 20, limits["processes"] + (not self._shared))
        if self._cgroup is None or self.workspace is not None:
            self._watchdog = Watchdog(limits, self.workspace, memory=self._cgroup is None)
            self.tick_ms = Watchdog.interval_ms

    def over_limit(self) -> bool:
        return self._watchdog is not None and self._watchdog.exceeded()

    def usage(self) -> dict[str, Any]:
        if self._cgroup is not None:
            return {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        assert self._watchdog is not None
        return {"oom": int(self._watchdog.fired), "peak": self._watchdog.peak or None}

    def others(self) -> int:
        return self._others
