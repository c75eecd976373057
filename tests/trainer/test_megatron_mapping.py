"""Hugging Face weights in Megatron-Core's form and back, to the bit; without Megatron-Core."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from roll_envs.errors import ConfigError
from trainer.config.load import parse_config
from trainer.learner import megatron_families
from trainer.learner.megatron import MegatronSettings, check_cut
from trainer.learner.megatron_grid import core
from trainer.learner.megatron_mapping import Part, join, padded, parts_of, read, shape_of, write

SHAPE: dict[str, Any] = {
    "vocab_size": 51, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 6, "max_position_embeddings": 64, "pad_token_id": 7,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(
        **{**{n: v for n, v in SHAPE.items() if n != "head_dim"}, "hidden_size": 48}, tie_word_embeddings=False
    ),
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "qwen3_moe": Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        tie_word_embeddings=False,
    ),
}  # fmt: skip


def core_shapes(config: Any, ranks: int) -> dict[str, tuple[int, ...]]:
    """Shapes that Megatron-Core gives its weights on each of ``ranks``, written down from its classes."""
    width, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    head = getattr(config, "head_dim", None) or width // heads
    vocabulary = padded(config.vocab_size, ranks) // ranks
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.word_embeddings.weight": (vocabulary, width),
        "decoder.final_layernorm.weight": (width,),
    }
    if not config.tie_word_embeddings:
        shapes["output_layer.weight"] = (vocabulary, width)
    for layer in range(config.num_hidden_layers):
        found: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (width,),
            "pre_mlp_layernorm.weight": (width,),
            "self_attention.linear_qkv.weight": ((heads + 2 * groups) * head // ranks, width),
            "self_attention.linear_proj.weight": (width, heads * head // ranks),
        }
        if config.model_type == "qwen2":
            found["self_attention.linear_qkv.bias"] = ((heads + 2 * groups) * head // ranks,)
        if config.model_type.startswith("qwen3"):
            found |= {f"self_attention.{n}_layernorm.weight": (head,) for n in "qk"}
        mlps = {"mlp.": config.intermediate_size}
        if config.model_type == "qwen3_moe":
            found["mlp.router.weight"] = (config.num_experts, width)
            experts = range(config.num_experts)
            mlps = {f"mlp.experts.local_experts.{x}.": config.moe_intermediate_size for x in experts}
        for name, inner in mlps.items():
            found[f"{name}linear_fc1.weight"] = (2 * inner // ranks, width)
            found[f"{name}linear_fc2.weight"] = (width, inner // ranks)
        shapes |= {f"decoder.layers.{layer}.{name}": shape for name, shape in found.items()}
    return shapes


def cores_of(part: Part, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[name] for name in part.cores]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_is_cut_and_joined_to_the_bit(family: str, ranks: int) -> None:
    config = CONFIGS[family]
    network = AutoModelForCausalLM.from_config(config)
    parts = parts_of(config)
    weights = dict(network.named_parameters())
    assert [part.name for part in parts] == list(weights)  # their order is that of the optimiser's state
    assert all(shape_of(part) == weights[part.name].shape for part in parts)
    shapes = core_shapes(config, ranks)
    ranked = [{n: torch.full(s, torch.nan) for n, s in shapes.items()} for _ in range(ranks)]
    for part in reversed(parts):  # in any order
        for rank, tensors in enumerate(ranked):
            write(part, cores_of(part, tensors), weights[part.name].detach() + 1, rank=rank, ranks=ranks)
    assert not any(t.isnan().any() for tensors in ranked for t in tensors.values())  # nothing was left out
    for part in parts:
        found = join(part, [read(part, cores_of(part, tensors)) for tensors in ranked])
        assert torch.equal(found, weights[part.name] + 1), part.name


def test_queries_and_their_key_and_value_stand_together() -> None:
    """8 heads in 4 groups of width 6, over 2 ranks: the second rank's second group is the model's fourth."""
    config = CONFIGS["qwen2"]
    network = AutoModelForCausalLM.from_config(config)
    attention = network.model.layers[1].self_attn
    each, head = 2, 6
    core = torch.empty((8 + 8) * head // 2, 48)
    for part in (p for p in parts_of(config) if p.cores == ("decoder.layers.1.self_attention.linear_qkv.weight",)):
        write(part, [core], dict(network.named_parameters())[part.name], rank=1, ranks=2)
    group = core.view(2, (each + 2) * head, 48)[1]
    q, k, v = (p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    expected = torch.cat([q[6 * head : 8 * head], k[3 * head :], v[3 * head :]])
    assert torch.equal(group, expected)


def test_gate_and_other_stand_one_behind_the_other_on_each_rank() -> None:
    config = CONFIGS["llama"]
    network = AutoModelForCausalLM.from_config(config)
    mlp, core = network.model.layers[0].mlp, torch.empty(40, 24)
    for part in (p for p in parts_of(config) if p.cores == ("decoder.layers.0.mlp.linear_fc1.weight",)):
        write(part, [core], dict(network.named_parameters())[part.name], rank=1, ranks=2)
    assert torch.equal(core, torch.cat([mlp.gate_proj.weight[20:], mlp.up_proj.weight[20:]]))


def test_a_vocabulary_is_padded_with_zeros() -> None:
    """51 ids over 4 ranks: 13 rows each, the last of which is nobody's."""
    (embedding, *_) = parts_of(CONFIGS["llama"])
    core = torch.full((13, 24), torch.nan)
    write(embedding, [core], torch.ones(51, 24), rank=3, ranks=4)
    assert core.sum(1).tolist() == [24.0] * 12 + [0.0]


