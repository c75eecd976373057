"""The queue and the workers: back-pressure, deadlines, cancelled work, replaced workers, draining."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from service_fakes import FakeSandbox, Running, request_bytes, running
from starlette.requests import Request

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Program, Sandbox
from roll_envs.settings import checked_arguments
from sandboxes.service.app import make_app
from sandboxes.service.messages import Bodies
from sandboxes.service.pool import DrainingError, Pool, QueueFullError
from sandboxes.service.server import make_server
from sandboxes.service.settings import Settings


def _sleep(seconds: float) -> dict[str, Any]:
    return {"code": f"#sleep {seconds}", "language": "python", "run_timeout": 30}


QUICK = {"code": "#echo", "language": "python"}


def _in_thread(work: Callable[[], Any]) -> Any:
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(work)
    finally:
        executor.shutdown(wait=False)


def _metric(service: Running, line: str) -> float:
    (found,) = [text for text in service.get("/metrics").text.splitlines() if text.startswith(line + " ")]
    return float(found.rpartition(" ")[2])


def test_a_full_queue_is_429_with_a_time_to_come_back() -> None:
    with running(slots=1, queue=1) as service:
        first = _in_thread(lambda: service.post("/run_code", _sleep(3)))
        service.wait_until(lambda: service.service.pool.running == 1)
        second = _in_thread(lambda: service.post("/run_code", QUICK))
        service.wait_until(lambda: service.service.pool.waiting == 1)
        for path in ("/run_code", "/v1/run"):
            third = service.post(path, QUICK | {"program": {"source": "#echo"}})
            assert third.status_code == 429
            assert int(third.headers["retry-after"]) >= 1
            assert third.json()["kind"] == "queue_full"
        assert _metric(service, "roll_sandbox_queue_length") == 1
        assert first.result().status_code == second.result().status_code == 200
        assert _metric(service, 'roll_sandbox_requests_total{route="/run_code",status="429"}') == 1


def test_a_full_queue_can_be_504_for_clients_that_only_repeat_that() -> None:
    with running(slots=1, queue=0, full_status=504) as service:
        first = _in_thread(lambda: service.post("/run_code", _sleep(3)))
        service.wait_until(lambda: service.service.pool.running == 1)
        assert service.post("/run_code", QUICK).status_code == 504
        assert service.post("/v1/run", {"program": {"source": "#echo"}, "timeout_s": 5}).status_code == 429
        assert first.result().status_code == 200


def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    with running(slots=1, max_held_bytes=10_000) as service:
        first = _in_thread(lambda: service.post("/run_code", _sleep(3) | {"stdin": "x" * 6000}))
        service.wait_until(lambda: service.service.pool.running == 1)
        refused = service.post("/run_code", QUICK | {"stdin": "x" * 6000})
        assert (refused.status_code, refused.json()["kind"]) == (429, "queue_full")
        small = _in_thread(lambda: service.post("/run_code", QUICK | {"stdin": "x" * 1000}))
        assert first.result().status_code == small.result().status_code == 200
        assert service.post("/run_code", QUICK | {"stdin": "x" * 6000}).status_code == 200
        assert service.service.bodies.held_bytes == 0


def test_a_body_in_a_hundred_thousand_parts_takes_no_memory_for_each() -> None:
    bodies = Bodies(Settings())
    came = 0

    async def receive() -> dict[str, Any]:
        nonlocal came
        came += 1
        part = b'{"' if came == 1 else b'":1}' if came == 100_000 else b"x"
        return {"type": "http.request", "body": part, "more_body": came < 100_000}

    async def story() -> None:
        headers = [(b"content-type", b"application/json")]
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        async with bodies.read(request) as data:
            assert data == {"x" * 99_998: 1}
            assert bodies.held_bytes == 100_004
            # The body, and what was read from it.
            assert tracemalloc.get_traced_memory()[0] < 400_000

    tracemalloc.start()
    try:
        asyncio.run(story())
    finally:
        tracemalloc.stop()
    assert bodies.held_bytes == 0


def test_a_wait_that_is_too_long_is_504() -> None:
    with running(slots=1, queue_timeout_s=0.2) as service:
        first = _in_thread(lambda: service.post("/run_code", _sleep(1.5)))
        service.wait_until(lambda: service.service.pool.running == 1)
        before = time.monotonic()
        late = service.post("/run_code", QUICK)
        assert late.status_code == 504
        assert 0.15 < time.monotonic() - before < 1.2
        assert "one of 1 slots" in late.json()["detail"]
        assert service.post("/v1/run", {"program": {"source": "#echo"}, "timeout_s": 0.1}).status_code == 504
        # A longer patience of its own gets a slot.
        assert service.post("/v1/run", {"program": {"source": "#echo"}, "timeout_s": 10}).status_code == 200
        assert first.result().status_code == 200
        assert service.service.pool.waiting == 0


def test_waiters_are_served_in_order() -> None:
    with running(slots=1) as service:
        first = _in_thread(lambda: service.post("/run_code", _sleep(2.0)))
        service.wait_until(lambda: service.service.pool.running == 1)
        waiting = []
        for number in range(5):
            body = {"code": f"#echo {number}", "language": "python"}
            waiting.append(_in_thread(lambda body=body: service.post("/run_code", body)))
            service.wait_until(lambda number=number: service.service.pool.waiting == number + 1)
        assert {each.result().status_code for each in [first, *waiting]} == {200}
        assert [code for code in FakeSandbox.ran if code.startswith("#echo ")] == [f"#echo {n}" for n in range(5)]


def _leave(service: Running, body: dict[str, Any], condition: Callable[[], bool]) -> None:
    """Ask, and go away once ``condition`` holds."""
    with socket.create_connection(service.address, timeout=10) as connection:
        connection.sendall(request_bytes("/run_code", body))
        service.wait_until(condition)


def test_clients_that_leave_the_queue_free_their_place() -> None:
    with running(slots=1) as service:
        pool = service.service.pool
        first = _in_thread(lambda: service.post("/run_code", _sleep(1.5)))
        service.wait_until(lambda: pool.running == 1)
        _leave(service, {"code": "#echo never", "language": "python"}, lambda: pool.waiting == 1)
        service.wait_until(lambda: pool.waiting == 0)
        assert first.result().status_code == 200
        assert service.post("/run_code", QUICK).status_code == 200
        assert "#echo never" not in FakeSandbox.ran
        assert service.count("cancelled_total") == 1


def test_a_program_whose_client_left_is_ended_and_its_worker_replaced() -> None:
    with running(slots=1, cancel_grace_s=0.1) as service:
        pool = service.service.pool
        before = time.monotonic()
        _leave(service, _sleep(30), lambda: pool.running == 1)
        service.wait_until(lambda: service.count("worker_restarts_total") == 1)
        answer = service.post("/run_code", {"code": "print(1)", "language": "python"}).json()
        assert answer["status"] == "Success"
        assert time.monotonic() - before < 10
        assert pool.alive == 1
        assert FakeSandbox.made - FakeSandbox.closed == 1


def test_a_short_rest_of_a_program_whose_client_left_is_awaited() -> None:
    with running(slots=1, cancel_grace_s=5.0) as service:
        _leave(service, _sleep(0.4), lambda: service.service.pool.running == 1)
        assert service.post("/run_code", QUICK).status_code == 200
        assert service.count("worker_restarts_total") == 0
        assert FakeSandbox.made == 1


def test_faulty_workers_are_replaced_and_nothing_is_lost() -> None:
    with running(slots=2) as service, ThreadPoolExecutor(8) as clients:
        bodies = []
        for n in range(30):
            fault = f"#fault-once {n}\n" if n % 3 == 0 else ""
            bodies.append({"code": f"{fault}print({n})", "language": "python"})
        answers = list(clients.map(lambda body: service.post("/run_code", body).json(), bodies))
        assert [answer["run_result"]["stdout"] for answer in answers] == [f"{n}\n" for n in range(30)]
        service.wait_until(lambda: service.service.pool.alive == 2)
        assert service.count("worker_restarts_total") == 10
        assert FakeSandbox.made - FakeSandbox.closed == 2
        assert _metric(service, "roll_sandbox_worker_restarts_total") == 10


def test_when_no_worker_can_be_made_requests_wait_and_health_says_so() -> None:
    allowed = threading.Event()
    allowed.set()

    class Fragile(FakeSandbox):
        def __init__(self) -> None:
            if not allowed.is_set():
                raise SandboxError("the host is out of memory")
            super().__init__()

    FakeSandbox.reset()
    with running(Fragile, slots=1, attempts=1, queue_timeout_s=0.3) as service:
        allowed.clear()
        assert service.post("/run_code", {"code": "#fault", "language": "python"}).json()["status"] == "SandboxError"
        assert service.post("/run_code", QUICK).status_code == 504
        health = service.get("/v1/health")
        assert (health.status_code, health.json()["status"]) == (503, "no_workers")
        allowed.set()
        service.wait_until(lambda: service.service.pool.alive == 1)
        assert service.get("/v1/health").status_code == 200
        assert service.post("/run_code", QUICK).status_code == 200


def test_a_worker_that_does_not_come_back_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.service.pool.OVERRUN_S", 0.1)
    monkeypatch.setattr("sandboxes.service.pool.RUN_MARGIN_S", 0.1)
    with running(slots=1, attempts=1) as service:
        body = {"code": "#stuck 2", "language": "python", "run_timeout": 0.2}
        before = time.monotonic()
        answer = service.post("/run_code", body).json()
        assert answer["status"] == "SandboxError"
        assert "did not come back within 0.4 s" in answer["message"]
        assert time.monotonic() - before < 1.5
        assert service.post("/run_code", QUICK).json()["status"] == "Success"


def test_a_backend_that_cannot_be_made_stops_the_start() -> None:
    class Broken(FakeSandbox):
        def __init__(self) -> None:
            raise SandboxError("no user namespaces here")

    async def start() -> None:
        pool = Pool(Broken, Settings(slots=2), CollectorRegistry())
        with pytest.raises(SandboxError, match="no user namespaces"):
            await pool.start()

    asyncio.run(start())


def test_a_backend_that_answers_wrongly_is_not_put_to_work() -> None:
    class Liar(FakeSandbox):
        def run(self, program: Program, **_: Any) -> Any:
            return super().run(Program(source="print('something else')"))

    FakeSandbox.reset()

    async def start() -> None:
        with pytest.raises(SandboxError, match="failed its first program"):
            await Pool(Liar, Settings(slots=1), CollectorRegistry()).start()

    asyncio.run(start())
    assert (FakeSandbox.made, FakeSandbox.closed) == (1, 1)


def test_leases_of_the_pool_alone() -> None:
    """Full, draining, a wait that was cancelled in the moment a worker came: nothing is lost and nothing leaks."""
    FakeSandbox.reset()

    async def story() -> None:
        pool = Pool(FakeSandbox, Settings(slots=1, queue=2), CollectorRegistry())
        await pool.start()
        async with pool.lease(1.0):
            waiters = [asyncio.create_task(_hold(pool)) for _ in range(2)]
            await asyncio.sleep(0)
            assert pool.waiting == 2
            with pytest.raises(QueueFullError, match="2 requests wait"):
                await _hold(pool)
            waiters[0].cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        assert waiters[1].result() is None
        async with pool.lease(0.0):
            with pytest.raises(DeadlineExceededError):
                await _hold(pool, 0.0)
        # Handed over and cancelled in the same turn of the loop.
        lease = pool.lease(1.0)
        await lease.__aenter__()
        waiter = asyncio.create_task(_hold(pool))
        await asyncio.sleep(0)
        await lease.__aexit__(None, None, None)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert (pool.running, pool.waiting) == (0, 0)
        await _hold(pool)
        pool.drain()
        with pytest.raises(DrainingError):
            await _hold(pool)
        with pytest.raises(DrainingError, match="opens no sessions"):
            await pool.make_extra()
        await pool.close()
        await pool.close()

    asyncio.run(story())
    assert FakeSandbox.made == FakeSandbox.closed == 1


def test_no_second_attempt_begins_when_the_wait_is_over() -> None:
    FakeSandbox.reset()
    begun: list[float] = []

    def dies(sandbox: Sandbox) -> None:
        begun.append(time.monotonic())
        time.sleep(0.3)
        raise SandboxError("it died")

    async def story() -> None:
        pool = Pool(FakeSandbox, Settings(slots=2, attempts=2), CollectorRegistry())
        await pool.start()
        for wait_s, times in ((0.1, 1), (20.0, 2)):
            begun.clear()
            with pytest.raises(SandboxError, match="it died"):
                await pool.run(dies, wait_s=wait_s, work_s=1.0)
            assert len(begun) == times
        await pool.close()

    asyncio.run(story())


def test_the_server_is_made_with_the_settings() -> None:
    settings = Settings(max_connections=7, keep_alive_s=3.0, host="127.0.0.1", port=0)
    config = make_server(make_app(FakeSandbox, settings), settings).config
    assert (config.limit_concurrency, config.backlog, config.timeout_keep_alive) == (7, 7, 3)
    assert (config.server_header, config.access_log, config.ws) == (False, False, "none")


async def _hold(pool: Pool, timeout_s: float = 1.0) -> None:
    async with pool.lease(timeout_s):
        await asyncio.sleep(0)


def test_a_session_whose_client_left_while_it_was_made_is_not_kept() -> None:
    with running(slots=1) as service:
        FakeSandbox.slow_s = 0.5
        with pytest.raises(httpx.ReadTimeout):
            service.post("/v1/sessions", {}, timeout=0.1)
        service.wait_until(lambda: (FakeSandbox.made, FakeSandbox.closed) == (2, 1))
        assert len(service.service.sessions) == 0


def test_workers_that_are_being_made_at_the_end_are_ended() -> None:
    with running(slots=1, attempts=1) as service:
        FakeSandbox.slow_s = 0.5
        service.post("/run_code", {"code": "#fault", "language": "python"})
        _in_thread(lambda: _outcome(lambda: service.post("/v1/sessions", {})))
        service.wait_until(lambda: service.service.sessions._opening == 1)
    assert (FakeSandbox.made, FakeSandbox.closed) == (3, 3)


def test_the_whole_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.service.app.OVERRUN_S", 0.0)
    with running(slots=1, max_request_s=0.2, queue_timeout_s=0.1, cancel_grace_s=0.1) as service:
        before = time.monotonic()
        answer = service.post("/run_code", _sleep(30))
        assert (answer.status_code, answer.json()["kind"]) == (504, "deadline")
        assert time.monotonic() - before < 3
        service.wait_until(lambda: service.count("worker_restarts_total") == 1)


def test_requests_have_ids_that_the_log_shows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="roll_sandbox.requests")
    with running() as service:
        given = service.post("/run_code", QUICK, headers={"X-Request-Id": "step-7.episode_3"})
        made = service.post("/run_code", QUICK, headers={"X-Request-Id": "forged\tline " + "x" * 100})
        assert given.headers["x-request-id"] == "step-7.episode_3"
        assert len(made.headers["x-request-id"]) == 32
        for answer in (given, made):
            name = answer.headers["x-request-id"]
            (line,) = [text for text in caplog.messages if text.startswith(name)]
            assert line.startswith(f"{name} /run_code 200 Success ")


# -- stopping ----------------------------------------------------------------------------------------------------------

SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from service_fakes import FakeSandbox
from sandboxes.service.app import make_app
from sandboxes.service.server import make_server
from sandboxes.service.settings import Settings
FakeSandbox.reset()
settings = Settings(port=0, slots=1, drain_timeout_s=float(sys.argv[2]))
server = make_server(make_app(FakeSandbox, settings), settings)
server.run()
print("made", FakeSandbox.made, "closed", FakeSandbox.closed, flush=True)
"""


