"""RemoteSandbox: what it repeats and what not, deadlines, servers that die, plain SandboxFusion servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from service_fakes import FakeSandbox, running

from roll_envs.errors import ConfigError, DeadlineExceededError, RollError, SandboxError
from roll_envs.sandbox import Limits, Program, RunResult, make_sandbox
from sandboxes.client import RemoteSandbox
from sandboxes.client.retrying import FIRST_PAUSE_S
from sandboxes.service.wire import dump

PRINT = Program(source="print(1)")
FINE = {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": "1\n", "stderr": ""}
SUCCESS: dict[str, Any] = {"status": "Success", "message": "", "compile_result": None, "run_result": FINE, "files": {}}
HEALTH = {"service": "roll-sandbox", "api": 1, "status": "ok"}

Step = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]


class Scripted:
    """A server that answers the questions one after another from a list; the last answer is repeated."""

    def __init__(self, steps: list[Step], *, health: Any = None) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                outer.times.append(time.monotonic())
                outer.headers.append(dict(self.headers))
                step = steps.pop(0) if len(steps) > 1 else steps[0]
                if callable(step):
                    step(self)
                else:
                    self.reply(*step)

            def do_GET(self) -> None:
                self.reply(*((404, {"detail": "Not Found"}) if health is None else (200, health)))

            def reply(self, status: int, data: Any, **headers: str) -> None:
                content = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@contextlib.contextmanager
def scripted(*steps: Step, health: Any = None, **options: Any) -> Iterator[tuple[Scripted, RemoteSandbox]]:
    server = Scripted(list(steps), health=health)
    sandbox = RemoteSandbox(server.url, **options)
    try:
        yield server, sandbox
    finally:
        sandbox.close()
        server.close()


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def _cut_short(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"status": "Success"')
    handler.wfile.flush()
    _hang_up(handler)


# -- plain SandboxFusion -----------------------------------------------------------------------------------------------


def test_a_plain_sandbox_fusion_server_is_recognised_and_asked_in_its_words() -> None:
    with scripted((200, SUCCESS | {"files": {"out": "YWI="}})) as (server, sandbox):
        program = Program(source="1", language="javascript", stdin=b"in", files={"a": b"\xff"}, fetch=("out",))
        result = sandbox.run(program, limits=Limits(wall_s=3, memory_mb=64, compile_s=4))
        assert (result.ok, result.exit_code, result.stdout, result.files) == (True, 0, b"1\n", {"out": b"ab"})
        assert result.isolation.tier == "unknown"
        ((path, body),) = server.asked
        assert path == "/run_code"
        assert body == {
            "code": "1",
            "language": "nodejs",
            "stdin": "in",
            "files": {"a": "/w=="},
            "fetch_files": ["out"],
            "compile_timeout": 4,
            "run_timeout": 3,
            "memory_limit_MB": 64,
        }


@pytest.mark.parametrize(
    ("answer", "status", "exit_code", "signal"),
    [
        ({"status": "Failed", "run_result": FINE | {"return_code": 2}}, "error", 2, None),
        ({"status": "Failed", "run_result": FINE | {"return_code": -11}}, "error", None, 11),
        (
            {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": None}},
            "timeout",
            None,
            None,
        ),
        ({"status": "Failed", "compile_result": FINE | {"return_code": 1}, "run_result": None}, "error", None, None),
    ],
)
def test_what_a_program_did_is_read_and_never_asked_again(
    answer: dict[str, Any], status: str, exit_code: int | None, signal: int | None
) -> None:
    with scripted((200, SUCCESS | answer)) as (server, sandbox):
        result = sandbox.run(PRINT)
        assert (result.status, result.exit_code, result.signal) == (status, exit_code, signal)
        assert len(server.asked) == 1
        assert (result.compile is not None) == ("compile_result" in answer)


@pytest.mark.parametrize(
    "program",
    [
        Program(source="1", arguments=("a",)),
        Program(source="1", environ={"A": "b"}),
        Program(source="1", stdin=b"\xff"),
    ],
)
def test_what_sandbox_fusion_cannot_say_is_refused(program: Program) -> None:
    with scripted((200, SUCCESS)) as (server, sandbox), pytest.raises(ConfigError, match="roll-sandbox serve"):
        sandbox.run(program)
    assert server.asked == []


def test_sandbox_fusion_has_no_sessions() -> None:
    with scripted((200, SUCCESS)) as (_, sandbox), pytest.raises(ConfigError, match="keeps nothing from call to call"):
        sandbox.session()


def test_output_beyond_the_limit_is_cut_and_counted() -> None:
    with scripted((200, SUCCESS)) as (_, sandbox):
        result = sandbox.run(PRINT, limits=Limits(output_bytes=1))
        assert (result.stdout, result.stdout_dropped) == (b"1", 1)


def test_our_service_can_be_asked_in_both_forms() -> None:
    with running() as service:
        for api in ("auto", "native", "fusion"):
            with RemoteSandbox(service.url, api=api) as sandbox:
                assert sandbox.run(Program(source="print('ж' * 3)")).stdout == "жжж\n".encode()
                assert sandbox.run(Program(source="import os; os.kill(os.getpid(), 11)")).signal == 11
                assert sandbox.run(Program(source="#compile-error", language="cpp")).compile is not None
        counts = [service.count("requests_total", route=route, status="200") for route in ("/v1/run", "/run_code")]
        assert counts == [6, 3]


# -- faults ------------------------------------------------------------------------------------------------------------

TROUBLE: list[Step] = [
    (429, {"detail": "full"}),
    (502, b"<html>bad gateway</html>"),
    (503, {"detail": "draining"}),
    (504, {"detail": "no slot"}),
    (200, {"status": "SandboxError", "message": "the worker died"}),
    (200, b"not json"),
    (200, {}),
    (200, []),
    (200, {"status": "Success"}),
    (200, SUCCESS | {"run_result": None}),
    (200, SUCCESS | {"run_result": FINE | {"return_code": 1}}),
    (200, SUCCESS | {"run_result": FINE | {"return_code": None}}),
    (200, SUCCESS | {"run_result": FINE | {"status": "Error"}}),
    (200, SUCCESS | {"status": "Failed"}),
    (200, SUCCESS | {"files": {"a": "?"}}),
    (200, SUCCESS | {"status": "Marvellous"}),
    _hang_up,
    _cut_short,
]


@pytest.mark.parametrize("trouble", TROUBLE, ids=range(len(TROUBLE)))
def test_a_fault_is_asked_again_and_the_answer_counts(trouble: Step) -> None:
    with scripted(trouble, (200, SUCCESS)) as (server, sandbox):
        assert sandbox.run(PRINT).stdout == b"1\n"
        assert len(server.asked) == 2


@pytest.mark.parametrize("trouble", TROUBLE, ids=range(len(TROUBLE)))
def test_a_fault_that_stays_is_never_a_result(trouble: Step) -> None:
    with scripted(trouble, retries=1) as (server, sandbox):
        started = time.monotonic()
        with pytest.raises((SandboxError, DeadlineExceededError)) as raised:
            sandbox.run(PRINT, timeout_s=0.6)
        assert time.monotonic() - started < 3
        assert server.url in str(raised.value)
        # For want of a slot the deadline decides, else the number of tries.
        waited = isinstance(trouble, tuple) and trouble[0] in (429, 504)
        assert isinstance(raised.value, DeadlineExceededError if waited else SandboxError)
        assert len(server.asked) > 2 if waited else len(server.asked) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422])
def test_a_refusal_is_not_asked_again(status: int) -> None:
    with scripted((status, {"detail": "because of this"})) as (server, sandbox):
        with pytest.raises(ConfigError) as raised:
            sandbox.run(PRINT)
        assert len(server.asked) == 1
        assert "because of this" in str(raised.value) or status == 404


def test_a_failure_of_the_server_is_a_sandbox_error() -> None:
    with scripted((500, {"detail": "oops"})) as (server, sandbox), pytest.raises(SandboxError, match="500: oops"):
        sandbox.run(PRINT)
    assert len(server.asked) == 1


def test_pauses_grow_and_follow_retry_after() -> None:
    def full(handler: Any) -> None:
        handler.reply(503, {"detail": "later"}, Retry_After="1")

    bad: Step = (503, {"detail": "now"})
    with scripted(bad, bad, full, (200, SUCCESS)) as (server, sandbox):
        assert sandbox.run(PRINT).ok
        pauses = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
        assert 0.5 * FIRST_PAUSE_S <= pauses[0] < FIRST_PAUSE_S + 0.3
        assert FIRST_PAUSE_S <= pauses[1] < 2 * FIRST_PAUSE_S + 0.3
        assert 1.0 <= pauses[2] < 1.8


def test_the_time_that_is_left_is_told_to_the_service() -> None:
    result = {"result": dump(_ok())}
    slow: Step = (503, {"detail": "x"})
    with scripted(slow, (200, result), health=HEALTH) as (server, sandbox):
        assert sandbox.run(PRINT, limits=Limits(wall_s=2), timeout_s=20).ok
        first, second = (body["timeout_s"] for _, body in server.asked)
        # 20 s less 5 for the way back and 2 for the program; then less the pause.
        assert 12.5 < second < first <= 13.0


def test_another_version_of_the_service_is_named() -> None:
    with scripted((200, {}), health=HEALTH | {"api": 2}) as (_, sandbox), pytest.raises(ConfigError, match="version 2"):
        sandbox.run(PRINT)


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with scripted((200, SUCCESS), retries=0) as (server, sandbox):
        assert sandbox.run(PRINT).ok
        assert len(server.asked) == 1


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            RemoteSandbox(url, retries=2) as sandbox,
            pytest.raises(SandboxError, match=r"tried 3 times: ConnectError"),
        ):
            sandbox.run(PRINT)


def test_a_server_that_accepts_and_says_nothing_costs_the_deadline_and_no_more() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for api in ("auto", "native", "fusion"):
            with RemoteSandbox(url, api=api) as sandbox:
                started = time.monotonic()
                with pytest.raises(DeadlineExceededError, match=url):
                    sandbox.run(PRINT, timeout_s=0.4)
                assert 0.3 < time.monotonic() - started < 2


def test_a_server_that_is_killed_in_the_middle() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from service_fakes import FakeSandbox\nfrom sandboxes.service.app import make_app\n"
        "from sandboxes.service.server import make_server\nfrom sandboxes.service.settings import Settings\n"
        "FakeSandbox.reset(); s = Settings(port=0, slots=4); make_server(make_app(FakeSandbox, s), s).run()\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[3]
        with RemoteSandbox(url, retries=2) as sandbox, ThreadPoolExecutor(4) as threads:
            assert sandbox.run(PRINT).ok
            session = sandbox.session()
            asked = [threads.submit(sandbox.run, Program(source="#sleep 20")) for _ in range(3)]
            cell = threads.submit(session.run, "#sleep 20")
            time.sleep(0.5)
            assert not any(each.done() for each in [*asked, cell])
            process.kill()
            started = time.monotonic()
            for each in [*asked, cell]:
                assert isinstance(each.exception(timeout=15), SandboxError)
            assert time.monotonic() - started < 10
            session.close()


def test_many_threads_share_few_connections() -> None:
    with running(slots=2) as service, RemoteSandbox(service.url, max_connections=3) as sandbox:
        most = 0

        def run(n: int) -> bytes:
            nonlocal most
            result = sandbox.run(Program(source="#echo", stdin=str(n).encode()))
            most = max(most, len(service.connections))
            return result.stdout

        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(run, range(200))) == [str(n).encode() for n in range(200)]
        assert 1 <= most <= 4


# -- life --------------------------------------------------------------------------------------------------------------


def test_it_is_made_by_name_and_from_any_form_of_url() -> None:
    with running() as service:
        for suffix in ("", "/", "/run_code", "/run_code/", "/v1/run"):
            with make_sandbox("remote", url=service.url + suffix) as sandbox:
                assert sandbox.run(PRINT).ok


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("127.0.0.1:8080", {}, "url must be like"),
        ("ftp://x", {}, "url must be like"),
        ("http://", {}, "url must be like"),
        ("http://x", {"api": "soap"}, "api should be 'auto', 'native' or 'fusion'"),
        ("http://x", {"timeout_s": 0}, "timeout_s"),
        ("http://x", {"retries": -1}, "retries"),
        ("http://x", {"max_connections": 0}, "max_connections"),
        ("http://x", {"token": "a\nb"}, "token"),
    ],
)
def test_arguments_are_checked(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_sandbox("remote", url=url, **options)


def test_a_closed_one_says_so_to_those_who_wait_and_those_who_come() -> None:
    with running(slots=4) as service, ThreadPoolExecutor(2) as threads:
        sandbox = RemoteSandbox(service.url)
        assert sandbox.run(PRINT).ok
        asked = threads.submit(sandbox.run, Program(source="#sleep 20"))
        waiting = threads.submit(lambda: asyncio.run(sandbox.arun(Program(source="#sleep 20"))))
        service.wait_until(lambda: service.service.pool.running == 2)
        sandbox.close()
        sandbox.close()
        for each in (asked, waiting):
            assert isinstance(each.exception(timeout=10), SandboxError)
        with pytest.raises(SandboxError, match="has been closed"):
            sandbox.run(PRINT)
        with pytest.raises(SandboxError, match="has been closed"):
            asyncio.run(sandbox.arun(PRINT))


def test_it_can_be_pickled() -> None:
    with running(tokens=("t" * 20,)) as service, RemoteSandbox(service.url, token="t" * 20) as sandbox:
        assert sandbox.run(PRINT).ok
        with pickle.loads(pickle.dumps(sandbox)) as copy:
            assert copy.run(PRINT).ok
        assert sandbox.run(PRINT).ok
    options: dict[str, Any] = {"timeout_s": 7.0, "retries": 2, "max_connections": 3}
    sandbox = RemoteSandbox("http://127.0.0.1:1", **options)
    with pickle.loads(pickle.dumps(sandbox)) as copy:
        assert {name: getattr(copy, name) for name in options} == options
    sandbox.close()
    with pytest.raises(SandboxError, match="has been closed"):
        pickle.loads(pickle.dumps(sandbox)).run(PRINT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_it_works_after_a_fork() -> None:
    script = (
        "import os, sys, warnings\nfrom roll_envs.sandbox import Program\nfrom sandboxes.client import RemoteSandbox\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "s = RemoteSandbox(sys.argv[1])\nassert s.run(Program(source='print(1)')).ok\npid = os.fork()\n"
        "ok = s.run(Program(source='print(2)')).stdout == b'2\\n'\n"
        "if pid == 0:\n    s.close(); os._exit(0 if ok else 1)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]); s.close(); sys.exit(status or not ok)\n"
    )
    with running() as service:
        command = [sys.executable, "-c", script, service.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_every_error_is_of_the_one_tree() -> None:
    for trouble in TROUBLE:
        with scripted(trouble, retries=0) as (_, sandbox), pytest.raises(RollError):
            sandbox.run(PRINT, timeout_s=0.2)


def _ok() -> RunResult:
    FakeSandbox.reset()
    sandbox = FakeSandbox()
    return sandbox.run(Program(source="#echo"))
