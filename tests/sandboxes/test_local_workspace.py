"""The tier without namespaces: asked for, named, and as strong as they are said to be."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from attack_host import SECRET, Host, hostile_host
from test_attacks import LIMITS as ATTACK_LIMITS
from test_attacks import RUNS, check, source_of

import sandboxes.local.sandbox as module
import sandboxes.local.slot as slot
from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Limits, Program
from sandboxes.local import LocalSandbox, Tier
from sandboxes.local.inside import jail, kernel, wire

LIMITS = Limits(wall_s=10.0, memory_mb=128, processes=24, files_mb=16)
X86 = platform.machine() == "x86_64"


@contextlib.contextmanager
def only(tier: Tier, **kwargs: Any) -> Iterator[LocalSandbox]:
    """A sandbox of this tier, as on a machine that can do no better."""
    real = module.candidates
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "candidates", lambda view: [o for o in real(view) if o.isolation.tier == tier])
        try:
            made = LocalSandbox(**{"slots": 1, "minimum_isolation": tier, "limits": LIMITS, **kwargs})
        except SandboxError as error:
            pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    with only("landlock") as made:
        yield made


def said(sandbox: LocalSandbox, source: str) -> str:
    result = sandbox.run(Program(source=source))
    assert result.stderr == b""
    return result.stdout.decode().strip()


def folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("roll-sandbox-")}


NO_NAMESPACES = """
    import ctypes, struct, sys
    from roll_envs.errors import SandboxError
    from roll_envs.sandbox import Program, make_sandbox
    from sandboxes.local.inside import kernel
    numbers = {"x86_64": (272, 56, 435), "aarch64": (97, 220, 435)}[kernel.MACHINE]
    def unless_zero(number, bits):  # EPERM for this call when its first argument has one of the bits
        verdicts = [(0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
        return [(0x15, 0, 4, number), (0x20, 0, 0, 16), (0x45, 0, 1, bits), *verdicts]
    code = [(0x20, 0, 0, 0), *unless_zero(numbers[0], 0xFFFFFFFF), *unless_zero(numbers[1], 0x7E020000)]
    code += [(0x15, 0, 1, numbers[2]), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]
    kernel.no_new_privileges()
    kernel.set_seccomp(b"".join(struct.pack("HBBI", *step) for step in code))
"""
"""A process that may make no namespaces, as in a default container."""


def in_a_container(script: str) -> str:
    whole = textwrap.dedent(NO_NAMESPACES) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_where_no_namespaces_are_to_be_had_the_error_names_what_works_and_how_to_allow_it(
    sandbox: LocalSandbox,
) -> None:
    out = in_a_container("""
        for weakest in ("full", "no-cgroup"):
            try:
                make_sandbox("local", slots=1, minimum_isolation=weakest)
            except SandboxError as error:
                print(error)
    """)
    for weakest, line in zip(("full", "no-cgroup"), out.splitlines(), strict=True):
        assert line.startswith(f"isolation {weakest!r} cannot be had here")
        assert "unshare" in line
        assert "Operation not permitted" in line
        assert "what works here is 'landlock' (without user-namespace, pid-namespace, " in line
        assert "allow it with minimum_isolation='landlock'" in line


def test_there_it_works_when_it_is_allowed(sandbox: LocalSandbox) -> None:
    out = in_a_container("""
        with make_sandbox("local", slots=1, minimum_isolation="landlock") as sandbox:
            result = sandbox.run(Program(source="print(6 * 7)"))
            print(result.stdout.decode().strip(), result.isolation.tier, "landlock" in result.isolation.layers)
    """)
    assert out == "42 landlock True\n"


def test_a_weaker_one_is_not_taken_when_a_stronger_one_is_there() -> None:
    try:
        with LocalSandbox(slots=1) as strong:
            wanted = strong.isolation
    except SandboxError as error:
        pytest.skip(str(error))
    with LocalSandbox(slots=1, minimum_isolation="landlock") as made:
        assert made.isolation == wanted


def test_the_tier_and_what_is_missing_are_in_every_result(sandbox: LocalSandbox) -> None:
    isolation = sandbox.run(Program(source="")).isolation
    assert isolation.tier == "landlock"
    assert "landlock" in isolation.layers
    assert {"pid-namespace", "mount-namespace", "network-namespace"} <= set(isolation.missing)
    assert "seccomp" in isolation.layers


def test_programs_run_as_anywhere(sandbox: LocalSandbox) -> None:
    program = Program(
        source="import os, sys, tempfile\nprint(input(), sys.argv, open('d/in').read())\n"
        "tempfile.TemporaryFile().write(b'x')\nopen('out', 'w').write(os.environ['HOME'])\nsys.exit(3)",
        stdin=b"in",
        arguments=("a",),
        files={"d/in": b"file"},
        fetch=("out", "../../etc/passwd2", "not there")[:1],
    )
    result = sandbox.run(program)
    assert (result.stdout, result.stderr, result.exit_code) == (b"in ['main.py', 'a'] file\n", b"", 3)
    assert result.files["out"].endswith(b"/work")
    assert sandbox.run(Program(source="import os; print(os.listdir('.'))")).stdout == b"['main.py']\n"


def test_the_next_run_does_not_clear_what_is_still_to_be_fetched(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = slot._fetch

    def slow(folder: int, names: Sequence[str]) -> dict[str, bytes]:
        time.sleep(0.4)  # as on a busy machine: time for the next init to make its place
        return real(folder, names)

    monkeypatch.setattr(slot, "_fetch", slow)
    for text in ("one", "two"):
        result = sandbox.run(Program(source=f"open('out', 'w').write({text!r})", fetch=("out",)))
        assert result.files == {"out": text.encode()}
    assert sandbox.run(Program(source="import os; print(os.listdir('.'))")).stdout == b"['main.py']\n"


FILL = "import time\nfor n in range(64): open(str(n), 'wb').write(bytes(1 << 20))"


def test_folders_deeper_than_a_path_may_be_long_are_removed(
    sandbox: LocalSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    deep = "import os\nfor _ in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\nprint('made')"
    assert said(sandbox, deep) == "made"
    assert said(sandbox, "import os; print(os.listdir('.'))") == "['main.py']"
    assert caplog.messages == []  # the slot was not given up


def test_sessions_too(sandbox: LocalSandbox) -> None:
    with sandbox.session() as session:
        session.upload("a/b", b"x")
        assert session.run("x = 1\nopen('a/b').read()").stdout == b"'x'\n"
        assert session.run("while True: pass", limits=Limits(wall_s=0.3)).status == "timeout"
        assert b"NameError" in session.run("x").stderr
        assert session.download("a/b") == b"x"
        with pytest.raises(ConfigError):
            session.upload("../x", b"")
    with sandbox.session(language="bash") as session:
        assert session.run("echo $((6 * 7))").stdout == b"42\n"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("x = bytearray(1 << 30)", "memory"),
        ("while True: pass", "timeout"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout"),
        ("open('f', 'wb').write(bytes(64 << 20))", "error"),
        (f"{FILL}\ntime.sleep(9)", "error"),
        (f"import os\nfor _ in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)\n{FILL}\ntime.sleep(9)", "error"),
        ("import os, time\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\ntime.sleep(0.5)", "ok"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "output"),
    ],
    ids=["memory", "time", "processes", "a file", "files", "files far below", "folders", "output"],
)
def test_limits_hold(sandbox: LocalSandbox, source: str, status: str) -> None:
    wall_s = 1.0 if status == "timeout" else 8.0
    limits = Limits(wall_s=wall_s, memory_mb=64, processes=16, files_mb=8)
    started = time.monotonic()
    result = sandbox.run(Program(source=source), limits=limits)
    assert result.status in {status, "timeout"} if "fork" in source else result.status == status
    assert time.monotonic() - started < 8
    assert said(sandbox, "print(1)") == "1"


def test_what_a_program_leaves_is_ended_and_removed(sandbox: LocalSandbox) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(100)\n    os._exit(0)\n"
        "os.makedirs('a/b/c'); os.symlink('/', 'a/link'); time.sleep(0.2); print(os.getpid())\n"
    )
    before = set(descendants_of(os.getpid()))
    for _ in range(3):
        assert said(sandbox, source).isdigit()
        assert said(sandbox, "import os; print(os.listdir('.'))") == "['main.py']"
    deadline = time.monotonic() + 5
    while len(set(descendants_of(os.getpid())) - before) > 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(set(descendants_of(os.getpid())) - before) <= 4  # those that wait for the next program


def test_a_program_that_is_stopped_before_it_starts_takes_nothing_from_the_next(sandbox: LocalSandbox) -> None:
    early = Program(source="print('early')", fetch=("x",))
    for number in range(3):
        sandbox.run(early, limits=replace(LIMITS, wall_s=0.0005))
        assert said(sandbox, f"print({number})") == str(number)


def test_an_order_that_was_not_read_in_time_is_not_carried_out_later(sandbox: LocalSandbox) -> None:
    """It stays in the channel where the init that it was meant for was killed before."""
    assert said(sandbox, "print(1)") == "1"
    (jail,) = sandbox._pool._idle
    assert isinstance(jail, slot.LocalSlot)
    orders = ({"order": "run", "show_work": False}, {"order": "session", "command": None})
    for late in (*orders, {"order": "stop"}, {"order": "fetched"}):
        wire.send(jail._work, {**late, "init": jail._serial, "limits": asdict(LIMITS)}, [])
        assert said(sandbox, "print(2)") == "2"
        with sandbox.session() as session:
            assert session.run("print(3)").stdout == b"3\n"
        assert sandbox._pool._idle == [jail], "it was not replaced"


@pytest.fixture
def victim() -> Iterator[int]:
    """Another process of our own user."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        assert process.poll() is None
        process.kill()


def test_other_processes_are_out_of_reach(sandbox: LocalSandbox, victim: int) -> None:
    before = resource.prlimit(victim, resource.RLIMIT_CPU), os.getpriority(os.PRIO_PROCESS, victim)
    source = (
        "import ctypes, fcntl, os, resource, signal\n"
        f"v = {victim}\n"
        "libc = ctypes.CDLL(None)\n"
        "fd = os.pipe()[0]\n"
        "for act in (lambda: os.kill(v, 9), lambda: os.kill(v, 19), lambda: os.killpg(os.getpgid(v), 9),\n"
        "            lambda: signal.pidfd_send_signal(os.pidfd_open(v), 9),\n"
        "            lambda: resource.prlimit(v, resource.RLIMIT_CPU, (0, 0)),\n"
        "            lambda: os.setpriority(os.PRIO_PROCESS, v, 19), lambda: os.sched_setaffinity(v, {0})):\n"
        "    try: act(); print('DONE')\n"
        "    except (OSError, AttributeError): pass\n"
        "try:\n    fcntl.fcntl(fd, fcntl.F_SETOWN, v); fcntl.fcntl(fd, fcntl.F_SETSIG, 9); print('OWNED')\n"
        "except OSError: pass\n"
        "os.kill(0, 0)\n"
        "for number in (29, 64, 68, 240):  # shmget, semget, msgget, mq_open of x86_64\n"
        f"    if {X86} and libc.syscall(number, 0, 1, 0o1600, 0) >= 0: print('SHARED', number)\n"
    )
    assert said(sandbox, source) == ""
    assert before == (resource.prlimit(victim, resource.RLIMIT_CPU), os.getpriority(os.PRIO_PROCESS, victim))


def test_the_files_of_the_user_are_out_of_reach(sandbox: LocalSandbox, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.write_text("secret", "utf-8")
    (tmp_path / "folder").mkdir()
    mode = flag.stat()
    source = (
        "import ctypes, os\n"
        f"f, d = {str(flag)!r}, {str(tmp_path)!r}\n"
        "acts = [lambda: open(f).read(), lambda: open(f, 'w'), lambda: os.truncate(f, 0), lambda: os.unlink(f),\n"
        "        lambda: os.listdir(d), lambda: os.mkdir(d + '/x'), lambda: os.rmdir(d + '/folder'),\n"
        "        lambda: os.link(f, 'l'), lambda: os.rename(f, 'l'), lambda: os.symlink('x', d + '/s'),\n"
        "        lambda: os.chmod(f, 0), lambda: os.utime(f, (0, 0)), lambda: os.setxattr(f, 'user.a', b'x'),\n"
        "        lambda: os.open('/dev/sda', 0), lambda: os.mknod('dev', 0o60666, 0x100),\n"
        "        lambda: open('/etc/passwd').read(), lambda: open(f'/proc/{os.getppid()}/environ').read(),\n"
        "        lambda: open('/proc/self/environ').read(), lambda: os.listdir('/home'), lambda: os.listdir('/root')]\n"
        "for n, act in enumerate(acts):\n"
        "    try: print('DONE', n, act())\n"
        "    except OSError: pass\n"
        "try:\n    os.symlink(f, 'link'); print('DONE', open('link').read())\n"
        "except OSError: pass\n"
    )
    assert said(sandbox, source) == ""
    after = flag.stat()
    assert (flag.read_text("utf-8"), after.st_mode, after.st_mtime_ns) == ("secret", mode.st_mode, mode.st_mtime_ns)
    assert sorted(os.listdir(tmp_path)) == ["flag", "folder"]


def test_the_watchdog_counts_processes_by_the_limit_of_the_run() -> None:
    """Where a cgroup counts them too, no program shows this."""
    holds: Any = SimpleNamespace(holds_more_than=lambda size, count: False)
    watchdog = jail.Watchdog(asdict(replace(LIMITS, processes=5)), holds, memory=False)
    assert [watchdog._too_many(list(range(count)), holds) for count in (5, 6)] == [False, True]


def test_only_its_owner_can_change_the_folder_of_a_slot(sandbox: LocalSandbox) -> None:
    assert said(sandbox, "print(1)") == "1"
    (made,) = sandbox._pool._idle
    assert isinstance(made, slot.LocalSlot)
    assert os.stat(made._workspace).st_mode & 0o777 == 0o711


def test_rights_are_given_up_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups while there is the right to, and the filter last; also where programs have a user of their own here."""
    done: list[tuple[Any, ...]] = []

    def noted(name: str) -> Any:
        return lambda *values: done.append((name, *values))

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError("this process is to stay as it is")

    for place, name in (
        (os, "setgroups"),
        (os, "setresgid"),
        (os, "setresuid"),
        (kernel, "capabilities_drop"),
        (kernel, "dumpable"),
    ):
        monkeypatch.setattr(place, name, noted(name))
    monkeypatch.setattr(jail, "signal", SimpleNamespace(signal=noted("signal"), SIGINT=2, default_int_handler=None))
    monkeypatch.setattr(jail, "open", refuse, raising=False)
    workspace: Any = SimpleNamespace(user=5, enter=noted("enter"))
    jail.LocalJail(None, workspace, many_users=True).give_up_rights()
    assert [each for each in done if each[0] not in ("signal", "dumpable")] == [
        ("setgroups", []),
        ("setresgid", 5, 5, 5),
        ("setresuid", 5, 5, 5),
        ("capabilities_drop",),
        ("enter",),
    ]


def test_there_is_no_network(sandbox: LocalSandbox) -> None:
    with hostile_host(abstract="roll_ground_test") as host:
        source = (
            "import socket\n"
            "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 38, 40):\n"
            "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
            "        try: socket.socket(family, kind); print('MADE', family)\n"
            "        except OSError: pass\n"
            "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))\n"
        )
        assert said(sandbox, source) == "b'x'"
        assert host.visits == []


def test_nothing_is_left_after_the_end(sandbox: LocalSandbox) -> None:
    before = folders()
    with only("landlock", slots=2) as made:
        made.run(Program(source="import os; os.mkdir('d'); open('d/f', 'w'); open(os.environ['TMPDIR'] + '/x', 'w')"))
        assert folders() - before
    assert folders() == before


@pytest.mark.parametrize("who", ["caller", "supervisor", "zygote"])
def test_nothing_is_left_when_one_of_us_is_killed(sandbox: LocalSandbox, who: str) -> None:
    script = textwrap.dedent("""
        import time
        import sandboxes.local.sandbox as module
        from roll_envs.sandbox import Program, Limits
        real = module.candidates
        module.candidates = lambda view: [o for o in real(view) if o.isolation.tier == "landlock"]
        sandbox = module.LocalSandbox(slots=1, minimum_isolation="landlock")
        print("ready", flush=True)
        program = Program(source="import os, time; os.fork() or os.setsid(); os.fork(); time.sleep(60)")
        try:
            sandbox.run(program, limits=Limits(wall_s=50))
        except Exception as error:
            print(error, flush=True)
        time.sleep(60)
    """)
    before = folders()
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        time.sleep(0.7)
        family = descendants_of(caller.pid)
        assert len(family) >= 6
        supervisor = family[0]
        victim = {"caller": caller.pid, "supervisor": supervisor, "zygote": descendants_of(supervisor)[0]}[who]
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (alive := [p for p in family if runs(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if who != "caller":  # its pool starts another slot, of which a supervisor knows that has begun a jail
            until = time.monotonic() + 10
            while len(descendants_of(caller.pid)) < 2 and time.monotonic() < until:
                time.sleep(0.05)
        caller.kill()
    assert alive == []
    until = time.monotonic() + 10
    while folders() != before and time.monotonic() < until:  # of the slot in its place, whose owner has just ended
        time.sleep(0.05)
    assert folders() == before


@pytest.mark.parametrize("tier", ["full", "landlock"])
def test_nothing_is_left_of_a_slot_whose_owner_ended_before_it_began(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor alone removes folder and cgroups then, so here the owner does not."""
    with subprocess.Popen(["true"]) as ended:
        pass
    made, real, find = list[Path](), wire.send, module.candidates

    def send(channel: Any, message: Any, *more: Any) -> None:
        if "owner" in message:
            made.extend(Path(folder) for folder in message["cgroup"].values())
            made.extend([Path(message["workspace"]["folder"])] if message["workspace"] else [])
            assert all(folder.exists() for folder in made)
            message = {**message, "owner": ended.pid}
        real(channel, message, *more)

    monkeypatch.setattr(wire, "send", send)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    for owner in (slot, module):
        monkeypatch.setattr(owner, "remove_later", lambda *_: None)
    monkeypatch.setattr(module, "candidates", lambda view: [o for o in find(view) if o.isolation.tier == tier])
    with pytest.raises(SandboxError):
        LocalSandbox(slots=1, minimum_isolation=tier, limits=LIMITS)
    if not made:
        pytest.skip(f"the tier {tier!r} cannot be had here")
    assert not [folder for folder in made if folder.exists()]


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    return False


def descendants_of(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        new = children_of(todo.pop(0))
        found += new
        todo += new
    return found


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text("ascii").split())
    return found


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    try:
        with hostile_host(port=18999) as made:
            yield made
    except OSError as error:
        pytest.skip(f"the addresses that the attacks look for are taken: {error}")


def test_there_is_a_bound_to_the_number_of_files_too(sandbox: LocalSandbox) -> None:
    """Empty ones hold no bytes; the bound is that of the sandbox's file system."""
    source = "import os\nfor n in range(10**6): os.close(os.open(f'i{n}', os.O_CREAT | os.O_WRONLY))"
    started = time.monotonic()
    result = sandbox.run(Program(source=source), limits=Limits(wall_s=30, files_mb=8))
    assert not result.ok
    assert result.status != "timeout"
    assert time.monotonic() - started < 25
    assert said(sandbox, "import os; print(os.listdir('.'))") == "['main.py']"


@pytest.mark.slow
@pytest.mark.skipif(not RUNS, reason="the collection of attacks is not here (shared/attacks)")
@pytest.mark.parametrize("attack", RUNS, ids=lambda a: a["name"])
def test_attacks_are_contained_by_landlock(attack: dict[str, Any], host: Host, sandbox: LocalSandbox) -> None:
    visits = len(host.visits)
    started = time.monotonic()
    result = sandbox.run(Program(source=source_of(attack)), limits=ATTACK_LIMITS)
    assert time.monotonic() - started < ATTACK_LIMITS.wall_s + 5
    check({key: value for key, value in attack.items() if key != "maxmem"}, result)
    assert SECRET.encode() not in result.stdout + result.stderr
    assert len(host.visits) == visits
    assert host.processes("sbxatk") == []
    assert said(sandbox, "import os; print(os.listdir('.'))") == "['main.py']"
