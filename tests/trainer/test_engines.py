"""Engines by name, the contract's defaults, and what training asks of an engine's capabilities."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import pytest
import torch
from loop_runs import run
from tiny import tiny_model

from roll_envs.errors import ConfigError, EngineError, PluginError, UnknownNameError
from roll_envs.policy import Policy
from roll_envs.settings import Part, Settings
from roll_envs.types import Completion, SamplingParams
from trainer.config import EngineConfig
from trainer.engines import ENGINES, HF, Capabilities, Engine, EnginePart, HFSettings, check_can_train, hf, make_engine
from trainer.engines.hf import HFEngine
from trainer.model.network import LanguageModel, choose_device, save_model


class Least(Engine):
    """No more than the contract asks for."""

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        answer: Future[Completion] = Future()
        answer.set_result(Completion(ids=(7,), logprobs=(0.0,), finish="stop", weight_version=self.version))
        return answer

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.version = version


def test_the_built_in_engine_by_name_gets_its_settings() -> None:
    engine = make_engine(tiny_model(), EngineConfig(max_running=3, max_tokens=77))
    try:
        assert isinstance(engine, HFEngine)
        assert isinstance(engine, Policy)
        assert (len(engine._network.free_slots), engine._max_tokens) == (3, 77)
    finally:
        engine.close()
    assert HF.settings is HFSettings
    with pytest.raises(UnknownNameError, match="no engine 'fh'; known: 'hf'"):
        make_engine(tiny_model(), EngineConfig(name="fh"))


def test_the_built_in_engine_is_on_the_device_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def chosen(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(hf, "choose_device", chosen)
    devices: tuple[Literal["auto", "cuda"], ...] = ("auto", "cuda")
    for device in devices:
        make_engine(tiny_model(), EngineConfig(device=device)).close()
    assert asked == [*devices]


def test_the_built_in_engine_starts_from_a_folder(tmp_path: Path) -> None:
    model = tiny_model()
    save_model(model, tmp_path)
    sampling = SamplingParams(max_new_tokens=5, seed=1)
    answers = []
    for source in (model, tmp_path):
        engine = make_engine(source, EngineConfig())
        answers.append(engine.generate((5, 6, 7), sampling, timeout_s=30))
        engine.close()
    assert answers[0] == answers[1]


def test_an_engine_of_a_program_gets_settings_size_and_device() -> None:
    class Own(Settings):
        max_running: int = 2
        """Its own meaning of this key."""

    got: list[object] = []

    def make(model: LanguageModel | Path, settings: Own, *, max_tokens: int, device: str) -> Engine:
        got.extend([settings.max_running, max_tokens, device])
        return Least()

    ENGINES.register("least", EnginePart(settings=Own, make=make))
    ENGINES.register("other", Part())
    try:
        engine = make_engine(tiny_model(), EngineConfig(name="least", max_running=9, max_tokens=50, device="cpu"))
        assert got == [9, 50, "cpu"]
        engine.update_weights([], 3)
        answer = engine.generate((1,), SamplingParams(), timeout_s=1)
        assert (answer.ids, answer.spans) == ((7,), ((3, 1),))
        with pytest.raises(PluginError, match=r"'other' is a Part; it must be a trainer\.engines\.EnginePart"):
            make_engine(tiny_model(), EngineConfig(name="other"))
        with pytest.raises(ConfigError, match="exists already"):
            ENGINES.register("hf", EnginePart(make=make))
    finally:
        ENGINES.unregister("least")
        ENGINES.unregister("other")


def test_what_an_engine_cannot_do_it_refuses_and_training_asks_for_log_probs() -> None:
    engine = Least()
    assert engine.capabilities == Capabilities()
    engine.health()
    engine.close()
    for act in (engine.pause, engine.resume, engine.abort):
        with pytest.raises(EngineError, match="Least cannot"):
            act()
    with pytest.raises(ConfigError, match=r"engine\.name 'least': .* gives no log-probabilities"):
        check_can_train("least", engine)
    engine.capabilities = Capabilities(logprobs=True)
    check_can_train("least", engine)


def test_a_run_with_an_engine_without_log_probs_ends_before_it_begins(tmp_path: Path) -> None:
    ENGINES.register("least", EnginePart(make=lambda model, settings, *, max_tokens, device: Least()))
    try:
        with pytest.raises(ConfigError, match=r"engine\.name 'least': .* gives no log-probabilities"):
            run(tmp_path, engine={"name": "least"})
    finally:
        ENGINES.unregister("least")


def test_looking_an_engine_up_loads_no_torch() -> None:
    program = (
        "import sys\nfrom trainer.engines import ENGINES\n"
        "assert ENGINES.find('hf').settings(max_running=3).max_running == 3\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


def test_the_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, chosen in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert choose_device("auto") == torch.device(chosen)
        assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("cuda") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="device 'gpu' is not known; allowed: auto, cpu, cuda"):
        choose_device("gpu")
