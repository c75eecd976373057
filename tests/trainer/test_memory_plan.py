"""The memory plan: what it counts is there, its formulas are what the code does, and what cannot fit is said."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny import tiny_model
from transformers import (
    DeepseekV3Config,
    Gemma3Config,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen3MoeConfig,
    StableLmConfig,
    T5Config,
)
from vllm_engines import made_environment

from roll_envs.errors import ConfigError
from trainer.cli import main
from trainer.cluster.seats import Machine
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.data.batches import _layout
from trainer.engines.prefix_cache import CachedNetwork, OpenSequence
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model.network import LanguageModel
from trainer.rollout.source import side_by_side
from trainer.run import memory_items, memory_plan
from trainer.run.counted import _build, _count_all, _storages, count, kept_for_backward
from trainer.run.memory_items import ALWAYS, BACKWARD, CRITIC_BACKWARD, CRITIC_STEP, GIB, SAMPLING, STEP
from trainer.run.memory_plan import MemoryPlan, make_plan, read_model_config
from trainer.run.preflight import preflight
from trainer.run.report import Report

ROOT = Path(__file__).parents[2]
TEXT = "format: 1\nname: a\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nengine: {max_running: 4, max_tokens: 100}\n"
MODEL = LlamaConfig(
    vocab_size=300, hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def config(*overrides: str) -> RunConfig:
    return parse_config(TEXT, overrides)


def plan(*overrides: str, device: str = "cpu", gib: float = 8.0) -> MemoryPlan:
    return make_plan(config(*overrides), MODEL, devices=(device, device), free={device: gib * GIB, "cpu": gib * GIB})


def size(found: MemoryPlan, words: str, device: str = "cpu") -> float:
    (item,) = (item for item in found.items[device] if item.what.startswith(words))
    return item.bytes


@pytest.mark.parametrize(
    "overrides",
    [(), ("learner.precision=bfloat16",), ("learner.lora_rank=4",), ("optimizer.name=muon",)],
    ids=["float32", "bfloat16", "lora", "muon"],
)
def test_what_is_counted_is_what_the_learner_holds(overrides: tuple[str, ...]) -> None:
    if "learner.lora_rank=4" in overrides:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    given = config(*overrides)
    counted = count(given, MODEL)
    network: Any = LlamaForCausalLM(MODEL)
    parameters = sum(p.numel() for p in network.parameters())
    precision, rank = getattr(given.learner, "precision"), getattr(given.learner, "lora_rank")  # noqa: B009
    learner = TorchLearner(
        LanguageModel(network=network, tokenizer=None), loss=given.loss, optimizer=given.optimizer, temperature=1.0,
        settings=TorchSettings(precision=precision, lora_rank=rank), device="cpu",
    )  # fmt: skip
    for value in learner._masters.values:
        value.grad = torch.zeros_like(value)
    for optimizer in learner._optimizers:
        optimizer.step()
    states = [x for o in learner._optimizers for of in o.state.values() for x in of.values() if torch.is_tensor(x)]
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in learner._network.parameters()}
    held |= {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in learner._plain.parameters()}
    assert counted.numbers == parameters
    assert counted.weights == sum(held.values())
    assert counted.trained == sum(v.numel() for v in learner._masters.values)
    assert counted.masters == sum(v.nbytes for _, v in learner._masters._pairs)
    assert counted.optimizer == sum(x.nbytes for x in states)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 2}
AS_LARGE = {"num_experts": 3, "intermediate_size": 49}
"""A layer without experts has as many numbers as one with them."""
WINDOW = {"use_sliding_window": True, "sliding_window": 200, "max_window_layers": 3, "num_key_value_heads": 2}


PPO = ("algorithm=ppo", "learner.precision=bfloat16", "optimizer.name=muon")


def test_counting_leaves_the_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(**_: Any) -> None:
        raise AssertionError("a look at its stream would make a context on a GPU")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", asked)
    assert count(config(), MODEL).optimizer > 0


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        (LlamaConfig(**SMALL | {"num_hidden_layers": 4}, tie_word_embeddings=True), PPO),
        (LlamaConfig(**SMALL | {"num_hidden_layers": 4}), ("learner.lora_rank=4",)),
        (Qwen3MoeConfig(**SMALL | EXPERTS | {"num_hidden_layers": 4}), ()),
        (Qwen3MoeConfig(**SMALL | EXPERTS | {"num_hidden_layers": 4}, mlp_only_layers=[2]), ()),
        (Qwen3MoeConfig(**SMALL | EXPERTS | {"num_hidden_layers": 4} | AS_LARGE, mlp_only_layers=[2]), ()),
        (Qwen2Config(**SMALL | WINDOW | {"num_hidden_layers": 4}), ()),
    ],
    ids=["alike", "lora", "experts", "experts but for one", "one as large as experts", "windows in the last"],
)
def test_the_first_layers_tell_what_all_of_them_take(model: Any, overrides: tuple[str, ...]) -> None:
    if "learner.lora_rank=4" in overrides:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    given = config(*overrides)
    assert count(given, model) == _count_all(given, model, _build(model))


@pytest.mark.parametrize("tokens", [16, 40])
def test_what_a_pass_keeps_is_counted_without_numbers(tokens: int) -> None:
    """On "meta" and with real numbers alike; and the plan of a micro-batch is linear in it."""
    network: Any = LlamaForCausalLM(MODEL).eval()
    real = kept_for_backward(copy.deepcopy(network), tokens)
    counted = count(config(), MODEL)
    assert real == pytest.approx(counted.kept * tokens + counted.kept_once)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            StableLmConfig(**SMALL, num_key_value_heads=2),
            "does not tell its StableLmAttention where packed sequences start",
        ),
        (GraniteConfig(**SMALL, logits_scaling=8.0), r"GraniteForCausalLM has logits_scaling 8.0"),
        (DeepseekV3Config(**SMALL, num_key_value_heads=2), "DeepseekV3Attention has queries 192 and values 128 wide"),
        (
            MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=16),
            r"window of 16, .* lower engine.max_tokens to 16",
        ),
    ],
    ids=["layout", "head", "widths", "window"],
)
def test_a_model_that_could_not_be_run_is_refused_before_it_is_loaded(model: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        count(config(), model)


@pytest.mark.parametrize(
    "spoilt", [{"num_hidden_layers": 0}, {"head_dim": 3}, {"num_attention_heads": 0}, {"hidden_act": "ours"}]
)
def test_a_configuration_by_which_no_network_can_be_run_is_told(spoilt: dict[str, Any]) -> None:
    model = copy.deepcopy(MODEL)
    model.__dict__.update(spoilt)
    with pytest.raises(ConfigError, match=r"no network can be built and run as the model's config\.json says"):
        count(config(), model)


@pytest.mark.parametrize("model", [T5Config(), Gemma3Config()], ids=["t5", "gemma3"])
def test_what_is_no_causal_language_model_of_text_is_told(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"type '{model.model_type}', which is no causal language model of text alone"
    ):
        read_model_config(tmp_path)


def test_a_pass_of_the_learner_keeps_what_was_counted() -> None:
    """The learner's own attention instead of the counted one: within a tenth."""
    from trainer.model.attention import layout_of_positions, use_packed_attention

    network: Any = LlamaForCausalLM(MODEL).eval()
    use_packed_attention(network)
    kept: list[torch.Tensor] = []
    tokens = 64
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        positions = torch.arange(tokens, device="cpu")
        network.base_model(
            input_ids=torch.arange(tokens, device="cpu")[None], position_ids=positions[None],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device="cpu"),
            layout=layout_of_positions(positions), use_cache=False,
        )  # fmt: skip
    own = _storages(network.parameters())
    found = sum(n for key, n in _storages(kept).items() if key not in own)
    counted = count(config(), MODEL)
    assert found == pytest.approx(counted.kept * tokens + counted.kept_once, rel=0.1)


