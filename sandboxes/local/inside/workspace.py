"""The working folders of a slot without namespaces, and the filters that each of its processes installs.

Landlock restricts which files a process and its children may use, where they have no mount namespace of their own. It
does not restrict attributes: ``chmod``, ``chown`` and the like are refused by the ``seccomp`` filter, and programs can
see that files exist and how long they are. From ABI 4 on TCP is refused, from ABI 6 on signals to other processes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from . import kernel
from .files import wipe

SIGNALS_ABI = 6
"""First ABI that restricts signals to processes under the same ruleset."""
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI version -> number of file access rights; each right is one bit
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_DEVICES_MADE = 1 << 6 | 1 << 11  # LANDLOCK_ACCESS_FS_MAKE_CHAR and _MAKE_BLOCK


def landlock_abi() -> int:
    """Landlock ABI version of the kernel; 0 where there is none."""
    # With LANDLOCK_CREATE_RULESET_VERSION (1) the call returns the version and makes nothing.
    try:
        return kernel.system_call("ask for Landlock", _CREATE, None, 0, 1)
    except OSError:
        return 0


def make_ruleset(*, read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> int:
    """A descriptor of Landlock rules, by which a process restricts itself and its future children for good.

    ``read``: files and folders that may be read and executed; ``write``: folders with all rights except to make
    device nodes; ``devices``: files that may be read and written. What does not exist is left out.
    """
    version = landlock_abi()
    known = (1 << _BITS[min(version, 5)]) - 1
    # struct landlock_ruleset_attr: file rights, TCP bind and connect (ABI 4), abstract sockets and signals (ABI 6).
    # Rights that are listed here are denied unless a rule allows them.
    attributes = struct.pack("QQQ", known, 3 if version >= 4 else 0, 3 if version >= SIGNALS_ABI else 0)
    size = 24 if version >= SIGNALS_ABI else 16 if version >= 4 else 8
    rules = kernel.system_call("create a Landlock ruleset", _CREATE, attributes, size, 0)
    os.set_inheritable(rules, False)
    for paths, access in (
        (read, _READ | _LIST | _EXECUTE),
        (write, known & ~_DEVICES_MADE),
        (devices, _READ | _WRITE),
    ):
        for path in paths:
            _allow(rules, path, access & known)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            # The kernel refuses rules that give a file the rights of folders (EINVAL).
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, fd)  # struct landlock_path_beneath_attr is packed
        kernel.system_call(f"allow {path} by Landlock", _ADD_RULE, rules, 1, rule, 0)
    finally:
        os.close(fd)


_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PARTS = ("work", "tmp")
_LONG, _MOST_HELD = 2048, 200
"""Half of the length of a path that the kernel takes (a program can make folders below paths of any length), and how
many folders with such paths are looked into: more are made for no other purpose than to hide something."""


class Workspace:
    """The folders of one slot; the Landlock ruleset is made at once, while paths of the host can still be opened.

    ``plan``: ``folder`` (an empty folder of this slot alone), ``user`` (id that programs run as; ``None``: the
    caller's), ``read`` (paths that programs may read and execute). ``calls``: the filter of system calls.
    """

    def __init__(self, plan: Mapping[str, Any], calls: bytes) -> None:
        self._folder: str = plan["folder"]
        self._filter = calls
        self.own_user = plan["user"] is not None
        self.user: int = plan["user"] if self.own_user else os.getuid()
        self.ruleset = make_ruleset(read=plan["read"], write=[self._folder], devices=_DEVICES)

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
        kernel.system_call("restrict itself by Landlock", _RESTRICT, self.ruleset, 0)
        os.close(self.ruleset)
        kernel.set_seccomp(self._filter)

    def holds_more_than(self, size: int, count: int) -> bool:
        """Whether programs keep more than ``size`` bytes or ``count`` files and folders; the scan stops at either
        bound.

        Files that were removed and are still open are not seen.
        """
        bytes_seen = seen = 0
        todo, held = [self._folder], list[int]()
        try:
            while todo and len(held) < _MOST_HELD:
                place = todo.pop()
                with contextlib.suppress(OSError):  # it may be gone meanwhile
                    if len(place) > _LONG:
                        held.append(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
                        place = f"/proc/self/fd/{held[-1]}"
                    for name in os.listdir(place):
                        seen += 1
                        with contextlib.suppress(OSError):
                            found = os.lstat(f"{place}/{name}")
                            # Units of 512 bytes really used; st_size would count holes of sparse files.
                            bytes_seen += found.st_blocks * 512
                            if stat.S_ISDIR(found.st_mode):
                                todo.append(f"{place}/{name}")
                        if bytes_seen > size or seen > count:
                            return True
        finally:
            for fd in held:
                os.close(fd)
        return bool(todo)

    def with_folders(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with the default ``HOME`` and ``TMPDIR`` replaced by the folders of this slot."""
        here = {"HOME": f"{self._folder}/work", "TMPDIR": f"{self._folder}/tmp"}
        usual = {"HOME": "/work", "TMPDIR": "/tmp"}
        return {name: here[name] if usual.get(name) == value else value for name, value in environ.items()}
