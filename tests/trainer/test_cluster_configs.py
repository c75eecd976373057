"""configs/cluster: each file fits the machines that it names, and a tiny twin of it runs: the file's own backend on two
ranks, its environment, estimator and loss, with the built-in engine in the place of the servers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from chat_templates import read_template, real_tokenizer, template_names, tokenizer_folders
from test_plan import NODE
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from roll_envs.errors import ConfigError
from trainer import train
from trainer.config import RunConfig
from trainer.config.load import load_config, parse_config
from trainer.run.folder import read_metrics
from trainer.run.plan import plan_cluster

FOLDER = Path(__file__).parents[2] / "configs" / "cluster"
EXPERTS = FOLDER / "sokoban_qwen3_30b_a3b_4nodes.yaml"
FILES = sorted(FOLDER.glob("*.yaml"))
SHAPE = Qwen3MoeConfig(
    hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
    head_dim=128, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, vocab_size=151_936,
    decoder_sparse_step=1, tie_word_embeddings=False,
)  # fmt: skip
"""Of Qwen3-30B-A3B."""


def test_thirty_billion_weights_fit_four_nodes() -> None:
    hardware = replace(NODE, nodes=4, node_gib=1024.0)
    plan = plan_cluster(load_config(EXPERTS), SHAPE, hardware, tokens=1_000_000)
    assert not plan.colocated
    assert plan.seats[:24] == tuple((f"learner {i}",) for i in range(24))
    assert plan.seats[24:] == tuple((f"engine {i // 4}",) for i in range(8))
    assert plan.memory.parameters == pytest.approx(30.5e9, rel=0.01)
    assert plan.memory.peak("cuda")[1] < plan.memory.free["cuda"]
    with pytest.raises(ConfigError, match="32 GPUs are needed"):
        plan_cluster(load_config(EXPERTS), SHAPE, replace(hardware, nodes=3), tokens=1_000_000)
    cut_less = load_config(EXPERTS, ["learner.pipeline_parallel=4"])
    with pytest.raises(ConfigError, match="not enough memory"):
        plan_cluster(cut_less, SHAPE, hardware, tokens=1_000_000)


def tiny_folder(folder: Path, experts: bool) -> Path:
    """A random model of the file's family, with Qwen2.5's tokenizer and chat template."""
    folders = tokenizer_folders()
    if "qwen2" not in folders or "qwen2_5" not in template_names():
        pytest.skip("tokenizer and chat template of Qwen2.5 are not at hand: ROLL_TOKENIZERS, ROLL_CHAT_TEMPLATES")
    tokenizer = real_tokenizer(folders["qwen2"], read_template("qwen2_5"))
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32_768,
        "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None,
    }  # fmt: skip
    network: Any
    if experts:
        moe = Qwen3MoeConfig(
            **shape, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1
        )
        network = Qwen3MoeForCausalLM(moe)
    else:
        network = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def twin(path: Path, model: Path, output: Path) -> RunConfig:
    """The run of ``path``, made small: two ranks on this machine's processor, two steps of four episodes."""
    given = yaml.safe_load(path.read_text())
    given["env"]["kwargs"]["max_turns"] = 2
    given |= {
        "steps": 2,
        "output": str(output),
        "cluster": "local",
        "model": {"path": str(model)},
        "engine": {"name": "hf", "device": "cpu", "max_running": 4, "max_tokens": 4096},
        "rollout": {"groups_per_step": 2, "group_size": 2, "max_running": 4},
        "placement": {"learner": {"ranks": 2}},
        "evaluation": {"tasks": 2, "every": 0},
        "checkpoint": {"every": 0},
    }
    given["sampling"]["max_new_tokens"] = 4
    given["learner"] |= {"device": "cpu", "logits_mib": 64.0}
    if "pipeline_parallel" in given["learner"]:
        given["learner"]["pipeline_parallel"] = 2
    return parse_config(yaml.safe_dump(given))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.megatron if p == EXPERTS else pytest.mark.slow, id=p.stem) for p in FILES],
)
@pytest.mark.timeout(600)
def test_a_twin_runs_two_steps(path: Path, tmp_path: Path, no_pictures: None) -> None:
    if path == EXPERTS and importlib.util.find_spec("megatron") is None:
        pytest.skip("Megatron-Core is not installed: make test-megatron installs it")
    config = twin(path, tiny_folder(tmp_path / "model", path == EXPERTS), tmp_path / "runs")
    steps = read_metrics(train(config)["folder"], "train")
    assert [record["step"] for record in steps] == [1, 2]
    assert all(record["learner/rank_imbalance"] >= 1.0 for record in steps if "learner/rank_imbalance" in record)
    assert any("learner/grad_norm" in record for record in steps)
