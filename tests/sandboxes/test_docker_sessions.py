"""The Docker sandbox on a real engine: sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker_place import kill, open_sandbox, run_python, workers

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Limits
from sandboxes.docker import DockerSandbox

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerSandbox]:
    with open_sandbox() as made:
        yield made


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
    assert run_python(sandbox, "import os; print(os.listdir('.'))").stdout == b"['main.py']\n"


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
            with pytest.raises(ConfigError, match="no plain file"):
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
        (mine,) = workers(sandbox)
        kill(mine)
        with pytest.raises(SandboxError):
            session.run("1")
        with pytest.raises(SandboxError, match="open another"):
            session.run("1")
    assert run_python(sandbox, "print(1)").stdout == b"1\n"


def test_a_cell_whose_limit_is_below_what_the_session_holds(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        assert session.run("held = b'x' * (200 << 20)").ok
        low = session.run("print(len(held))", limits=Limits(memory_mb=64))
        assert (low.status, low.stdout) == ("memory", b"")
        assert session.run("'held' in globals()").stdout == b"False\n"
