"""/judge: verdicts with the real local_sandbox, cheats that fail, and tests that cannot be used."""

from __future__ import annotations

import base64
import json
import pickle
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from service_fakes import Running, local_or_skip, running

from roll_envs.verifiers import Score, make_verifier
from sandboxes.client import RemoteSandbox


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(local_or_skip(), slots=1) as service:
        yield service


@pytest.fixture(scope="module")
def fake() -> Iterator[Running]:
    with running(max_cases=20, max_code_bytes=10_000) as service:
        yield service


DOUBLE = "def f(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        ({"code": DOUBLE, "tests": ["assert f(2) == 4", "assert f('a') == 'aa'"]}, ["ok", "ok"]),
        ({"code": DOUBLE, "tests": ["assert f(2) == 4", "assert f(2) == 5"]}, ["ok", "wrong"]),
        ({"code": DOUBLE, "tests": {"calls": [{"function": "f", "args": [[1]], "expected": [1, 1]}]}}, ["ok"]),
        ({"code": DOUBLE, "tests": {"inputs": [[3]], "outputs": [7], "fn_name": "f"}}, ["wrong"]),
        ({"code": "def f(x): return x['no']", "tests": ["assert f({}) == 1"]}, ["error"]),
        ({"code": "print(2 * int(input()))", "tests": {"stdin": [{"input": "4", "output": "8"}]}}, ["ok"]),
        ({"code": "print(input())", "tests": {"inputs": ["1", "2"], "outputs": ["1", "3"]}}, ["ok", "wrong"]),
        ({"code": "while True: pass", "tests": {"inputs": ["1"], "outputs": ["1"]}, "time_s": 0.5}, ["timeout"]),
        ({"answer": f"I think:\n```python\n{DOUBLE}\n```", "tests": ["assert f(1) == 2"]}, ["ok"]),
        ({"code": 'd = """\n```python\nx = 1\n```\n"""\nx = 2', "tests": ["assert x == 2"]}, ["ok"]),
        ({"code": "print('</think>')", "tests": {"inputs": [""], "outputs": ["</think>"]}}, ["ok"]),
        ({"code": "echo 5\r\n", "language": "bash", "tests": {"inputs": [""], "outputs": ["5"]}}, ["ok"]),
        (
            {
                "answer": "```bash\necho 5\n```\nor\n```python\nprint(6)\n```",
                "language": "bash",
                "tests": {"inputs": [""], "outputs": ["5"]},
            },
            ["ok"],
        ),
        # Cheats.
        ({"code": "import os; os._exit(0)", "tests": ["assert f(2) == 4"]}, ["exit"]),
        (
            {
                "code": "class E:\n    def __eq__(self, other): return True\ndef f(x): return E()",
                "tests": {"calls": [{"function": "f", "args": [1], "expected": 2}]},
            },
            ["wrong"],
        ),
    ],
)
def test_verdicts_by_case(service: Running, body: dict[str, Any], statuses: list[str]) -> None:
    answer = service.post("/judge", body).json()
    assert [case["status"] for case in answer["cases"]] == statuses
    assert [case["passed"] for case in answer["cases"]] == [status == "ok" for status in statuses]
    passed = set(statuses) == {"ok"}
    assert (answer["passed"], answer["value"], answer["cases_passed"]) == (passed, float(passed), statuses.count("ok"))
    assert answer["can_be_cheated"] is False


def test_a_share_of_the_cases_can_be_credited(service: Running) -> None:
    tests = {"inputs": ["1", "2", "3", "4"], "outputs": ["1", "2", "3", "x"]}
    answer = service.post("/judge", {"code": "print(input())", "tests": tests, "credit": "partial"}).json()
    assert (answer["passed"], answer["value"]) == (False, 0.75)


def test_tests_inside_must_be_allowed_and_are_told(service: Running) -> None:
    body = {
        "code": DOUBLE,
        "tests": {"test_file": "import inspect\nassert inspect.signature(f).parameters\nassert f(2) == 4"},
    }
    refused = service.post("/judge", body)
    assert refused.status_code == 422
    assert "tests_inside" in refused.json()["detail"]
    answer = service.post("/judge", body | {"tests_inside": True}).json()
    assert (answer["passed"], answer["can_be_cheated"]) == (True, True)


