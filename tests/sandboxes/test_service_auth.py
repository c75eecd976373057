"""Tokens: who may ask, and that a service which others can reach does not start without."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_fakes import Running, running

from roll_envs.errors import ConfigError, MissingExtraError
from roll_envs.sandbox import Program
from sandboxes import command
from sandboxes.client import RemoteSandbox
from sandboxes.service.app import is_allowed
from sandboxes.service.settings import Settings, read_tokens

TOKEN, OTHER = "correct-horse-battery", "staple-of-the-next-week"
BODY = {"code": "print(1)", "language": "python"}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(tokens=(TOKEN, OTHER)) as service:
        yield service


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Digest {TOKEN}"},
        {"Authorization": "Basic ????"},
        {"Authorization": "Basic eDp3cm9uZw=="},
        {"X-Token": TOKEN},
    ],
)
def test_others_are_refused_on_every_route(service: Running, headers: dict[str, str]) -> None:
    for path in ("/run_code", "/run_jupyter", "/submit", "/judge", "/v1/run", "/v1/sessions"):
        refused = service.post(path, BODY, headers=headers)
        assert (refused.status_code, refused.json()["kind"]) == (401, "unauthorized")
        assert "Bearer" in refused.headers["www-authenticate"]
        assert TOKEN not in refused.text
    assert httpx.delete(service.url + "/v1/sessions/x", headers=headers).status_code == 401
    assert service.get("/metrics", headers=headers).status_code == 401
    # For load balancers.
    assert service.get("/v1/ping", headers=headers).json() == "pong"
    assert service.get("/v1/health", headers=headers).status_code == 200


def test_every_token_is_let_in_in_both_forms(service: Running) -> None:
    for token in (TOKEN, OTHER):
        assert service.post("/run_code", BODY, headers={"Authorization": f"bearer {token}"}).status_code == 200
        # What clients do that take nothing but a URL.
        url = service.url.replace("http://", f"http://x:{token}@") + "/run_code"
        assert httpx.post(url, json=BODY).json()["status"] == "Success"
    assert service.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_client_sends_its_token(service: Running) -> None:
    with RemoteSandbox(service.url, token=TOKEN) as sandbox:
        assert sandbox.run(Program(source="print(1)")).ok
    with RemoteSandbox(service.url) as sandbox, pytest.raises(ConfigError, match="wants a token"):
        sandbox.run(Program(source="print(1)"))


def test_a_body_is_not_read_for_others(service: Running) -> None:
    answer = service.send(b"POST /run_code HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 900000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_without_tokens_everybody_may() -> None:
    assert is_allowed(None, ())
    assert not is_allowed(None, (TOKEN,))


def test_token_files(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# for the week\n{TOKEN}\n\n  {OTHER}  \n")
    assert read_tokens(file) == (TOKEN, OTHER)
    for content, words in (("", "no token"), ("# x\n\n", "no token"), (f"{TOKEN}\nshort\n", "line 2")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=words) as raised:
            read_tokens(file)
        assert TOKEN not in str(raised.value)
        assert "short" not in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "none")
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(file)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_refuses_to_listen_for_others_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["serve", "--host", "0.0.0.0"]) == 2
    error = capsys.readouterr().err
    assert "runs programs for whoever can reach it" in error
    assert "--token-file" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "0"], "slots should be greater than 0"),
        (["--full-status", "500"], "429 or 504"),
        (["--token-file", "/no/such/file"], "cannot be read"),
        (["--backend", "remote"], "use local or docker"),
        (["--backend", "lokal"], "did you mean 'local'"),
        (["--backend-arg", "x"], "KEY=VALUE"),
        (["--max-output", "-1"], "max_output_bytes"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["serve", *arguments]) != 0
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main(["serve", "--port", str(port)]) == 2
    assert f"127.0.0.1 port {port} cannot be listened on: Address already in use" in capsys.readouterr().err


def test_the_commands_options_become_settings() -> None:
    parser = command.make_parser()
    options = parser.parse_args(
        ["serve", "--port", "0", "--queue", "5", "--max-body", "3", "--max-run", "7.5", "--slots", "3"]
    )
    made = command._settings(options)
    assert (made.port, made.queue, made.max_body_bytes, made.max_run_s, made.slots) == (0, 5, 3 << 20, 7.5, 3)
    assert made.max_output_bytes == Settings().max_output_bytes
    # Every flag is a field.
    for name in command.OPTIONS:
        assert hasattr(made, name)


def test_backend_arguments_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(command, "make_sandbox", lambda name, **kwargs: seen.append({"name": name, **kwargs}))
    command._maker("docker", ["image=python:3.12", "unsafe=true", "pids=12"])()
    assert seen == [{"name": "docker", "slots": 1, "image": "python:3.12", "unsafe": True, "pids": 12}]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert command.main(["serve", "--backend", "docker"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'roll-envs[service]'")
    assert issubclass(MissingExtraError, ImportError)
