"""The service with the real local sandbox behind it: what the fakes cannot show."""

from __future__ import annotations

import base64
import os
import sysconfig
from collections.abc import Iterator

import pytest
from service_fakes import Running, local_or_skip, running

from roll_envs.sandbox import Limits, Program, make_sandbox
from sandboxes.client import RemoteSandbox
from sandboxes.service.fusion import RunJupyterForm, _run_cells


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(local_or_skip(), slots=2) as service:
        yield service


def _run(service: Running, code: str, **more: object) -> dict[str, object]:
    answer: dict[str, object] = service.post("/run_code", {"code": code, "language": "python", **more}).json()
    return answer


def test_programs_of_all_installed_languages_run(service: Running) -> None:
    programs = {
        "python": "print(6 * 7)",
        "bash": "echo $((6 * 7))",
        "cpp": "#include <iostream>\nint main() { std::cout << 42 << std::endl; }",
        "nodejs": "console.log(42)",
    }
    ran = {}
    for language, code in programs.items():
        response = service.post("/run_code", {"code": code, "language": language})
        if response.status_code == 422:  # not installed here, and said so
            assert "not" in response.json()["detail"]
            continue
        ran[language] = response.json()["run_result"]["stdout"]
    assert set(ran.values()) == {"42\n"}
    assert "python" in ran


def test_a_compilation_that_fails_is_told_as_one(service: Running) -> None:
    response = service.post("/run_code", {"code": "int main() { return nothing; }", "language": "cpp"})
    if response.status_code == 422:
        pytest.skip(response.json()["detail"])
    answer = response.json()
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert (answer["compile_result"]["status"], answer["compile_result"]["return_code"]) == ("Finished", 1)
    assert "nothing" in answer["compile_result"]["stderr"]


def test_nothing_of_the_hosts_environment_is_there(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "do not tell")
    answer = _run(service, "import os; print(dict(os.environ)); print(open('/proc/self/environ').read())")
    assert answer["status"] == "Success"
    assert "SECRET_OF_THE_HOST" not in str(answer)
    assert os.environ["SECRET_OF_THE_HOST"]


def test_links_out_of_the_folder_are_not_followed(service: Running) -> None:
    code = "import os; os.symlink('/etc/passwd', 'a'); os.symlink('/', 'b'); open('c', 'w').write('mine')"
    answer = _run(service, code, fetch_files=["a", "b/etc/passwd", "c"])
    assert answer["files"] == {"c": "bWluZQ=="}


def test_limits_have_the_originals_forms(service: Running) -> None:
    slow = _run(service, "print('so far', flush=True)\nwhile True: pass", run_timeout=0.5)["run_result"]
    assert isinstance(slow, dict)
    assert (slow["status"], slow["return_code"], slow["stdout"]) == ("TimeLimitExceeded", None, "so far\n")
    # Held as Python raises it, or as the kernel ends it: both are failures of the program.
    fat = _run(service, "x = bytearray(900 << 20)\nprint(len(x))", memory_limit_MB=128)
    assert fat["status"] == "Failed"
    assert isinstance(fat["run_result"], dict)
    assert fat["run_result"]["return_code"] not in (0, None)


