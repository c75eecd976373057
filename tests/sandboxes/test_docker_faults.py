"""The Docker sandbox on a real engine: slots, containers that die, engines that stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_place import IMAGE, container_ids, exit_code, kill, open_sandbox, run_python, workers

from roll_envs.errors import DeadlineExceededError, SandboxError
from roll_envs.sandbox import Limits, Program
from sandboxes.docker import DockerSandbox, engine

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerSandbox]:
    with open_sandbox() as made:
        yield made


# -- slots -------------------------------------------------------------------------------------------------------------


def test_waiting_for_a_slot_has_a_deadline(sandbox: DockerSandbox) -> None:
    with sandbox.session() as session:
        started = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="slot"):
            sandbox.run(Program(source="print(1)"), timeout_s=0.5)
        assert 0.4 < time.monotonic() - started < 2
        assert session.run("1 + 1").stdout == b"2\n"
    assert run_python(sandbox, "print(1)").stdout == b"1\n"


def test_a_deadline_before_the_programs_own_limit_is_no_verdict(sandbox: DockerSandbox) -> None:
    with pytest.raises(DeadlineExceededError, match="own limit is longer"):
        sandbox.run(Program(source="import time; time.sleep(60)"), limits=Limits(wall_s=30), timeout_s=1)
    assert run_python(sandbox, "print(1)").stdout == b"1\n"


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
        assert len(workers(sandbox)) == 2
        assert workers(sandbox) <= container_ids(running=True)


def test_close_removes_the_containers_and_ends_programs() -> None:
    sandbox = open_sandbox(slots=2)
    while len(mine := workers(sandbox)) < 2:  # the constructor waits for the first
        time.sleep(0.1)
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
    (mine,) = workers(sandbox)
    killer = threading.Timer(0.7, kill, [mine])
    killer.start()
    with pytest.raises(SandboxError, match="ended during"):
        sandbox.run(Program(source="import time; time.sleep(60)"), limits=Limits(wall_s=30))
    killer.join()
    assert run_python(sandbox, "print(1)").stdout == b"1\n"
    (mine,) = workers(sandbox)
    kill(mine)  # at rest: the next caller sees nothing of it
    assert run_python(sandbox, "print(2)").stdout == b"2\n"


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

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            time.sleep(1)
            while not (running := workers(sandbox) & container_ids(running=True)):  # both are made anew
                time.sleep(0.1)
            kill(running.pop())
        going_on.clear()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert set(answers) == {b"0\n", b"1\n", b"2\n", b"3\n"}
        assert len(faults) <= 8
        assert run_python(sandbox, "print(5)").stdout == b"5\n"


def test_containers_of_a_dead_parent_end_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert orphan in container_ids()  # too young: its owner might be about to start it
    monkeypatch.setattr(engine, "LEFT_S", 0)
    with open_sandbox() as other:
        deadline = time.monotonic() + 30
        while orphan in container_ids():  # the engine prunes for one process at a time: for another one just now
            assert time.monotonic() < deadline
            open_sandbox().close()
        assert workers(other) <= container_ids(running=True)


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
        assert run_python(sandbox, "print(1)").stdout == b"1\n"
