"""Parts of the Docker sandbox that need no engine."""

from __future__ import annotations

import builtins
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker_host_files import host_files
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_envs.errors import ConfigError, DeadlineExceededError, MissingExtraError, SandboxError
from roll_envs.sandbox import SANDBOX_CPUS, Limits, make_sandbox
from sandboxes.docker.channel import Channel
from sandboxes.docker.engine import Plan, Shape, _options
from sandboxes.docker.pid1 import ANSWER, FIRST_FILE, STDERR, STDOUT
from sandboxes.docker.sandbox import DockerSandbox
from sandboxes.docker.slot import _BOOT, _code, judge
from sandboxes.local.inside.files import wipe
from sandboxes.local.inside.launch import STARTED, Child
from sandboxes.local.inside.runs import serve_session
from sandboxes.local.inside.seccomp import MACHINES, Rules, build
from sandboxes.pool import Pool

# -- the filter of system calls ----------------------------------------------------------------------------------------

ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
ALLOW, EPERM, KILL = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x8000_0000


def _verdict(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """Run a filter as the kernel does, on ``struct seccomp_data``."""
    data = struct.pack("IIQ6Q", number, ARCH[machine], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("HBBI", program))
    accumulator = at = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation in (0x15, 0x35, 0x45):
            tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            at += if_true if tests[operation] else if_false
        else:
            assert operation == 0x06
            return int(value)


@pytest.mark.parametrize(
    ("name", "numbers", "arguments", "allowed"),
    [
        ("read", (0, 63), (3,), True),
        ("shmget", (29, 194), (1,), False),
        ("semget", (64, 190), (1,), False),
        ("msgget", (68, 186), (1,), False),
        ("mq_open", (240, 180), (1,), False),
        ("prlimit64 of itself", (302, 261), (0, 7), True),
        ("prlimit64 of PID 1", (302, 261), (1, 7), False),
        ("setpriority of itself", (141, 140), (0, 0, 5), True),
        ("setpriority of PID 1", (141, 140), (0, 1, 19), False),
        ("setpriority of the user", (141, 140), (2, 0, 19), False),
        ("sched_setaffinity of itself", (203, 122), (0,), True),
        ("sched_setaffinity of PID 1", (203, 122), (1,), False),
        ("sched_setscheduler of PID 1", (144, 119), (1,), False),
        ("ptrace", (101, 117), (16, 1), False),
        ("io_uring_setup", (425, 425), (1,), False),
        ("keyctl", (250, 219), (0,), False),
        ("add_key", (248, 217), (0,), False),
        ("bpf", (321, 280), (0,), False),
        ("a socket of the internet", (41, 198), (2, 1), True),
        ("a socket to the hypervisor", (41, 198), (40, 1), False),
        ("a new user namespace", (56, 220), (0x1000_0011,), False),
        ("a fork", (56, 220), (0x11,), True),
    ],
)
@pytest.mark.parametrize("machine", MACHINES)
def test_filters(machine: str, name: str, numbers: tuple[int, int], arguments: tuple[int, ...], allowed: bool) -> None:
    number = numbers[MACHINES.index(machine)]
    assert (_verdict(build(machine, Rules(one_container=True)), machine, number, *arguments) == ALLOW) == allowed, name


def test_calls_of_another_architecture_end_the_process() -> None:
    assert _verdict(build("x86_64", Rules(one_container=True)), "x86_64", 0x4000_0000 + 1) == KILL


# -- wiping ------------------------------------------------------------------------------------------------------------


def test_wipe_removes_whatever_there_is(tmp_path: Path) -> None:
    box, outside = tmp_path / "box", tmp_path / "outside"
    box.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (box / "link").symlink_to(outside)
    (box / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(box / "pipe")
    (box / ".0").write_text("a name that is used for folders on the way")
    (box / "locked" / "in").mkdir(parents=True)
    (box / "locked" / "in" / "file").write_text("")
    (box / "locked" / "in").chmod(0)
    (box / "locked").chmod(0)
    wipe(str(box))
    assert list(box.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


def test_wipe_needs_no_recursion_for_deep_folders() -> None:
    memory = Path("/dev/shm")  # where it is meant for; on a disk this takes seconds
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        _wipe_deep_folders(Path(folder))


def _wipe_deep_folders(box: Path) -> None:
    deep = "import os\nfor n in range(1200):\n os.mkdir('d'); os.mkdir('e'); os.chdir('d')"
    subprocess.run([sys.executable, "-S", "-c", deep], cwd=box, check=True)
    wipe(str(box))
    assert list(box.iterdir()) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "b", ".0", ".1"]), min_size=1, max_size=6), max_size=20))
