"""System calls of Linux that Python 3.11 has no function for, through the C library (numbers are from its headers), and
all processes of a run: those of its PID namespace where it has one, else the descendants of the calling process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
import sys

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000
NEWUSER, NEWPID, NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
PRIVATE = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWNET
"""The namespaces that each run gets fresh (the counters of the network's would carry data from run to run)."""
NAMESPACES = PRIVATE | NEWUSER | NEWPID
"""All that a program may not make itself."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

MACHINE = platform.machine()
# System calls that C libraries have no function for, or only of late; from number 424 on all architectures share the
# numbers.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8

ZYGOTE_NAMESPACE_FD = 1000
"""Descriptor of the zygote's own PID namespace; RLIMIT_NOFILE keeps programs below this number."""

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":  # on others, who asks a Docker engine reads the constants here
    _libc.syscall.restype = ctypes.c_long
    _libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    _libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(what: str, number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel by number. Raises ``OSError``, which tells ``what`` was asked for."""
    # As long: a plain int would leave the upper half of an argument undefined.
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _check(_libc.syscall(number, *words), what)


def unshare(flags: int) -> None:
    """Move into new namespaces of the kinds in ``flags``."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    """Enter the namespace behind ``fd``."""
    _check(_libc.setns(fd, flags), f"setns({flags:#x})")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """``mount(2)``."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_libc.mount(*words, flags, data.encode() or None), f"mount {kind or source} at {target} ({flags:#x})")


def make_private(target: str) -> None:
    """Stop mount propagation below ``target`` to and from other namespaces."""
    mount(None, target, None, MS_REC | MS_PRIVATE)


def bind(source: str, target: str) -> None:
    """Bind-mount the folder or file ``source`` at ``target``, with what is mounted below it."""
    mount(source, target, None, MS_BIND | MS_REC)


def remount(target: str, flags: int) -> None:
    """Change the flags of the bind mount at ``target``; those it has already are kept (they may be locked)."""
    had = os.statvfs(target).f_flag
    flags |= had & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | 1024 | 2048)  # the last two: noatime, nodiratime
    if had & 4096:  # ST_RELATIME
        flags |= 1 << 21  # MS_RELATIME
    mount(None, target, None, MS_BIND | MS_REMOUNT | flags)


def umount_detached(target: str) -> None:
    """Detach the mount at ``target`` with all below it (lazy unmount)."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root of the mount namespace and put the old root at ``old``."""
    system_call(f"pivot_root to {new}", _PIVOT_ROOT[MACHINE], os.fsencode(new), os.fsencode(old))


def _prctl(option: int, *values: int) -> int:
    # Unused arguments must be 0: the kernel checks it for some options.
    return _check(_libc.prctl(option, *(*values, 0, 0, 0, 0)[:4]), f"prctl({option})")


def parent_death_signal(number: int) -> None:
    """Receive this signal when the parent ends (strictly: the thread of it that forked this process)."""
    _prctl(1, number)  # PR_SET_PDEATHSIG


def dumpable(value: bool) -> None:
    """Set whether processes of the same user may trace this one and own its ``/proc`` entries."""
    _prctl(4, int(value))  # PR_SET_DUMPABLE


def subreaper() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def no_new_privileges() -> None:
    """Set no_new_privs: no ``execve`` gives this process or its children more privileges."""
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS


def set_seccomp(program: bytes) -> None:
    """Install a filter (an array of ``struct sock_filter``) for this process and all it starts."""
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: number of instructions, padding, pointer to them.
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    head = ctypes.create_string_buffer(header, len(header))
    _prctl(22, 2, ctypes.addressof(head))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def drop_bounding_set() -> None:
    """Take every capability out of the bounding and the ambient set. Needs CAP_SETPCAP."""
    for capability in range(64):
        if _libc.prctl(24, capability, 0, 0, 0) < 0:  # PR_CAPBSET_DROP
            break  # one past the last that this kernel knows
    _prctl(47, 4)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL


def capabilities_drop() -> None:
    """Give up all permitted, effective and inheritable capabilities."""
    header = struct.pack("Ii", 0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    # Two struct __user_cap_data_struct of three 32-bit words each, all zero.
    _check(_libc.capset(header, bytes(24)), "capset")


def loopback_up() -> None:
    """Bring up the loopback device of the network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open ``path`` below the open folder; fails with ELOOP or EXDEV where a link or ``..`` is on the way."""
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)  # no mode: nothing is made
    return system_call(f"open {path}", _OPENAT2, folder, os.fsencode(path), how, len(how))


def kill_all() -> None:
    """Kill and reap every other process of the PID namespace, or, outside of one, every descendant.

    In the second case the caller must be a subreaper, so that no process escapes when its parent ends. Processes are
    stopped before they are killed: a stopped process cannot fork, so the set of descendants becomes complete.
    """
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait4(-1, 0)
        return
    while living := descendants():
        stopped: set[int] = set()
        # A fork that was in progress may add a process after the list was read, so it is read until nothing is new.
        while new := living - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
            living = descendants()
        _signal(stopped, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            for _ in stopped:
                os.wait4(-1, 0)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants() -> set[int]:
    """Ids of children, their children, and so on, zombies included."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        for child in _children(todo.pop()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def tasks_of(user: int) -> int:
    """Number of threads of all processes of a user; what ``RLIMIT_NPROC`` counts."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return children
