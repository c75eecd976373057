"""What a machine lacks for the chosen engine and backend is said before a model is looked for."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from roll_envs.errors import ConfigError, MissingExtraError
from trainer.cluster import rank as rank_module
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import releases
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.run.preflight import check_evaluation, preflight

TEXT = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"
VLLM = ("engine.name=vllm", "model.head_width=32")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.preflight.model_config", lambda config: pytest.fail("a model was looked for"))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a package one that cannot be found."""
    found = importlib.util.find_spec

    def leave_out(package: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: None if name == package else found(name, *more)
        )

    return leave_out


def test_an_engine_that_is_not_installed(no_model: None, without: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine 'vllm': it is not in 'nowhere'; make its environment"):
        preflight(parse_config(TEXT, [*VLLM, "engine.venv=nowhere"]))
    without("aiohttp")
    with pytest.raises(MissingExtraError, match=r"engine 'vllm' needs .* pip install 'roll-envs\[vllm\]'"):
        preflight(parse_config(TEXT, [*VLLM, "engine.venv=nowhere"]))


def test_a_port_that_is_taken(no_model: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"engine.port {port} is taken; choose another one, or 0"):
            preflight(parse_config(TEXT, [*VLLM, f"engine.port={port}", "engine.venv=nowhere"]))
    with pytest.raises(ConfigError, match=r"engine\.port 65536 cannot be used .*; choose another one"):
        preflight(parse_config(TEXT, [*VLLM, "engine.port=65535", "engine.replicas=2", "engine.venv=nowhere"]))


@pytest.mark.parametrize(
    ("override", "package", "extra"),
    [
        ("learner.backend=deepspeed", "deepspeed", "deepspeed"),
        ("learner.backend=megatron", "megatron.core", "megatron"),
        ("learner.lora_rank=4", "peft", "lora"),
    ],
)
def test_a_backend_without_its_package(
    no_model: None, without: Any, monkeypatch: pytest.MonkeyPatch, override: str, package: str, extra: str
) -> None:
    without(package)
    config = parse_config(TEXT, [override, "optimizer.name=adamw"])
    with pytest.raises(
        MissingExtraError, match=rf"{override.replace('=', '.*')[:15]}.*pip install 'roll-envs\[{extra}"
    ):
        preflight(config)
    # Ranks of a cluster look for it where they are; the driver does not need it.
    on_ray = parse_config(TEXT, [override, "optimizer.name=adamw", "cluster=ray"])
    monkeypatch.setattr("trainer.run.preflight.model_config", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        preflight(on_ray)


def test_the_backend_of_a_critic_that_training_does_not_have(without: Any) -> None:
    without("deepspeed")
    preflight(parse_config(TEXT, ["critic.backend=deepspeed"]))
    with pytest.raises(MissingExtraError, match=r"critic\.backend"):
        preflight(parse_config(TEXT, ["critic.backend=deepspeed", "advantage.name=gae"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, it can be offloaded from")
def test_offload_without_a_gpu(no_model: None) -> None:
    config = parse_config(TEXT, ["learner.backend=fsdp2", "learner.cpu_offload=true", "optimizer.name=adamw"])
    with pytest.raises(ConfigError, match=r"learner\.cpu_offload needs CUDA"):
        preflight(config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, it runs")
@pytest.mark.parametrize("backend", ["torch", "fsdp2"])
def test_attention_that_needs_a_gpu(no_model: None, backend: str) -> None:
    config = parse_config(TEXT, [f"learner.backend={backend}", "learner.attention=flash", "optimizer.name=adamw"])
    with pytest.raises(ConfigError, match=r"learner\.attention 'flash' needs a CUDA device"):
        preflight(config)


def test_a_wait_that_is_too_long_to_be_waited_for() -> None:
    with pytest.raises(ConfigError, match=r"placement\.learner\.timeout_s.*1e\+?0?6|1000000"):
        parse_config(TEXT, ["placement.learner.timeout_s=1e7"])


def test_a_rank_says_what_its_node_lacks(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(1, 2)
    rank.check(TEXT, releases())
    monkeypatch.setattr(rank_module, "releases", lambda: {**releases(), "torch": "1.0.0"})
    said = rf"rank 1 of the learner, on {socket.gethostname()}, has torch 1\.0\.0, and the driver torch 2\."
    with pytest.raises(ConfigError, match=said):
        rank.check(TEXT, releases())
    without("peft")
    with pytest.raises(MissingExtraError, match=r"learner\.lora_rank needs"):
        rank.check(TEXT + "learner: {lora_rank: 4}\n", releases())


@pytest.mark.parametrize(
    ("check", "key"), [(preflight, "rollout.manager"), (check_evaluation, "rollout.manager"), (preflight, "cluster")]
)
def test_processes_of_a_cluster_without_its_package(
    no_model: None, without: Any, check: Callable[[RunConfig], object], key: str
) -> None:
    without("ray")
    with pytest.raises(MissingExtraError, match=rf"{key} 'ray' needs .* pip install 'roll-envs\[ray\]'"):
        check(parse_config(TEXT, [f"{key}=ray"]))


@pytest.mark.parametrize("check", [preflight, check_evaluation])
def test_a_judge_that_nobody_serves(no_model: None, check: Callable[[RunConfig], object]) -> None:
    asking = "{id: roll/Dataset-v0, kwargs: {verifier: {name: llm_judge, url: 'judge:umpire', model: m}}}"
    with pytest.raises(ConfigError, match=r"add judges\.umpire"):
        check(parse_config(TEXT, [f"env={asking}"]))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_plan_of_memory_knows_the_threads(threads: int) -> None:
    plan = preflight(parse_config(TEXT, ["learner.device=cpu", f"learner.threads={threads}"])).plan
    keys = {key for items in plan.items.values() for item in items for key in item.keys}
    assert ("learner.threads" in keys) == (threads > 1)


FP8 = ["engine.name=sglang", "engine.url=http://127.0.0.1:9", "engine.dtype=bfloat16", "engine.quantization=fp8"]
SLICES = ["learner.backend=fsdp2", "learner.context_parallel=2", "placement.learner.ranks=2"]


@pytest.mark.parametrize(
    ("check", "overrides", "problem"),
    [
        (preflight, SLICES, r"context_parallel 2 does not divide the model's num_attention_heads, 3"),
        (preflight, ["engine.max_tokens=65"], "engine.max_tokens 65 is more than the model's 64; it has no position"),
        (check_evaluation, ["engine.max_tokens=65"], "engine.max_tokens 65 is more than the model's 64"),
        (preflight, FP8, "engine 'sglang': .* the model is a OtherForCausalLM"),
        (check_evaluation, FP8, "engine 'sglang': .* the model is a OtherForCausalLM"),
    ],
)
def test_a_model_that_ranks_or_engine_cannot_take(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[RunConfig], object], overrides: list[str], problem: str
) -> None:
    model = LlamaConfig(
        **{"vocab_size": 64, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 3, "max_position_embeddings": 64, "architectures": ["OtherForCausalLM"]},
    )
    monkeypatch.setattr("trainer.run.preflight.model_config", lambda config: (config, model))
    with pytest.raises(ConfigError, match=problem):
        check(parse_config(TEXT, ["engine.max_tokens=64", *overrides]))


def test_several_runs_where_one_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    (warning,) = preflight(parse_config(TEXT)).warnings
    assert "WORLD_SIZE is 2" in warning
    assert "start it once, and say placement.learner.ranks" in warning


def test_weights_in_eight_bits_that_nothing_makes_up_for_are_said() -> None:
    asked = [*VLLM, "engine.url=http://127.0.0.1:9"]
    assert preflight(parse_config(TEXT, asked)).warnings == []
    (warning,) = preflight(parse_config(TEXT, [*asked, "engine.quantization=fp8"])).warnings
    assert "engine.quantization 'fp8'" in warning
    assert "set correction.name to 'tis' or 'mis'" in warning
    assert preflight(parse_config(TEXT, [*asked, "engine.quantization=fp8", "correction.name=tis"])).warnings == []
