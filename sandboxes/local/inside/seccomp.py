"""The seccomp filter of system calls, assembled as classic BPF without libseccomp.

Calls that ``syscalls.txt`` lists are allowed; every other gets EPERM, or ENOSYS if it came with Linux 5.1 or later (C
libraries then fall back to an older call: clone3 is refused in this way because a filter cannot read its flags, which
are behind a pointer). Calls of another architecture (32-bit, x32) kill the process: their numbers mean other calls.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .kernel import NAMESPACES, NEWPID, PRIVATE, ZYGOTE_NAMESPACE_FD

MOUNT_FLAGS = (2 | 4, 2 | 4 | 8, 2 | 4 | 32, 4096 | 16384)
"""Flags of the ``mount`` calls of a run: its tmpfs, its /proc, a remount with another size, a recursive bind mount."""

_ARCHES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
MACHINES = tuple(_ARCHES)
_X32 = 0x4000_0000  # __X32_SYSCALL_BIT

# Opcodes of classic BPF: BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_RET|K, then BPF_JMP with JEQ, JGE and JSET. Actions:
# SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS and SECCOMP_RET_ERRNO with the error number in its low bits.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _KILL = 0x7FFF_0000, 0x8000_0000
_EPERM, _ENOSYS = (0x0005_0000 | number for number in (errno.EPERM, errno.ENOSYS))
_AFNOSUPPORT = 0x0005_0000 | errno.EAFNOSUPPORT

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_TERMINAL_INJECTION = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
_PLAIN_KINDS = (0, 0x8000, 0x1000, 0xC000)  # of mknod: file, file, pipe, socket
# PR_: parent-death signal, dumpable, unaligned, keepcaps(get), name, capbset_read, securebits(get), timer slack,
# subreaper, no_new_privs, tid address, huge pages, and the name of an anonymous mapping.
_PRCTL = (1, 2, 3, 4, 5, 7, 15, 16, 21, 23, 27, 29, 30, 36, 37, 38, 39, 40, 41, 42, 0x5356_4D41)

# F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP: they make the kernel send signals to any process.
_SET_OWNER, _IO_OWNER = (8, 10, 15), (0x8901, 0x8902)
_WATCHES = (1024, 1026)  # F_SETLEASE, F_NOTIFY: they tell when others open files of the host, or let them wait
_OUTLIVES_PROCESSES = tuple(
    "semget semop semctl semtimedop msgget msgsnd msgrcv msgctl shmget shmat shmctl shmdt mq_open mq_unlink "
    "mq_timedsend mq_timedreceive mq_notify mq_getsetattr".split()
)
_SCHEDULES = ("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")
"""Calls that change the process in their first argument; 0 stands for the caller."""
_ATTRIBUTES = tuple(
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr utime utimes futimesat utimensat".split()
)

Instruction = tuple[int, int, int, int]
"""``struct sock_filter``: opcode, jump where true, jump where false (both relative), operand."""


class Rules(NamedTuple):
    """What the filters of the isolation tiers differ in."""

    on_host: bool = False
    """No namespaces separate sockets, processes, System V objects and message queues from those of the host: sockets
    with an address, calls that use shared objects, and those that set priorities and limits of other processes are
    refused."""
    anonymous_memory: bool = True
    """Allow memfd_create and shmget; only where a cgroup limits the memory that they hold."""
    sets_up_jails: bool = False
    """Allow unshare, mount and setns with exactly the flags that the zygote and init use to set up a run. The filter is
    inherited by programs (installing another for each run would be a quarter of its cost), but they cannot make these
    calls: the kernel refuses them without capabilities, and a new user namespace, which would give some, stays refused.
    """
    signals: bool = True
    """Allow signals to other processes; only where those of the host cannot be reached."""
    one_container: bool = False
    """Refuse objects that programs of one container could leave for each other, and changes of PID 1, whose user they
    have."""
    attributes: bool = True
    """Allow changes of file modes, owners and extended attributes; only where files of others cannot be reached."""


def build(machine: str, rules: Rules = Rules()) -> bytes:  # noqa: B008 - a tuple
    """The filter for ``machine``, an array of ``struct sock_filter``."""
    allowed, checked = system_calls(machine)
    numbers = allowed | checked
    # Of struct seccomp_data the architecture is at byte 4, the number of the call at 0, arguments (64 bits) from 16 on.
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHES[machine]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    plain = {*allowed, *(("memfd_create", "shmget") if rules.anonymous_memory else ())}
    refused = (*_OUTLIVES_PROCESSES, "ioprio_set") if rules.one_container or rules.on_host else ()
    refused += ("setpriority", *_SCHEDULES) if rules.on_host else ()
    refused += () if rules.attributes else _ATTRIBUTES
    bodies = {numbers[name]: body for name, body in _argument_checks(rules).items() if name in numbers}
    # One number after the other: the kernel finds out once, when the filter is installed, which numbers it allows
    # whatever the arguments are. Those whose arguments are checked each time come first.
    free = {numbers[name] for name in plain.difference(refused)} - set(bodies)
    verdicts = bodies | {number: [_verdict(_ALLOW)] for number in sorted(free)}
    for number, body in verdicts.items():
        code += [(_EQUAL, 0, len(body), number), *body]
    # From 424 on (Linux 5.1) all architectures share the numbers.
    code += [(_AT_LEAST, 0, 1, 424), _verdict(_ENOSYS), _verdict(_EPERM)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


@functools.cache
def system_calls(machine: str) -> tuple[dict[str, int], dict[str, int]]:
    """Name -> number of the calls that are allowed, and of those whose arguments are checked."""
    allowed: dict[str, int] = {}
    checked: dict[str, int] = {}
    for line in Path(__file__).with_name("syscalls.txt").read_text(encoding="ascii").splitlines():
        name, *numbers = line.partition("#")[0].split() or ["", "-", "-"]
        number = numbers[MACHINES.index(machine)]
        if number != "-":
            (checked if name.startswith("!") else allowed)[name.removeprefix("!")] = int(number)
    return allowed, checked


def _argument_checks(rules: Rules) -> dict[str, list[Instruction]]:
    """Name of a call -> instructions that check its arguments; each list ends with a verdict."""
    families = [] if rules.on_host else [_AF_UNIX, _AF_INET, _AF_INET6]
    checks = {
        "clone": [*_argument(0), (_ANY_BIT, 0, 1, NAMESPACES), _verdict(_EPERM), _verdict(_ALLOW)],
        # Protocols: the default of the type (0), TCP (6) and UDP (17), so no raw sockets.
        "socket": [*_unless(0, families, _AFNOSUPPORT), *_only(2, (0, 6, 17))],
        "socketpair": _only(0, (_AF_UNIX,)),
        "mknod": _only(1, _PLAIN_KINDS, mask=0xF000),
        "mknodat": _only(2, _PLAIN_KINDS, mask=0xF000),
        # PER_LINUX, and 0xffffffff, which only asks.
        "personality": _only(0, (0, 0xFFFF_FFFF)),
        "fcntl": _all_but(1, (*_WATCHES, *(_SET_OWNER if rules.on_host else ()))),
        "ioctl": _all_but(1, (*_TERMINAL_INJECTION, *(_IO_OWNER if rules.on_host else ()))),
        "prctl": _only(0, _PRCTL),
    }
    if rules.sets_up_jails:
        checks |= {
            "unshare": _only(0, (NEWPID, PRIVATE)),
            "mount": _only(3, MOUNT_FLAGS),
            "setns": [*_unless(0, [ZYGOTE_NAMESPACE_FD], _EPERM), *_only(1, (NEWPID,))],
        }
    if not rules.signals:
        checks |= {"kill": _only(0, (0,))}
        refused = ("pidfd_send_signal", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
        checks |= {name: [_verdict(_EPERM)] for name in refused}
    if rules.one_container:
        checks |= {name: _only(0, (0,)) for name in ("prlimit64", *_SCHEDULES)}
        checks["setpriority"] = [*_unless(0, [0], _EPERM), *_only(1, (0,))]
    if rules.on_host:
        checks["prlimit64"] = _only(0, (0,))
    return checks


def _verdict(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _argument(index: int) -> list[Instruction]:
    """Load the low half of an argument: the kernel reads all that are checked here as 32 bits."""
    return [(_LOAD, 0, 0, 16 + 8 * index)]


def _verdict_for(values: Iterable[int], action: int) -> list[Instruction]:
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _verdict(action))]


def _only(index: int, values: Iterable[int], *, mask: int | None = None) -> list[Instruction]:
    masked = [] if mask is None else [(_AND, 0, 0, mask)]
    return [*_argument(index), *masked, *_verdict_for(values, _ALLOW), _verdict(_EPERM)]


def _all_but(index: int, values: Iterable[int]) -> list[Instruction]:
    return [*_argument(index), *_verdict_for(values, _EPERM), _verdict(_ALLOW)]


def _unless(index: int, values: list[int], action: int) -> list[Instruction]:
    """Return ``action`` unless the argument is one of ``values``; otherwise continue after these instructions."""
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*_argument(index), *tests, _verdict(action)]