def test_the_verifier_itself_works_over_http(service: Running) -> None:
    with RemoteSandbox(service.url) as sandbox:
        verifier = make_verifier("code", sandbox=sandbox)
        verdict = verifier(f"```python\n{DOUBLE}\n```", ["assert f(2) == 4", "assert f(3) == 6"])
        assert isinstance(verdict, Score)
        assert (verdict.passed, verdict.parts["cases"]) == (True, 2.0)
        printed = verifier("print(int(input()) + 1)", {"inputs": ["1"], "outputs": ["3"]})
        assert isinstance(printed, Score)
        assert not printed.passed


def test_a_dead_worker_is_never_a_verdict(fake: Running) -> None:
    body = {"code": "#fault", "tests": {"inputs": ["1"], "outputs": ["1"]}}
    answer = fake.post("/judge", body)
    assert (answer.status_code, answer.json()["kind"]) == (503, "sandbox")
    once = {"code": "#fault-once judge\nprint(input())", "tests": {"inputs": ["1"], "outputs": ["1"]}}
    assert fake.post("/judge", once).json()["passed"] is True


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tests": ["assert 1"]}, "either code"),
        ({"code": "1", "answer": "1", "tests": ["assert 1"]}, "either code"),
        ({"code": "1"}, "tests"),
        ({"code": "1", "tests": None}, "tests"),
        ({"code": "1", "tests": []}, "tests"),
        ({"code": "1", "tests": [[]]}, "tests"),
        ({"code": "1", "tests": {"stdin": 5}}, "cannot be read"),
        ({"code": "1", "tests": {"calls": [5]}}, "a call needs"),
        ({"code": "1", "tests": {"inputs": ["1"], "outputs": []}}, "same length"),
        ({"code": "1", "tests": {"inputs": ["1"] * 21, "outputs": ["1"] * 21}}, "may be 20"),
        ({"code": "1", "tests": ["assert f("]}, "tests"),
        ({"code": "1", "tests": ["x = 1"]}, "check nothing"),
        ({"code": "1", "tests": ["assert 1"], "language": "cobol"}, "language"),
        ({"code": "1", "tests": ["assert 1"], "time_s": 1e6}, "time_s may be 120"),
        ({"code": "1", "tests": ["assert 1"], "memory_mb": 10**6}, "memory_mb may be 4096"),
        ({"code": "1", "tests": ["assert 1"], "total_s": 10**6}, "total_s may be 600"),
        ({"code": "1", "tests": ["assert 1"], "tolerance": 5}, "tolerance"),
        ({"code": "1", "tests": ["assert 1"], "timelimit_s": 5}, "timelimit_s"),
    ],
)
def test_requests_that_cannot_be_judged_are_refused(fake: Running, body: dict[str, Any], words: str) -> None:
    response = fake.post("/judge", body)
    assert response.status_code == 422
    assert words in response.json()["detail"]


def test_long_programs_are_refused(fake: Running) -> None:
    for field in ("code", "answer"):
        response = fake.post("/judge", {field: "x" * 10_001, "tests": ["assert 1"]})
        assert response.status_code == 413


def test_tests_that_compute_for_ever_are_bounded(fake: Running) -> None:
    started = time.monotonic()
    for test in (
        "assert 10 ** 10 ** 10 > 1",
        "while True: pass",
        "assert [0] * 10 ** 12",
        "assert '%99999999999d' % 1",
    ):
        fake.post("/judge", {"code": "1", "tests": [test], "total_s": 1})
        assert fake.post("/run_code", {"code": "#echo", "language": "python"}).status_code == 200
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("unpacked", "kind"),
    [("[" + "[]," * 3_000_000 + "[]]", "too_many"), ('["' + "a" * (33 << 20) + '"]', "too_large")],
    ids=["parts", "bytes"],
)
def test_tests_that_grow_when_they_are_unpacked_are_refused(fake: Running, unpacked: str, kind: str) -> None:
    packed = base64.b64encode(zlib.compress(pickle.dumps(unpacked))).decode()
    for tests in (packed, {"private_test_cases": packed}, {"reward_model": json.dumps({"test_cases": packed})}):
        answer = fake.post("/judge", {"code": "1", "tests": tests})
        assert answer.json()["kind"] == kind, answer.text