class _Process:
    """A service in a process of its own, with one slot."""

    def __init__(self, drain_timeout_s: float = 10.0) -> None:
        command = [sys.executable, "-W", "error", "-c", SERVER, str(Path(__file__).parent), str(drain_timeout_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listens on" in line, line
        self.url = line.split()[3]

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + "/run_code", json=body, timeout=20, verify=False)

    def wait_for(self, field: str, value: int) -> None:
        deadline = time.monotonic() + 10
        while httpx.get(self.url + "/v1/health", verify=False).json()[field] != value:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> tuple[str, str]:
        try:
            return self.process.communicate(timeout=20)
        finally:
            self.process.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(how: signal.Signals) -> None:
    service = _Process()
    running = _in_thread(lambda: service.post(_sleep(4)))
    service.wait_for("running", 1)
    waiting = _in_thread(lambda: service.post(QUICK))
    service.wait_for("waiting", 1)
    service.process.send_signal(how)
    deadline = time.monotonic() + 5
    while (health := httpx.get(service.url + "/v1/health", verify=False)).json()["status"] != "draining":
        assert time.monotonic() < deadline
    assert health.status_code == 503
    refused = service.post(QUICK)
    assert (refused.status_code, refused.json()["kind"]) == (503, "draining")
    # What had been taken is finished, also what waited.
    assert running.result().json()["status"] == waiting.result().json()["status"] == "Success"
    out, err = service.end()
    assert (out, err) == ("made 1 closed 1\n", "")
    assert service.process.returncode == 0


def test_what_does_not_finish_in_time_gets_an_honest_answer() -> None:
    service = _Process(drain_timeout_s=0.3)
    running = _in_thread(lambda: service.post(_sleep(30)))
    service.wait_for("running", 1)
    waiting = _in_thread(lambda: service.post(QUICK))
    service.wait_for("waiting", 1)
    before = time.monotonic()
    service.process.terminate()
    assert running.result().json()["status"] == "SandboxError"
    assert waiting.result().status_code == 503
    out, _ = service.end()
    assert time.monotonic() - before < 8
    assert out == "made 1 closed 1\n"


def test_a_second_signal_ends_at_once() -> None:
    service = _Process(drain_timeout_s=60)
    running = _in_thread(lambda: _outcome(lambda: service.post(_sleep(30))))
    service.wait_for("running", 1)
    before = time.monotonic()
    service.process.terminate()
    time.sleep(0.3)
    service.process.terminate()
    service.end()
    assert time.monotonic() - before < 8
    assert running.result() in ("SandboxError", "RemoteProtocolError", "ReadError", "503", "500")


def _outcome(ask: Callable[[], httpx.Response]) -> str:
    try:
        response = ask()
    except httpx.HTTPError as error:
        return type(error).__name__
    return str(response.json()["status"]) if response.status_code == 200 else str(response.status_code)


# -- numbers and settings ----------------------------------------------------------------------------------------------


def test_the_metrics_name_the_isolation_and_count_requests() -> None:
    with running() as service:
        service.post("/run_code", QUICK)
        service.post("/run_code", {"code": "1/0", "language": "python"})
        page = service.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'roll_sandbox_isolation_info{layers="",missing="everything",tier="fake"} 1' in page.text
        assert _metric(service, 'roll_sandbox_outcomes_total{outcome="Failed",route="/run_code"}') == 1
        assert _metric(service, 'roll_sandbox_request_seconds_count{route="/run_code"}') == 2
        assert _metric(service, "roll_sandbox_slots") == 2
        assert _metric(service, "process_resident_memory_bytes") > 1e6
        names = [line.split()[2] for line in page.text.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slots": 0}, "slots should be greater than 0, not 0"),
        ({"queue": -1}, "queue should be greater than or equal to 0"),
        ({"port": 70000}, "port should be less than or equal to 65535"),
        ({"full_status": 500}, "429 or 504"),
        ({"max_run_s": float("nan")}, "max_run_s"),
        ({"default_memory_mb": 9000}, "must not be above"),
        ({"host": "0.0.0.0"}, "--token-file"),
        ({"host": "::"}, "--token-file"),
        ({"host": "192.168.1.5"}, "--token-file"),
        ({"host": "example"}, "--token-file"),
    ],
)
def test_settings_that_cannot_be_used(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings(**checked_arguments("roll-sandbox serve", Settings, change))


def test_loopback_needs_no_token_and_others_take_one() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1"):
        assert Settings(host=host).tokens == ()
    assert Settings(host="0.0.0.0", tokens=("t" * 16,)).host == "0.0.0.0"


def test_the_fake_is_a_sandbox() -> None:
    assert issubclass(FakeSandbox, Sandbox)