def test_wipe_of_any_tree(tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]]) -> None:
    box = tmp_path_factory.mktemp("box")
    for path in paths:
        box.joinpath(*path).mkdir(parents=True, exist_ok=True)
    wipe(str(box))
    assert list(box.iterdir()) == []


# -- isolation ---------------------------------------------------------------------------------------------------------

INFO = {
    "SecurityOptions": ["name=seccomp,profile=default"],
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
}
FACTS = {
    "pid": 1,
    "networks": ["lo"],
    "read_only": True,
    "uid": 65534,
    "capabilities": 0,
    "no_new_privileges": True,
    "seccomp_filters": 2,
}


@pytest.mark.parametrize(
    ("info", "facts", "missing"),
    [
        ({}, {}, ()),
        ({"MemoryLimit": False}, {}, ("cgroup-memory",)),
        ({"SecurityOptions": None}, {}, ("seccomp-default",)),
        ({}, {"seccomp_filters": 1}, ("seccomp-default",)),
        ({}, {"seccomp_filters": 0}, ("seccomp-default", "seccomp-denials")),
        ({}, {"networks": ["lo", "eth0"]}, ("network-none",)),
        ({}, {"capabilities": 1 << 21, "uid": 0}, ("non-root", "no-capabilities")),
    ],
)
def test_missing_walls_are_named_or_refused(info: Any, facts: Any, missing: tuple[str, ...]) -> None:
    given_info, given_facts = {**INFO, **info}, {**FACTS, **facts}
    found = judge(given_info, given_facts, runtime=None, unsafe=True)
    assert found.missing == missing
    assert not set(found.layers) & set(missing)
    assert found.tier == ("container-weak" if missing else "container")
    if missing:
        with pytest.raises(SandboxError, match=missing[0]):
            judge(given_info, given_facts, runtime=None, unsafe=False)


# -- frames ------------------------------------------------------------------------------------------------------------