@pytest.mark.parametrize("size", [140 << 10, 196_609, 3 << 20])
def test_long_outputs_are_whole(service: Running, size: int) -> None:
    ran = _run(service, f"import sys; sys.stdout.write('ab' * {size // 2})")["run_result"]
    assert isinstance(ran, dict)
    assert ran["stdout"] == "ab" * (size // 2)


def test_the_isolation_is_told(service: Running) -> None:
    told = service.get("/v1/health").json()["isolation"]
    with RemoteSandbox(service.url) as sandbox:
        result = sandbox.run(Program(source="print(1)"), limits=Limits(wall_s=5))
    assert (result.isolation.tier, list(result.isolation.layers)) == (told["tier"], told["layers"])
    assert told["layers"]


def test_notebooks_and_sessions(service: Running) -> None:
    cells = ["import math\na = 2", "a + 1", "raise RuntimeError('of a cell')", "print(math.sqrt(a * 8))"]
    answer = service.post("/run_jupyter", {"cells": cells}).json()
    assert answer["status"] == "Success", answer["message"]
    assert [cell["stdout"] for cell in answer["cells"]] == ["", "", "", "4.0\n"]
    assert answer["cells"][1]["display"] == [{"text/plain": "3"}]
    assert answer["cells"][2]["error"][0]["ename"] == "RuntimeError"
    with RemoteSandbox(service.url) as sandbox, sandbox.session() as session:
        session.upload("a.bin", b"\x00\xff")
        assert session.run("x = open('a.bin', 'rb').read()").ok
        assert session.run("x").stdout == b"b'\\x00\\xff'\n"
        assert session.download("a.bin") == b"\x00\xff"
        assert session.run("while True: pass", limits=Limits(wall_s=0.5)).status == "timeout"
        assert session.run("print('x' in dir())").stdout == b"False\n"


def test_a_notebook_has_the_memory_that_was_asked_for(service: Running) -> None:
    body = {"cells": ["x = bytearray(300 << 20)"], "memory_limit_MB": 128}
    answer = service.post("/run_jupyter", body).json()
    assert (answer["status"], answer["cells"][0]["error"][0]["ename"]) == ("Failed", "memory")
    assert service.post("/run_jupyter", {**body, "memory_limit_MB": -1}).json()["status"] == "Success"


@pytest.mark.parametrize("form", ["float('nan')", "float('inf')"])
def test_a_display_that_is_no_json_costs_itself_only(service: Running, form: str) -> None:
    shows = f"class A:\n    def _repr_json_(self): return {form}\nA()"
    answer = service.post("/run_jupyter", {"cells": [shows, "1"]})
    assert answer.status_code == 200
    assert [cell["display"] for cell in answer.json()["cells"]] == [[], [{"text/plain": "1"}]]


def test_collecting_displays_takes_no_longer_than_the_notebook_may(service: Running) -> None:
    hangs = "import sys, time; sys.modules['notebook_displays'].take = lambda: time.sleep(60)"
    answer = service.post("/run_jupyter", {"cells": [f"{hangs}; time.sleep(4)"], "total_timeout": 5}).json()
    assert 4.5 < answer["driver"]["execution_time"] < 8


@pytest.mark.parametrize("ends", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_cell_that_ends_the_interpreter_ends_the_notebook(service: Running, ends: str) -> None:
    answer = service.post("/run_jupyter", {"cells": ["x = 1", f"import os; {ends}", "print(x)"]}).json()
    assert (answer["status"], answer["driver"]["return_code"], len(answer["cells"])) == ("Failed", 1, 2)
    assert "cell 2 ended the interpreter" in answer["message"]


def test_a_figure_that_cannot_be_drawn_costs_itself_only(service: Running) -> None:
    fake = (
        "import sys, types\nfigures = [1]\ndef figure(n): raise ValueError('bad text')\n"
        "pyplot = types.SimpleNamespace(get_fignums=lambda: figures, figure=figure, close=lambda _: figures.clear())\n"
        "sys.modules['matplotlib.pyplot'] = pyplot"
    )
    first, second = service.post("/run_jupyter", {"cells": [fake, "1"]}).json()["cells"]
    assert "ValueError: bad text" in first["stderr"]
    assert (second["stderr"], second["display"]) == ("", [{"text/plain": "1"}])


def test_cells_together_show_up_to_a_bound(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.service.fusion.MOST_SHOWN", 1000)
    cells = service.post("/run_jupyter", {"cells": ["print('x' * 599)"] * 3}).json()["cells"]
    assert sum(len(cell["stdout"]) for cell in cells) <= 1000


def test_cases_together_show_up_to_a_bound(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.service.submit.MOST_SHOWN", 5000)
    case = {"input": {"stdin": ""}, "output": {"stdout": "x" * 4000}}
    config = {"dataset_type": "CommonOJDataset", "language": "python", "provided_data": {"test": [case] * 3}}
    body = {"dataset": "d", "id": 1, "completion": "```python\nprint('x' * 4000)\n```", "config": config}
    answer = service.post("/submit", body).json()
    assert answer["accepted"]
    shown = sorted(len(test["exec_info"]["run_result"]["stdout"]) for test in answer["tests"])
    assert shown == [1000, 1000, 4001]


def test_a_syntax_error_of_a_cell_shows_the_cell_only(service: Running) -> None:
    (cell,) = service.post("/run_jupyter", {"cells": ["def f(:"]}).json()["cells"]
    assert cell["stderr"].startswith('  File "<cell')


def test_cells_display_what_jupyter_would() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    cells = [
        "import pandas\ntable = pandas.DataFrame({'a': [1, 2]})\ntable",
        "import matplotlib.pyplot as plot\nlines = plot.plot([1, 2])",
        "plot.plot([3, 4])\nplot.show()\nprint('text')",
        "display(3, table)\n'last'",
        "None",
        "import notebook_displays\nnotebook_displays.take = lambda: print('no JSON')\n1",
        "2",
    ]
    local_or_skip()
    with make_sandbox("local", slots=1, python_paths=(sysconfig.get_paths()["purelib"],)) as sandbox:
        form = RunJupyterForm(cells=cells)
        answer = _run_cells(sandbox, form, Limits(wall_s=100.0, memory_mb=1024), 200.0, {})
    assert answer["status"] == "Success", answer
    table, figure, shown, three, nothing, *broken = (cell["display"] for cell in answer["cells"])
    assert [cell["error"] for cell in answer["cells"]] == [[]] * 7
    assert [cell["stdout"] for cell in answer["cells"]] == ["", "", "text\n", "", "", "", ""]
    assert (table[0]["text/plain"], "<table" in table[0]["text/html"]) == ("   a\n0  1\n1  2", True)
    for (image,) in (figure, shown[:1]):
        assert base64.b64decode(image["image/png"]).startswith(b"\x89PNG")
        assert image["text/plain"] == "<Figure size 640x480 with 1 Axes>"
    assert [each["text/plain"] for each in three] == ["3", table[0]["text/plain"], "'last'"]
    assert (nothing, broken) == ([], [[], []])
