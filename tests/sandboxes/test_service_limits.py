"""What a request asks for reaches the sandbox, on every route, and no more than the service allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from service_fakes import NONE, FakeSandbox, Running, running

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.client import RemoteSandbox
from sandboxes.service import fusion, judge, native
from sandboxes.service.settings import Settings

OWN = Limits(wall_s=4.0, memory_mb=200, processes=7, output_bytes=3000, files_mb=9, compile_s=3.0)


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    bounds: dict[str, Any] = {"max_run_s": 30, "max_request_s": 50, "max_processes": 70, "max_output_bytes": 5000}
    with running(**bounds, max_memory_mb=700, default_memory_mb=300, max_code_bytes=1000) as service:
        yield service


def given(service: Running, route: str, body: Any) -> list[Limits]:
    """The limits of all that a request had run."""
    FakeSandbox.limits.clear()
    assert service.post(route, body).status_code == 200
    return list(FakeSandbox.limits)


CODE = {"code": "#echo", "language": "python"}


@pytest.mark.parametrize(
    ("asked", "wall_s", "compile_s", "memory_mb"),
    [
        ({}, 10, 10, 300),
        ({"run_timeout": 4, "compile_timeout": 3, "memory_limit_MB": 200}, 4, 3, 200),
        ({"run_timeout": 99, "compile_timeout": 98, "memory_limit_MB": 9000}, 30, 30, 700),
    ],
)
def test_run_code(service: Running, asked: dict[str, Any], wall_s: int, compile_s: int, memory_mb: int) -> None:
    wanted = Limits(wall_s=wall_s, compile_s=compile_s, memory_mb=memory_mb, output_bytes=5000)
    assert given(service, "/run_code", {**CODE, **asked}) == [wanted]


def test_arguments_of_run_code(service: Running) -> None:
    ran = service.post("/run_code", {**CODE, "args": ["a", "b c"]}).json()["run_result"]
    assert ran["stderr"] == "('a', 'b c')"


def test_run_jupyter(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "MOST_SHOWN", 100)
    cells = ["print('x' * 79)", "print('x' * 9)", "1"]
    session, *ran = given(service, "/run_jupyter", {"cells": cells, "cell_timeout": 4, "memory_limit_MB": 200})
    assert (session.wall_s, session.memory_mb, session.output_bytes) == (4, 200, 5000)
    assert [(each.memory_mb, each.wall_s <= 4) for each in ran] == [(200, True)] * 3
    # Of all cells together; what a cell displays, "[]" each time, counts too.
    assert [each.output_bytes for each in ran] == [100, 18, 6]


@pytest.mark.parametrize(
    ("kind", "asked", "wall_s", "compile_s"),
    [
        ("AutoEvalDataset", {}, 20, 30),
        ("AutoEvalDataset", {"run_timeout": 4, "compile_timeout": 3}, 4, 3),
        ("CommonOJDataset", {}, 20, 10),
        ("CommonOJDataset", {"run_timeout": 4, "compile_timeout": 3}, 4, 3),
    ],
)
def test_submit(service: Running, kind: str, asked: dict[str, Any], wall_s: int, compile_s: int) -> None:
    case = {"input": {"stdin": "1"}, "output": {"stdout": "1"}}
    row: dict[str, Any] = {"test": {"code": "pass"} if kind == "AutoEvalDataset" else [case]}
    config = {"dataset_type": kind, "language": "python", "provided_data": row, **asked}
    body = {"dataset": "d", "id": 1, "completion": "```python\n#echo\n```", "config": config}
    (limits,) = given(service, "/submit", body)
    assert (limits.wall_s, limits.compile_s) == (wall_s, compile_s)


def test_the_services_own_routes_by_its_client(service: Running) -> None:
    with RemoteSandbox(service.url, timeout_s=20) as sandbox:
        FakeSandbox.limits.clear()
        sandbox.run(Program(source="#echo"), limits=OWN)
        with sandbox.session(limits=OWN) as session:
            session.run("1")
            session.run("1", limits=Limits(wall_s=2.0, output_bytes=100))
            session.upload("a", b"12345")
            with pytest.raises(ConfigError, match="more than 4 bytes"):
                session.download("a", max_bytes=4)
    probe = Limits(wall_s=30.0)  # of the worker that is made for the session
    shorter = Limits(wall_s=2.0, output_bytes=100)
    assert FakeSandbox.limits == [OWN, probe, OWN, OWN, shorter]


@pytest.mark.parametrize("name", asdict(OWN))
def test_no_limit_is_above_the_services(service: Running, name: str) -> None:
    with RemoteSandbox(service.url) as sandbox, pytest.raises(ConfigError, match=f"limits.{name} must be above 0"):
        sandbox.run(Program(source="#echo"), limits=replace(OWN, **{name: 80_000}))


def test_a_cell_may_take_longer_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "OVERRUN_S", 0.3)
    with (
        running() as service,
        RemoteSandbox(service.url, timeout_s=20) as sandbox,
        sandbox.session(limits=Limits(wall_s=0.1)) as session,
    ):
        sandbox.timeout_s = 0.3  # of calls without a limit of their own
        result = session.run("#sleep 1\nprint('done')", limits=Limits(wall_s=20.0))
        sandbox.timeout_s = 20
    assert result.stdout == b"done\n"


def test_the_wait_for_a_slot_is_bounded() -> None:
    waits: list[float] = []

    async def run_program(program: Program, limits: Limits, wait_s: float) -> RunResult:
        waits.append(wait_s)
        return RunResult(status="ok", exit_code=0, isolation=NONE)

    pool, settings = cast(Any, SimpleNamespace(run_program=run_program)), Settings(max_request_s=50, queue_timeout_s=6)
    for asked in ({}, {"timeout_s": 7.0}, {"timeout_s": 9999.0}):
        asyncio.run(native.run_native(pool, settings, {"program": {"source": "1"}, **asked}))
    assert waits == [6, 7, 50]


JUDGED = {"code": "x", "tests": {"inputs": ["1"], "outputs": ["1"]}}


LONG = "#" * 1001
CONFIG = {"dataset_type": "AutoEvalDataset", "provided_data": {"test": {"code": "pass"}}}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/run_code", {"code": LONG, "language": "python"}),
        ("/run_jupyter", {"cells": [LONG[:600], LONG[:600]]}),
        ("/submit", {"dataset": "d", "id": 1, "completion": LONG, "config": CONFIG}),
        ("/v1/run", {"program": {"source": LONG}}),
        ("/v1/sessions/any/run", {"source": LONG, "number": 1}),
        ("/judge", {**JUDGED, "code": LONG}),
        ("/judge", {"tests": JUDGED["tests"], "answer": LONG}),
    ],
)
def test_no_program_is_longer_than_the_service_allows(service: Running, route: str, body: dict[str, Any]) -> None:
    answer = service.post(route, body)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of verifiers that are made, and do not judge."""
    found: list[dict[str, Any]] = []

    def verifier(*, sandbox: Any, **options: Any) -> Any:
        found.append(options)
        raise ConfigError("seen")

    monkeypatch.setattr(judge, "CodeVerifier", verifier)
    return found


def test_the_judge_is_made_as_asked(service: Running, made: list[dict[str, Any]]) -> None:
    options = {"language": "bash", "comparison": "exact", "tolerance": 0.25, "tests_inside": True}
    options |= {"time_s": 2.5, "memory_mb": 99, "total_s": 12.5}
    assert service.post("/judge", {**JUDGED, **options}).json()["detail"] == "seen"
    assert made == [options]


@pytest.mark.parametrize(("name", "value"), [("time_s", 31), ("memory_mb", 701), ("total_s", 51)])
def test_the_judges_limits_are_not_above_the_services(
    service: Running, made: list[dict[str, Any]], name: str, value: float
) -> None:
    answer = service.post("/judge", {**JUDGED, name: value})
    assert (answer.status_code, answer.json()["kind"]) == (422, "limits")
    assert made == []
