"""configs/gpu: each file resolves, its memory plan fits the GPU that it names, and it runs two steps on the CPU with a
tiny random model of the same family and the family's real tokenizer and chat template."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from chat_templates import read_template, real_tokenizer, template_names, tokenizer_folders
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll_envs.errors import ConfigError
from trainer import train
from trainer.config.load import load_config, resolve
from trainer.engines.vllm import HEAD_WIDTHS
from trainer.model.network import load_tokenizer
from trainer.run.folder import read_metrics
from trainer.run.memory_items import GIB
from trainer.run.memory_plan import make_plan

FILES = sorted((Path(__file__).parents[2] / "configs" / "gpu").glob("*.yaml"))
FREE = {24: 23.0, 80: 78.0}
"""GiB that such a device has left when nothing runs."""
SHAPES = {
    "0.5b": {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    },
    "1.5b": {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    },
}  # fmt: skip
QUICK = ("frozenlake_qwen2.5_1.5b", "webshop_qwen2.5_0.5b")
ON_A_SERVER = ("engine.name=vllm",)


def shape(path: Path) -> Qwen2Config:
    own = SHAPES[path.stem.rpartition("_")[2]]
    return Qwen2Config(
        **own, vocab_size=151_936, num_key_value_heads=2, max_position_embeddings=32_768, tie_word_embeddings=True
    )


def stated(path: Path) -> tuple[int, int, list[str]]:
    """GB of the device for all weights, for LoRA, and the overrides of the latter, as the file's head says them."""
    head = path.read_text().partition("format:")[0]
    whole = re.search(r"one GPU of (\d+) GB", head)
    lora = re.search(r"# LoRA(?:, on (\d+) GB)?: (.+)", head)
    assert whole is not None
    assert lora is not None
    return int(whole[1]), int(lora[1] or whole[1]), lora[2].split()


def test_there_is_a_file_for_each_environment_and_size() -> None:
    names = {f"{env}_qwen2.5_{size}" for env in ("frozenlake", "sokoban", "webshop") for size in SHAPES}
    assert {path.stem for path in FILES} == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def test_a_file_fits_the_device_that_it_names(path: Path, engine: str) -> None:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    gb, lora_gb, overrides = stated(path)
    server = ON_A_SERVER if engine == "vllm" else ()
    for size, given in ((gb, []), (lora_gb, overrides)):
        config = load_config(path, [*given, *server])
        free = {"cuda": FREE[size] * GIB, "cpu": 32 * GIB}
        plan = make_plan(config, shape(path), devices=("cuda", "cuda"), free=free)
        assert plan.check() == [], (given, plan.phases("cuda"))
    small = make_plan(load_config(path), shape(path), devices=("cuda", "cuda"), free={"cuda": 8 * GIB, "cpu": 32 * GIB})
    with pytest.raises(ConfigError, match=r"learner\.lora_rank"):
        small.check()
    assert 64 in HEAD_WIDTHS


@pytest.fixture(scope="module")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a random model of Qwen2's family and Qwen2.5's own tokenizer and chat template, which is loaded
    once: its 150,000 words take a second."""
    folders = tokenizer_folders()
    if "qwen2" not in folders:
        pytest.skip("the tokenizer of Qwen2 is not at hand: a folder of folders in ROLL_TOKENIZERS, qwen2/ among them")
    if "qwen2_5" not in template_names():
        pytest.skip("the chat template of Qwen2.5 is not at hand: install trl, or name a folder in ROLL_CHAT_TEMPLATES")
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = real_tokenizer(folders["qwen2"], read_template("qwen2_5"))
    torch.manual_seed(0)
    network = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32_768, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    once = functools.cache(load_tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.model.network.load_tokenizer", once)
        patch.setattr("trainer.run.preflight.load_tokenizer", once)
        yield folder


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem) for p in FILES],
)
def test_a_file_runs_two_steps(path: Path, tiny_qwen: Path, tmp_path: Path, no_pictures: None) -> None:
    """Everything but the model, the device and the counts is as in the file; half of them train adapters."""
    given = {}
    if path.stem.endswith("1.5b"):
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
        given = dict(override.split("=") for override in stated(path)[2])
    config = load_config(path, [f"{key}={value}" for key, value in given.items()])
    kwargs = {**config.env.kwargs, "max_turns": 2}
    small = resolve(
        config,
        {
            "steps": 2,
            "output": str(tmp_path),
            "env": {"kwargs": kwargs},
            "model": {"path": str(tiny_qwen)},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"groups_per_step": 2, "group_size": 2, "max_running": 4},
            "engine": {"device": "cpu"},
            "learner": {"device": "cpu", "logits_mib": 64.0},
            "evaluation": {"tasks": 2, "every": 0},
            "checkpoint": {"every": 0},
        },
    )
    summary = train(small)
    steps = read_metrics(summary["folder"], "train")
    assert [record["step"] for record in steps] == [1, 2]
    assert all(record["mismatch/kl"] < 1e-2 for record in steps if "mismatch/kl" in record)
    assert (Path(summary["folder"]) / "model" / "model.safetensors").is_file()
