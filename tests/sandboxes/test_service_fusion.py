"""/run_code, /run_jupyter and /submit as the clients of verl and ROLL use them, from SandboxFusion's wire format."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from service_fakes import FakeSession, Running, running

from roll_envs.sandbox import RunResult
from sandboxes.service.fusion import PRELUDE, TAKE
from sandboxes.service.submit import extract_code, same_output


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(max_output_bytes=1 << 20, max_run_s=60) as service:
        yield service


def verl(url: str, code: str, stdin: str | None, wanted: str | None, *, timeout: float = 10) -> bool | int:
    """The verdict of verl's client on one case: it posts to the URL it was given, asks again only after 504, and reads
    -1 as a fault of the service, -2 as a death of the program, -3 as a time out, -4 as a failed compilation."""
    body = {"code": code, "stdin": stdin, "compile_timeout": timeout, "run_timeout": timeout, "memory_limit_MB": 1024}
    body |= {"language": "python", "files": {}, "fetch_files": []}
    for attempt in range(3):
        response = httpx.post(
            url, content=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=30, verify=False
        )
        if response.status_code != 504:
            break
        time.sleep(0.05 * (attempt + 1))
    if response.is_error:
        return -1
    answer = response.json()
    compiled, ran = answer.get("compile_result"), answer.get("run_result")
    if answer["status"] == "Failed":
        if compiled and (compiled["status"] != "Finished" or compiled["return_code"] != 0):
            return -4
        if ran and ran["status"] == "TimeLimitExceeded":
            return -3
        return -2 if ran and (ran["status"] == "Error" or ran["return_code"] != 0) else -1
    if answer["status"] == "Success" and ran and ran["status"] == "Finished":
        return wanted is None or ran["stdout"].rstrip("\n") == wanted.rstrip("\n")
    return -1


def roll(url: str, code: str, stdin: str, wanted: str) -> tuple[bool, str]:
    """What ROLL's client makes of one case, which it sends with a field of its own: passed, and the kind of error."""
    body = {"compile_timeout": 30, "run_timeout": 30, "code": code, "language": "python", "stdin": stdin}
    headers = {"Content-Type": "application/json", "Accept": "application/json", "eagleeye-traceid": "x"}
    response = httpx.post(url, json={**body, "expected_stdout": wanted}, headers=headers, timeout=90, verify=False)
    assert response.status_code == 200
    answer = response.json()
    if answer["status"] == "Success":
        shown = answer.get("run_result", {}).get("stdout", "").strip()
        return (wanted.strip() in ("", shown), "" if wanted.strip() in ("", shown) else "LogicError")
    assert answer["status"] == "Failed"
    stderr = answer.get("run_result", {}).get("stderr", "").strip()
    return False, stderr.split("\n")[-1].split(":")[0].strip()


DOUBLE = "print(2 * int(input()))"


@pytest.mark.parametrize(
    ("code", "stdin", "wanted", "verdict"),
    [
        (DOUBLE, "21", "42", True),
        (DOUBLE, "21", "42\n\n", True),
        (DOUBLE, "21", "43", False),
        (DOUBLE, "x", "42", -2),
        (DOUBLE, None, "42", -2),
        ("import sys; sys.exit(3)", "", None, -2),
        ("import os; os.kill(os.getpid(), 9)", "", None, -2),
        ("def f(:", "", None, -2),
        ("import time; time.sleep(9)", "", None, -3),
        ("#status timeout", "", None, -3),
        ("#status memory", "", None, -2),
        ("#status output", "", None, -2),
        ("#compile-error", "", None, -4),
        ("#fault", "", None, -1),
        ("#bug", "", None, -1),
        ("#half-dead", "", None, -1),
        ("print('ж\\u2028\\x00\\n' * 3)", "", "ж\u2028\x00\n" * 3, True),
    ],
)
def test_verls_client_reads_the_right_verdict(
    service: Running, code: str, stdin: str | None, wanted: str | None, verdict: bool | int
) -> None:
    timeout = 0.5 if "sleep" in code else 10
    found = verl(service.url + "/run_code", code, stdin, wanted, timeout=timeout)
    assert (found, type(found)) == (verdict, type(verdict))


def test_verls_wrapper_for_functions_works(service: Running) -> None:
    # It puts a long prelude of star imports before the program, and the arguments on stdin, one JSON value a line.
    code = (
        "import sys, json\nfrom typing import *\n\ndef add(a, b):\n    return {'sum': a + b}\n\n"
        "args = [json.loads(line) for line in sys.stdin.read().split('\\n')]\nprint(json.dumps(add(*args)))"
    )
    assert verl(service.url + "/run_code", code, "1\n2", '{"sum": 3}') is True