@pytest.mark.parametrize(("slots", "longest"), [(4, 100), (3, 64), (2, 300)])
def test_the_engine_s_cache_grows_to_what_is_planned(slots: int, longest: int) -> None:
    cached = CachedNetwork(tiny_model().network, slots)
    for number in range(40):
        sequences = [OpenSequence([1 + (number * slots + i) % 200] * (longest - 5)) for i in range(slots)]
        for sequence in sequences:
            cached.open(sequence)
            for token in range(5):
                sequence.ids.append(token)
                cached.extend(sequence)
        for sequence in sequences:
            cached.close(sequence)
    assert cached.keys_values.keys.shape[1] == memory_items._places(slots, longest)


def test_keys_and_values_are_those_of_the_pool() -> None:
    pool = memory_items._places(4, 100)
    held = CachedNetwork(LlamaForCausalLM(MODEL).eval(), 4).keys_values
    one = (held.keys.nbytes + held.values.nbytes) / held.keys.shape[1]
    assert size(plan(), "keys and values of") == pool * one
    found = plan("engine.max_running=1024", "engine.max_tokens=1024")  # where this is more than a pass takes
    assert size(found, "keys and values while") == size(found, "keys and values of") / 2  # the old room, while copied


def test_what_an_engine_does_one_after_the_other_is_not_added() -> None:
    found = plan()
    (moment,) = [item for item in found.items["cpu"] if item.when == SAMPLING]
    assert moment.what.startswith("a pass over")
    assert found.phases("cpu")[SAMPLING] == found.phases("cpu")[ALWAYS] + moment.bytes
    (moment,) = [
        item for item in plan("engine.max_running=1", "engine.max_tokens=20").items["cpu"] if item.when == SAMPLING
    ]
    assert moment[:5] == (
        "engine",
        "weights of before, during an update",
        4 * count(config(), MODEL).numbers,
        SAMPLING,
        (),
    )


