"""Sessions of the local sandbox: cells with state, files in and out, limits that cost the state but not the files."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from local_made import local_sandbox, without_marks

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Limits, SandboxSession
from sandboxes.local import LocalSandbox
from sandboxes.local.slot import LocalSlot
from sandboxes.pool import Pool
from sandboxes.slots import SlotSession

BOMB = (
    "import os, time\nos.setsid()\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
    "    except OSError: time.sleep(0.005)\n"
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    with local_sandbox(slots=1) as made:
        yield made


@pytest.fixture
def session(sandbox: LocalSandbox) -> Iterator[SandboxSession]:
    with sandbox.session() as made:
        yield made


def test_cells_share_a_namespace_and_show_the_last_value(session: SandboxSession) -> None:
    assert session.run("x = 20\ndef double(n): return 2 * n").stdout == b""
    result = session.run("print('now')\ndouble(x)")
    assert (result.status, result.exit_code, result.stdout) == ("ok", 0, b"now\n40\n")
    assert session.run("_ + 2").stdout == b"42\n"
    assert session.run("None").stdout == b""
    assert session.run("").ok
    assert session.run("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A").stdout == b"True\n"


def test_an_exception_costs_nothing(session: SandboxSession) -> None:
    session.run("x = 1")
    result = session.run("def f():\n    raise ValueError(x)\nf()")
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, b"")
    assert without_marks(result.stderr) == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 3, in <module>\n    f()\n'
        '  File "<cell 2>", line 2, in f\n    raise ValueError(x)\nValueError: 1\n'
    )
    assert session.run("x").stdout == b"1\n"
    assert session.run("def f(:").exit_code == 1
    assert session.run("raise SystemExit(4)").exit_code == 4
    assert session.run("x").stdout == b"1\n"


def test_a_limit_costs_the_state_but_not_the_files(session: SandboxSession) -> None:
    session.run("x = 1\nopen('kept', 'w').write('k')")
    late = session.run("print('a', flush=True)\nwhile True: pass", limits=Limits(wall_s=0.3))
    assert (late.status, late.signal, late.stdout) == ("timeout", signal.SIGKILL, b"a\n")
    assert b"NameError" in session.run("x").stderr
    assert session.run("open('kept').read()").stdout == b"'k'\n"
    large = session.run("b = bytearray(2 << 30)", limits=Limits(memory_mb=64, wall_s=60))
    assert large.status == "memory"
    assert session.run("open('kept').read()").stdout == b"'k'\n"
    flood = session.run("while True: print('x' * 10000)", limits=Limits(output_bytes=10, wall_s=60))
    assert (flood.status, flood.stdout) == ("output", b"x" * 10)
    assert session.run("open('kept').read()").stdout == b"'k'\n"


def test_a_child_out_of_memory_ends_the_cell(session: SandboxSession) -> None:
    source = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'b = bytearray(2 << 30)']).returncode"
    assert session.run(source, limits=Limits(memory_mb=64, wall_s=60)).status == "memory"
    assert session.run("1").stdout == b"1\n"


def test_files_that_leave_no_memory_for_an_interpreter(sandbox: LocalSandbox) -> None:
    fill = "open('/tmp/f', 'wb').write(bytes(150 << 20))"
    for _ in range(8):
        with sandbox.session(limits=Limits(memory_mb=64, files_mb=200)) as session:
            assert session.run(fill).status == "memory"
            if not session._lost:
                assert session.run(fill).status == "memory"


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(7)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.closerange(3, 1000)",
        "import os\nwhile True: os.write(100, bytes(12))",
        "import os\nfor _ in range(20): os.fork()",
        "import os, signal\nos.kill(-1, 9)",
    ],
    ids=["exit", "kill", "channel closed", "channel flooded", "forks come back", "kill all"],
)
def test_whatever_a_cell_does_the_next_one_runs(session: SandboxSession, source: str) -> None:
    session.run(source, limits=Limits(wall_s=1.0))
    result = session.run("import os\nos.listdir('.')")
    if result.stderr:  # what was left of the last interpreter has been cleared away
        result = session.run("import os\nos.listdir('.')")
    assert result.stdout.decode() == "[]\n"


def test_background_processes_of_a_cell_do_not_hold_it_up(session: SandboxSession) -> None:
    result = session.run(
        "import subprocess\np = subprocess.Popen(['sleep', '50'])\n'started'", limits=Limits(wall_s=20)
    )
    assert (result.status, result.stdout) == ("ok", b"'started'\n")
    assert result.wall_s < 10
    assert session.run("p.poll()").stdout == b""


def test_files_go_in_and_out(session: SandboxSession) -> None:
    content = bytes(range(256)) * 1000
    session.upload("a/b/data.bin", content)
    assert session.download("a//b/./data.bin") == content
    session.upload("a/b/data.bin", b"second")
    assert session.run("open('a/b/data.bin').read()").stdout == b"'second'\n"
    assert session.run("open('a/b/data.bin', 'a').write('!')").ok
    assert session.download("a/b/data.bin", max_bytes=7) == b"second!"
    with pytest.raises(ConfigError, match="longer than max_bytes=3"):
        session.download("a/b/data.bin", max_bytes=3)
    for path in ("missing", "a"):
        with pytest.raises(ConfigError, match=path):
            session.download(path)
    with pytest.raises(ConfigError, match="directory"):
        session.upload("a", b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        session.upload("large", bytes(80 << 20))
    for path in ("../x", "/x", "a/../../x"):
        with pytest.raises(ConfigError, match="working folder"):
            session.download(path)
        with pytest.raises(ConfigError, match="working folder"):
            session.upload(path, b"")


def test_links_are_not_followed(session: SandboxSession) -> None:
    session.run(
        "import os\nos.mkdir('d')\nopen('target', 'w').write('t')\nos.symlink('/etc', 'etc')\n"
        "os.symlink('target', 's')\n"
        "os.symlink('/work', 'd/up')\nos.mkfifo('pipe')\nos.link('target', 'hard')\nos.chmod('d', 0)"
    )
    for path in ("etc/passwd", "s", "d/up/target", "pipe"):
        with pytest.raises(ConfigError, match="plain file"):
            session.download(path)
    for path in ("etc/x", "target/x"):
        with pytest.raises(ConfigError, match=r"cannot be written \(.*([Nn]ot a directory|Too many levels)"):
            session.upload(path, b"")
    for name in ("s", "pipe", "hard"):
        session.upload(name, b"new")
        assert session.download(name) == b"new"
    assert session.download("target") == b"t"


def test_bash_keeps_files(sandbox: LocalSandbox) -> None:
    with sandbox.session(language="bash") as session:
        assert session.run("echo one > f; cd /tmp; export X=1").ok
        result = session.run('cat f; echo "[$X]"; exit 5')
        assert (result.stdout, result.exit_code, result.status) == (b"one\n[]\n", 5, "error")
        assert session.run("sleep 50", limits=Limits(wall_s=0.3)).status == "timeout"
        assert session.run("cat f").stdout == b"one\n"


@pytest.mark.parametrize(
    ("cell", "reason", "undo"),
    [
        ("head -c 100000000 /dev/zero > big", b"No space left on device", ""),
        ("rm main.sh; mkdir main.sh", b"Is a directory", ""),
        ("(python3 - <<'X' &\n" + BOMB + "X\n) > /dev/null 2>&1; sleep 0.7", b"temporarily unavailable", "two\n"),
    ],
)
def test_a_session_that_leaves_no_room_for_a_cell_has_done_so_itself(
    sandbox: LocalSandbox, cell: str, reason: bytes, undo: str
) -> None:
    with sandbox.session(language="bash", limits=Limits(files_mb=8, processes=20, wall_s=20)) as session:
        session.run(cell)
        time.sleep(0.5)  # the bomb takes the place of its shell
        result = session.run("echo two")
        assert (result.status, result.exit_code) == ("error", 126)
        assert result.stderr.startswith(b"main.sh: ")
        assert reason in result.stderr
        assert session.run("echo two").stdout == undo.encode()


def test_a_session_is_a_jail_of_its_own(sandbox: LocalSandbox) -> None:
    with sandbox.session() as session:
        session.run("open('secret', 'w').write('s'); open('/tmp/secret', 'w').write('s')")
    with sandbox.session() as session:
        assert (
            session.run("import os\n[os.listdir(p) for p in ('/work', '/tmp', '/dev/shm')]").stdout == b"[[], [], []]\n"
        )
    session.close()
    with pytest.raises(SandboxError, match="closed"):
        session.run("1")


def _wait_until_used(session: SandboxSession) -> None:
    assert isinstance(session, SlotSession)
    until = time.monotonic() + 10
    while not session._in_use.locked():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_second_thread_is_refused_at_once(session: SandboxSession) -> None:
    assert session.run("1").ok
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(session.run, "import time; time.sleep(2); print('first')")
        _wait_until_used(session)
        started = time.monotonic()
        with pytest.raises(ConfigError, match="another thread uses this session"):
            session.run("print('second')")
        with pytest.raises(ConfigError, match="another thread uses this session"):
            session.upload("a", b"")
        assert time.monotonic() - started < 1
        assert first.result(20).stdout == b"first\n"
        assert session.run("print('third')").stdout == b"third\n"
        last = pool.submit(session.run, "import time; time.sleep(60)")
        _wait_until_used(session)
        session.close()
        assert isinstance(last.exception(20), SandboxError)


def test_closing_a_session_ends_the_cell_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that thread has not begun to wait."""
    with local_sandbox(slots=1) as sandbox, ThreadPoolExecutor(1) as pool:
        session = sandbox.session()
        wait = LocalSlot._wait_for_end

        def closed_before(*arguments: Any) -> Any:
            pool.submit(session.close).result(20)
            return wait(*arguments)

        monkeypatch.setattr(LocalSlot, "_wait_for_end", closed_before)
        with pytest.raises(SandboxError, match="another thread closed the session"):
            session.run("import time; time.sleep(60)")