def test_rolls_client_reads_the_right_verdict(service: Running) -> None:
    url = service.url + "/run_code"
    assert roll(url, DOUBLE, "21", "42") == (True, "")
    assert roll(url, DOUBLE, "21", "41") == (False, "LogicError")
    assert roll(url, DOUBLE, "x", "42") == (False, "ValueError")
    assert roll(url, "assert 1 == 2, 'no'", "", "") == (False, "AssertionError")


def test_the_answer_has_every_field_of_the_original(service: Running) -> None:
    answer = service.post("/run_code", {"code": "print('hi')", "language": "python", "new_field": [1]}).json()
    seconds = answer["run_result"].pop("execution_time")
    assert isinstance(seconds, float)
    assert answer == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "hi\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }


def test_signals_and_limits_are_return_codes_as_subprocess_has_them(service: Running) -> None:
    codes = {
        "import os; os.kill(os.getpid(), 11)": -11,
        "#status timeout": None,
        "#status memory": -9,
        "raise SystemExit(7)": 7,
    }
    for code, wanted in codes.items():
        answer = service.post("/run_code", {"code": code, "language": "python"}).json()
        assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", wanted)


@pytest.mark.parametrize("size", [140_000, 196_608, 196_609, 1 << 20])
def test_output_is_whole_at_sizes_the_original_loses(service: Running, size: int) -> None:
    code = f"import sys; sys.stdout.write('y' * {size})"
    ran = service.post("/run_code", {"code": code, "language": "python"}).json()["run_result"]
    assert (ran["status"], ran["stdout"]) == ("Finished", "y" * size)
    assert "stdout_dropped" not in ran


def test_output_beyond_the_bound_is_told(service: Running) -> None:
    size = (1 << 20) + 5
    answer = service.post("/run_code", {"code": f"print('z' * {size}, end='')", "language": "python"}).json()
    assert answer["run_result"]["stdout"] == "z" * (1 << 20)
    assert answer["run_result"]["stdout_dropped"] == 5
    assert "stdout: 5 bytes" in answer["message"]


def test_a_bad_byte_costs_one_character(service: Running) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'a\xff\xd0\xb6b\n')"
    ran = service.post("/run_code", {"code": code, "language": "python"}).json()["run_result"]
    assert ran["stdout"] == "a\ufffdжb\n"


def test_files_go_in_and_come_out(service: Running) -> None:
    content = bytes(range(256))
    code = "open('out/b', 'wb').write(open('in/a', 'rb').read()[::-1])"
    body = {
        "code": "import os; os.mkdir('out')\n" + code,
        "language": "python",
        "files": {"in/a": base64.b64encode(content).decode(), "left_out": None},
        "fetch_files": ["out/b", "not_there"],
    }
    answer = service.post("/run_code", body).json()
    assert {k: base64.b64decode(v) for k, v in answer["files"].items()} == {"out/b": content[::-1]}


def test_time_outs_are_cut_and_told(service: Running) -> None:
    answer = service.post("/run_code", {"code": "print(1)", "language": "python", "run_timeout": 10_000}).json()
    assert answer["status"] == "Success"
    assert answer["message"] == "run_timeout 10000 was cut to 60 (--max-run)"


def test_a_fault_is_tried_again_and_a_bug_is_a_sandbox_error(service: Running) -> None:
    code = "#fault-once here\nprint(5)"
    answer = service.post("/run_code", {"code": code, "language": "python"}).json()
    assert (answer["status"], answer["run_result"]["stdout"]) == ("Success", "5\n")
    answer = service.post("/run_code", {"code": "#bug", "language": "python"}).json()
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert "a bug of the backend" in answer["message"]


@pytest.mark.parametrize("language", ["kotlin_script", "lean", "", "Python"])
def test_languages_that_are_not_served_are_refused(service: Running, language: str) -> None:
    response = service.post("/run_code", {"code": "1", "language": language})
    assert response.status_code == 422
    assert "python" in response.json()["detail"]


def test_a_backend_that_refuses_is_told(service: Running) -> None:
    response = service.post("/run_code", {"code": "#refuse", "language": "cpp"})
    assert response.status_code == 422
    assert response.json() == {"detail": "no compiler is installed", "kind": "unusable"}


def test_pytest_runs_where_it_is_installed(service: Running) -> None:
    # The fake runs this Python, which has pytest.
    body = {"language": "pytest", "code": "def test_a():\n    assert 1 == 1\n"}
    assert service.post("/run_code", body).json()["status"] == "Success"
    failing = service.post("/run_code", {**body, "code": "def test_a():\n    assert 1 == 2\n"}).json()
    assert (failing["status"], failing["run_result"]["return_code"]) == ("Failed", 1)


# -- /run_jupyter ------------------------------------------------------------------------------------------------------