def test_a_layer_that_is_computed_again_finds_the_room_of_the_logits() -> None:
    again = "learner.gradient_checkpointing=true", "learner.tokens_per_microbatch=4096"
    few, many = (plan(*again, f"learner.logits_mib={mib}") for mib in (0.01, 0.5))
    assert few.phases("cpu")[BACKWARD] == pytest.approx(many.phases("cpu")[BACKWARD], rel=1e-3)
    assert size(few, "logits of") < size(many, "logits of")


def test_the_phases_add_up() -> None:
    found = plan(device="cuda")
    assert found.phases("cuda").keys() == {ALWAYS, BACKWARD, STEP, SAMPLING}
    always = sum(item.bytes for item in found.items["cuda"] if item.when == ALWAYS)
    assert found.phases("cuda")[ALWAYS] == always
    assert found.phases("cuda")[STEP] == always + 4 * count(config(), MODEL).trained
    assert found.peak("cuda")[1] == max(found.phases("cuda").values())
    assert [item.what for item in found.items["cpu"]] == ["weights in float32"]


def test_keys_make_it_smaller() -> None:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    base = plan("learner.tokens_per_microbatch=4096").peak("cpu")[1]
    for override in (
        "learner.tokens_per_microbatch=512", "learner.gradient_checkpointing=true", "learner.lora_rank=2",
        "learner.logits_mib=1", "engine.max_running=1",
    ):  # fmt: skip
        assert plan("learner.tokens_per_microbatch=4096", override).peak("cpu")[1] < base, override


def test_the_warm_start_trains_all_weights_by_its_own_optimiser() -> None:
    """Planned apart from training, which comes after it."""
    warm, muon = "warm_start.steps=1", "optimizer.name=muon"
    adamw = plan(warm, muon, "warm_start.optimizer=adamw")
    assert size(adamw, "optimiser state") == size(plan(), "optimiser state") > size(plan(muon), "optimiser state")
    assert plan("warm_start.optimizer=adamw", muon) == plan(muon)  # no warm start
    critic = plan(warm, "loss.kl_coef=0.1", "advantage.name=gae")
    assert critic == plan("loss.kl_coef=0.1", "advantage.name=gae")  # training takes more
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    small, whole = "learner.tokens_per_microbatch=16", plan(warm, "learner.tokens_per_microbatch=16")
    adapters = plan(warm, small, "learner.lora_rank=2", "loss.kl_coef=0.1")
    assert adapters.phases("cpu") == whole.phases("cpu")
    assert "warm_start.steps" in {key for item in adapters.items["cpu"] for key in item.keys}
    assert "learner.lora_rank" not in {key for item in adapters.items["cpu"] for key in item.keys}