def test_an_interrupted_cell_is_not_answered_by_the_next(session: SandboxSession) -> None:
    assert session.run("1").ok
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        session.run("import time; time.sleep(2); print('first')")
    with pytest.raises(SandboxError, match="its slot was lost"):
        session.run("print('second')")


def test_zombies_are_buried(session: SandboxSession) -> None:
    source = (
        "import os\nn = 0\nfor _ in range(100):\n"
        "    if os.fork() == 0:\n        if os.fork() == 0: os._exit(0)\n        os._exit(0)\n    os.wait(); n += 1\nn"
    )
    for _ in range(2):
        result = session.run(source, limits=Limits(processes=150, wall_s=60))
        assert result.stdout == b"100\n"


def test_a_session_that_cannot_begin_gives_its_slot_back_once(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    release = Pool.release
    monkeypatch.setattr(Pool, "release", lambda self, slot: (given.append(slot), release(self, slot))[1])

    def refuses(*_: object) -> None:
        raise SandboxError("cannot begin")

    with monkeypatch.context() as planted:
        planted.setattr(LocalSlot, "ask", refuses)
        with pytest.raises(SandboxError, match="cannot begin"):
            sandbox.session()
        gc.collect()
    assert len(given) == 1
    with sandbox.session() as session:
        assert session.run("1 + 1").stdout == b"2\n"


@pytest.mark.usefixtures("sandbox")
def test_a_session_that_nobody_closes_does_not_hold_up_the_end_of_its_process() -> None:
    script = (
        "from sandboxes.local import LocalSandbox\n"
        "session = LocalSandbox(slots=1, minimum_isolation='no-cgroup').session()\nprint(session.run('1').stdout)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == (b"b'1\\n'\n", b"")


def test_a_session_belongs_to_the_process_that_opened_it(session: SandboxSession) -> None:
    session.run("x = 5")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            try:
                session.run("x = 6")
            except SandboxError as error:
                session.close()
                os._exit("make a new one here" in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert session.run("x").stdout == b"5\n"