def test_cells_share_their_names_and_go_on_after_an_exception(service: Running) -> None:
    cells = ["a = 123", "print(a)", "raise RuntimeError('so: what')", "print(a + 1)"]
    answer = service.post("/run_jupyter", {"cells": cells}).json()
    assert (answer["status"], answer["driver"]["status"]) == ("Success", "Finished")
    assert [cell["stdout"] for cell in answer["cells"]] == ["", "123\n", "", "124\n"]
    (error,) = answer["cells"][2]["error"]
    assert (error["ename"], error["evalue"]) == ("RuntimeError", "so: what")
    assert [cell["error"] for cell in answer["cells"] if cell is not answer["cells"][2]] == [[], [], []]


def test_a_cell_that_hits_its_limit_ends_the_notebook(service: Running) -> None:
    answer = service.post("/run_jupyter", {"cells": ["print(1)", "#status timeout", "print(3)"]}).json()
    assert (answer["status"], answer["driver"]["status"], len(answer["cells"])) == ("Failed", "TimeLimitExceeded", 2)
    assert "cell 2" in answer["message"]


@pytest.mark.parametrize("lost", [PRELUDE, "print(1)", TAKE])
def test_a_cell_that_nobody_can_explain_is_a_fault(
    service: Running, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Also one of the service's own."""
    run = FakeSession.run

    def lose(session: FakeSession, source: str, **how: Any) -> RunResult:
        return run(session, "#half-dead" if source == lost else source, **how)

    monkeypatch.setattr(FakeSession, "run", lose)
    answer = service.post("/run_jupyter", {"cells": ["print(1)"]}).json()
    assert answer["status"] == "SandboxError"
    assert "died in the middle of a run" in answer["message"]


def test_the_time_for_all_cells_is_bounded(service: Running) -> None:
    body = {"cells": ["#sleep 0.2"] * 10, "total_timeout": 0.3}
    started = time.monotonic()
    answer = service.post("/run_jupyter", body).json()
    assert (answer["status"], answer["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert len(answer["cells"]) < 4
    assert time.monotonic() - started < 3


def test_notebooks_have_files(service: Running) -> None:
    body = {
        "cells": ["files['b.txt'] = files['a.txt'] * 2"],
        "files": {"a.txt": base64.b64encode(b"xy").decode()},
        "fetch_files": ["b.txt", "none"],
    }
    assert service.post("/run_jupyter", body).json()["files"] == {"b.txt": base64.b64encode(b"xyxy").decode()}


def test_a_dead_worker_is_a_sandbox_error_of_the_notebook(service: Running) -> None:
    answer = service.post("/run_jupyter", {"cells": ["#fault"]}).json()
    assert (answer["status"], answer["cells"]) == ("SandboxError", [])


# -- /submit -----------------------------------------------------------------------------------------------------------


def _submit(completion: str, row: Any, **config: Any) -> dict[str, Any]:
    return {"dataset": "mine", "id": 7, "completion": completion, "config": {"provided_data": row, **config}}


AUTO = {"labels": {"programming_language": "python"}, "test": {"code": "assert f(2) == 4"}}
OJ = {"test": [{"input": {"stdin": str(n)}, "output": {"stdout": str(2 * n)}} for n in (1, 2, 3)]}


@pytest.mark.parametrize(
    ("body", "accepted"),
    [
        ("def f(x): return x * 2", True),
        ("def f(x): return x", False),
        ("def f(x): return 4\nif __name__ == 'x': 1/0", True),
    ],
)
def test_auto_eval_appends_the_tests(service: Running, body: str, accepted: bool) -> None:
    completion = f"Here it is:\n```python\n{body}\n```\n"
    answer = service.post("/submit", _submit(completion, AUTO, dataset_type="AutoEvalDataset")).json()
    assert (answer["id"], answer["accepted"], answer["extracted_type"]) == (7, accepted, "fenced")
    assert answer["extracted_code"] == body + "\n"
    assert [test["passed"] for test in answer["tests"]] == [accepted]
    assert "inside the sandbox" in answer["extra"]["note"]


def test_auto_eval_takes_json_text_assets_places_and_flags(service: Running) -> None:
    row = {
        "labels": json.dumps({"programming_language": "python", "execution_language": "python"}),
        "test": json.dumps(
            {
                "code": "data = open('d.txt').read()\n#<INSERT>\nassert g() == data",
                "asset": {"d.txt": base64.b64encode(b"from the file").decode()},
            }
        ),
    }
    good, bad = "```python\ndef g(): return data\n```", "```python\nimport os; os._exit(0)\n```"
    config = {"dataset_type": "AutoEvalV4Dataset", "extra": {"append_flag": True}}
    assert service.post("/submit", _submit(good, row, **config)).json()["accepted"] is True
    assert service.post("/submit", _submit(bad, row, **config)).json()["accepted"] is False
    # Without the flag the original accepts whoever leaves with 0, and so it is said to be open to cheats.
    assert service.post("/submit", _submit(bad, row, dataset_type="AutoEvalDataset")).json()["accepted"] is True


def test_common_oj_compares_outputs_and_stops_at_the_first_wrong_one(service: Running) -> None:
    config: dict[str, Any] = {"dataset_type": "CommonOJDataset", "language": "python"}
    good = service.post("/submit", _submit(f"```python\n{DOUBLE}\n```", OJ, **config)).json()
    assert good["accepted"] is True
    assert [(t["passed"], t["test_info"]["input"]["stdin"]) for t in good["tests"]] == [(True, n) for n in "123"]
    wrong = "```python\nn = int(input())\nprint(2 * n if n != 2 else 5)\n```"
    bad = service.post("/submit", _submit(wrong, OJ, **config)).json()
    assert bad["accepted"] is False
    assert [t["passed"] for t in bad["tests"]] == [True, False]
    whole = service.post("/submit", _submit(wrong, OJ, extra={"run_all_cases": True}, **config)).json()
    assert [t["passed"] for t in whole["tests"]] == [True, False, True]


def test_a_fault_is_never_a_rejection(service: Running) -> None:
    for kind, row in (("CommonOJDataset", OJ), ("AutoEvalDataset", AUTO)):
        completion = "```python\n#fault\n```"
        response = service.post("/submit", _submit(completion, row, dataset_type=kind, language="python"))
        assert (response.status_code, response.json()["kind"]) == (503, "sandbox")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"provided_data": AUTO}, "AutoEvalDataset"),
        ({"provided_data": AUTO, "dataset_type": "HumanEvalDataset"}, "CommonOJDataset"),
        ({"dataset_type": "AutoEvalDataset"}, "provided_data"),
        ({"dataset_type": "AutoEvalDataset", "provided_data": AUTO, "custom_extract_logic": "1/0"}, "custom_extract"),
        ({"dataset_type": "CommonOJDataset", "provided_data": OJ}, "config.language"),
        ({"dataset_type": "CommonOJDataset", "provided_data": {"test": []}, "language": "python"}, "1 to"),
        ({"dataset_type": "CommonOJDataset", "provided_data": {"test": [{}]}, "language": "python"}, r"test[0]"),
        ({"dataset_type": "AutoEvalDataset", "provided_data": {"test": "{"}}, "provided_data.test is not JSON"),
        ({"dataset_type": "AutoEvalDataset", "provided_data": {"test": [1]}}, "must be an object"),
        ({"dataset_type": "AutoEvalDataset", "provided_data": {"test": {}}}, "test.code"),
        ({"dataset_type": "AutoEvalDataset", "provided_data": {**AUTO, "labels": {"programming_language": 3}}}, "text"),
    ],
)
def test_what_submit_does_not_serve_is_said(service: Running, config: dict[str, Any], words: str) -> None:
    response = service.post("/submit", {"dataset": "mine", "id": 1, "completion": "x", "config": config})
    assert response.status_code in (400, 422)
    assert words in response.json()["detail"]


