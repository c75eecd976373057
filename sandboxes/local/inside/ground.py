"""Where programs run that have no namespaces of their own: a folder of the host, and filters around each process."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from typing import Any

from . import kernel, landlock

__all__ = ["Ground"]

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PARTS = ("work", "tmp")


class Ground:
    """Of one slot; what it needs of the host is opened before anything else happens.

    ``plan``: ``folder`` (empty, the slot's own), ``user`` (who programs are; ``None``: who we are), ``landlock``
    (whether it is to be had), ``read`` (what programs may read and execute), ``filter`` (of their system calls).
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._folder: str = plan["folder"]
        self._filter = bytes.fromhex(plan["filter"])
        self.own_user = plan["user"] is not None
        self.user: int = plan["user"] if self.own_user else os.getuid()
        self.rules = -1
        if plan["landlock"]:
            self.rules = landlock.ruleset(read=plan["read"], write=[self._folder], devices=_DEVICES)

    def make_place(self) -> None:
        """Two fresh folders, one of them the current one."""
        self.clear()
        for part in _PARTS:
            path = f"{self._folder}/{part}"
            os.mkdir(path, 0o700)
            if self.own_user:
                os.chown(path, self.user, self.user)
        os.chdir(f"{self._folder}/work")

    def move_rules(self, fd: int) -> None:
        """Keep the ruleset under this number."""
        if self.rules >= 0:
            os.dup2(self.rules, fd, inheritable=False)
            self.rules = fd

    def enter(self) -> None:
        """In the process that will be untrusted, when it has given up its rights: no way back either."""
        if self.rules >= 0:
            landlock.restrict(self.rules)
            os.close(self.rules)
        kernel.set_seccomp(self._filter)

    def clear(self) -> None:
        """Remove what programs have left, whatever they did to keep it."""
        for part in _PARTS:
            path = f"{self._folder}/{part}"
            if os.path.lexists(path):
                _open_up(path)
                shutil.rmtree(path)

    def remove(self) -> None:
        """All of it; nothing may run in it any more."""
        with contextlib.suppress(OSError):
            self.clear()
            os.rmdir(self._folder)

    def holds_more_than(self, size: int, count: int) -> bool:
        """Whether programs have more bytes or more files and folders on disk; it looks no further than that.

        Files that they removed and hold open are not seen.
        """
        bytes_seen = seen = 0
        for place, folders, names in os.walk(self._folder):
            for name in (*folders, *names):
                seen += 1
                with contextlib.suppress(OSError):
                    bytes_seen += os.lstat(f"{place}/{name}").st_blocks * 512
                if bytes_seen > size or seen > count:
                    return True
        return False

    def placed(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of a program, with the folders that it has here."""
        here = {"HOME": f"{self._folder}/work", "TMPDIR": f"{self._folder}/tmp"}
        usual = {"HOME": "/work", "TMPDIR": "/tmp"}
        return {name: here[name] if usual.get(name) == value else value for name, value in environ.items()}


def _open_up(path: str) -> None:
    """Let us into every folder; a program may have closed them to itself. Links are not followed."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.chmod(path, 0o700)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _open_up(entry.path)
