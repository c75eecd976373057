"""``roll-envs serve-webshop``: a real server on a free port, and its mistakes as one line each."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("starlette", reason="needs the optional part 'service'")
pytest.importorskip("uvicorn", reason="needs the optional part 'service'")
pytest.importorskip("jinja2", reason="needs the optional part 'service'")

from roll_envs.cli import main

SERVE = "serve-webshop"


@contextmanager
def _served(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a shop in another process, which is stopped at the end."""
    command = [sys.executable, "-m", "roll_envs", SERVE, "--port", "0", "--json", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 60)[0], "no line in 60 s"
        said = ""
        while not said.rstrip().endswith("}"):
            line = child.stdout.readline()
            assert line, child.stderr.read() if child.stderr else ""
            said += line
        yield json.loads(said)["url"], child
    finally:
        child.kill()
        child.communicate(timeout=20)


def test_a_real_server_answers_and_ends_with_ctrl_c() -> None:
    with _served("--env-kwargs", "max_turns=7") as (url, child), httpx.Client(follow_redirects=True) as client:
        assert url.startswith("http://127.0.0.1:")
        assert "Turn <b>0</b> of 7" in client.get(url).text
        page = client.post(f"{url}act", data={"query": "shoes", "turn": "0"}).text
        assert "results</h1>" in page
        assert "Turn <b>1</b> of 7" in page
        assert client.get(f"{url}static/style.css").status_code == 200
        child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 20
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.returncode == 0


def test_what_play_prints_can_be_watched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "roll_envs", "play", "roll/WebShop-v0", "--options", "session=2", "--json"]
    lines = "s shoes\n1\n2\nclick[no]\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=True)
    path = tmp_path / "episode.json"
    path.write_text(done.stdout)
    turns = len(json.loads(done.stdout)["turns"])
    assert turns >= 2
    with _served("--record", str(path)) as (url, _):
        assert url.endswith("/watch")
        assert "episode.json" in httpx.get(url).text
        page = httpx.get(f"{url}/1/{turns}").text
        assert "does not give" not in page
        assert "cannot be" not in page
        assert "Goal 2 of" in httpx.get(url.replace("/watch", "/?session=2"), follow_redirects=True).text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "70000"], "--port must be between 0 and 65535"),
        (["--port", "x"], "invalid int value"),
        (["--host", "no such host"], "cannot listen on no such host"),
        (["--env-kwargs", "max_turn=3"], "did you mean 'max_turns'"),
        (["--env-kwargs", "max_turns"], "--env-kwargs: 'max_turns' is not of the form"),
        (["--id", "roll/FrozenLake-v0"], "is no shop"),
        (["--id", "roll/WebShp-v0"], "did you mean 'roll/WebShop"),
        (["--data-dir", "nowhere"], "nowhere"),
        (["--data-dir", "a", "--env-kwargs", "data_dir=b"], "give the data folder once"),
        (["--record", "missing.json"], "missing.json: cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = [] if "--port" in arguments else ["--port", "0"]
    assert main([SERVE, *arguments, *port]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main([SERVE, "--port", str(other.getsockname()[1])]) == 2
    assert "choose another --host or --port" in capsys.readouterr().err


def test_a_missing_library_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("jinja2", "starlette", "uvicorn"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            assert main([SERVE]) == 2
        assert "pip install 'roll-envs[service]'" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_other_machines_are_let_in_with_a_warning_only(
    host: str, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    assert main([SERVE, "--host", host, "--port", "0"]) == 0
    captured = capsys.readouterr()
    assert ("can be reached from other machines" in captured.err) is warns
    assert f"The shop is open at http://{host}:" in captured.out