class _Wire:
    """A container's end of an attached connection."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.settimeout(10)
        self.channel = Channel(self._theirs)

    def read_request(self) -> tuple[dict[str, Any], bytes]:
        (length,) = struct.unpack("!I", self._read(4))
        header = json.loads(self._read(length))
        return header, self._read(sum(header["parts"]))

    def _read(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            content += self.ours.recv(count - len(content))
        return content

    def say(self, content: bytes, *, kind: int = 1, cut: int = 7) -> None:
        """Wrapped as the engine does, in pieces that end anywhere."""
        for start in range(0, len(content), cut):
            part = content[start : start + cut]
            self.ours.sendall(struct.pack("!BxxxI", kind, len(part)) + part)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


def _frame(number: int, content: bytes) -> bytes:
    return struct.pack("!II", number, len(content)) + content


def _soon() -> float:
    return time.monotonic() + 10


def test_a_request_and_its_reply_in_pieces() -> None:
    wire = _Wire()
    seen = []

    def answer() -> None:
        seen.append(wire.read_request())
        wire.say(b"a warning", kind=2)
        wire.say(_frame(STDOUT, b"out") + _frame(STDERR, b"") + _frame(STDERR, b"err") + _frame(STDOUT, b"put"))
        wire.say(_frame(FIRST_FILE + 1, b"con") + _frame(FIRST_FILE + 1, b"tent") + _frame(FIRST_FILE + 300, b""))
        wire.say(_frame(ANSWER, json.dumps({"id": "7", "status": 0}).encode()))

    thread = threading.Thread(target=answer)
    thread.start()
    reply = wire.channel.request({"id": "7", "parts": [2, 200_000]}, [b"ab", b"", b"cd" * 100_000], deadline=_soon())
    thread.join()
    assert seen[0] == ({"id": "7", "parts": [2, 200_000]}, b"ab" + b"cd" * 100_000)
    assert reply.answer["status"] == 0
    assert reply.parts == {STDOUT: b"output", STDERR: b"err", FIRST_FILE + 1: b"content", FIRST_FILE + 300: b""}
    assert wire.channel.idle
    wire.say(b"unasked")
    assert not wire.channel.idle
    wire.close()


def test_an_answer_to_another_request_is_not_taken() -> None:
    wire = _Wire()
    wire.say(_frame(ANSWER, b'{"id": "8"}'))
    with pytest.raises(ConnectionError, match="another request"):
        wire.channel.request({"id": "7"}, [], deadline=_soon())
    wire.close()


def test_what_is_no_reply_is_told_at_once() -> None:
    wire = _Wire()
    wire.say(b"hello from a Python that prints when it starts\n")
    wire.ours.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=r"not a frame.*m a Python that prints"):
        wire.channel.request({"id": "7"}, [], deadline=_soon())
    wire.close()


def test_an_end_without_an_answer_tells_the_last_words() -> None:
    wire = _Wire()
    wire.say(b"Traceback: why", kind=2)
    wire.ours.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="Traceback: why"):
        wire.channel.request({"id": "7"}, [], deadline=_soon())
    assert not wire.channel.idle
    wire.close()


def test_silence_ends_at_the_deadline() -> None:
    wire = _Wire()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.channel.request({"id": "7"}, [bytes(50 << 20)], deadline=started + 0.2)
    assert 0.15 < time.monotonic() - started < 2
    wire.close()


# -- sessions ----------------------------------------------------------------------------------------------------------


class _Runs:
    """Runs of PID 1 for a session that is opened and ended, with a process that only says that it has started."""

    def __init__(self) -> None:
        self.jail = SimpleNamespace(others=0, user=os.getuid(), resize=lambda _: True, limit=lambda _: None)
        self.said: list[Any] = []
        self.link = SimpleNamespace(send=lambda message, fds: self.said.append(message["event"]), receive=self._end)

    def _end(self) -> tuple[dict[str, Any], list[int]]:
        return {"order": "end"}, []

    def take(self) -> Child:
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs.send(STARTED)
        return Child(pid=0, channel=ours, ended=os.open("/dev/null", os.O_RDONLY))

    def clear(self) -> None:
        self._theirs.close()


def test_a_session_leaves_nothing_open_in_what_served_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.local.inside.runs.kill_all", lambda: None)
    before, runs = os.listdir("/proc/self/fd"), _Runs()
    serve_session(cast(Any, runs), {"command": None, "main": "main.py", "limits": {}, "environ": {}})
    assert runs.said == ["open", "ended"]
    assert os.listdir("/proc/self/fd") == before


# -- the pool ----------------------------------------------------------------------------------------------------------

SMALL, LARGE = Shape(processes=8, files_mb=8), Shape(processes=64, files_mb=64)


class _FakeWorker:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.alive = True

    def close(self) -> None:
        self.alive = False


class _Maker:
    def __init__(self) -> None:
        self.made: list[_FakeWorker] = []
        self.fault: Exception | None = None

    def __call__(self, shape: Shape) -> Any:
        if self.fault is not None:
            raise self.fault
        self.made.append(_FakeWorker(shape))
        return self.made[-1]


def test_a_pool_replaces_the_dead_and_those_of_another_shape() -> None:
    maker = _Maker()
    pool = Pool(maker, 1)
    first = pool.acquire(SMALL, 5)
    pool.release(first)
    assert pool.acquire(SMALL, 5) is first
    first.close()
    pool.release(first)
    second = pool.acquire(SMALL, 5)
    assert second is not first
    pool.release(second)
    third = pool.acquire(LARGE, 5)
    assert (third.shape, second.alive) == (LARGE, False)
    pool.release(third)
    pool.close()
    assert not any(worker.alive for worker in maker.made)
    with pytest.raises(SandboxError, match="closed"):
        pool.acquire(SMALL, 1)


def test_a_pool_never_has_more_than_its_slots() -> None:
    maker = _Maker()
    pool = Pool(maker, 2)
    held = [pool.acquire(SMALL, 5), pool.acquire(SMALL, 5)]
    with pytest.raises(DeadlineExceededError, match="one of 2 sandbox slots"):
        pool.acquire(SMALL, 0.1)
    threading.Timer(0.2, pool.release, [held[0]]).start()
    assert pool.acquire(SMALL, 5) is held[0]
    assert len(maker.made) == 2
    pool.close()


def test_what_goes_wrong_is_told_to_those_who_wait_and_then_tried_again() -> None:
    maker = _Maker()
    maker.fault = SandboxError("the engine is gone")
    pool = Pool(maker, 2)
    for _ in range(2):
        with pytest.raises(SandboxError, match="gone"):
            pool.acquire(SMALL, 5)
    maker.fault = None
    pool.release(pool.acquire(SMALL, 5))
    pool.close()


# -- odds and ends -----------------------------------------------------------------------------------------------------


def test_files_get_at_most_half_of_the_memory() -> None:
    assert DockerSandbox._shape(cast(Any, None), Limits(memory_mb=512, files_mb=64)).files_mb == 64
    assert DockerSandbox._shape(cast(Any, None), Limits(memory_mb=64, files_mb=64)).files_mb == 32


def test_a_container_is_made_as_strict_as_the_engine_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own report, which ``judge`` reads, tells only of some of these."""
    monkeypatch.setenv(SANDBOX_CPUS, cpus := str(max(os.sched_getaffinity(0))))
    plan = Plan(image="i", cpus=1.5, runtime="runsc", unsafe=False, memory_mb=100)
    made = _options(plan, Shape(processes=9, files_mb=8))
    tmpfs = made.pop("tmpfs")
    assert {"rw", "nosuid", "nodev", "size=8m", "mode=1777", "nr_inodes=16384"} < set(tmpfs["/tmp"].split(","))
    assert {"rw", "noexec", "nosuid", "nodev", "size=8m", "mode=1777"} < set(tmpfs["/dev/shm"].split(","))
    memory = 124 << 20  # with what PID 1 needs; as much with swap, so that there is none
    strict = {
        "runtime": "runsc",
        "user": "65534:65534",
        "use_config_proxy": False,
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "shm_size": 8 << 20,
        "pids_limit": 10,
        "nano_cpus": 1_500_000_000,
        "cpuset_cpus": cpus,
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 1024, "Hard": 4096}],
        "log_config": {"type": "none", "config": {}},
    }
    assert {name: made[name] for name in strict} == strict
    assert not {"privileged", "cap_add", "pid_mode", "ipc_mode", "volumes", "devices"} & made.keys()


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    true_import = builtins.__import__

    def no_docker(name: str, *rest: Any) -> Any:
        if name == "docker":
            raise ImportError(name)
        return true_import(name, *rest)

    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setattr(builtins, "__import__", no_docker)
    with pytest.raises(MissingExtraError, match=r"pip install 'roll-envs\[docker\]'"):
        make_sandbox("docker")


