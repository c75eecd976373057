"""Whatever is sent, the service answers with a 4xx that says why, or honestly; never with 500, and it stays up."""

from __future__ import annotations

import gc
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_fakes import FakeSandbox, Running, request_bytes, running

from sandboxes.service import messages

LIMITS: dict[str, Any] = {"max_body_bytes": 1 << 20, "max_code_bytes": 1 << 16, "max_files": 8, "max_cases": 20}
POST_ROUTES = ["/run_code", "/run_jupyter", "/submit", "/v1/run", "/v1/sessions", "/v1/sessions/x/run"]
POST_ROUTES += ["/v1/sessions/x/files", "/judge"]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(body_timeout_s=0.4, header_timeout_s=0.4, write_timeout_s=0.5, sessions=2, **LIMITS) as service:
        yield service
        answer = service.post("/run_code", {"code": "print('alive')", "language": "python"}).json()
        assert answer["run_result"]["stdout"] == "alive\n"
        assert 'status="500"' not in service.get("/metrics").text
        assert service.service.active == 0


def _status(service: Running, path: str, content: bytes, kind: str = "application/json") -> tuple[int, str]:
    response = httpx.post(service.url + path, content=content, headers={"Content-Type": kind}, timeout=20, verify=False)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    detail = response.json().get("detail", "")
    return response.status_code, detail


DEEP = b'{"code": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"", {400}),
        (b"{", {400}),
        (b"null", {422}),
        (b"[]", {422}),
        (b'"text"', {422}),
        (b"{}", {422, 201}),
        (b"\xff\xfe\x00", {400}),
        (b'{"code": NaN}', {400}),
        (b'{"code": 1' + b"0" * 5000 + b"}", {400}),
        (DEEP, {400}),
        (b'{"code": "' + b"x" * (1 << 20) + b'"}', {413}),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_malformed_bodies(service: Running, path: str, content: bytes, statuses: set[int]) -> None:
    status, detail = _status(service, path, content)
    assert status in statuses
    assert status == 201 or detail
    if status == 201:
        service.close_sessions()


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", "application/jsonx"])
def test_other_kinds_of_content_are_refused(service: Running, kind: str) -> None:
    # A page in somebody's browser can post these to a service on the same machine without being asked.
    status, detail = _status(service, "/run_code", b'{"code": "1", "language": "python"}', kind)
    assert status == 415
    assert "application/json" in detail


FORM = {"code": "print(1)", "language": "python"}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"code": None}, 422, "code"),
        ({"code": 5}, 422, "code"),
        ({"code": ["print(1)"]}, 422, "code"),
        ({"code": "x" * ((1 << 16) + 1)}, 413, "--max-code"),
        ({"code": "ж" * (1 << 15) + "x"}, 413, "--max-code"),
        ({"language": 3}, 422, "language"),
        ({"stdin": {}}, 422, "stdin"),
        ({"run_timeout": "soon"}, 422, "run_timeout"),
        ({"run_timeout": -1}, 422, "run_timeout"),
        ({"run_timeout": 0}, 422, "run_timeout"),
        ({"run_timeout": None}, 422, "run_timeout"),
        ({"compile_timeout": []}, 422, "compile_timeout"),
        ({"memory_limit_MB": "lots"}, 422, "memory_limit_MB"),
        ({"memory_limit_MB": 1.5}, 422, "memory_limit_MB"),
        ({"files": []}, 422, "files"),
        ({"files": {"a": 5}}, 422, "files"),
        ({"files": {"a": "not base64!"}}, 422, "files['a'] is not base64"),
        ({"files": {"a": "QQ"}}, 422, "base64"),
        ({"files": {str(n): "" for n in range(9)}}, 422, "--max-files"),
        ({"fetch_files": "a"}, 422, "fetch_files"),
        ({"fetch_files": [1]}, 422, "fetch_files"),
        ({"fetch_files": ["a"] * 9}, 422, "--max-files"),
        ({"args": [None]}, 422, "args"),
    ],
)
def test_wrong_types_name_the_field(service: Running, change: dict[str, Any], status: int, words: str) -> None:
    found, detail = _status(service, "/run_code", json.dumps({**FORM, **change}).encode())
    assert found == status
    assert words in detail
    assert len(detail) < 1000


PATHS = ["../x", "a/../../x", "/etc/passwd", "//x", "..", ".", "", "./", "a\0b", "a/..", "x" * 300, "a/" * 600 + "b"]


@pytest.mark.parametrize("path", PATHS)
def test_paths_out_of_the_working_folder_are_refused(service: Running, path: str) -> None:
    FakeSandbox.ran.clear()
    for change in ({"files": {path: ""}}, {"fetch_files": [path]}):
        assert _status(service, "/run_code", json.dumps({**FORM, **change}).encode())[0] == 422
        program = {"source": "1", "files": change.get("files", {}), "fetch": change.get("fetch_files", [])}
        assert _status(service, "/v1/run", json.dumps({"program": program}).encode())[0] == 422
    name = service.post("/v1/sessions", {}).json()["id"]
    for body in ({"path": path, "content": ""}, {"path": path}):
        assert _status(service, f"/v1/sessions/{name}/files", json.dumps(body).encode())[0] == 422
    httpx.delete(f"{service.url}/v1/sessions/{name}")
    assert not {"1", FORM["code"]} & set(FakeSandbox.ran)


