"""/v1/run and /v1/sessions with their client: exact bytes, limits, sessions whose cells run once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_fakes import FakeSandbox, Running, running

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import LANGUAGES, Isolation, Limits, Program, RunResult
from sandboxes.client import RemoteSandbox
from sandboxes.service.wire import dump, load

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.from_regex(r"\A[a-zA-Z0-9_][a-zA-Z0-9_.]{0,9}\Z")
BYTES = st.binary(max_size=200)
PROGRAMS = st.builds(
    Program,
    source=TEXT,
    language=st.sampled_from(LANGUAGES),
    stdin=BYTES,
    files=st.dictionaries(NAMES, BYTES, max_size=3),
    fetch=st.lists(NAMES, max_size=3).map(tuple),
    arguments=st.lists(TEXT, max_size=3).map(tuple),
    environ=st.dictionaries(TEXT, TEXT, max_size=3),
)
SECONDS = st.floats(0, 1e6)
COUNTS = st.integers(0, 1 << 40)
LIMITS = st.builds(
    Limits,
    wall_s=SECONDS,
    compile_s=SECONDS,
    memory_mb=COUNTS,
    processes=COUNTS,
    output_bytes=COUNTS,
    files_mb=COUNTS,
)
ISOLATIONS = st.builds(Isolation, tier=TEXT, layers=st.lists(TEXT).map(tuple), missing=st.lists(TEXT).map(tuple))
FLAT = st.builds(
    RunResult,
    status=st.sampled_from(["ok", "error", "timeout", "memory", "output"]),
    exit_code=st.none() | st.integers(0, 300),
    signal=st.none() | st.integers(0, 64),
    stdout=BYTES,
    stderr=BYTES,
    stdout_dropped=COUNTS,
    stderr_dropped=COUNTS,
    wall_s=SECONDS,
    memory_peak_mb=st.none() | SECONDS,
    isolation=ISOLATIONS,
    files=st.dictionaries(TEXT, BYTES, max_size=3),
    compile=st.none(),
)
RESULTS = st.builds(replace, FLAT, compile=st.none() | FLAT)


@given(PROGRAMS)
def test_programs_survive_the_wire(program: Program) -> None:
    assert load(Program, dump(program), "program") == program


@given(LIMITS)
def test_limits_survive_the_wire(limits: Limits) -> None:
    assert load(Limits, dump(limits), "limits") == limits


@given(RESULTS)
def test_results_survive_the_wire(result: RunResult) -> None:
    assert load(RunResult, dump(result), "result") == result


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "good"}, "result.status must be one of ok"),
        ({"exit_code": "0"}, "result.exit_code"),
        ({"stdout": None}, "result.stdout"),
        ({"isolation": None}, "result.isolation"),
        ({"wall_s": float("nan")}, "result.wall_s"),
        ({"wall_s": -1.0}, "result.wall_s must be a finite number of 0 or more"),
        ({"memory_peak_mb": -1}, "result.memory_peak_mb"),
        ({"stderr_dropped": -1}, "result.stderr_dropped must be a whole number of 0 or more"),
        ({"stdout_dropped": True}, "result.stdout_dropped"),
        ({"compile": {}}, "result.status"),
    ],
)
def test_results_that_are_none_are_refused(change: dict[str, object], words: str) -> None:
    good = dump(RunResult(status="ok", exit_code=0, isolation=Isolation(tier="x", layers=())))
    assert load(RunResult, good | {"of_a_later_version": 1}, "result").ok
    with pytest.raises(ConfigError, match=words):
        load(RunResult, good | change, "result")


@pytest.mark.parametrize(("part", "name"), [({"stdin": "1 2"}, "stdin"), ({"files": {"a": "1 2"}}, r"files\['a'\]")])
def test_text_is_no_input(part: dict[str, Any], name: str) -> None:
    """It was sent as it was, and read as base64."""
    with pytest.raises(ConfigError, match=rf"{name} must be bytes, .*not .*'1 2'"):
        Program(source="1", **part)


@pytest.mark.parametrize("name", ["status", "exit_code", "stdout", "stderr", "isolation"])
def test_results_of_which_a_part_is_missing_are_refused(name: str) -> None:
    good = dump(RunResult(status="ok", exit_code=0, isolation=Isolation(tier="x", layers=())))
    del good[name]
    with pytest.raises(ConfigError, match=f"result.{name} is missing"):
        load(RunResult, good, "result")


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(slots=2, sessions=3, session_idle_s=60) as service:
        yield service


@pytest.fixture(scope="module")
def sandbox(service: Running) -> Iterator[RemoteSandbox]:
    with RemoteSandbox(service.url, timeout_s=20) as sandbox:
        yield sandbox


@settings(max_examples=60, deadline=None)
@given(
    stdin=st.binary(max_size=5000), files=st.dictionaries(NAMES, BYTES, max_size=4), words=st.lists(TEXT, max_size=3)
)
def test_bytes_come_back_as_they_went(
    sandbox: RemoteSandbox, stdin: bytes, files: dict[str, bytes], words: list[str]
) -> None:
    files = {path: content for path, content in files.items() if path not in (".", "..")}
    words = [word.replace("\0", "") for word in words]
    program = Program(source="#echo", stdin=stdin, files=files, fetch=tuple(files), arguments=tuple(words))
    result = sandbox.run(program)
    assert (result.stdout, result.files, result.ok) == (stdin, files, True)
    assert result.stderr == repr(tuple(words)).encode()


def test_what_a_program_does_is_a_result(sandbox: RemoteSandbox) -> None:
    assert sandbox.run(Program(source="raise SystemExit(3)")).exit_code == 3
    killed = sandbox.run(Program(source="import os; os.kill(os.getpid(), 9)"))
    assert (killed.status, killed.exit_code, killed.signal) == ("error", None, 9)
    assert sandbox.run(Program(source="#status memory")).status == "memory"
    failed = sandbox.run(Program(source="#compile-error", language="cpp"))
    assert failed.compile is not None
    assert failed.compile.stderr == b"expected ';'"
    slow = sandbox.run(Program(source="import time; time.sleep(5)"), limits=Limits(wall_s=0.3))
    assert slow.status == "timeout"
    cut = sandbox.run(Program(source="#echo", stdin=b"x" * 100), limits=Limits(output_bytes=10))
    assert (cut.stdout, cut.stdout_dropped) == (b"x" * 10, 90)


def test_a_death_that_nobody_can_explain_is_a_fault(sandbox: RemoteSandbox) -> None:
    with pytest.raises(SandboxError, match="died in the middle of a run"):
        sandbox.run(Program(source="#half-dead"), timeout_s=2)


def test_a_program_is_run_once_whatever_it_does(sandbox: RemoteSandbox) -> None:
    FakeSandbox.ran.clear()
    sandbox.run(Program(source="#status timeout"))
    sandbox.run(Program(source="raise SystemExit(1)"))
    ran = [source for source in FakeSandbox.ran if "importlib" not in source]  # a new worker's first program
    assert ran == ["#status timeout", "raise SystemExit(1)"]


def test_limits_above_the_services_are_refused_and_not_cut(sandbox: RemoteSandbox) -> None:
    with pytest.raises(ConfigError, match=r"limits.memory_mb must be above 0 and at most 4096"):
        sandbox.run(Program(source="1"), limits=Limits(memory_mb=10_000))


def test_a_backend_that_cannot_serve_a_language_says_so(sandbox: RemoteSandbox) -> None:
    with pytest.raises(ConfigError, match="no compiler is installed"):
        sandbox.run(Program(source="#refuse", language="cpp"))


def test_asynchronous_runs_share_the_connections() -> None:
    async def story(sandbox: RemoteSandbox) -> float:
        started = time.monotonic()
        runs = [sandbox.arun(Program(source="#sleep 0.3\nprint(1)")) for _ in range(4)]
        assert [result.stdout for result in await asyncio.gather(*runs)] == [b"1\n"] * 4
        return time.monotonic() - started

    with running(slots=4) as service, RemoteSandbox(service.url) as sandbox:
        # From two loops, one after the other.
        assert asyncio.run(story(sandbox)) < 3
        assert asyncio.run(story(sandbox)) < 3


def test_cancelling_a_run_ends_the_program() -> None:
    async def story(service: Running, sandbox: RemoteSandbox) -> None:
        task = asyncio.create_task(sandbox.arun(Program(source="#sleep 30")))
        while service.service.pool.running == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with running(slots=1, cancel_grace_s=0.1) as service, RemoteSandbox(service.url) as sandbox:
        asyncio.run(story(service, sandbox))
        service.wait_until(lambda: service.count("worker_restarts_total") == 1)
        assert sandbox.run(Program(source="#echo", stdin=b"next")).stdout == b"next"


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_keeps_names_and_files(sandbox: RemoteSandbox) -> None:
    with sandbox.session() as session:
        assert session.run("x = 20").ok
        assert session.run("print(x + 1)").stdout == b"21\n"
        failed = session.run("print('so far')\nraise ValueError('no')")
        assert (failed.exit_code, failed.stdout) == (1, b"so far\n")
        content = bytes(range(256)) * 3
        session.upload("data/a.bin", content)
        assert session.download("data/a.bin") == content
        with pytest.raises(ConfigError, match="no file 'b'"):
            session.download("b")
        with pytest.raises(ConfigError, match="below the working folder"):
            session.upload("../a", b"")
        assert asyncio.run(session.arun("print(x)")).stdout == b"20\n"
    with pytest.raises(SandboxError, match="has been closed"):
        session.run("1")


def test_a_cell_that_is_sent_twice_runs_once(service: Running) -> None:
    name = service.post("/v1/sessions", {}).json()["id"]
    FakeSandbox.ran.clear()
    path = f"/v1/sessions/{name}/run"
    first = {"source": "n = globals().get('n', 0) + 1; print(n)", "number": 1}
    assert [service.post(path, first).json()["result"]["stdout"] for _ in range(2)] == ["MQo="] * 2
    assert len(FakeSandbox.ran) == 1
    # Also when the first client left before the answer.
    slow = {"source": "#sleep 0.5\nn = n + 1; print(n)", "number": 2}
    with pytest.raises(httpx.ReadTimeout):
        service.post(path, slow, timeout=0.1)
    assert service.post(path, slow).json()["result"]["stdout"] == "Mgo="
    assert len(FakeSandbox.ran) == 2
    for number in (1, 4, 7):
        wrong = service.post(path, {"source": "1", "number": number})
        assert (wrong.status_code, wrong.json()["kind"]) == (409, "order")
    for wrong_number in (0, "1", None, True, 1.5):
        assert service.post(path, {"source": "1", "number": wrong_number}).status_code == 422
    service.close_sessions()


def test_sessions_are_counted_and_bounded(service: Running) -> None:
    patience = RemoteSandbox(service.url, timeout_s=0.6)
    before = FakeSandbox.made - FakeSandbox.closed
    with patience:
        opened = [patience.session() for _ in range(3)]
        with pytest.raises(DeadlineExceededError, match="3 sessions are open already"):
            patience.session()
        assert service.get("/v1/health").json()["sessions"] == 3
        # They do not take the slots of programs.
        assert patience.run(Program(source="#echo", stdin=b"free")).stdout == b"free"
        for session in opened:
            session.close()
            session.close()
        assert service.get("/v1/health").json()["sessions"] == 0
        service.wait_until(lambda: FakeSandbox.made - FakeSandbox.closed == before)


def test_a_session_whose_worker_died_is_lost_and_said_to_be(sandbox: RemoteSandbox, service: Running) -> None:
    with sandbox.session() as session:
        assert session.run("x = 1").ok
        with pytest.raises(SandboxError):
            session.run("#fault")
        with pytest.raises(SandboxError, match="lost"):
            session.run("print(x)")
    assert service.get("/v1/health").json()["sessions"] == 0
    with pytest.raises(SandboxError, match="lost"):
        type(session)(sandbox, "no-such-name", Limits()).run("1")


def test_sessions_that_are_not_used_end() -> None:
    with running(session_idle_s=0.2) as service, RemoteSandbox(service.url) as sandbox:
        session = sandbox.session()
        for _ in range(4):
            time.sleep(0.1)
            assert session.run("1").ok
        assert session.run("#sleep 0.7\nprint('long')").stdout == b"long\n"
        service.wait_until(lambda: len(service.service.sessions) == 0)
        service.wait_until(lambda: FakeSandbox.made - FakeSandbox.closed == 2)
        with pytest.raises(SandboxError, match="lost"):
            session.run("1")


def test_sessions_end_with_the_service() -> None:
    with running() as service:
        with RemoteSandbox(service.url) as sandbox:
            sandbox.session()
        service.stop()
        assert FakeSandbox.made == FakeSandbox.closed == 3