def test_reference_and_critic_are_counted() -> None:
    counted = count(config(), MODEL)
    assert size(plan("loss.kl_coef=0.1"), "reference") == 4 * counted.numbers
    found = plan("advantage.name=gae")
    assert counted.body == counted.numbers  # the head is the embedding, which the critic has too
    assert size(found, "critic: weights") == size(found, "critic: gradients") == 4 * counted.body
    assert size(found, "critic: optimiser state") == 8 * counted.body
    own_head = LlamaConfig(**{**MODEL.to_dict(), "tie_word_embeddings": False})
    assert count(config(), own_head).body == count(config(), own_head).numbers - counted.head
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    names = [item.what for item in plan("loss.kl_coef=0.1", "learner.lora_rank=2").items["cpu"]]
    assert "reference" not in names  # the base model serves


def test_a_server_s_memory_is_its_settings() -> None:
    vllm = ("engine.name=vllm", "model.head_width=32")
    found = plan(*vllm, "engine.dtype=bfloat16", "engine.kv_cache_gib=3", "engine.replicas=2")
    assert size(found, "keys and values") == 2 * 3 * GIB
    assert size(found, "copy of the weights") == 2 * 2 * count(config(), MODEL).numbers
    numbers, matrices = (getattr(count(config(), MODEL), name) for name in ("numbers", "matrices"))
    assert matrices == 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 80)
    assert size(plan(*vllm), "copy of the weights") == 4 * numbers
    quantized = plan(*vllm, "engine.quantization=fp8")
    assert size(quantized, "copy of the weights") == 2 * (numbers - matrices) + matrices
    assert size(quantized, "the weights that were sent") == 4 * numbers  # in bfloat16, twice
    elsewhere = plan(*vllm, "engine.url=http://127.0.0.1:8000")
    assert {item.owner for item in elsewhere.items["cpu"]} == {"learner"}


def test_a_server_on_a_gpu_takes_its_share_while_the_learner_rests() -> None:
    vllm = ("engine.name=vllm", "model.head_width=32")
    found = plan(*vllm, "engine.gpu_memory_utilization=0.25", device="cuda")
    weights, cache = (item for item in found.items["cuda"] if item.owner == "engine")
    assert (weights.bytes + cache.bytes, weights.when, cache.when) == (2 * GIB, "sampling", "sampling")
    assert weights.bytes == 2 * count(config(), MODEL).numbers
    awake = plan(*vllm, "engine.gpu_memory_utilization=0.25", "engine.colocated=false", device="cuda")
    assert [item.when for item in awake.items["cuda"] if item.owner == "engine"] == ["always"] * 2
    apart = plan(*vllm, "engine.gpus='1'", device="cuda")
    assert {item.owner for item in apart.items["cuda"]} == {"learner"}
    with pytest.raises(ConfigError, match=r"utilization 0\.5 of cuda are 0\.00 GiB, and the weights of .*or set .*fp8"):
        plan(*vllm, "engine.gpus='1'", device="cuda", gib=1e-5)
    with pytest.raises(ConfigError, match=r"engine\.gpu_memory_utilization"):
        plan(*vllm, "engine.gpu_memory_utilization=1.0", "engine.replicas=2", device="cuda").check()


