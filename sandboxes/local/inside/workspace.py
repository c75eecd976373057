"""The working folders of a slot without namespaces, and the filters that each of its processes installs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from . import kernel, landlock
from .files import wipe

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PARTS = ("work", "tmp")


class Workspace:
    """The folders of one slot; the Landlock ruleset is made at once, while paths of the host can still be opened.

    ``plan``: ``folder`` (an empty folder of this slot alone), ``user`` (id that programs run as; ``None``: the
    caller's), ``read`` (paths that programs may read and execute), ``filter``
    (of system calls, in hexadecimal digits).
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._folder: str = plan["folder"]
        self._filter = bytes.fromhex(plan["filter"])
        self.own_user = plan["user"] is not None
        self.user: int = plan["user"] if self.own_user else os.getuid()
        self.ruleset = landlock.ruleset(read=plan["read"], write=[self._folder], devices=_DEVICES)

    def make_folders(self) -> None:
        """Make fresh ``work`` and ``tmp`` folders and change into ``work``."""
        wipe(self._folder)
        for part in _PARTS:
            path = f"{self._folder}/{part}"
            os.mkdir(path, 0o700)
            if self.own_user:
                os.chown(path, self.user, self.user)
        os.chdir(f"{self._folder}/work")

    def move_ruleset(self, fd: int) -> None:
        """Move the ruleset to this descriptor number."""
        os.dup2(self.ruleset, fd, inheritable=False)
        self.ruleset = fd

    def enter(self) -> None:
        """Restrict the calling process for good: Landlock, then the seccomp filter.

        Called after privileges are dropped.
        """
        landlock.restrict(self.ruleset)
        os.close(self.ruleset)
        kernel.set_seccomp(self._filter)

    def remove(self) -> None:
        """Remove the slot's folder itself; no process may use it any more."""
        with contextlib.suppress(OSError):
            wipe(self._folder)
            os.rmdir(self._folder)

    def holds_more_than(self, size: int, count: int) -> bool:
        """Whether programs keep more than ``size`` bytes or ``count`` files and folders; the scan stops at either
        bound.

        Files that were removed and are still open are not seen.
        """
        bytes_seen = seen = 0
        for place, folders, names in os.walk(self._folder):
            for name in (*folders, *names):
                seen += 1
                with contextlib.suppress(OSError):
                    # st_blocks counts units of 512 bytes really used; st_size would count holes of sparse files.
                    bytes_seen += os.lstat(f"{place}/{name}").st_blocks * 512
                if bytes_seen > size or seen > count:
                    return True
        return False

    def with_folders(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with the default ``HOME`` and ``TMPDIR`` replaced by the folders of this slot."""
        here = {"HOME": f"{self._folder}/work", "TMPDIR": f"{self._folder}/tmp"}
        usual = {"HOME": "/work", "TMPDIR": "/tmp"}
        return {name: here[name] if usual.get(name) == value else value for name, value in environ.items()}