def test_without_an_engine_the_error_says_what_to_start() -> None:
    pytest.importorskip("docker", reason="needs the optional part 'docker'")
    with pytest.raises(SandboxError, match=r"unix:///nowhere/docker\.sock.*dockerd"):
        make_sandbox("docker", engine="unix:///nowhere/docker.sock")


def test_files_of_this_machines_python_for_an_image() -> None:
    files = host_files(["python"])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert {"/usr/bin/python3", f"/usr/local/bin/{version}", f"/usr/local/lib/{version}/json/__init__.py"} <= set(files)
    assert all(os.path.isfile(path) for path in files.values())
    assert not any("site-packages" in place or "/test/" in place for place in files)
    assert any("libc.so" in place or "musl" in place for place in files)
    with pytest.raises(ConfigError, match="ruby"):
        host_files(["ruby"])  # type: ignore[list-item]


def test_what_runs_inside_needs_nothing_of_the_package() -> None:
    load, _ = _BOOT.split("try:", 1)
    # Without site the package itself cannot be imported, as in a container.
    command = [sys.executable, "-I", "-S", "-c", load + "\nprint('sandboxes.docker.pid1' in sys.modules)"]
    code = b"%010d" % len(_code()) + _code()
    done = subprocess.run(command, input=code, capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (b"True\n", b"")