def test_lone_surrogates_are_refused(service: Running) -> None:
    bodies = {
        "/run_code": [rb'{"code": "\ud800", "language": "python"}', rb'{"code": "1", "language": "\ud800"}'],
        "/v1/run": [rb'{"program": {"source": "\udfff"}}', rb'{"program": {"source": "1", "fetch": ["\ud800"]}}'],
        "/submit": [rb'{"dataset": "\ud800", "id": 1, "completion": "", "config": {}}'],
        "/run_jupyter": [rb'{"cells": ["\ud800"]}'],
    }
    for path, contents in bodies.items():
        for content in contents:
            assert _status(service, path, content)[0] in (400, 422), (path, content)
    # As text of an answer they are written as escapes.
    row = {"labels": {}, "test": {"code": "#<INSERT>"}}
    config = {"dataset_type": "\ud800", "provided_data": row}
    body = {"dataset": "x", "id": 1, "completion": "x", "config": config}
    assert _status(service, "/submit", json.dumps(body).encode())[0] in (400, 422)


def test_a_surrogate_hidden_in_a_row_is_answered(service: Running) -> None:
    row = {"labels": {"programming_language": "python"}, "test": {"code": "#<INSERT>\n'\ud800'"}}
    body = {"dataset": "x", "id": 1, "completion": "```python\n1\n```", "config": {"provided_data": row}}
    body["config"]["dataset_type"] = "AutoEvalDataset"  # type: ignore[index]
    assert _status(service, "/submit", json.dumps(body).encode())[0] == 400
    oj = {"test": [{"input": {"stdin": "\ud800"}, "output": {"stdout": "\ud800"}}]}
    body["config"] = {"provided_data": oj, "dataset_type": "CommonOJDataset", "language": "python"}
    assert _status(service, "/submit", json.dumps(body).encode())[0] == 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "program must be an object"),
        ({"program": {}}, "program.source"),
        ({"program": {"source": "1", "language": "cobol"}}, "program.language"),
        ({"program": {"source": "1", "language": ["python"]}}, "program.language"),
        ({"program": {"source": "1", "stdin": "?"}}, "program.stdin"),
        ({"program": {"source": "1", "surprise": 1}}, "no field 'surprise'"),
        ({"program": {"source": "1", "arguments": "abc"}}, "program.arguments"),
        ({"program": {"source": "1", "arguments": ["a\0"]}}, "NUL"),
        ({"program": {"source": "1", "environ": {"A=B": "1"}}}, "'='"),
        ({"program": {"source": "1", "environ": {"": "1"}}}, "'='"),
        ({"program": {"source": "1"}, "limits": []}, "limits must be an object"),
        ({"program": {"source": "1"}, "limits": {"wall_s": 1e9}}, "at most 120"),
        ({"program": {"source": "1"}, "limits": {"wall_s": 0}}, "above 0"),
        ({"program": {"source": "1"}, "limits": {"memory_mb": 1.5}}, "whole number"),
        ({"program": {"source": "1"}, "limits": {"memory_mb": True}}, "whole number"),
        ({"program": {"source": "1"}, "limits": {"processes": -1}}, "0 or more"),
        ({"program": {"source": "1"}, "timeout_s": "x"}, "timeout_s"),
        ({"program": {"source": "1"}, "timeout_s": -1}, "timeout_s"),
    ],
)
def test_native_fields_are_checked(service: Running, body: dict[str, Any], words: str) -> None:
    status, detail = _status(service, "/v1/run", json.dumps(body).encode())
    assert status == 422
    assert words in detail


def test_numbers_beyond_every_float_are_refused(service: Running) -> None:
    for number in ("1e999", "-1e999", "1" + "0" * 400):
        content = f'{{"program": {{"source": "1"}}, "limits": {{"wall_s": {number}}}}}'.encode()
        assert _status(service, "/v1/run", content)[0] == 422
        content = f'{{"program": {{"source": "#echo"}}, "timeout_s": {number}}}'.encode()
        assert _status(service, "/v1/run", content)[0] in (200, 422)
        content = f'{{"code": "1", "language": "python", "run_timeout": {number}}}'.encode()
        assert _status(service, "/run_code", content)[0] in (200, 422)
        content = f'{{"code": "1", "language": "python", "memory_limit_MB": {number}}}'.encode()
        assert _status(service, "/run_code", content)[0] in (200, 422)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["code", "language", "files", "fetch_files", "stdin", "run_timeout", "memory_limit_MB", "cells", "program"]
NAMES += [
    "limits",
    "timeout_s",
    "config",
    "completion",
    "dataset",
    "id",
    "number",
    "source",
    "path",
    "content",
    "tests",
]


