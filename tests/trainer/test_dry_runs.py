"""``roll-train FILE --dry-run`` and ``plan FILE`` of the files of ``configs``, on machines as they name them.

Its GPUs are pretended, the shape of its model is the real one, and no weight is there. Files for SmolLM2 are run by
``tests/examples/test_smollm2.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_gpu_configs import stated
from test_plan import SEVEN, THIRTY
from transformers import PreTrainedConfig, Qwen2Config

import roll_envs
from trainer.cli import main
from trainer.command import MISTAKE
from trainer.config.load import load_config
from trainer.model.network import build_tokenizer, words_of
from trainer.run.memory_items import GIB

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*.yaml") if "smollm2" not in path.stem)
NAMES = [str(path.relative_to(CONFIGS).with_suffix("")) for path in FILES]
TOO_LARGE = "webshop_7b"
"""In float32 with the built-in engine, for a machine of more than 8 x 80 GB; its head says so."""
SHAPES: dict[str, PreTrainedConfig] = {
    "0.5b": Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151_936, max_position_embeddings=32_768, tie_word_embeddings=True,
    ),
    "1.5b": Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        vocab_size=151_936, max_position_embeddings=32_768, tie_word_embeddings=True,
    ),
    "7b": SEVEN,
    "30b": THIRTY,
}  # fmt: skip


def shape_of(name: str) -> PreTrainedConfig | None:
    """Of the model of a file's name; None where it is built from the file itself."""
    return next((shape for word, shape in SHAPES.items() if word in name), None)


def model_folder(name: str, folder: Path) -> list[str]:
    """The override that puts the description of the file's model in the place of its name."""
    shape = shape_of(name)
    if shape is None:
        return []
    config = load_config(CONFIGS / f"{name}.yaml")
    shape.save_pretrained(folder)
    build_tokenizer(words_of(roll_envs.make(config.env.id, **config.env.kwargs))).save_pretrained(folder)
    return [f"model.path={folder}"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that this machine has so many GPUs of so many GB, vLLM, SGLang, and what backends need, and is a node of
    a Ray cluster."""

    def pretend(gpus: int, gb: float = 80.0) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: ((gb - 2) * GIB, gb * GIB))
        monkeypatch.setattr("trainer.run.memory_plan._read", lambda path: f"MemAvailable: {512 * 2**20} kB")
        for check in ("engines.vllm.check_vllm", "engines.sglang.check_sglang", "cluster.ray_cluster.check_cluster"):
            monkeypatch.setattr(f"trainer.{check}", lambda *_: None)
        monkeypatch.setattr("trainer.engines.vllm.VLLMSettings.on_gpu", lambda *_: True)
        monkeypatch.setattr("trainer.learner._importable", lambda package: True)

    return pretend


def gpus_of(name: str) -> int:
    return 8 if name.startswith("cluster/") else 1


@pytest.mark.parametrize("name", NAMES)
def test_dry_run_and_plan(
    name: str, tmp_path: Path, machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = CONFIGS / f"{name}.yaml"
    gb = stated(path)[0] if name.startswith("gpu/") else 80
    machine(gpus_of(name), gb)
    given = [str(path), *model_folder(name, tmp_path)]
    status = main([*given, "--dry-run"])
    said = capsys.readouterr()
    if name == TOO_LARGE:
        assert status == MISTAKE
        assert "not enough memory" in said.err
        return
    assert status == 0, said.err
    assert said.out.rstrip().endswith("Dry run: nothing was started or written.")
    monkeypatch.undo()  # a plan is for machines that are elsewhere
    nodes = 4 if name.endswith("4nodes") else 1
    status = main(["plan", *given, "--nodes", f"{nodes}", "--gpus", f"{gpus_of(name)}", "--gpu-gib", f"{gb}"])
    planned = capsys.readouterr()
    assert status == 0, planned.err
    assert "a GPU of the learner: about " in planned.out
    assert f" of {gb} GiB at most" in planned.out
    assert "a step of " in planned.out
    if name.endswith("8gpus"):
        assert all(f"learner {i} + engine {i}" in out for i in range(8) for out in (said.out, planned.out))
    if name.endswith("4nodes"):
        seats = re.findall(r"node (\d), GPU \d +(learner|engine)", planned.out)
        assert seats == [(f"{gpu // 8}", "learner" if gpu < 24 else "engine") for gpu in range(32)]