def test_what_the_table_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="models of type 'gpt2'; allowed: llama, qwen2, qwen3, qwen3_moe"):
        parts_of(type("Other", (), {"model_type": "gpt2", "hidden_size": 1, "vocab_size": 1, "num_hidden_layers": 1}))
    for config, key in [
        (LlamaConfig(**SHAPE, attention_bias=True), "attention_bias True"),
        (LlamaConfig(**SHAPE, hidden_act="gelu"), "hidden_act 'gelu'"),
        (Qwen2Config(**SHAPE, use_sliding_window=True, max_window_layers=1), "layer_types"),
        (Qwen3MoeConfig(**SHAPE, norm_topk_prob=False), "norm_topk_prob False"),
        (Qwen3Config(**SHAPE, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}), "rope_para"),
    ]:
        with pytest.raises(ConfigError, match=f"{config.model_type} model with {key}"):
            parts_of(config)


# -- before anything of Megatron-Core is loaded ------------------------------------------------------------------------


def test_where_megatron_bridge_is_missing_the_error_says_that_it_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron_families._bridge.cache_clear()
    for name in ("megatron.core", "megatron.bridge"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"models of type 'mistral'; allowed: llama, .+: install megatron-bridge"):
        parts_of(MistralConfig(**SHAPE))
    megatron_families._bridge.cache_clear()


def test_where_the_library_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    core.cache_clear()
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(ConfigError, match=r"pip install 'roll-envs\[megatron\]'"):
        core()
    core.cache_clear()


@pytest.mark.parametrize(
    ("family", "cut", "problem"),
    [
        (
            "llama",
            {"tensor_parallel": 3},
            "tensor_parallel 3 does not divide the model's num_key_value_heads, 4",
        ),
        (
            "qwen3",
            {"pipeline_parallel": 4},
            "pipeline_parallel 4 does not divide the model's num_hidden_layers, 2",
        ),
        ("qwen3_moe", {"tensor_parallel": 2}, "learner.tensor_parallel 2: qwen3_moe has experts"),
        ("qwen3_moe", {"expert_parallel": 3}, "learner.expert_parallel 3 does not divide the model's experts, 4"),
        ("llama", {"expert_parallel": 2}, "learner.expert_parallel 2 does not divide the model's experts, none"),
        ("llama", {"context_parallel": 3}, "context_parallel 3 does not divide the model's num_attention_heads, 8"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(family: str, cut: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_cut(CONFIGS[family], MegatronSettings(**cut))


def test_a_model_that_its_ranks_can_be_given_passes() -> None:
    check_cut(CONFIGS["llama"], MegatronSettings(tensor_parallel=4, pipeline_parallel=2, context_parallel=2))
    check_cut(CONFIGS["qwen3_moe"], MegatronSettings(expert_parallel=4, context_parallel=8))


def test_ranks_that_cannot_be_divided_are_refused_with_the_configuration() -> None:
    text = "format: 1\nname: x\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"
    text += "learner: {backend: megatron, tensor_parallel: 4}\nplacement: {learner: {ranks: 6}}\n"
    parse_config(text, ["placement.learner.ranks=8"])
    with pytest.raises(ConfigError, match=r"tensor_parallel 4 times .* is 4, and there are 6 ranks"):
        parse_config(text)
