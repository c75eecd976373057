"""Models by folder and by name of the hub: a hub on this machine's loopback stands for the real one."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from tiny import tiny_model

from roll_envs.errors import ConfigError
from trainer.cli import main
from trainer.config import ModelConfig
from trainer.config.load import load_config, parse_config
from trainer.model.hub import find_model
from trainer.model.network import build_model, save_model
from trainer.run.folder import RunFolder
from trainer.run.preflight import preflight

COMMITS = {"main": "a" * 40, "older": "b" * 40}
NAME = "lab/walker"


class Hub(ThreadingHTTPServer):
    """Repositories by name: a folder, and what is wrong with them. Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.broken = False
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path}")
        if hub.broken:
            return self._answer(500)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = listing or file
        if match is None:
            return self._answer(404)
        name = match[1]
        revision = match[3] if listing else match[2]
        if name not in hub.repositories:
            return self._answer(401, error="RepoNotFound")
        commit = COMMITS.get(revision, revision)
        if commit not in COMMITS.values():
            return self._answer(404, error="RevisionNotFound")
        folder = hub.repositories[name]
        if listing and listing[2] == "revision":
            siblings = [{"rfilename": p.name} for p in sorted(folder.iterdir())]
            return self._answer(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())
        if listing:
            entries = [
                {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": "c" * 40}
                for p in sorted(folder.rglob("*"))
                if p.is_file()
            ]
            return self._answer(200, json.dumps(entries).encode())
        if name in hub.gated:
            return self._answer(403, error="GatedRepo")
        assert file is not None
        return self._answer(200, (folder / file[3]).read_bytes(), commit=commit, tag=file[3])

    def _answer(self, status: int, body: bytes = b"", *, error: str = "", commit: str = "", tag: str = "") -> None:
        self.send_response(status)
        headers = {"X-Error-Code": error, "X-Repo-Commit": commit, "ETag": tag and f'"{tag}-{len(body)}"'}
        for key, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    save_model(tiny_model(), path)
    (path / "onnx").mkdir()
    (path / "onnx" / "config.json").write_bytes(b"of another program")
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> Iterator[Hub]:
    server = Hub()
    server.repositories[NAME] = folder
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def files(hub: Hub) -> set[str]:
    return {line.rpartition("/")[2] for line in hub.asked if "/resolve/" in line and line.startswith("GET")}


def test_a_name_of_the_hub_is_fetched_once_and_weights_when_they_are_needed(hub: Hub, folder: Path) -> None:
    config = ModelConfig(path=NAME)
    found = find_model(config, weights=False)
    assert found.commit == COMMITS["main"]
    assert "config.json" in files(hub)
    assert "model.safetensors" not in files(hub)
    model = build_model(config, None, 0)  # type: ignore[arg-type]
    assert "model.safetensors" in files(hub)
    assert not any("onnx" in line for line in hub.asked)
    own = tiny_model().network.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.network.state_dict().items())
    hub.asked.clear()
    assert find_model(ModelConfig(path=NAME, revision=found.commit)).folder == find_model(config).folder
    assert not files(hub)


def test_without_a_network_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(path=NAME)
    find_model(config)
    hub.broken = True
    assert find_model(config).commit == COMMITS["main"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert find_model(config).commit == COMMITS["main"]
    assert hub.asked == []


def test_a_cache_without_weights_is_not_taken_for_a_model(hub: Hub) -> None:
    config = ModelConfig(path=NAME)
    find_model(config, weights=False)
    hub.broken = True
    with pytest.raises(ConfigError, match=NAME) as caught:
        find_model(config)
    assert NAME in str(caught.value)
    assert "give the folder as model.path" in str(caught.value)


def test_what_is_wrong_is_said_with_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(path: str, revision: str | None = None) -> str:
        with pytest.raises(ConfigError) as caught:
            find_model(ModelConfig(path=path, revision=revision))
        return str(caught.value)

    assert "'lab/nobody' here" in said("lab/nobody")
    assert "no model of this name" in said("lab/nobody")
    assert "no revision 'v9'" in said(NAME, "v9")
    assert "config.json is missing" in said("nowhere")
    assert "Qwen/Qwen2.5-0.5B-Instruct" in said("./nowhere/at/all")
    assert "a folder, which has no revisions" in said(".", "main")
    hub.gated.add(NAME)
    for words in ("gated", "HF_TOKEN", f"hf download {NAME}", "accept its terms"):
        assert words in said(NAME)
    hub.broken = True
    for words in ("HF_ENDPOINT", "could not be asked", "500"):
        assert words in said("lab/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "Unset HF_HUB_OFFLINE" in said("lab/other")
    hub.shutdown()
    hub.server_close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "could not be asked" in said("lab/other")


def test_a_folder_without_weights_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert find_model(ModelConfig(path=str(tmp_path)), weights=False).folder == tmp_path
    with pytest.raises(ConfigError, match="no weights in"):
        find_model(ModelConfig(path=str(tmp_path)))


def test_a_revision_needs_a_path() -> None:
    with pytest.raises(ValueError, match=r"model\.revision is 'main', but model\.path is null"):
        ModelConfig(revision="main")


RUN = "format: 1\nname: walk\nsteps: 0\nenv: {id: roll/FrozenLake-v0, kwargs: {max_turns: 1}}\nevaluation: {tasks: 1}\n"


def test_a_run_writes_down_the_commit_and_resumes_with_it(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    (tmp_path / "run.yaml").write_text(RUN + f"output: {tmp_path}/runs\nmodel: {{path: {NAME}, revision: older}}\n")
    assert main(["run.yaml", "engine.max_tokens=600"]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    config = load_config(path / "config.yaml")
    assert (config.model.path, config.model.revision) == (NAME, COMMITS["older"])
    hub.broken = True  # everything is in the cache
    assert main(["resume", str(path)]) == 0
    with RunFolder.open(path) as again:
        assert again.config.model.revision == COMMITS["older"]
    assert "memory" in capsys.readouterr().out


def test_a_model_without_a_chat_template_is_refused_before_a_folder_is_made(
    hub: Hub, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in folder.glob("*.*"):
        (plain / file.name).write_bytes(file.read_bytes())
    (plain / "chat_template.jinja").unlink()
    hub.repositories["lab/plain"] = plain
    (tmp_path / "run.yaml").write_text(RUN + f"output: {tmp_path}/runs\nmodel: {{path: lab/plain}}\n")
    assert main(["run.yaml"]) == 2
    assert "the tokenizer of 'lab/plain' has no chat template" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert "model.safetensors" not in files(hub)
    with pytest.raises(ConfigError, match="instruct version"):
        preflight(parse_config(RUN, [f"model.path={plain}"]))