@settings(max_examples=60, deadline=None)
@given(path=st.sampled_from(POST_ROUTES[:4]), body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_no_body_makes_the_service_fail(service: Running, path: str, body: dict[str, Any]) -> None:
    body = {**body, **({"language": "python"} if isinstance(body.get("code"), str) and len(body) % 2 else {})}
    body.pop("cells", None) if isinstance(body.get("cells"), list) and body.get("cells") else None
    status, _ = _status(service, path, json.dumps(body).encode())
    assert status in (200, 201, 400, 413, 422)


# -- below HTTP --------------------------------------------------------------------------------------------------------


MANY = 100_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/run_jupyter", {"cells": [1] * MANY}),
        ("/run_code", {"code": "1", "language": "python", "files": {str(n): 1 for n in range(MANY)}}),
        ("/judge", {"code": "1", "tests": ["assert 1"], **{str(n): 1 for n in range(MANY)}}),
        ("/judge", {"the request": 1, **{str(n): 1 for n in range(MANY)}}),
        ("/v1/run", {"program": {"source": "1", "fetch": ["a"] * MANY}}),
        ("/v1/run", {"program": {"source": "1", **{str(n): 1 for n in range(MANY)}}}),
    ],
)
def test_more_entries_than_any_request_has_are_refused_before_each_is_looked_at(path: str, body: Any) -> None:
    with running(FakeSandbox) as service:
        answer = service.post(path, body)
    assert (answer.status_code, answer.json()["kind"]) == (422, "too_many")
    assert f"{MANY}"[:5] in answer.json()["detail"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: b"{" + b",".join(b'"%x" : 0' % number for number in range(1_500_000)) + b"}", "keys"),
        (lambda: "[" + ",".join(["[[],[],[],[]]"] * 500_000) + "]", "lists"),
    ],
    ids=["keys", "lists"],
)
def test_a_body_of_millions_of_parts_is_refused_before_one_is_made(
    make: Callable[[], str | bytes], name: str, cpu_at_most: Any
) -> None:
    body = make()
    with cpu_at_most(0.3), pytest.raises(messages.Refusal, match=f"the body may have .* {name} .*, not"):
        messages.parse_json(body, "the body")


def test_the_garbage_collector_does_not_look_at_half_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    read = lambda *_, **__: seen.append(gc.isenabled()) or {}  # noqa: E731
    monkeypatch.setattr(messages.pydantic_core, "from_json", read)
    with running(FakeSandbox) as service:
        service.post("/run_code", {})
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(service: Running) -> None:
    answer = service.send(request_bytes("/run_code", b"", length=1 << 40), timeout=5)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_in_chunks_is_bounded(service: Running) -> None:
    head = b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert service.send(head + chunk * 20 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"GET\r\n\r\n",
        b"POST /run_code HTTP/1.1\r\nContent-Length: nine\r\n\r\n",
        b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        random.Random(0).randbytes(4000),
    ],
    ids=range(7),
)
def test_noise_is_a_bad_request(service: Running, raw: bytes) -> None:
    answer = service.send(raw, timeout=5)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_methods_and_addresses_that_are_not_there(service: Running) -> None:
    assert httpx.get(service.url + "/run_code").status_code == 405
    assert httpx.put(service.url + "/v1/run", json={}).status_code == 405
    missing = httpx.post(service.url + "/run_codes", json={})
    assert missing.status_code == 404
    assert "/run_code" in missing.json()["detail"]
    assert httpx.post(service.url + "/v1/sessions/../run", json={}).status_code in (404, 422)


def test_sockets_that_say_nothing_are_closed(service: Running) -> None:
    starts = [b"", b"POST /run_code HTT", b"POST /run_code HTTP/1.1\r\nHost: x\r\n"]
    for start in starts:
        before = time.monotonic()
        assert service.send(start, timeout=5) == b""
        assert 0.2 < time.monotonic() - before < 3


def test_a_body_that_does_not_come_is_given_up(service: Running) -> None:
    before = time.monotonic()
    answer = service.send(request_bytes("/run_code", b'{"code": "', length=500), timeout=5)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive" in answer
    assert 0.2 < time.monotonic() - before < 3


def test_a_body_that_drips_is_given_up(service: Running) -> None:
    with socket.create_connection(service.address, timeout=5) as connection:
        connection.sendall(request_bytes("/run_code", b"", length=500))
        before = time.monotonic()
        while time.monotonic() - before < 3:
            try:
                connection.sendall(b" ")
            except ConnectionError:
                break
            time.sleep(0.05)
        assert time.monotonic() - before < 2


def test_a_client_that_does_not_read_is_dropped(service: Running) -> None:
    with socket.create_connection(service.address, timeout=5) as connection:
        done = service.count("outcomes_total", route="/v1/run", outcome="ok")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {"program": {"source": "print('x' * 8000000)"}, "limits": {"output_bytes": 8 << 20}}
        connection.sendall(request_bytes("/v1/run", body))
        service.wait_until(lambda: service.count("outcomes_total", route="/v1/run", outcome="ok") > done)
        before = time.monotonic()
        service.wait_until(lambda: not service.connections)
        assert 0.3 < time.monotonic() - before < 5
