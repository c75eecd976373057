"""vLLM engines over the servers of ``fake_vllm``: made, asked, and their answers checked; the fixtures ``model``,
``fake`` and ``engine`` of conftest come from here."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fake_vllm
import httpx
import pytest
import torch
from fake_vllm import VOCABULARY
from tiny import tiny_model

from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig
from trainer.engines import make_engine
from trainer.engines.remote import RemoteEngine
from trainer.engines.vllm import TESTED
from trainer.model.network import LanguageModel

PROMPT = (5, 6, 7)
FOREVER = 60.0


def blank_model() -> LanguageModel:
    """All weights are 0, so that every id is as likely as any other, as the server says."""
    model = tiny_model(hidden_size=64, heads=2, layers=1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    assert model.network.config.vocab_size == VOCABULARY
    return model


def connect(model: LanguageModel, url: str | list[str], **settings: Any) -> RemoteEngine:
    """An engine over servers that run."""
    engine = make_engine(model, EngineConfig(name="vllm", **{"url": url, "max_tokens": 100, **settings}))
    assert isinstance(engine, RemoteEngine)
    return engine


def started(model: LanguageModel, environment: Path, **settings: Any) -> RemoteEngine:
    """An engine that starts the servers of ``environment``."""
    engine = make_engine(model, EngineConfig(name="vllm", max_tokens=100, venv=str(environment), **settings))
    assert isinstance(engine, RemoteEngine)
    return engine


def made_environment(folder: Path, arguments: str = "", **releases: str) -> Path:
    """A virtual environment in which the fake stands for vLLM."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    for name, version in {**TESTED, **releases}.items():
        place = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nshift\nexec '{sys.executable}' '{fake_vllm.__file__}' {arguments} \"$@\"\n")
    program.chmod(0o755)
    return folder


def ask(
    engine: RemoteEngine,
    count: int,
    *,
    n: int = 4,
    timeout_s: float = FOREVER,
    session: Callable[[int], str | None] = lambda _: None,
) -> list[Future[Completion]]:
    """So many requests, each with a seed and a session of its own."""
    return [
        engine.submit(PROMPT, SamplingParams(max_new_tokens=n, seed=i), timeout_s=timeout_s, session=session(i))
        for i in range(count)
    ]


def check(answers: Sequence[Future[Completion]], version: int = 0, n: int = 4) -> None:
    """Wait for answers, which are whole and by the weights of ``version``."""
    for each in answers:
        completion = each.result(FOREVER)
        assert (completion.finish, completion.weight_version) == ("length", version)
        assert completion.spans == ((version, n),)
        assert len(completion.ids) == n
        assert completion.logprobs == pytest.approx([-math.log(VOCABULARY)] * n)


def misbehave(engine: RemoteEngine, **bad: Any) -> None:
    httpx.post(engine._replicas[0].server.url + "/misbehave", json=bad, trust_env=False)


def process(engine: RemoteEngine) -> int:
    """Of the first server."""
    found = engine._replicas[0].server._process
    assert found is not None
    return found.pid


def until(reached: Callable[[], object], within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(pid: int, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:  # also one that ends between opening and reading
            return True
        time.sleep(0.05)
    return False
