"""The Docker sandbox on a real engine: whole programs, and mistakes of callers."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from docker_place import container_ids, open_sandbox, reason_to_skip, run_python, workers

from roll_envs.errors import ConfigError
from roll_envs.sandbox import SANDBOX_CPUS, Limits, Program, make_sandbox
from roll_envs.verifiers import Score, make_verifier
from sandboxes.docker import DockerSandbox

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerSandbox]:
    with open_sandbox() as made:
        yield made


# -- whole programs ----------------------------------------------------------------------------------------------------


def test_a_program_reads_and_writes(sandbox: DockerSandbox) -> None:
    result = run_python(
        sandbox,
        """
        import os, sys
        print(input(), sys.argv[1:], os.environ["SOME"], open("in/data.bin", "rb").read())
        sys.stderr.write("to stderr")
        for name in ("out.bin", os.fsdecode(b"\\xff")):
            open(name, "wb").write(bytes(range(256)))
        open("empty", "w")
        os.symlink("/etc/passwd", "link")
        os.mkdir("folder")
        sys.exit(7)
        """,
        stdin=b"first line\nsecond",
        arguments=("a", "b c"),
        environ={"SOME": "value"},
        files={"in/data.bin": b"\x00\xff"},
        fetch=("out.bin", "link", "folder", "./out.bin", "empty", "\udcff", *(f"nothing-{n:032}" for n in range(2000))),
    )
    assert (result.status, result.exit_code, result.signal) == ("error", 7, None), result
    assert result.stdout == b"first line ['a', 'b c'] value b'\\x00\\xff'\n"
    assert result.stderr == b"to stderr"
    assert result.files == {"out.bin": bytes(range(256)), "\udcff": bytes(range(256)), "empty": b""}
    assert result.memory_peak_mb is not None
    assert 5 < result.memory_peak_mb < 100


def test_files_and_patches_of_tests_reach_an_answer_in_a_container(sandbox: DockerSandbox) -> None:
    tests = """
import os, tempfile, unittest
from unittest.mock import patch
class T(unittest.TestCase):
    def test_f(self):
        with tempfile.TemporaryDirectory() as folder, patch("os.getpid", return_value=7) as pid:
            with open(folder + "/in", "w") as file:
                file.write("1")
            self.assertEqual(f(folder), "17")
            self.assertEqual(sorted(os.listdir(folder)), ["in", "out"])
        pid.assert_called_once_with()
"""
    answer = """
import os
def f(folder):
    open(folder + "/out", "w").close()
    return open(folder + "/in").read() + str(os.getpid())
"""
    for code, value in ((answer, 1.0), (answer.replace("/out", "/no"), 0.0)):
        found = make_verifier("code", sandbox=sandbox)(code, {"test": tests, "entry_point": "f"})
        assert isinstance(found, Score), found
        assert found.value == value, found.detail


def test_containers_keep_to_the_processors_that_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    last = max(os.sched_getaffinity(0))
    monkeypatch.setenv(SANDBOX_CPUS, str(last))
    with open_sandbox() as pinned:
        assert run_python(pinned, "import os; print(os.sched_getaffinity(0))").stdout == b"{%d}\n" % last


def test_nothing_of_a_run_is_left_for_the_next(sandbox: DockerSandbox) -> None:
    run_python(
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
    result = run_python(
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
    result = run_python(
        sandbox,
        """
        import os
        for depth in range(3000):
            os.mkdir("d"); os.chdir("d")
            if depth % 100 == 0: open("f", "w").close()
        """,
    )
    assert result.status == "ok", result.stderr
    assert run_python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


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
    result = run_python(sandbox, source, limits=limits)
    assert (result.status, result.exit_code, result.signal) == (status, code, by)
    assert result.wall_s < limits.wall_s + 1
    assert run_python(sandbox, "print(1)").stdout == b"1\n"


def test_a_child_that_the_kernel_ends_is_a_matter_of_memory(sandbox: DockerSandbox) -> None:
    result = sandbox.run(
        Program(source="python3 -c 'b = bytearray(4 << 30)'; echo $?", language="bash"), limits=Limits(memory_mb=128)
    )
    assert (result.status, result.stdout) == ("memory", b"137\n")


def test_memory_follows_the_limit_of_each_run(sandbox: DockerSandbox) -> None:
    source = "b = bytearray(200 << 20); print(len(b) >> 20)"
    assert run_python(sandbox, source, limits=Limits(memory_mb=150)).status == "memory"
    assert run_python(sandbox, source, limits=Limits(memory_mb=300)).stdout == b"200\n"
    assert run_python(sandbox, source, limits=Limits(memory_mb=150)).status == "memory"


def test_output_is_bounded_and_what_is_dropped_is_counted(sandbox: DockerSandbox) -> None:
    source = "import os\nfor _ in range(300): os.write(1, b'o' * 1000); os.write(2, b'e' * 10)"
    result = run_python(sandbox, source, limits=Limits(output_bytes=5000))
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
    result = run_python(sandbox, source, limits=Limits(files_mb=8))
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
    assert run_python(sandbox, source, limits=Limits(processes=10)).stdout == b"9\n"


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
    assert run_python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


def test_walls_are_named(sandbox: DockerSandbox) -> None:
    isolation = run_python(sandbox, "pass").isolation
    assert (isolation.tier, isolation.missing) == ("container", ())
    assert {"cgroup-memory", "seccomp-default", "seccomp-denials", "network-none", "non-root"} <= set(isolation.layers)


def test_what_a_program_could_do_to_pid_1_is_refused(sandbox: DockerSandbox) -> None:
    result = run_python(
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
    with pytest.raises(ConfigError, match=r"slots should be .*, not 0"):
        make_sandbox("docker", slots=0)


def test_a_sandbox_that_is_forgotten_is_closed_but_not_under_its_session() -> None:
    with open_sandbox().session() as session:
        gc.collect()
        assert session.run("1 + 1").stdout == b"2\n"
    del session
    sandbox = open_sandbox()
    (mine,) = workers(sandbox)
    del sandbox
    gc.collect()
    assert mine not in container_ids()


def test_memory_of_a_run_is_not_counted_for_the_next(sandbox: DockerSandbox) -> None:
    limits = Limits(memory_mb=256, files_mb=64)
    fill = "open('/tmp/f', 'wb').write(bytes(60 << 20)); b = b'x' * (150 << 20)"
    for _ in range(4):
        assert run_python(sandbox, fill, limits=limits).ok
        assert run_python(sandbox, "b = b'x' * (200 << 20)", limits=limits).ok
