"""The Docker sandbox on a real engine: the contract, sessions, containers that die, engines that stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_place import IMAGE, container_ids, exit_code, kill, open_sandbox, reason_to_skip

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.docker import DockerSandbox

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerSandbox]:
    with open_sandbox() as made:
        yield made


def _python(sandbox: DockerSandbox, source: str, **options: Any) -> RunResult:
    limits = options.pop("limits", None)
    return sandbox.run(Program(source=textwrap.dedent(source), **options), limits=limits)


# -- whole programs ----------------------------------------------------------------------------------------------------


def test_a_program_reads_and_writes(sandbox: DockerSandbox) -> None:
    result = _python(
        sandbox,
        """
        import os, sys
        print(input(), sys.argv[1:], os.environ["SOME"], open("in/data.bin", "rb").read())
        sys.stderr.write("to stderr")
        open("out.bin", "wb").write(bytes(range(256)))
        os.symlink("/etc/passwd", "link")
        os.mkdir("folder")
        sys.exit(7)
        """,
        stdin=b"first line\nsecond",
        arguments=("a", "b c"),
        environ={"SOME": "value"},
        files={"in/data.bin": b"\x00\xff"},
        fetch=("out.bin", "link", "folder", "nothing"),
    )
    assert (result.status, result.exit_code, result.signal) == ("error", 7, None), result
    assert result.stdout == b"first line ['a', 'b c'] value b'\\x00\\xff'\n"
    assert result.stderr == b"to stderr"
    assert result.files == {"out.bin": bytes(range(256))}
    assert result.memory_peak_mb is not None
    assert 5 < result.memory_peak_mb < 100


def test_nothing_of_a_run_is_left_for_the_next(sandbox: DockerSandbox) -> None:
    _python(
        sandbox,
        """
        import multiprocessing.shared_memory, os, subprocess, sys
        SECRET = "a value of the first" * 1000
        for place in ("mine", "/tmp/mine", "/dev/shm/mine"):
            open(place, "w").write(SECRET)
        os.makedirs("/tmp/locked/in"); os.chmod("/tmp/locked/in", 0); os.chmod("/tmp/locked", 0)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
        """,
        stdin=b"a value of the first" * 3000,
    )
    result = _python(
        sandbox,
        """
        import os
        processes = [name for name in os.listdir("/proc") if name.isdigit()]
        print(os.listdir("/tmp"), os.listdir("/dev/shm"), os.listdir("."), processes)
        needle = b"a value of " + b"the first"
        for line in open("/proc/self/maps"):
            span, rights, *_ = line.split()
            if rights.startswith("rw") and "[v" not in line:
                start, end = (int(part, 16) for part in span.split("-"))
                with open("/proc/self/mem", "rb", 0) as memory:
                    memory.seek(start)
                    content = memory.read(end - start)
                if content.count(needle * 1) > 3:
                    print("found")
        """,
    )
    assert result.stderr == b""
    first, *rest = result.stdout.decode().splitlines()
    assert first.startswith("['work'] [] ['main.py'] ['1', ")
    assert first.count("'") == 2 * 4
    assert rest == []


def test_a_deep_tree_of_folders_is_removed(sandbox: DockerSandbox) -> None:
    result = _python(
        sandbox,
        """
        import os
        for depth in range(3000):
            os.mkdir("d"); os.chdir("d")
            if depth % 100 == 0: open("f", "w").close()
        """,
    )
    assert result.status == "ok", result.stderr
    assert _python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


@pytest.mark.parametrize(
    ("source", "status", "code", "by"),
    [
        ("import time; time.sleep(60)", "timeout", None, 9),
        ("while True: pass", "timeout", None, 9),
        ("b = bytearray(4 << 30)", "memory", None, 9),
        ("import os; os.kill(os.getpid(), 9)", "error", None, 9),
        ("import os; os.abort()", "error", None, 6),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output", None, 9),
        ("raise ValueError", "error", 1, None),
        ("pass", "ok", 0, None),
    ],
)
def test_statuses(sandbox: DockerSandbox, source: str, status: str, code: int | None, by: int | None) -> None:
    limits = Limits(wall_s=1.5, memory_mb=128) if status != "output" else Limits(wall_s=8)
    result = _python(sandbox, source, limits=limits)
    assert (result.status, result.exit_code, result.signal) == (status, code, by)
    assert result.wall_s < limits.wall_s + 1
    assert _python(sandbox, "print(1)").stdout == b"1\n"


def test_a_child_that_the_kernel_ends_is_a_matter_of_memory(sandbox: DockerSandbox) -> None:
    result = sandbox.run(
        Program(source="python3 -c 'b = bytearray(4 << 30)'; echo $?", language="bash"), limits=Limits(memory_mb=128)
    )
    assert (result.status, result.stdout) == ("memory", b"137\n")


def test_memory_follows_the_limit_of_each_run(sandbox: DockerSandbox) -> None:
    source = "b = bytearray(200 << 20); print(len(b) >> 20)"
    assert _python(sandbox, source, limits=Limits(memory_mb=150)).status == "memory"
    assert _python(sandbox, source, limits=Limits(memory_mb=300)).stdout == b"200\n"
    assert _python(sandbox, source, limits=Limits(memory_mb=150)).status == "memory"


def test_output_is_bounded_and_what_is_dropped_is_counted(sandbox: DockerSandbox) -> None:
    source = "import os\nfor _ in range(300): os.write(1, b'o' * 1000); os.write(2, b'e' * 10)"
    result = _python(sandbox, source, limits=Limits(output_bytes=5000))
    assert (result.status, result.stdout, result.stdout_dropped) == ("ok", b"o" * 5000, 295_000)
    assert (result.stderr, result.stderr_dropped) == (b"e" * 3000, 0)


def test_files_have_a_limit_over_all_places(sandbox: DockerSandbox) -> None:
    source = """
    for place in ("f", "/tmp/f"):
        try:
            with open(place, "wb", 0) as file:
                while True: file.write(bytes(1 << 20))
        except OSError as error:
            print(error.strerror)
    import os
    print(sum(os.stat(p).st_size for p in ("f", "/tmp/f")) >> 20)
    """
    result = _python(sandbox, source, limits=Limits(files_mb=8))
    assert result.stdout.splitlines()[0] == b"No space left on device"
    assert int(result.stdout.splitlines()[-1]) <= 8


def test_processes_have_a_limit(sandbox: DockerSandbox) -> None:
    source = """
    import os, time
    made = 0
    try:
        while made < 100:
            if os.fork() == 0: time.sleep(60)
            made += 1
    except BlockingIOError: pass
    print(made)
    """
    assert _python(sandbox, source, limits=Limits(processes=10)).stdout == b"9\n"


def test_a_large_program_with_large_input(sandbox: DockerSandbox) -> None:
    source = "#" + "x" * (10 << 20) + "\nimport sys; print(len(sys.stdin.buffer.read()))"
    result = sandbox.run(Program(source=source, stdin=bytes(30 << 20)))
    assert result.stdout == b"31457280\n", result


@pytest.mark.parametrize("language", ["bash", "javascript", "cpp"])
def test_other_languages(sandbox: DockerSandbox, language: Any) -> None:
    sources = {
        "bash": 'read x; echo "$x $1" | tr a-z A-Z; exit 3',
        "javascript": "const x = require('fs').readFileSync(0, 'utf8').trim();"
        "console.log((x + ' ' + process.argv[2]).toUpperCase()); process.exit(3)",
        "cpp": "#include <bits/stdc++.h>\nint main(int n, char **a) { std::string x; std::cin >> x;"
        " x += ' '; x += a[1]; for (char &c : x) c = toupper(c); std::cout << x << std::endl; return 3; }",
    }
    try:
        program = Program(source=sources[language], language=language, stdin=b"one\n", arguments=("two",))
        result = sandbox.run(program, limits=Limits(compile_s=60, wall_s=20), timeout_s=120)
    except ConfigError as error:
        pytest.skip(str(error))
    assert (result.stdout, result.exit_code) == (b"ONE TWO\n", 3), (result, result.compile)
    assert (result.compile is not None) == (language == "cpp")


def test_a_compilers_complaint(sandbox: DockerSandbox) -> None:
    try:
        result = sandbox.run(Program(source="int main() { return x; }", language="cpp"))
    except ConfigError as error:
        pytest.skip(str(error))
    assert result.compile is not None
    assert (result.status, result.compile.exit_code) == ("error", 1)
    assert b"was not declared" in result.compile.stderr
    assert _python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


def test_walls_are_named(sandbox: DockerSandbox) -> None:
    isolation = _python(sandbox, "pass").isolation
    assert (isolation.tier, isolation.missing) == ("container", ())
    assert {"cgroup-memory", "seccomp-default", "seccomp-denials", "network-none", "non-root"} <= set(isolation.layers)


def test_what_a_program_could_do_to_pid_1_is_refused(sandbox: DockerSandbox) -> None:
    result = _python(
        sandbox,
        """
        import ctypes, os, resource, signal
        libc = ctypes.CDLL(None, use_errno=True)
        def attempt(what):
            try: print(what() or "done")
            except OSError as error: print(error.strerror)
        attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
        attempt(lambda: os.sched_setaffinity(1, [0]))
        attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
        attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19))
        attempt(lambda: os.open("/proc/1/mem", os.O_RDONLY))
        attempt(lambda: os.listdir("/proc/1/fd"))
        print(libc.shmget(1234, 4096, 0o1666), libc.semget(1234, 1, 0o1666), libc.msgget(1234, 0o1666))
        for number in set(signal.Signals): os.kill(1, number)
        attempt(lambda: os.nice(1) and None)
        attempt(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        """,
    )
    refused = ["Operation not permitted"] * 4 + ["Permission denied"] * 2
    assert result.stdout.decode().splitlines() == [*refused, "-1 -1 -1", "done", "done"], result


def test_asynchronous_callers(sandbox: DockerSandbox) -> None:
    result = asyncio.run(sandbox.arun(Program(source="print(2)")))
    assert result.stdout == b"2\n"


# -- mistakes of callers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (Program(source="", files={"../x": b""}), "relative path"),
        (Program(source="", files={"main.py": b""}), "own source"),
        (Program(source="", fetch=("/etc/passwd",)), "relative path"),
        (Program(source="", arguments=("a\0b",)), "NUL"),
        (Program(source="", environ={"A=B": ""}), "environ"),
        (Program(source="", files={"x": bytes(60 << 20)}), "files_mb"),
        (Program(source="", language="ruby"), "allowed are"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_run_is_said(sandbox: DockerSandbox, program: Program, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sandbox.run(program)


def test_an_image_that_is_not_there_is_not_pulled() -> None:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    with pytest.raises(ConfigError, match="docker pull python:3"):
        DockerSandbox(image="python:3")
    with pytest.raises(ConfigError, match="slots=0"):
        DockerSandbox(slots=0)


def test_a_sandbox_that_is_forgotten_is_closed_but_not_under_its_session() -> None:
    with open_sandbox().session() as session:
        gc.collect()
        assert session.run("1 + 1").stdout == b"2\n"
    del session
    sandbox = open_sandbox()
    (mine,) = _workers(sandbox)
    del sandbox
    gc.collect()
    assert mine not in container_ids()


# -- slots -------------------------------------------------------------------------------------------------------------


def test_waiting_for_a_slot_has_a_deadline(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        started = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="slot"):
            sandbox.run(Program(source="print(1)"), timeout_s=0.5)
        assert 0.4 < time.monotonic() - started < 2
        assert session.run("1 + 1").stdout == b"2\n"
    assert _python(sandbox, "print(1)").stdout == b"1\n"


def test_a_deadline_before_the_programs_own_limit_is_no_verdict(sandbox: DockerSandbox) -> None:
    with pytest.raises(DeadlineExceededError, match="own limit is longer"):
        sandbox.run(Program(source="import time; time.sleep(60)"), limits=Limits(wall_s=30), timeout_s=1)
    assert _python(sandbox, "print(1)").stdout == b"1\n"


def test_many_threads_get_their_own_answers() -> None:
    with open_sandbox(slots=2) as sandbox:
        wrong = []

        def work(number: int) -> None:
            for turn in range(10):
                result = sandbox.run(Program(source=f"print({number}, {turn})"))
                if result.stdout != f"{number} {turn}\n".encode():
                    wrong.append(result)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(_workers(sandbox)) == 2
        assert _workers(sandbox) <= container_ids(running=True)


def _workers(sandbox: DockerSandbox) -> set[str]:
    return {worker.id for worker in (*sandbox._pool._idle, *sandbox._pool._busy)}


def test_close_removes_the_containers_and_ends_programs() -> None:
    sandbox = open_sandbox(slots=2)
    mine = _workers(sandbox)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            sandbox.run(Program(source="import time; time.sleep(60)"), limits=Limits(wall_s=60), timeout_s=60)
        except SandboxError as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    sandbox.close()
    sandbox.close()
    thread.join(10)
    assert len(faults) == 1
    assert len(mine) == 2
    assert not mine & container_ids()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(Program(source="print(1)"))


# -- faults of ours ----------------------------------------------------------------------------------------------------


def test_a_killed_container_is_our_fault_and_is_replaced(sandbox: DockerSandbox) -> None:
    (mine,) = _workers(sandbox)
    killer = threading.Timer(0.7, kill, [mine])
    killer.start()
    with pytest.raises(SandboxError, match="ended during"):
        sandbox.run(Program(source="import time; time.sleep(60)"), limits=Limits(wall_s=30))
    killer.join()
    assert _python(sandbox, "print(1)").stdout == b"1\n"
    (mine,) = _workers(sandbox)
    kill(mine)  # at rest: the next caller sees nothing of it
    assert _python(sandbox, "print(2)").stdout == b"2\n"


def test_killing_under_load_gives_right_answers_or_faults() -> None:
    with open_sandbox(slots=2) as sandbox:
        answers: list[bytes] = []
        faults: list[SandboxError] = []
        going_on = threading.Event()
        going_on.set()

        def work(number: int) -> None:
            while going_on.is_set():
                try:
                    source = f"import time; time.sleep(0.02); print({number})"
                    answers.append(sandbox.run(Program(source=source)).stdout)
                    assert answers[-1] == f"{number}\n".encode()
                except SandboxError as error:
                    faults.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            time.sleep(1)
            kill((_workers(sandbox) & container_ids(running=True)).pop())
        going_on.clear()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert set(answers) == {b"0\n", b"1\n", b"2\n", b"3\n"}
        assert len(faults) <= 8
        assert _python(sandbox, "print(5)").stdout == b"5\n"


def test_containers_of_a_dead_parent_end_and_are_removed(tmp_path: Path) -> None:
    first = open_sandbox()
    first.close()
    before = container_ids()
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\nfrom sandboxes.docker import DockerSandbox\n"
        f"held = DockerSandbox(image={IMAGE!r}, slots=1)\nprint('up', flush=True)\ntime.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "up\n"
            (orphan,) = container_ids() - before
        finally:
            parent.send_signal(signal.SIGKILL)
    assert exit_code(orphan, timeout_s=20) == 0  # PID 1 has read end-of-file
    with open_sandbox():
        assert orphan not in container_ids()


def test_an_engine_that_stops_and_comes_back() -> None:
    folder = os.environ.get("ROLL_DOCKER_FOLDER")
    if not folder:
        pytest.skip("needs an engine of its own to stop (make test-docker starts one where none answers)")
    script = str(Path(__file__).with_name("docker_engine.sh"))
    with open_sandbox() as sandbox:
        subprocess.run(["bash", script, "stop", folder], check=True, timeout=60)
        with pytest.raises(SandboxError, match="engine"):
            sandbox.run(Program(source="print(1)"))
        subprocess.run(["bash", script, "start", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
        assert _python(sandbox, "print(1)").stdout == b"1\n"


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_cells_share_an_interpreter_until_a_limit_takes_it(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        assert session.run("x = 20\nopen('kept', 'w').write('file')").stdout == b"4\n"
        assert session.run("def f(): return x + 1\nf()").stdout == b"21\n"
        failed = session.run("print('before')\n1 / 0")
        assert (failed.status, failed.exit_code, failed.stdout) == ("error", 1, b"before\n")
        assert b"ZeroDivisionError" in failed.stderr
        assert session.run("x").stdout == b"20\n"
        late = session.run("while True: pass", limits=Limits(wall_s=0.5))
        assert (late.status, late.exit_code) == ("timeout", None)
        assert session.run("'x' in globals(), open('kept').read()").stdout == b"(False, 'file')\n"
        assert session.run("import os; os._exit(3)").exit_code == 3
        assert session.run("b = bytearray(4 << 30)", limits=Limits(memory_mb=128)).status == "memory"
        assert session.run("open('kept').read()").stdout == b"'file'\n"
    with pytest.raises(SandboxError, match="closed"):
        session.run("1")
    assert _python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


def test_a_cell_cannot_end_a_later_one_by_what_it_says_on_the_side(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        session.run(
            "import os, threading, time\n"
            "def talk():\n"
            "    while True:\n"
            "        for fd in range(3, 20):\n"
            "            try: os.write(fd, b'0 0\\nready 1\\n')\n"
            "            except OSError: pass\n"
            "        time.sleep(0.1)\n"
            "threading.Thread(target=talk, daemon=True).start()"
        )
        result = session.run("time.sleep(1); print('whole')", limits=Limits(wall_s=5))
        assert result.stdout == b"whole\n" or result.status != "ok"


def test_a_session_of_bash_keeps_files_and_processes(sandbox: DockerSandbox) -> None:
    with sandbox.session(language="bash") as session:
        assert session.run("echo text > file; sleep 60 & echo $! > pid; exit 4").exit_code == 4
        assert session.run('cat file; kill -0 "$(cat pid)" && echo alive').stdout == b"text\nalive\n"
        assert session.run("sleep 60", limits=Limits(wall_s=0.5)).status == "timeout"
        assert session.run('kill -0 "$(cat pid)" || echo gone; cat file').stdout == b"gone\ntext\n"


def test_files_in_and_out_of_a_session(sandbox: DockerSandbox) -> None:
    content = bytes(range(256)) * 4000
    with sandbox.session() as session:
        session.upload("a/b/data.bin", content)
        assert session.run("import hashlib; len(open('a/b/data.bin', 'rb').read())").stdout == b"1024000\n"
        assert session.download("a/b/data.bin") == content
        session.upload("a/b/data.bin", b"new")
        assert session.download("a/b/data.bin") == b"new"
        session.run("import os; os.symlink('/etc/passwd', 'link'); os.symlink('/tmp', 'out'); os.mkfifo('pipe')")
        for path in ("link", "pipe", "a", "nothing", "out/work/a/b/data.bin"):
            with pytest.raises(ConfigError, match="not a plain file"):
                session.download(path)
        with pytest.raises(ConfigError, match="max_bytes=2"):
            session.download("a/b/data.bin", max_bytes=2)
        with pytest.raises(ConfigError, match="cannot be written"):
            session.upload("out/x", b"")
        with pytest.raises(ConfigError, match="cannot be written"):
            session.upload("big", bytes(70 << 20))
        session.upload("link", b"in place of the link")
        assert session.run("open('link').read()").stdout == b"'in place of the link'\n"
        for path in ("../x", "/etc/x", ""):
            with pytest.raises(ConfigError, match="relative path"):
                session.upload(path, b"")
        assert session.run("1 + 1").stdout == b"2\n"


def test_a_session_whose_container_is_killed_says_so(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        (mine,) = _workers(sandbox)
        kill(mine)
        with pytest.raises(SandboxError):
            session.run("1")
        with pytest.raises(SandboxError, match="open another"):
            session.run("1")
    assert _python(sandbox, "print(1)").stdout == b"1\n"
