"""Whole programs in the local sandbox: they see what ``python main.py`` would, and every end gets its name."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_made import local_sandbox, without_marks

from roll_envs.errors import ConfigError
from roll_envs.sandbox import COMPILED, LANGUAGES, Isolation, Language, Limits, Program, RunResult
from sandboxes.local import LocalSandbox
from sandboxes.pool import Ended
from sandboxes.programs import ROWS


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    with local_sandbox(slots=2) as made:
        yield made


def run(sandbox: LocalSandbox, source: str, **kwargs: object) -> RunResult:
    limits = kwargs.pop("limits", None)
    return sandbox.run(Program(source=source, **kwargs), limits=limits)  # type: ignore[arg-type]


def test_a_program_is_called_like_a_script(sandbox: LocalSandbox) -> None:
    source = (
        "import os, sys\n"
        "print(sys.argv, __name__, __file__, sys.path[0], os.getcwd())\n"
        "print(input(), os.environ['COLOUR'], open('data/in.txt').read(), sys._getframe().f_back.f_back is not None)\n"
        "print('inside' in sys.modules, [m for m in sys.modules if m.startswith('inside')])\n"
    )
    result = run(
        sandbox,
        source,
        stdin=b"first\nsecond\n",
        arguments=("a", "b c"),
        environ={"COLOUR": "blue"},
        files={"data/in.txt": b"content"},
    )
    assert result.stderr == b""
    assert result.stdout.decode().splitlines() == [
        "['main.py', 'a', 'b c'] __main__ /work/main.py /work /work",
        "first blue content True",
        "False []",
    ]
    assert (result.status, result.exit_code, result.ok) == ("ok", 0, True)
    assert 0 < result.wall_s < 10
    assert result.memory_peak_mb is not None
    assert 0.5 < result.memory_peak_mb < 64


@pytest.mark.parametrize(
    ("source", "status", "code", "by"),
    [
        ("", "ok", 0, None),
        ("import sys; sys.exit()", "ok", 0, None),
        ("exit(3)", "error", 3, None),
        ("raise SystemExit(256 + 7)", "error", 7, None),
        ("import os; os._exit(9)", "error", 9, None),
        ("import os; os.abort()", "error", None, signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", "error", None, signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", "error", None, signal.SIGSEGV),
        ("raise KeyboardInterrupt", "error", None, signal.SIGINT),
        ("import sys; sys.stdout.close()", "ok", 0, None),
    ],
)
def test_ends(sandbox: LocalSandbox, source: str, status: str, code: int | None, by: int | None) -> None:
    result = run(sandbox, source)
    assert (result.status, result.exit_code, result.signal) == (status, code, by)


def test_an_exception_is_shown_without_our_frames(sandbox: LocalSandbox) -> None:
    result = run(sandbox, "def f(x):\n    return 1 / x\nf(0)\n")
    assert result.exit_code == 1
    assert without_marks(result.stderr) == (
        "Traceback (most recent call last):\n"
        '  File "/work/main.py", line 3, in <module>\n'
        "    f(0)\n"
        '  File "/work/main.py", line 2, in f\n'
        "    return 1 / x\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_an_interpreter_ends_properly(sandbox: LocalSandbox) -> None:
    """Threads are waited for, ``atexit`` and finalizers run, the exit message goes to stderr, buffers are flushed."""
    result = run(
        sandbox,
        "import atexit, sys, threading, time\n"
        "class Last:\n"
        "    def __del__(self): print('finalized')\n"
        "last = Last()\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "print('main')\n"
        "sys.exit('a message')\n",
    )
    assert result.stdout == b"main\nthread\nat exit\nfinalized\n"
    assert result.stderr == b"a message\n"
    assert result.exit_code == 1


def test_an_output_of_the_scripts_own_is_flushed_while_its_globals_are_there(sandbox: LocalSandbox) -> None:
    source = """
import io, os, sys
class Fast(io.IOBase):
    def __init__(self): self.parts = []
    def write(self, text): self.parts.append(text.encode())
    def flush(self): os.write(1, b"".join(self.parts)); self.parts.clear()
