"""What SandboxFusion's own tests of its routes ask for and expect, one by one, under the names that they have there.

The programs are ours, the requests and the expectations are theirs (github.com/bytedance/SandboxFusion,
``sandbox/tests/runners``). Not here: ``python_fetch_files`` as a whole, which also fetches a file at an absolute path
outside the working folder (refused here, see below); ``java_external_jar`` and ``typescript_lodash_dep``, which need
libraries of their image; ``isolation_network_external_access``, which needs a network.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import sysconfig
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from service_fakes import Running, local_or_skip, running

from roll_envs.sandbox import make_sandbox

pytestmark = pytest.mark.slow

SUCCESS, FAILED, FINISHED, LATE = "Success", "Failed", "Finished", "TimeLimitExceeded"
NEEDS = {"cpp": "g++", "nodejs": "node", "java": "javac", "go": "go", "rust": "rustc", "typescript": "tsc"}
FLAG = {"dir1/dir2/dir3/flag": base64.b64encode(b"hello, a test").decode()}

JAVA = "public class Main { public static void main(String[] given) throws Exception { %s } }"
RUST = "use std::io;\nfn main() { %s }"
GO = "package main\nimport (\n%s)\nfunc main() { %s }"
CPP = "#include <cassert>\n#include <chrono>\n#include <iostream>\n#include <thread>\nint main() { %s return 0; }"

THREADS = """
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <queue>
#include <thread>
std::queue<int> line;
std::mutex held;
std::condition_variable more;
void put(int first) {
    for (int n = 0; n < 3; n++) { std::lock_guard<std::mutex> lock(held); line.push(first + n); more.notify_one(); }
}
void get(int* sum) {
    for (int n = 0; n < 3; n++) {
        std::unique_lock<std::mutex> lock(held);
        more.wait(lock, [] { return !line.empty(); });
        *sum += line.front();
        line.pop();
    }
}
int main() {
    int a = 0, b = 0;
    std::thread all[] = {std::thread(put, 0), std::thread(put, 10), std::thread(get, &a), std::thread(get, &b)};
    for (auto& each : all) each.join();
    std::cout << a + b << std::endl;
}
"""

Told = dict[str, Any]
"""What is expected: ``status``, and of the run and the compiler what is named."""


def _prints(text: str, *, compiled: bool = False) -> Told:
    return {"status": SUCCESS, "stdout": text, "compiled": FINISHED if compiled else None}


def _fails(stderr: str = "") -> Told:
    return {"status": FAILED, "ran": FINISHED, "stderr": stderr}


IS_LATE: Told = {"status": FAILED, "ran": LATE}
DOES_NOT_COMPILE: Told = {"status": FAILED, "ran": None, "compiled": FINISHED}

CASES: dict[str, tuple[Told, Told]] = {
    "bash_echo": ({"code": "echo 'Hello World'", "run_timeout": 5}, _prints("Hello World\n")),
    "bash_sleep_timeout": ({"code": "sleep 0.2", "run_timeout": 0.1}, IS_LATE),
    "bash_false_condition": ({"code": "[ 1 -eq 2 ]", "run_timeout": 5}, _fails()),
    "bash_syntax_error": ({"code": "if [", "run_timeout": 5}, _fails("syntax error")),
    "bash_file_read": ({"code": "cat dir1/dir2/dir3/flag", "files": FLAG, "run_timeout": 5}, _prints("hello, a test")),
    "bash_stdin": ({"code": "read given; echo $given", "stdin": "65535", "run_timeout": 5}, _prints("65535\n")),
    "python_print": ({"code": "print(123)", "run_timeout": 5}, _prints("123\n")),
    "python_timeout": ({"code": "import time; time.sleep(0.2)", "run_timeout": 0.1}, IS_LATE),
    "python_assertion_error": ({"code": "assert 2 < 1", "run_timeout": 5}, _fails("AssertionError")),
    "python_syntax_error": ({"code": "int a = 1", "run_timeout": 5}, _fails("SyntaxError: invalid syntax")),
    "python_file_read": (
        {"code": "print(open('dir1/dir2/dir3/flag').read())", "files": FLAG, "run_timeout": 5},
        _prints("hello, a test\n"),
    ),
    "python_stdin": ({"code": "print(int(input()))", "stdin": "65535", "run_timeout": 5}, _prints("65535\n")),
    "cpp_print": ({"code": CPP % "std::cout << 123 << std::endl;", "run_timeout": 5}, _prints("123\n", compiled=True)),
    "cpp_timeout": (
        {
            "code": CPP % "std::this_thread::sleep_for(std::chrono::milliseconds(1000));",
            "run_timeout": 0.5,
            "compile_timeout": 5,
        },
        IS_LATE,
    ),
    "cpp_assertion_error": ({"code": CPP % "assert(2 < 1);"}, _fails("Assertion")),
    "cpp_compile_error": ({"code": CPP % "int n = ?;"}, DOES_NOT_COMPILE),
    "cpp_stdin": (
        {"code": CPP % "int n; std::cin >> n; std::cout << n << std::endl;", "stdin": "65535", "run_timeout": 5},
        _prints("65535\n", compiled=True),
    ),
    "cpp_pthread": ({"code": THREADS, "run_timeout": 2}, _prints("36\n", compiled=True)),
    "golang_print": ({"code": GO % ('"fmt"\n', "fmt.Println(123)")}, _prints("123\n", compiled=True)),
    "golang_timeout": (
        {
            "code": GO % ('"time"\n', "time.Sleep(200 * time.Millisecond)"),
            "run_timeout": 0.19,
            "compile_timeout": 1,
        },
        IS_LATE,
    ),
    "golang_stdin": (
        {"code": GO % ('"fmt"\n', "n := 0; fmt.Scan(&n); fmt.Println(n)"), "stdin": "65535", "run_timeout": 5},
        _prints("65535\n", compiled=True),
    ),
    "java_print": ({"code": JAVA % "System.out.println(123);"}, _prints("123\n", compiled=True)),
    "java_compile_error": ({"code": JAVA % "System.uto.println(123);"}, DOES_NOT_COMPILE),
    "java_timeout": ({"code": JAVA % "Thread.sleep(200);", "run_timeout": 0.1}, IS_LATE),
    "java_assertion_error": ({"code": JAVA % 'throw new AssertionError("no");'}, _fails("java.lang.AssertionError")),
    "java_assert": ({"code": JAVA % "assert 2 < 1;"}, _fails()),
    "java_stdin": (
        {
            "code": JAVA % "System.out.println(new java.util.Scanner(System.in).nextInt());",
            "stdin": "65535",
            "run_timeout": 5,
        },
        _prints("65535\n", compiled=True),
    ),
    "nodejs_print": ({"code": "console.log(123)", "run_timeout": 5}, _prints("123\n")),
    "nodejs_timeout": ({"code": "setTimeout(() => 0, 1000)", "run_timeout": 0.1}, IS_LATE),
    "nodejs_assertion_error": ({"code": "require('assert').strictEqual(1, 2)"}, _fails("AssertionError")),
    "nodejs_humanevalx_assertion_error": (
        {"code": "console.assert(2 < 1)"},
        {"status": SUCCESS, "ran": FINISHED, "stderr": "Assertion failed"},
    ),
    "nodejs_stdin": (
        {
            "code": "process.stdin.on('data', given => { console.log(parseInt(given)); process.exit() })",
            "stdin": "65535",
            "run_timeout": 5,
        },
        _prints("65535\n"),
    ),
    "rust_print": ({"code": RUST % 'println!("123");', "run_timeout": 5}, _prints("123\n", compiled=True)),
    "rust_timeout": (
        {
            "code": RUST % "std::thread::sleep(std::time::Duration::from_millis(200));",
            "run_timeout": 0.1,
            "compile_timeout": 1,
        },
        IS_LATE,
    ),
    "rust_assertion_error": ({"code": RUST % "assert_eq!(1, 2);"}, _fails("assertion")),
    "rust_compile_error": ({"code": RUST % 'let n: u32 = "text";'}, DOES_NOT_COMPILE),
    "rust_stdin": (
        {
            "code": RUST % "let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();"
            ' println!("{}", s.trim().parse::<i32>().unwrap());',
            "stdin": "65535",
        },
        _prints("65535\n", compiled=True),
    ),
    "typescript_print": ({"code": "console.log(123)", "run_timeout": 5}, _prints("123\n", compiled=True)),
    "typescript_timeout": (
        {"code": "import util from 'util';\nutil.promisify(setTimeout)(200);", "run_timeout": 0.1},
        IS_LATE,
    ),
    "typescript_assertion_error": (
        {"code": "import assert from 'assert';\nassert.strictEqual(1, 2);"},
        _fails("AssertionError"),
    ),
    "typescript_humanevalx_assertion_error": (
        {"code": "console.assert(2 < 1)"},
        {"status": SUCCESS, "ran": FINISHED, "stderr": "Assertion failed"},
    ),
    "typescript_stdin": (
        {
            "code": "process.stdin.on('data', (given: Buffer) => { console.log(parseInt(given.toString())) });",
            "stdin": "65535",
            "run_timeout": 5,
        },
        _prints("65535\n", compiled=True),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    local_or_skip()
    packages = sysconfig.get_paths()["purelib"]
    with running(partial(make_sandbox, "local", slots=1, python_paths=(packages,)), slots=2) as service:
        yield service


def _language(name: str) -> str:
    word = name.partition("_")[0]
    return {"golang": "go"}.get(word, word)


@pytest.mark.parametrize("name", CASES)
def test_programs(service: Running, name: str) -> None:
    language = _language(name)
    if language in NEEDS and shutil.which(NEEDS[language]) is None:
        pytest.skip(f"{NEEDS[language]} is not installed")
    body, told = CASES[name]
    response = service.post("/run_code", {**body, "language": language}, timeout=60)
    assert response.status_code == 200
    answer = response.json()
    assert answer["status"] == told["status"], answer
    ran, compiled = answer["run_result"], answer["compile_result"]
    if "ran" in told:
        assert (None if ran is None else ran["status"]) == told["ran"]
    if "stdout" in told:
        assert ran["stdout"] == told["stdout"]
    assert told.get("stderr", "") in (ran or compiled)["stderr"]
    if told.get("compiled"):
        assert compiled["status"] == told["compiled"]
        assert (compiled["return_code"] == 0) == (ran is not None)


def test_nodejs_lodash_dep(service: Running) -> None:
    body = {"language": "nodejs", "code": "const _ = require('lodash'); if (!_.isEqual([1], [1])) throw 1"}
    answer = service.post("/run_code", body).json()
    if "Cannot find module" in answer["run_result"]["stderr"]:
        pytest.skip("lodash is not installed (on Debian and Ubuntu: apt install node-lodash)")
    assert answer["status"] == SUCCESS


def test_python_fetch_files_below_the_working_folder_only(service: Running) -> None:
    code = "open('a.txt', 'w').write('secret')"
    body = {"language": "python", "code": code, "fetch_files": ["a.txt"], "run_timeout": 5}
    answer = service.post("/run_code", body).json()
    assert (answer["status"], base64.b64decode(answer["files"]["a.txt"])) == (SUCCESS, b"secret")
    assert service.post("/run_code", {**body, "fetch_files": ["a.txt", "/mnt/b"]}).status_code == 422


@pytest.mark.parametrize(("relation", "status"), [("==", SUCCESS), ("!=", FAILED)], ids=["pass", "fail"])
def test_pytest(service: Running, relation: str, status: str) -> None:
    code = (
        "from collections import Counter\n\n\nclass TestCount:\n    def test_words(self, capfd, tmp_path):\n"
        "        (tmp_path / 'a').write_text('case Case', encoding='utf-8')\n"
        "        print(Counter((tmp_path / 'a').read_text().lower().split())['case'])\n"
        f"        assert capfd.readouterr().out {relation} '2\\n'\n"
    )
    for language, expected in (("python", SUCCESS), ("pytest", status)):
        body = {"language": language, "code": code, "run_timeout": 5}
        assert service.post("/run_code", body).json()["status"] == expected


def _cells(service: Running, *cells: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.post("/run_jupyter", {"cells": cells}, timeout=60).json()["cells"]
    return found


def test_jupyter_print(service: Running) -> None:
    assert _cells(service, "print(123)")[0]["stdout"] == "123\n"


def test_jupyter_multi_cell(service: Running) -> None:
    first, second, third = _cells(service, "a = 'hello'", "a", "print(a)")
    assert (first["stdout"], third["stdout"]) == ("", "hello\n")
    assert second["display"][0]["text/plain"] == "'hello'"


def test_jupyter_multi_cell_raise(service: Running) -> None:
    complains = "import sys\nleft = sys.stderr.write('an error\\n')"
    _, second, third, fourth = _cells(service, "a = 'hello'", complains, "assert False", "print(a)")
    assert second["stderr"] == "an error\n"
    assert third["error"][0]["ename"] == "AssertionError"
    assert fourth["stdout"] == "hello\n"


def test_jupyter_plot(service: Running) -> None:
    pytest.importorskip("matplotlib")
    plot = "pyplot.plot([1, 2], [3, 5])\npyplot.title('A plot')\npyplot.show()"
    assert "image/png" in _cells(service, "import matplotlib.pyplot as pyplot", plot)[1]["display"][0]


SERVES = """
import http.server, threading, urllib.request

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'a special string')

server = http.server.ThreadingHTTPServer(('', 34567), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://HOST:34567').read().decode())
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_isolation_network_server(service: Running, host: str) -> None:
    body = {"language": "python", "code": SERVES.replace("HOST", host), "run_timeout": 5}
    answer = service.post("/run_code", body).json()
    assert (answer["status"], answer["run_result"]["stdout"]) == (SUCCESS, "a special string\n")


def test_isolation_network_server_port_conflict(service: Running) -> None:
    code = SERVES.replace("HOST", "127.0.0.1") + "import time; time.sleep(1)"
    ask = partial(service.post, "/run_code", {"language": "python", "code": code, "run_timeout": 6})

    async def both() -> list[Any]:
        return await asyncio.gather(asyncio.to_thread(ask), asyncio.to_thread(ask))

    assert [each.json()["status"] for each in asyncio.run(both())] == [SUCCESS] * 2
