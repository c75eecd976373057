"""The filter of system calls, checked with an interpreter of classic BPF, for both architectures."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.local.inside.seccomp import MACHINES, PRIVATE, Rules, build, system_calls

ALLOW, KILL, EPERM, ENOSYS, EAFNOSUPPORT = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x50061
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED = {machine: system_calls(machine)[0] for machine in MACHINES}
CHECKED = {machine: system_calls(machine)[1] for machine in MACHINES}


def verdict(program: bytes, number: int, arguments: tuple[int, ...] = (), arch: int = ARCH["x86_64"]) -> int:
    """What the kernel would do; ``arguments`` are unsigned, of 64 bits."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = [struct.unpack_from("<HBBI", program, place) for place in range(0, len(program), 8)]
    accumulator = place = 0
    while True:
        code, true, false, value = steps[place]
        place += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return int(value)
        else:
            compare = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            place += true if compare[code] else false


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_gets_the_verdict_of_the_table(machine: str) -> None:
    program = build(machine)
    names = {number: name for name, number in ALLOWED[machine].items()}
    special = {number for name, number in CHECKED[machine].items() if name not in ("memfd_create", "shmget")}
    plain = {*names, CHECKED[machine]["memfd_create"], CHECKED[machine]["shmget"]}
    looked_at = special - {CHECKED[machine][name] for name in ("mount", "unshare", "setns")}
    for number in range(1000):
        if number in looked_at:
            continue
        expected = ALLOW if number in plain else ENOSYS if number >= 424 else EPERM
        assert verdict(program, number, arch=ARCH[machine]) == expected, (number, names.get(number))


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_is_killed(machine: str) -> None:
    program = build(machine)
    for arch in (0x40000003, *(a for m, a in ARCH.items() if m != machine)):
        assert verdict(program, 1, arch=arch) == KILL
    if machine == "x86_64":
        assert verdict(program, 0x40000001) == KILL


CASES = [
    ("clone", (0x1200011,), ALLOW),
    ("clone", (0x3D0F00,), ALLOW),
    *(("clone", (1 << bit | 17,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("clone", (0x10000000 | 1 << 40,), EPERM),
    ("socket", (1, 1, 0), ALLOW),
    ("socket", (2, 1, 6), ALLOW),
    ("socket", (10, 2, 17), ALLOW),
    ("socket", (2, 1, 132), EPERM),
    ("socket", (2, 1, 262), EPERM),
    *(("socket", (family, 2, 0), EAFNOSUPPORT) for family in (0, 16, 17, 38, 40)),
    ("socketpair", (1, 1, 0), ALLOW),
    ("socketpair", (30, 1, 0), EPERM),
    ("mknodat", (0, 0, 0o100644), ALLOW),
    ("mknodat", (0, 0, 0o010644), ALLOW),
    ("mknodat", (0, 0, 0o060600), EPERM),
    ("mknodat", (0, 0, 0o020600), EPERM),
    ("personality", (0xFFFFFFFF,), ALLOW),
    ("personality", (0x40000,), EPERM),
    ("ioctl", (0, 0x5401), ALLOW),
    ("ioctl", (0, 0x5412), EPERM),
    ("ioctl", (0, 0x5412 | 1 << 32), EPERM),
    ("fcntl", (0, 4), ALLOW),
    *(("fcntl", (0, what), EPERM) for what in (1024, 1026)),
    ("prctl", (15,), ALLOW),
    ("prctl", (22,), EPERM),
    ("prctl", (24,), EPERM),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "arguments", "expected"), CASES)
def test_arguments(machine: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert verdict(build(machine), CHECKED[machine][name], arguments, ARCH[machine]) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_what_tiers_change(machine: str) -> None:
    numbers, arch = CHECKED[machine], ARCH[machine]
    bare = build(machine, Rules(on_host=True, anonymous_memory=False, signals=False))
    assert [verdict(bare, numbers["socket"], (family,), arch) for family in (1, 2, 10)] == [EAFNOSUPPORT] * 3
    assert [verdict(bare, numbers[name], (), arch) for name in ("memfd_create", "shmget")] == [EPERM] * 2
    kill = ALLOWED[machine]["kill"]
    assert [verdict(bare, kill, (target,), arch) for target in (0, 1, 2**64 - 1)] == [ALLOW, EPERM, EPERM]
    maker = build(machine, Rules(sets_up_jails=True))
    for name, good, bad in (
        ("unshare", [(0x20000000,), (PRIVATE,)], [(0x10000000,), (0x30000000,), (0x20000,), (PRIVATE | 0x10000000,)]),
        ("setns", [(1000, 0x20000000)], [(999, 0x20000000), (1000, 0x10000000), (1000, 0)]),
        ("mount", [(0, 0, 0, 6), (0, 0, 0, 20480)], [(0, 0, 0, 0), (0, 0, 0, 1 << 18), (0, 0, 0, 32 | 4096)]),
    ):
        assert {verdict(maker, numbers[name], arguments, arch) for arguments in good} == {ALLOW}
        assert {verdict(maker, numbers[name], arguments, arch) for arguments in bad} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_refused_where_no_namespaces_stand_between(machine: str) -> None:
    numbers, arch = {**ALLOWED[machine], **CHECKED[machine]}, ARCH[machine]
    shared = build(machine, Rules(on_host=True, attributes=False, signals=False))
    names = (
        "semget msgget shmget shmat mq_open setpriority sched_setaffinity fchmodat fchown utimensat setxattr tkill "
        "tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"
    ).split()
    for name in names:
        assert verdict(shared, numbers[name], (0, 0, 0), arch) in (EPERM, ENOSYS), name
        assert verdict(build(machine), numbers[name], (0, 0, 0), arch) == ALLOW, name
    assert verdict(shared, numbers["fchmodat2"], (), arch) == ENOSYS
    assert [verdict(shared, numbers["prlimit64"], (pid,), arch) for pid in (0, 1)] == [ALLOW, EPERM]
    assert [verdict(shared, numbers["fcntl"], (0, what), arch) for what in (4, 8, 10, 15)] == [
        ALLOW,
        EPERM,
        EPERM,
        EPERM,
    ]
    assert [verdict(shared, numbers["ioctl"], (0, what), arch) for what in (0x5401, 0x8901, 0x5412)] == [
        ALLOW,
        EPERM,
        EPERM,
    ]
    own_user = build(machine, Rules(on_host=True))
    assert verdict(own_user, numbers["fchmodat"], (), arch) == ALLOW


@given(number=st.integers(0, 2**31 - 1), arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_any_call_gets_a_verdict(number: int, arguments: tuple[int, ...]) -> None:
    assert verdict(PROGRAM, number, arguments) in (ALLOW, KILL, EPERM, ENOSYS, EAFNOSUPPORT)


PROGRAM = build("x86_64", Rules(sets_up_jails=True))
