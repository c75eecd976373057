"""What programs in the local sandbox cannot do: the classes of attack, one test each, whatever collection is at
hand."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack_host import SECRET, Host, hostile_host
from local_made import local_sandbox

from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.local import LocalSandbox

CALL = (
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "def call(*a):\n    r = libc.syscall(*a)\n    return r if r >= 0 else -ctypes.get_errno()\n"
)
ON_X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls of x86_64")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hostile_host(abstract="roll_cage_test") as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(host: Host) -> Iterator[LocalSandbox]:
    with local_sandbox(slots=1, limits=Limits(wall_s=10.0, memory_mb=256, processes=32, files_mb=16)) as made:
        yield made


def run(sandbox: LocalSandbox, source: str, **limits: float) -> RunResult:
    base = {"wall_s": 10.0, "memory_mb": 256, "processes": 32, "files_mb": 16}
    return sandbox.run(Program(source=source), limits=Limits(**{**base, **limits}))  # type: ignore[arg-type]


def said(sandbox: LocalSandbox, source: str) -> str:
    result = run(sandbox, source)
    assert result.stderr == b""
    return result.stdout.decode().strip()


def test_no_network_of_the_host(sandbox: LocalSandbox, host: Host) -> None:
    source = (
        "import socket\n"
        "def attempt(family, address):\n"
        "    try:\n        s = socket.socket(family); s.settimeout(1)\n"
        "        s.connect(address); print('CONNECTED', address)\n"
        "    except OSError as e: print(type(e).__name__)\n"
        f"attempt(socket.AF_INET, ('127.0.0.1', {host.port}))\n"
        "attempt(socket.AF_UNIX, '\\0roll_cage_test')\n"
        "attempt(socket.AF_INET, ('1.1.1.1', 53))\n"
        "attempt(socket.AF_INET6, ('::1', 22))\n"
        "for family in (16, 17, 38, 40):\n"  # netlink, packet, kernel crypto, virtual machine sockets
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('MADE', family)\n"
        "    except OSError: print('no')\n"
    )
    out = said(sandbox, source)
    assert "CONNECTED" not in out
    assert "MADE" not in out
    assert host.visits == []


def test_a_program_may_talk_to_itself(sandbox: LocalSandbox) -> None:
    source = (
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 8080))\n"
        "t = threading.Thread(target=lambda: s.accept()[0].send(b'hi'))\nt.start()\n"
        "print(socket.create_connection(('127.0.0.1', 8080)).recv(9)); t.join()\n"
    )
    for _ in range(3):  # and leaves nothing behind that keeps the next one from the same port
        assert said(sandbox, source) == "b'hi'"


def test_no_secret_of_the_host_is_in_sight(sandbox: LocalSandbox) -> None:
    source = (
        "import os\nprint(sorted(os.environ))\n"
        "for n in sorted(os.listdir('/proc')):\n"
        "    for name in ('environ', 'cmdline', 'mem', 'maps', 'cwd', 'root', 'fd'):\n"
        "        try:\n"
        "            if n.isdigit() and n != str(os.getpid()):\n"
        "                print(n, name, open(f'/proc/{n}/{name}', 'rb').read(10**6))\n"
        "        except OSError as e: pass\n"
        "links = [f'/proc/self/fd/{n}' for n in range(256)]\n"
        "print([os.readlink(link).split(':')[0] for link in links if os.path.lexists(link)])\n"
        "print(open('/proc/self/environ').read())\n"
    )
    out = said(sandbox, source)
    assert SECRET not in out
    assert "['HOME', 'LANG', 'PATH', 'PYTHONPATH', 'TMPDIR', 'USER']" in out
    assert "['/dev/null', 'pipe', 'pipe']" in out


def test_nothing_of_the_last_run_is_in_memory_or_on_disk(sandbox: LocalSandbox) -> None:
    token = "remember-" + os.urandom(6).hex()
    program = Program(
        source=f"#{token}\nopen('/tmp/x', 'w').write('{token}')\nopen('{token}', 'w').write('{token}')",
        stdin=token.encode(),
        files={f"f-{token}": token.encode()},
        fetch=(token, f"{token}-not-there"),
        arguments=(token,),
        environ={"TOKEN": token},
    )
    for _ in range(3):
        assert sandbox.run(program).files == {token: token.encode()}
    half = len(token) // 2
    source = (
        "import os, re\n"
        f"needle = ('{token[:half]}' + '{token[half:]}').encode()\n"
        "hits = 0\n"
        "with open('/proc/self/mem', 'rb', 0) as memory:\n"
        "    for line in open('/proc/self/maps'):\n"
        "        span, kind = line.split()[:2]\n"
        "        low, high = (int(x, 16) for x in span.split('-'))\n"
        "        if 'r' in kind and high - low < 1 << 28 and 'vvar' not in line and 'vsyscall' not in line:\n"
        "            memory.seek(low)\n"
        "            data = memory.read(high - low)\n"
        "            hits += data.count(needle[:9] + needle[9:])\n"
        "            del data\n"
        "print(hits, [os.listdir(p) for p in ('/tmp', '/dev/shm', '/work')])\n"
    )
    hits, rest = said(sandbox, source).split(" ", 1)
    assert rest == "[[], [], ['main.py']]"
    assert int(hits) <= 3  # its own needle, as it was built


def test_nothing_is_told_of_runs_before(sandbox: LocalSandbox) -> None:
    """Not by what the first process has used up or waited for, which all runs of a slot may share."""
    if sandbox.isolation.tier != "full" or os.geteuid() != 0:
        pytest.skip("each run has a first process of its own here")
    source = (
        "import os, resource\n"
        "for name in ('stat', 'status', 'io', 'cmdline', 'sched', 'schedstat', 'statm', 'wchan', 'ns/pid'):\n"
        "    if os.path.lexists(f'/proc/1/{name}'): print('SEEN', name)\n"
        "for call in (lambda: resource.prlimit(1, resource.RLIMIT_CPU),\n"
        "             lambda: os.setpriority(os.PRIO_PROCESS, 1, 5), lambda: os.setpgid(1, 0),\n"
        "             lambda: os.sched_setaffinity(1, {0}), lambda: os.kill(1, 0)):\n"
        "    try: print('DONE', call())\n"
        "    except OSError: pass\n"
    )
    assert said(sandbox, source) == ""


def test_the_tree_is_small_and_read_only(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "flag").write_text("secret", "utf-8")
    source = (
        "import os\n"
        f"for p in ({str(tmp_path / 'flag')!r}, '/etc/shadow', '/root/.bashrc',"
        " '/home', '/var/run', '/sys', '/boot'):\n"
        "    print(os.path.exists(p), end=' ')\n"
        "print()\n"
        "for p in ('/x', '/etc/x', '/usr/lib/x', os.__file__, '/.old/x', '/.empty/x', '/dev/x', '/proc/x'):\n"
        "    try: os.open(p, os.O_WRONLY | os.O_CREAT); print('WROTE', p)\n"
        "    except OSError: pass\n"
        "for p in ('/proc/sys/kernel/hostname', '/proc/sysrq-trigger',"
        " '/sys/fs/cgroup', '/proc/kcore', '/proc/keys'):\n"
        "    print(os.path.exists(p), end=' ')\n"
        "print(sorted(os.listdir('/dev')))\n"
    )
    lines = said(sandbox, source).splitlines()
    assert lines[0].split() == ["False"] * 7
    assert len(lines) == 2
    assert lines[1].startswith("False False False False False ['fd', 'full', 'null', 'random', 'shm', 'stderr'")


@ON_X86
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ptrace", "101, 0, 0, 0, 0"),
        ("bpf", "321, 0, 0, 0"),
        ("perf_event_open", "298, 0, 0, -1, -1, 0"),
        ("userfaultfd", "323, 0"),
        ("io_uring_setup", "425, 1, 0"),
        ("io_setup", "206, 1, 0"),
        ("keyctl", "250, 0, -3, 1"),
        ("add_key", "248, b'user', b'a', b'x', 1, -3"),
        ("mount", "165, b'x', b'/tmp', b'tmpfs', 0, 0"),
        ("umount2", "166, b'/work', 2"),
        ("fsopen", "430, b'tmpfs', 0"),
        ("open_tree", "428, -100, b'/', 1"),
        ("pivot_root", "155, b'/tmp', b'/tmp'"),
        ("chroot", "161, b'/tmp'"),
        ("unshare user", "272, 0x10000000"),
        ("unshare mount", "272, 0x20000"),
        ("setns", "308, 0, 0"),
        ("clone user", "56, 0x10000011, 0, 0, 0, 0"),
        ("clone3", "435, 0, 0"),
        ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0"),
        ("pidfd_getfd", "438, 0, 0, 0"),
        ("kcmp", "312, 1, 1, 0, 0, 0"),
        ("open_by_handle_at", "304, -100, 0, 0"),
        ("name_to_handle_at", "303, -100, b'/', 0, 0, 0"),
        ("personality", "135, 0x0040000"),
        ("mknod block", "133, b'/work/b', 0o60666, 0x100"),
        ("modify_ldt", "154, 0, 0, 0"),
        ("init_module", "175, 0, 0, 0"),
        ("kexec_load", "246, 0, 0, 0, 0"),
        ("reboot", "169, 0, 0, 0, 0"),
        ("vmsplice", "278, 1, 0, 0, 0"),
        ("memfd_secret", "447, 0"),
        ("statmount", "457, 0, 0, 0, 0"),
        ("seccomp", "317, 1, 8, 0"),
        ("a call of the future", "900"),
    ],
    ids=lambda value: value.split(",")[0] if "," in str(value) else str(value),
)
def test_system_calls_that_are_refused(sandbox: LocalSandbox, name: str, arguments: str) -> None:
    assert said(sandbox, f"{CALL}print(call({arguments}))") in ("-1", "-38"), name  # EPERM, ENOSYS


@ON_X86
def test_foreign_calls_end_the_process(sandbox: LocalSandbox) -> None:
    assert run(sandbox, f"{CALL}call(0x40000000 + 39)").signal == 31  # SIGSYS: getpid of x32
    code = "b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'"  # mov eax, 20; int 0x80; ret: getpid of i386
    source = (
        f"import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write({code})\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint('RAN', f())\n"
    )
    assert b"RAN" not in run(sandbox, source).stdout


def test_rights_are_gone_for_good(sandbox: LocalSandbox) -> None:
    source = (
        "import os\nlines = open('/proc/self/status').read().splitlines()\n"
        "state = dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)\n"
        "print(*[int(state[k], 16) for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],"
        " state['NoNewPrivs'], state['Seccomp'], state['Uid'].split(), os.getgroups())\n"
        "for f in (os.setuid, os.setgid):\n"
        "    try: f(0); print('ROOT')\n"
        "    except OSError: pass\n"
    )
    out = said(sandbox, source)
    assert out.startswith("0 0 0 0 0 1 2 ['1000', '1000', '1000', '1000'] ")
    assert "ROOT" not in out


def test_the_kernel_ends_the_program_first_when_memory_runs_out(sandbox: LocalSandbox) -> None:
    source = "print(open('/proc/self/oom_score_adj').read().strip())"
    assert said(sandbox, source) == "1000"
    with sandbox.session() as session:
        assert session.run(source).stdout == b"1000\n"


def test_no_mount_gives_rights(sandbox: LocalSandbox) -> None:
    source = (
        "for line in open('/proc/self/mountinfo'):\n"
        "    place, options = line.split()[4:6]\n"
        "    print(place, *sorted({'ro', 'nosuid', 'nodev'} & set(options.split(','))))\n"
    )
    mounts = {place: flags for place, *flags in map(str.split, said(sandbox, source).splitlines())}
    assert {"/", "/work", "/tmp", "/dev/shm", "/dev/null", "/proc", "/usr/lib"} & mounts.keys() >= {
        "/",
        "/work",
        "/proc",
    }
    assert [place for place, flags in mounts.items() if "nosuid" not in flags] == []
    assert [place for place, flags in mounts.items() if "nodev" not in flags and not place.startswith("/dev/")] == []
    writable = {place for place, flags in mounts.items() if "ro" not in flags}
    assert writable <= {"/.box", "/work", "/tmp", "/dev/shm", "/proc"}


def test_signals_stay_inside(sandbox: LocalSandbox) -> None:
    source = (
        "import os, signal\nprint(os.getppid(), sorted(n for n in os.listdir('/proc') if n.isdigit()))\n"
        "for pid in (1, -1, 3, 4, 1000):\n"
        "    for s in (9, 15, 2):\n"
        "        try: os.kill(pid, s)\n"
        "        except OSError: pass\n"
        "print('alive')\n"
    )
    # Its parent is process 1, which it may not even see where it is not its own.
    sight = "['2']" if sandbox.isolation.tier == "full" and os.geteuid() == 0 else "['1', '2']"
    for _ in range(2):  # and cannot tell how many were there before
        assert said(sandbox, source) == f"1 {sight}\nalive"
    assert said(sandbox, "print(1)") == "1"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout"),
        (
            "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
            "    except RuntimeError: break",
            "ok",
        ),
    ],
    ids=["fork bomb", "threads"],
)
def test_processes_are_bounded(sandbox: LocalSandbox, source: str, status: str) -> None:
    if status == "ok":
        out = said(sandbox, source + "\nprint(threading.active_count(), flush=True)\nimport os; os._exit(0)")
        assert 16 <= int(out) <= 33
        return
    started = time.monotonic()
    assert run(sandbox, source, wall_s=1.0).status == status
    assert time.monotonic() - started < 6
    assert said(sandbox, "print(1)") == "1"


def test_files_are_bounded(sandbox: LocalSandbox) -> None:
    source = (
        "import os\ntotal = 0\n"
        "for p in ('/tmp/f', '/dev/shm/f', 'f', '/.box/work/g'):\n"
        "    try:\n"
        "        with open(p, 'wb', 0) as f:\n"
        "            while True: total += f.write(bytes(1 << 20))\n"
        "    except OSError: pass\n"
        "print(total >> 20)\n"
    )
    assert int(said(sandbox, source)) <= 16
    inodes = (
        "import os\nn = 0\ntry:\n    while True: os.close(os.open(f'{n}', os.O_CREAT)); n += 1\n"
        "except OSError: print(n)"
    )
    assert int(said(sandbox, inodes)) < 16 * 256
    fds = "import os\nn = 0\ntry:\n    while True: os.dup(0); n += 1\nexcept OSError: print(n)"
    assert int(said(sandbox, fds)) < 1024


def test_a_core_is_not_dumped(sandbox: LocalSandbox) -> None:
    source = (
        "import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; os.abort()'])\n"
        "print(os.listdir('.'))"
    )
    assert said(sandbox, source) == "['main.py']"


def test_every_process_has_limits_of_its_own(sandbox: LocalSandbox) -> None:
    """Also where the cgroup or the file system bounds all of them together, and in sessions."""
    wanted = {
        "FSIZE": 16 << 20,
        "NOFILE": 1000,
        "CORE": 0,
        "MEMLOCK": 1 << 16,
        "MSGQUEUE": 1 << 16,
        "NICE": 0,
        "RTPRIO": 0,
        "SIGPENDING": 1024,
    }
    here = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in wanted}
    bounds = [most if here[name] < 0 else min(most, here[name]) for name, most in wanted.items()]
    source = f"import resource\nprint([resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in {list(wanted)}])"
    told = f"{[(bound, bound) for bound in bounds]}"
    assert said(sandbox, source) == told
    with sandbox.session() as session:
        assert session.run(source).stdout.decode().strip() == told


def test_the_clock_of_processor_time_ends_what_the_wall_clock_would(sandbox: LocalSandbox) -> None:
    result = run(sandbox, "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU))", processes=2, wall_s=3.0)
    assert result.stdout == b"(8, 8)\n"
