"""Landlock: restricts which files a process and its children may use, where they have no mount namespace of their own.

It does not restrict attributes: ``chmod``, ``chown`` and the like are refused by the ``seccomp`` filter, and programs
can see that files exist and how long they are. From ABI 4 on TCP is refused, from ABI 6 on signals to other processes.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from . import kernel

SIGNALS_ABI = 6
"""First ABI that restricts signals to processes under the same ruleset."""
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI version -> number of file access rights; each right is one bit
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_DEVICES_MADE = 1 << 6 | 1 << 11  # LANDLOCK_ACCESS_FS_MAKE_CHAR and _MAKE_BLOCK


def abi() -> int:
    """Landlock ABI version of the kernel; 0 where there is none."""
    # With LANDLOCK_CREATE_RULESET_VERSION (1) the call returns the version and makes nothing.
    try:
        return kernel.system_call("ask for Landlock", _CREATE, None, 0, 1)
    except OSError:
        return 0


def ruleset(*, read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> int:
    """A descriptor for :func:`restrict`.

    ``read``: files and folders that may be read and executed; ``write``: folders with all rights except to make
    device nodes; ``devices``: files that may be read and written. What does not exist is left out.
    """
    version = abi()
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


def restrict(rules: int) -> None:
    """Restrict this process and its future children to the ruleset, for good. Needs no_new_privs."""
    kernel.system_call("restrict itself by Landlock", _RESTRICT, rules, 0)