@pytest.mark.parametrize(("releases", "where"), [({"vllm": "0.32.0"}, "cuda"), ({}, "cpu")])
def test_a_server_is_planned_where_the_installed_build_of_vllm_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, releases: dict[str, str], where: str
) -> None:
    made_environment(tmp_path, **releases)
    monkeypatch.setattr(memory_plan, "this_machine", lambda: Machine(gpus=("0",), cpus=(0,), name="here"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    given = config("engine.name=vllm", f"engine.venv={tmp_path}", "model.head_width=32")
    assert memory_plan._placed(given)[1] == ("cuda", where)


def test_what_cannot_fit_is_refused_and_what_may_not_is_said() -> None:
    peak = plan().peak("cpu")[1] / GIB
    assert plan(gib=peak * 1.01).check() == []
    (warning,) = plan(gib=peak * 0.9).check()
    assert "learner.tokens_per_microbatch" in warning
    with pytest.raises(ConfigError, match=r"not enough memory; nothing was loaded.\ncpu: the run takes about"):
        plan(gib=peak * 0.7).check()


def test_a_run_that_cannot_fit_is_refused_before_a_folder_is_made(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: 1e6)
    (tmp_path / "run.yaml").write_text(TEXT + f"output: {tmp_path}/runs\n")
    assert main([str(tmp_path / "run.yaml")]) == 2
    assert "not enough memory" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_free_memory_of_this_machine_is_known() -> None:
    assert 2**20 < memory_plan.free_memory("cpu") < 2**50


def test_a_control_group_bounds_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "/sys/fs/cgroup/memory.max": "4096000\n",
        "/sys/fs/cgroup/memory.current": "1024000\n",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 24000\n",
    }
    monkeypatch.setattr(memory_plan, "_read", lambda path: files[path])
    assert memory_plan.free_memory("cpu") == 4096000 - 1024000 + 24000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory_plan.free_memory("cpu") == 8000 * 1024


def test_a_gpu_runs_one_micro_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert side_by_side(config("learner.threads=3"), 10**9) == 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert side_by_side(config("learner.threads=3"), 10**9) == 1


def test_a_small_part_of_the_memory_is_a_line_and_a_large_one_a_table() -> None:
    for gib, table in ((64.0, False), (0.01, True)):
        out = io.StringIO()
        found = plan(gib=gib)
        Report(Console(file=out, width=120)).print_memory(found, ["much"])
        assert ("optimiser state" in out.getvalue()) == table
        assert "\nmuch\n" in out.getvalue()


def test_a_model_that_is_built_here_is_planned_too() -> None:
    ready = preflight(config("engine.max_tokens=600"))
    assert ready.config.model.revision is None
    assert 0 < ready.plan.peak("cpu")[1] < GIB


def test_only_ranks_that_put_layers_together_take_memory_for_it() -> None:
    counted = count(config(), MODEL)
    zero = ("learner.backend=deepspeed", "learner.stage=3")
    for backend in (("learner.backend=fsdp2",), zero):
        found = size(plan("placement.learner.ranks=2", *backend, device="cuda"), "weights outside of layers", "cuda")
        assert found == pytest.approx(4 * (counted.outer + 2 * (counted.numbers - counted.outer) / 3))
    for cut in ("tensor_parallel", "pipeline_parallel"):
        given = ("placement.learner.ranks=2", "learner.backend=megatron", f"learner.{cut}=2")
        items = plan(*given, device="cuda").items["cuda"]
        assert "weights outside of layers, and of two layers, put together" not in [item.what for item in items]
        # The first stage has the embedding, which is the head too, beside half of the layers.
        held = counted.numbers + (counted.head if cut == "pipeline_parallel" else 0)
        assert size(plan(*given, device="cuda"), "weights", "cuda") == 4 * held / 2


def test_shards_of_trained_weights_are_their_own_masters_and_adapters_stand_in_the_one_network() -> None:
    numbers, more = count(config(), MODEL).numbers, ("learner.backend=fsdp2", "placement.learner.ranks=2")
    for precision, bytes_of in (("float32", 4), ("bfloat16", 2)):
        for rank, frozen in ((0, 0), (2, numbers)):
            given = (*more, f"learner.lora_rank={rank}", f"learner.precision={precision}")
            held = {i.what: i.bytes for i in plan(*given, device="cuda").items["cuda"] if i.owner == "learner"}
            of_weights = held.get("weights", 0) + held.get("float32 copies of weights", 0)
            assert of_weights == (bytes_of * frozen + 4 * count(config(*given), MODEL).trained) / 2


def test_what_is_offloaded_is_in_the_memory_of_the_processor() -> None:
    two = ("placement.learner.ranks=2", "optimizer.name=adamw")
    stepped = {"optimiser state", "gradients as the optimiser takes them", "sums of the optimiser"}

    def moved(*overrides: str) -> set[str]:
        """Items of the learner that are on the GPU without ``overrides`` and in the processor's memory with them."""
        kinds = [
            {device: {i.what.removesuffix(", in 2 ranks"): i.bytes for i in items} for device, items in found.items()}
            for found in (plan(*two, *given, device="cuda").items for given in (overrides[:-1], overrides))
        ]
        assert all(
            kinds[1]["cpu"][what] == 2 * size for what, size in kinds[0]["cuda"].items() if what in kinds[1]["cpu"]
        )
        return set(kinds[0]["cuda"]) - set(kinds[1]["cuda"])

    zero = ("learner.backend=deepspeed", "learner.stage=3")
    copies = "float32 copies of weights"
    assert moved(*zero, "learner.offload_optimizer=true") == {*stepped, copies, "gradients"}
    assert moved(*zero, "learner.offload_param=true") == {"weights"}
    assert moved("learner.backend=fsdp2", "learner.cpu_offload=true") == {*stepped, "weights", "gradients"} - {
        "gradients as the optimiser takes them"
    }


def test_experts_are_dealt_and_the_rest_is_whole() -> None:
    shape = Qwen3MoeConfig(
        vocab_size=300, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=2, tie_word_embeddings=True,
    )  # fmt: skip
    given = config("placement.learner.ranks=4", "learner.backend=megatron", "learner.expert_parallel=4")
    counted = count(given, shape)
    assert counted.experts == 2 * 8 * 3 * 32 * 16
    found = make_plan(given, shape, devices=("cuda", "cuda"), free={"cuda": 8.0 * GIB, "cpu": 8.0 * GIB})
    whole = counted.numbers - counted.experts
    sizes = {item.what: item.bytes for item in found.items["cuda"] if item.owner == "learner"}
    assert sizes["weights"] == sizes["gradients"] == pytest.approx(4 * (whole + counted.experts / 4))
    assert sizes["optimiser state"] == pytest.approx(counted.optimizer / 4)


def test_ranks_that_run_micro_batches_together_keep_a_slice_each() -> None:
    two = ("placement.learner.ranks=2", "learner.backend=fsdp2", "advantage.name=gae")
    short = ("learner.tokens_per_microbatch=205", "learner.pack_tokens=50", "critic.tokens_per_microbatch=105")
    assert size(plan(*two, *short), "activations of 205 tokens, in 2 ranks") > 0
    apart = plan(*two, *short, "learner.context_parallel=2")
    assert size(apart, "activations of 103 tokens, in 2 ranks") > 0
    assert size(apart, "critic: activations of 53 tokens, in 2 ranks") > 0


CRITIC = ("advantage.name=gae", "critic.tokens_per_microbatch=1024")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_the_critic_s_passes_are_counted_in_float32_and_in_a_phase_of_their_own(half: bool, again: bool) -> None:
    learner = (
        f"learner.precision={'bfloat16' if half else 'float32'}",
        f"learner.gradient_checkpointing={again}".lower(),
    )
    found = plan(*CRITIC, *learner)
    plain = count(config(), MODEL)  # of float32
    assert count(config(*CRITIC, *learner), MODEL).critic_kept == plain.kept
    assert count(config(*CRITIC, *learner), MODEL).critic_kept_once == plain.kept_once
    layer = plain.kept * 1024 / 3
    kept = 3 * 32 * 4 * 1024 + 2 * layer if again else 4 * layer
    assert size(found, "critic: activations of 1,024 tokens") == pytest.approx(kept + plain.kept_once)
    phases = found.phases("cpu")
    assert phases[CRITIC_BACKWARD] == pytest.approx(phases[ALWAYS] + kept + plain.kept_once)
    assert phases[CRITIC_STEP] == phases[ALWAYS] + 4 * plain.body
    (policy,) = [item for item in found.items["cpu"] if item.what.startswith("activations of")]
    assert policy.when == BACKWARD
    without = plan(*learner)
    difference = phases[BACKWARD] - without.phases("cpu")[BACKWARD]
    assert difference == 16 * plain.body, "the critic's passes are over when the policy's begin"
    keys = next(item.keys for item in found.items["cpu"] if item.when == CRITIC_BACKWARD)
    assert keys == ("critic.tokens_per_microbatch", *(() if again else ("learner.gradient_checkpointing",)))


def test_a_critic_in_shards_puts_layers_together_and_one_that_leaves_its_device_is_in_its_phases() -> None:
    counted = count(config(), MODEL)
    body, together = counted.body, counted.head + 2 * (counted.body - counted.head) / 3
    shards = plan(*CRITIC, "placement.learner.ranks=2", "learner.backend=fsdp2", device="cuda")
    assert size(shards, "critic: weights outside of layers", "cuda") == pytest.approx(4 * together)
    assert size(shards, "critic: sums of the optimiser", "cuda") == 4 * body / 2
    found = plan(*CRITIC, "learner.offload=between_steps", device="cuda")
    weights = [item for item in found.items["cuda"] if item.what == "critic: weights"]
    assert [item.when for item in weights] == [BACKWARD, STEP, CRITIC_BACKWARD, CRITIC_STEP]
    left = [item.what for item in found.items["cpu"] if item.what.startswith("critic")]
    assert left == ["critic: weights, between steps", "critic: optimiser state, between steps"]


def test_one_sequence_may_be_longer_than_a_micro_batch() -> None:
    """As batches are made: neither a sequence nor a line of packed ones is divided."""
    short = ("learner.tokens_per_microbatch=64", "critic.tokens_per_microbatch=32", "learner.pack_tokens=16")
    lengths = np.array([100, 9, 9], dtype=np.int64)
    assert max(b * t for b, t in _layout(lengths, 16, 64).shapes) == 100
    assert max(b * t for b, t in _layout(lengths[1:], 90, 10).shapes) == 18

    def passes(*overrides: str) -> dict[str, tuple[str, ...]]:
        found = plan("advantage.name=gae", *short, *overrides)
        return {item.what: item.keys[:-1] for item in found.items["cpu"] if "activations" in item.what}

    longest = ("engine.max_tokens",)
    assert passes() == {"activations of 100 tokens": longest, "critic: activations of 100 tokens": longest}
    assert passes("learner.pack_tokens=128") == {
        "activations of 128 tokens": ("learner.pack_tokens",),
        "critic: activations of 128 tokens": ("learner.pack_tokens",),
    }
    assert passes("learner.tokens_per_microbatch=100", "critic.tokens_per_microbatch=101") == {
        "activations of 100 tokens": ("learner.tokens_per_microbatch", "engine.max_tokens"),
        "critic: activations of 101 tokens": ("critic.tokens_per_microbatch",),
    }
    servers = ("engine.name=openai", "engine.model=m", "engine.url=http://127.0.0.1:8000", "evaluation.tasks=1")
    assert not config(*servers).engine.counts_tokens
    assert set(passes(*servers)) == {"activations of 64 tokens", "critic: activations of 32 tokens"}


def test_the_advice_names_the_length_of_a_sequence_where_that_decides() -> None:
    given = ("learner.tokens_per_microbatch=64", "learner.pack_tokens=16", "engine.max_tokens=1000")
    many = ("engine.max_running=1",)
    peak = plan(*given, *many).peak("cpu")
    assert peak[0] == BACKWARD
    (warning,) = plan(*given, *many, gib=peak[1] / GIB * 0.9).check()
    first = warning.partition("the most first: ")[2].partition(", ")[0]
    assert first == "engine.max_tokens"
    assert "tokens_per_microbatch" not in warning


def test_advice_that_there_is_not_is_not_begun() -> None:
    found = plan("placement.learner.ranks=2", "learner.backend=fsdp2", "cluster=ray", device="cuda", gib=1e-5)
    problem = found.problem("cpu")
    assert re.search(r"driver: weights in float32 0\.00\), and 0\.00 GiB are free; no key makes it smaller$", problem)


@pytest.mark.parametrize(
    ("chosen", "where"),
    [
        (("placement.reference.device=[0]",), ["cuda"]),
        (("placement.learner.devices=[1]", "placement.reference.device=[1]"), ["cuda"]),
        (("placement.learner.devices=[1]", "placement.reference.device=[0]"), ["cuda:0"]),
        (("placement.learner.ranks=2", "placement.reference.device=[1, 0]"), ["cuda"]),
        (("placement.learner.ranks=2", "placement.reference.device=[1, 3]"), ["cuda", "cuda:3"]),
        (("placement.learner.ranks=2", "placement.reference.device=[3, 2]"), ["cuda:3"]),
        (("placement.reference.device=cpu",), ["cpu"]),
    ],
)
def test_a_gpu_has_one_name(chosen: tuple[str, ...], where: list[str]) -> None:
    found = plan("loss.kl_coef=0.1", *chosen, device="cuda")
    assert [device for device, items in found.items.items() if any("reference" in i.what for i in items)] == where


def test_reference_and_critic_that_share_gpus_are_on_the_same() -> None:
    both = ("placement.learner.ranks=2", "placement.reference.device=[2, 3]", "placement.critic.device=[3, 2]")
    found = plan("loss.kl_coef=0.1", "advantage.name=gae", *both, device="cuda")
    assert found.items.keys() == {"cuda", "cuda:2", "cpu"}
    assert {item.what.partition(":")[0] for item in found.items["cuda:2"]} == {"reference", "critic"}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (("placement.learner.devices=[1]", "placement.rollout.devices=[0]"), ("cuda:1", "cuda:0")),
        (("placement.learner.devices=[1]", "placement.rollout.devices=[1]"), ("cuda:1", "cuda:1")),
        (("placement.rollout.devices=[0]",), ("cuda", "cuda")),
        (("placement.rollout.devices=[1]",), ("cuda", "cuda:1")),
        (("learner.device=cpu",), ("cpu", "cuda:0")),
    ],
)
def test_learner_and_engine_on_one_gpu_have_one_name(
    monkeypatch: pytest.MonkeyPatch, chosen: tuple[str, ...], names: tuple[str, str]
) -> None:
    monkeypatch.setattr(memory_plan, "this_machine", lambda: Machine(gpus=("0", "1"), cpus=(0,), name="here"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert memory_plan._placed(config(*chosen))[1] == names


def test_ranks_of_this_machine_take_their_memory_each() -> None:
    """On one GPU each, or all from the processor's; those of a cluster take none. The driver has the weights too."""
    numbers = count(config(), MODEL).numbers
    one, two = plan(), plan("placement.learner.ranks=2")
    assert size(two, "optimiser state, in 2 ranks") == 2 * size(one, "optimiser state")
    drivers = [item.bytes for item in two.items["cpu"] if item.owner == "driver"]
    assert drivers == [4 * numbers]
    gpu = plan("placement.learner.ranks=2", device="cuda")
    assert [item for item in gpu.items["cuda"] if item.owner == "learner"] == [
        item for item in plan(device="cuda").items["cuda"] if item.owner == "learner"
    ]
    assert sum(item.bytes for item in gpu.items["cpu"]) == (2 + 1) * 4 * numbers
    for backend, drivers_too in (("torch", set()), ("fsdp2", {"driver"})):  # which cuts a copy
        assert {i.owner for i in plan(f"learner.backend={backend}").items["cpu"]} == {"learner", "engine", *drivers_too}
    elsewhere = plan("cluster=ray")
    assert {item.owner for item in elsewhere.items["cpu"]} == {"driver", "engine"}


# -- what was measured -------------------------------------------------------------------------------------------------


def test_the_plan_of_a_rank_is_the_published_one_and_near_what_was_measured() -> None:
    """benchmarks/results/memory_plan.md: two ranks of each backend."""
    path = ROOT / "benchmarks" / "memory_plan_ranks.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        import memory_plan_ranks as benchmark
    table = (path.parent / "results" / "memory_plan.md").read_text()
    rows = {
        name: re.findall(r"(\d+) / (\d+)", row) for name, row in re.findall(r"^\| ([a-z][\w-]+) (\|.*)$", table, re.M)
    }
    assert rows.keys() == benchmark.CASES.keys()
    for name, case in benchmark.CASES.items():
        found = benchmark.planned(case)
        phases = (ALWAYS, BACKWARD, STEP, *((CRITIC_BACKWARD, CRITIC_STEP) if case.critic else ()))
        for when, (planned, measured) in zip(phases, rows[name], strict=True):
            assert round(found[when] / 2**20) == int(planned), (name, when)
            # Of little, what a process has beside it is a large part.
            assert int(planned) == pytest.approx(int(measured), rel=0.15, abs=25), (name, when)