sys.stdout = Fast()
print(6)
"""
    result = run(sandbox, source)
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"6\n", b"")


def test_what_was_printed_before_a_broken_output_is_kept(sandbox: LocalSandbox) -> None:
    source = """
import sys
print(6)
class Broken:
    closed = False
    def flush(self): raise OSError("broken")
sys.stdout = Broken()
"""
    result = run(sandbox, source)
    assert (result.exit_code, result.stdout) == (120, b"6\n")
    assert result.stderr.count(b"OSError: broken") == 1


def test_a_broken_standard_output_is_exit_code_120(sandbox: LocalSandbox) -> None:
    assert run(sandbox, "import os\nprint('x')\nos.close(1)").exit_code == 120


def test_an_encoding_cookie_counts(sandbox: LocalSandbox) -> None:
    assert run(sandbox, "# -*- coding: utf-8 -*-\nprint('é')").stdout == "é\n".encode()


def test_an_interpreter_of_its_own_where_the_environment_asks_for_one(sandbox: LocalSandbox) -> None:
    seeds = {run(sandbox, "print(hash('x'))", environ={"PYTHONHASHSEED": "5"}).stdout for _ in range(2)}
    assert len(seeds) == 1
    assert seeds != {run(sandbox, "print(hash('x'))", environ={"PYTHONHASHSEED": "6"}).stdout}


def test_string_hashes_are_random_for_each_slot_or_where_asked_for_each_run(sandbox: LocalSandbox) -> None:
    told = "print(hash('x'))"
    assert len({run(sandbox, told).stdout for _ in range(3)}) == 1
    with local_sandbox(slots=1) as other:
        assert run(other, told).stdout != run(sandbox, told).stdout
    assert len({run(sandbox, told, environ={"PYTHONHASHSEED": "random"}).stdout for _ in range(3)}) == 3


def test_random_numbers_differ_from_run_to_run(sandbox: LocalSandbox) -> None:
    numbers = {run(sandbox, "import random, uuid\nprint(random.random(), uuid.uuid4())").stdout for _ in range(3)}
    assert len(numbers) == 3


@settings(max_examples=25, deadline=None)
@given(content=st.binary(max_size=4000))
def test_any_bytes_pass_in_and_out(sandbox: LocalSandbox, content: bytes) -> None:
    source = (
        "import sys\ndata = sys.stdin.buffer.read()\nsys.stdout.buffer.write(data)\nsys.stderr.buffer.write(data)\n"
        "open('out', 'wb').write(open('in', 'rb').read())\n"
    )
    result = run(sandbox, source, stdin=content, files={"in": content}, fetch=("out",))
    assert (result.stdout, result.stderr, result.files["out"]) == (content, content, content)


def test_large_input_output_and_source(sandbox: LocalSandbox) -> None:
    source = "# comment\n" * 300_000 + "import sys; sys.stdout.write(sys.stdin.read())"
    stdin = b"z" * 900_000
    assert run(sandbox, source, stdin=stdin).stdout == stdin


def test_output_is_cut_and_counted(sandbox: LocalSandbox) -> None:
    source = "import sys\nsys.stdout.write('o' * 5000)\nsys.stderr.write('e' * 70)"
    result = run(sandbox, source, limits=Limits(output_bytes=100))
    assert (result.status, result.stdout, result.stdout_dropped) == ("ok", b"o" * 100, 4900)
    assert (result.stderr, result.stderr_dropped) == (b"e" * 70, 0)


def test_a_flood_of_both_pipes_is_ended(sandbox: LocalSandbox) -> None:
    source = "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n    os.write(2, b'y' * 65536)\n"
    result = run(sandbox, source, limits=Limits(wall_s=60, output_bytes=1000))
    assert (result.status, result.exit_code, result.signal) == ("output", None, signal.SIGKILL)
    assert result.stdout == b"x" * 1000
    assert result.stdout_dropped > 16 << 20


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(1000)",
        "x = 3 ** (10 ** 9)",
        "import signal\nfor s in range(1, 60):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: pass",
        "import os, time\nos.setsid()\nfor _ in range(5): os.fork()\ntime.sleep(1000)",
    ],
    ids=["sleep", "busy C code", "signals ignored", "children"],
)
def test_past_the_limit(sandbox: LocalSandbox, source: str) -> None:
    result = run(sandbox, "print('begun', flush=True)\n" + source, limits=Limits(wall_s=0.5))
    assert (result.status, result.exit_code, result.signal) == ("timeout", None, signal.SIGKILL)
    assert result.stdout == b"begun\n"
    assert 0.5 <= result.wall_s < 5.5


@pytest.mark.parametrize(("killed_for", "wall_s"), [("timeout", 0.502), ("", 0.499)])
def test_the_time_of_a_killed_program_is_by_the_clock_that_ended_it(killed_for: str, wall_s: float) -> None:
    """The clock inside begins a little later, so it could say less than the limit that was reached."""
    ended = Ended(report={"status": int(signal.SIGKILL), "wall_s": 0.499}, killed_for=killed_for, wall_s=0.502)
    assert ended.result(Isolation(tier="full", layers=())).wall_s == wall_s


@pytest.mark.parametrize(
    "source",
    [
        "x = bytearray(2 << 30)",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = bytearray(2 << 30)'])",
        "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'x' * (40 << 20)\n"
        "        while True: pass\nos.wait()",
    ],
    ids=["one", "a child", "many small ones"],
)
def test_too_much_memory(sandbox: LocalSandbox, source: str) -> None:
    result = run(sandbox, source, limits=Limits(memory_mb=128, wall_s=60))
    assert result.status == "memory"
    assert result.memory_peak_mb is not None
    assert result.memory_peak_mb < 200


def test_a_background_process_neither_holds_up_nor_outlives(sandbox: LocalSandbox) -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\n"
        "print('done')\n"
    )
    result = run(sandbox, source, limits=Limits(wall_s=30))
    assert (result.status, result.stdout) == ("ok", b"done\n")
    assert result.wall_s < 10


def test_fetch_brings_plain_files_only(sandbox: LocalSandbox) -> None:
    source = (
        "import os\nos.mkdir('d')\nopen('d/plain', 'w').write('yes')\n"
        "os.symlink('/etc/passwd', 'link')\nos.symlink('d', 'dlink')\nos.mkfifo('pipe')\nos.link('d/plain', 'hard')\n"
    )
    names = ("d/plain", "./d//plain", "link", "dlink/plain", "pipe", "d", "missing", "hard")
    result = run(sandbox, source, fetch=names)
    assert result.files == {"d/plain": b"yes", "hard": b"yes"}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\0b", "x/..", "x" * 256])
def test_paths_that_lead_out_are_refused(sandbox: LocalSandbox, path: str) -> None:
    with pytest.raises(ConfigError, match="working folder"):
        run(sandbox, "", fetch=(path,))
    with pytest.raises(ConfigError, match="working folder"):
        run(sandbox, "", files={path: b""})


def test_bad_requests_are_refused(sandbox: LocalSandbox) -> None:
    with pytest.raises(ConfigError, match=r"main\.py"):
        run(sandbox, "", files={"main.py": b""})
    with pytest.raises(ConfigError, match="files_mb=1"):
        run(sandbox, "", files={"a": bytes(2 << 20)}, limits=Limits(files_mb=1))
    with pytest.raises(ConfigError, match="'a' is a file, and the folder of another"):
        run(sandbox, "", files={"a/b": b"", "a": b""})
    with pytest.raises(ConfigError, match=r"'main.py' is a file, and the folder"):
        run(sandbox, "", files={"main.py/b": b""})
    with pytest.raises(ConfigError, match=r"'\.main' is the name of the program's own"):
        run(sandbox, "int main() {}", language="cpp", files={".main": b""})
    few = Limits(files_mb=1)
    with pytest.raises(ConfigError, match=r"301 files and folders.*at most 192"):
        run(sandbox, "", files={f"d/{n}": b"" for n in range(300)}, limits=few)
    assert run(sandbox, "print(1)", files={f"d/{n}": b"a" for n in range(180)}, limits=few).ok
    with pytest.raises(ConfigError, match="NUL"):
        run(sandbox, "", arguments=("a\0",))
    for environ in ({"A=B": "x"}, {"A": "\ud800"}):
        with pytest.raises(ConfigError, match="environ"):
            run(sandbox, "", environ=environ)
    with pytest.raises(ConfigError, match="relative path"):
        run(sandbox, "", fetch=("\ud800",))
    with pytest.raises(ConfigError, match="allowed are python"):
        run(sandbox, "", language="cobol")
    with pytest.raises(ConfigError, match="wall_s"):
        run(sandbox, "", limits=Limits(wall_s=float("nan")))
    with pytest.raises(ConfigError, match=r"memory_mb must be .*, not 1$"):
        run(sandbox, "", limits=Limits(memory_mb=1))


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


@pytest.mark.parametrize(
    ("language", "source"),
    [
        pytest.param("bash", 'read x; echo "$1 $((x * 2))"; exit 3', marks=needs("bash")),
        pytest.param(
            "javascript",
            "const x = Number(require('fs').readFileSync(0)); console.log(process.argv[2], x * 2); process.exit(3)",
            marks=needs("node"),
        ),
        pytest.param(
            "cpp",
            "#include <iostream>\nint main(int n, char** a) { int x; std::cin >> x;"
            ' std::cout << a[1] << " " << x * 2 << std::endl; return 3; }',
            marks=needs("g++"),
        ),
        pytest.param(
            "java",
            "/*\npublic class Solution {}\n*/\n"
            "package p;\nimport java.util.*;\nrecord Twice(int x) { static void no(String[] a) { }"
            " int value() { return 2 * x; } }\npublic final class Task { public static class Main { }\n"
            " public static void main(String[] a) { int x = new Scanner(System.in).nextInt();"
            ' System.out.println(a[0] + " " + new Twice(x).value()); System.exit(3); } }',
            marks=needs("javac"),
        ),
        pytest.param(
            "go",
            'package main\nimport ("fmt"; "os")\nfunc main() { var x int; fmt.Scan(&x); fmt.Println(os.Args[1], 2*x);'
            " os.Exit(3) }",
            marks=needs("go"),
        ),
        pytest.param(
            "rust",
            "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
            " let x: i32 = s.trim().parse().unwrap();"
            ' println!("{} {}", std::env::args().nth(1).unwrap(), 2 * x); std::process::exit(3) }',
            marks=needs("rustc"),
        ),
        pytest.param(
            "typescript",
            "import * as fs from 'fs';\nconst x: number = Number(fs.readFileSync(0));"
            " console.log(process.argv[2], x * 2); process.exit(3)",
            marks=needs("tsc"),
        ),
    ],
)
def test_other_languages(sandbox: LocalSandbox, language: Language, source: str) -> None:
    program = Program(source=source, language=language, stdin=b"21\n", arguments=("A",))
    result = sandbox.run(program, limits=Limits(memory_mb=1024))
    assert (result.stdout, result.stderr, result.exit_code) == (b"A 42\n", b"", 3)
    assert (result.compile is not None) is bool(ROWS[language].compile)


@pytest.mark.parametrize(
    ("language", "source", "said"),
    [
        pytest.param("java", "class Main { int f() { return no; } }", b"Main.java:1", marks=needs("javac")),
        pytest.param("go", "package main\nfunc main() { no() }", b"main.go:2", marks=needs("go")),
        pytest.param("rust", "fn main() { no(); }", b"main.rs:1", marks=needs("rustc")),
        pytest.param("typescript", "const = 1", b"main.ts(1", marks=needs("tsc")),
    ],
)
def test_a_compiler_says_what_is_wrong(sandbox: LocalSandbox, language: Language, source: str, said: bytes) -> None:
    compiled = sandbox.run(Program(source=source, language=language)).compile
    assert compiled is not None
    assert compiled.status == "error"
    assert said in compiled.stdout + compiled.stderr


@needs("javac")
def test_memory_of_java_ends_in_its_own_error_and_too_few_threads_are_refused(sandbox: LocalSandbox) -> None:
    source = "public class Main { public static void main(String[] a) { long[][] x = new long[9999][];"
    source += " for (int i = 0; i < 9999; i++) { x[i] = new long[1 << 20]; } } }"
    result = sandbox.run(Program(source=source, language="java"), limits=Limits(memory_mb=256))
    assert result.exit_code == 1
    assert b"OutOfMemoryError" in result.stderr
    with pytest.raises(ConfigError, match="processes=8 is too small for 'java'"):
        sandbox.run(Program(source=source, language="java"), limits=Limits(processes=8))


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"])
def test_a_language_whose_compiler_is_missing_says_what_to_install(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    row = ROWS[language]
    words = f"{re.escape(row.tool)}.*{re.escape(row.package)}"
    with pytest.raises(ConfigError, match=words), local_sandbox(slots=1, languages=(language,)):
        pass


def test_a_rustup_without_a_toolchain_costs_no_other_language(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rustup = tmp_path / "rustup"
    rustup.write_text("#!/bin/sh\necho 'error: no default toolchain is set' >&2\nexit 1\n")
    rustup.chmod(0o755)
    (tmp_path / "rustc").symlink_to(rustup)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with local_sandbox(slots=1) as made:
        assert run(made, "print(1)").stdout == b"1\n"
        with pytest.raises(ConfigError, match="language 'rust'"):
            made.run(Program(source="", language="rust"))
    with pytest.raises(ConfigError, match="language 'rust' needs a toolchain"), local_sandbox(languages=("rust",)):
        pass


@needs("g++")
def test_a_compiled_program_may_call_itself_deep(sandbox: LocalSandbox) -> None:
    source = (
        "int f(int n) { volatile char c[64]; c[0] = n; return n ? f(n - 1) + (c[0] - c[0]) : 0; }\n"
        "int main() { return f(400000); }"
    )
    assert sandbox.run(Program(source=source, language="cpp")).status == "ok"


@needs("g++")
def test_a_program_that_does_not_compile(sandbox: LocalSandbox) -> None:
    result = sandbox.run(Program(source="int main( {", language="cpp"))
    assert result.status == "error"
    assert result.compile is not None
    assert b"main.cpp" in result.compile.stderr


def test_the_table_compiles_what_others_take_for_compiled() -> None:
    assert {language for language, row in ROWS.items() if row.compile} == COMPILED


def test_a_language_that_was_left_out() -> None:
    with local_sandbox(slots=1, languages=("python",)) as bare:
        with pytest.raises(ConfigError, match="bash"):
            bare.run(Program(source="", language="bash"))
        assert run(bare, "import os; print(os.path.exists('/usr/bin/bash'))").stdout == b"False\n"


def test_python_paths_are_importable_and_read_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("packages")
    (folder / "greeting.py").write_text("WORD = 'hello'\n", "utf-8")
    folder.chmod(0o700)
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match=r"chmod o\+rx"), local_sandbox(slots=1, python_paths=(str(folder),)):
            pass
    folder.chmod(0o755)
    with local_sandbox(slots=1, python_paths=(str(folder),), preload=("greeting",)) as sandbox:
        source = (
            "import greeting, subprocess, sys\nprint(greeting.WORD, flush=True)\n"
            "subprocess.run([sys.executable, '-c', 'import greeting; print(greeting.WORD)'])\n"
            "try: open(greeting.__file__, 'w')\nexcept OSError as error: print(error.strerror)\n"
        )
        assert run(sandbox, source).stdout == b"hello\nhello\nRead-only file system\n"


def test_asynchronous_callers(sandbox: LocalSandbox) -> None:
    async def several() -> list[RunResult]:
        return await asyncio.gather(*(sandbox.arun(Program(source=f"print({n})")) for n in range(6)))

    assert [result.stdout for result in asyncio.run(several())] == [b"%d\n" % n for n in range(6)]