@pytest.mark.parametrize(
    ("completion", "language", "found"),
    [
        ("```python\na\n```\n```python\nb\n```", "python", ("a\n", "fenced")),
        ("```cpp\na\n```\n```py\nb\n```", "python", ("b\n", "fenced")),
        ("```text\na\n```", "python", ("a\n", "fenced")),
        ("so:\n```python\na\nb", "python", ("a\nb", "incomplete_fenced")),
        ("no code", "python", ("", "empty")),
        ("```python\nprint('```')\n```", "python", ("print('```')\n", "fenced")),
    ],
)
def test_the_program_in_a_completion(completion: str, language: str, found: tuple[str, str]) -> None:
    assert extract_code(completion, language) == found


def test_extraction_takes_linear_time() -> None:
    for text in ("```python\n" * 50_000, "```" * 200_000, " " * 500_000 + "```", "```a" + "\n `" * 200_000):
        started = time.monotonic()
        extract_code(text, "python")
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("shown", "wanted", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("YES", "yes", True),
        (" 1 \n 2 ", "1\n2", True),
        ("0.333333", "0.3333331", True),
        ("0.3333", "0.3334", False),
        ("1\n2", "1", False),
        ("1 2", "1  2", False),
        ("nan", "nan", True),
        ("inf", "1e999", False),
        ("", "", True),
    ],
)
def test_outputs_agree_as_in_the_original(shown: str, wanted: str, same: bool) -> None:
    assert same_output(shown, wanted) is same
