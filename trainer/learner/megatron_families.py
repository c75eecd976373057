"""The architectures that the Megatron-Core backend builds: a table, and others by Megatron-Bridge where that is there.

What is built here is always the same: RMSNorm, rotary angles, a gated layer. Megatron-Bridge is asked whether a model
of another type is that too, and which weight is made of which.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import torch

from roll_envs.errors import ConfigError
from trainer.learner.megatron_grid import core, silently


class Family(NamedTuple):
    """What tells one architecture from another."""

    qkv_bias: bool = False
    qk_norm: bool = False
    experts: bool = False
    names: Callable[[str], Sequence[str]] | None = None
    """Name of a weight in Megatron-Core -> those of the Hugging Face weights that it is made of, in their order, as
    Megatron-Bridge has it; None for a family of the table."""


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts=True),
}
"""By ``model_type`` of the Hugging Face configuration. Qwen2.5 is qwen2."""

_HOW = (
    "parallel pipeline dtype fusion init recompute cuda_graph microbatch dropout offload attention_backend "
    "cp_comm_type persist_layer_norm make_vocab_size_divisible_by seq_length"
).split()
"""Parts of the names of Megatron-Bridge's settings that say how a model is run, divided or begun, not what it is."""
_OURS = "bf16 fp16 attention_softmax_in_fp32 rotary_base rope_scaling rope_scaling_factor vocab_size".split()
"""Its settings of what is not left to Megatron-Core here: precision, attention, rotary angles, the vocabulary."""
_NEEDED = (
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads intermediate_size rms_norm_eps hidden_act "
    "vocab_size max_position_embeddings"
).split()
"""Keys of a Hugging Face configuration that are read here."""
_PLAIN = ("AutoMapping", "QKVMapping", "GatedMLPMapping")
"""What Megatron-Bridge calls a weight as it is, queries beside their key and value, and a gate before the other."""


def family_of(config: Any) -> Family:
    """Raises :class:`ConfigError` for an architecture that is not known here, or asks for what this backend lacks."""
    family = FAMILIES.get(config.model_type) or _by_bridge(config)
    rope = getattr(config, "rope_parameters", None) or {}
    found = {
        "hidden_act": config.hidden_act != "silu",
        "attention_bias": bool(getattr(config, "attention_bias", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "layer_types": bool(set(getattr(config, "layer_types", None) or ()) - {"full_attention"}),
        "rope_parameters": rope.get("rope_type", "default") not in ("default", "linear", "llama3"),
        "mlp_only_layers": bool(getattr(config, "mlp_only_layers", None)),
        "decoder_sparse_step": getattr(config, "decoder_sparse_step", 1) != 1,
        "norm_topk_prob": config.model_type == "qwen3_moe" and not config.norm_topk_prob,
    }
    for key in (key for key, strange in found.items() if strange):
        raise _strange(config, f"with {key} {getattr(config, key)!r}")
    return family


def layers_of(config: Any, family: Family) -> dict[str, Any]:
    """What the layers compute, in the settings of Megatron-Core's ``TransformerConfig``."""
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": width_of_heads(config),
        "ffn_hidden_size": config.intermediate_size,
        "layernorm_epsilon": config.rms_norm_eps,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def width_of_heads(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _by_bridge(config: Any) -> Family:
    """The family of a type that the table lacks."""
    unknown = (
        f"learner.backend 'megatron' does not know models of type {config.model_type!r}; allowed: "
        f"{', '.join(FAMILIES)}, and those with the same layers that Megatron-Bridge knows"
    )
    try:
        auto_bridge, provider_type = _bridge()
    except (ConfigError, ImportError) as error:
        raise ConfigError(
            f"{unknown}. It cannot be imported ({error}): install megatron-bridge, or use another backend"
        ) from error
    try:
        with silently():
            named = copy.deepcopy(config)
            named.architectures = named.architectures or _architectures(config)
            bridge = auto_bridge.from_hf_config(named)
            provider = bridge.to_megatron_provider(load_weights=False)
            registry = bridge._model_bridge.mapping_registry()
    except Exception as error:  # each type has code of its own there
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{unknown} ({why[:200]}). Use another backend") from error
    for key in _NEEDED:
        if not getattr(config, key, None):
            raise _strange(config, f"without {key}")
    if not isinstance(provider, provider_type):
        raise _strange(config, f"built by {type(provider).__name__}")
    family = Family(qkv_bias=provider.add_qkv_bias, qk_norm=provider.qk_layernorm)
    with silently():
        own = provider_type(
            **layers_of(config, family),
            position_embedding_type="rope",
            share_embeddings_and_output_weights=bool(config.tie_word_embeddings),
        )
    provider.kv_channels = provider.kv_channels or provider.hidden_size // provider.num_attention_heads  # its default
    for key in (field.name for field in fields(provider)):
        found = getattr(provider, key)
        computes = key not in _OURS and not any(part in key for part in _HOW)
        if computes and not (hasattr(own, key) and getattr(own, key) == found):
            raise _strange(config, f"with {key} {found!r}")
    for method in ("provide", "finalize"):
        if getattr(type(provider), method) is not getattr(provider_type, method):
            raise _strange(config, f"built by {type(provider).__name__}.{method}")

    def names(core_name: str) -> Sequence[str]:
        mapping = registry.megatron_to_hf_lookup(core_name)
        if type(mapping).__name__ not in _PLAIN or getattr(mapping, "permute_dims", None):
            return ()
        return [mapping.hf_param] if isinstance(mapping.hf_param, str) else list(mapping.hf_param.values())

    return family._replace(names=names)


@cache
def _bridge() -> tuple[Any, Any]:
    """What is used of Megatron-Bridge, imported once."""
    core()  # first, with what it sets before CUDA begins
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        with silently():
            bridge = importlib.import_module("megatron.bridge")
            providers = importlib.import_module("megatron.bridge.models.gpt_provider")
    finally:  # it sets up logging for the whole process
        root.setLevel(level)
        root.handlers[:] = handlers
    return bridge.AutoBridge, providers.GPTModelProvider


def _strange(config: Any, what: str) -> ConfigError:
    return ConfigError(
        f"learner.backend 'megatron' does not know a {config.model_type} model {what}. Use another backend"
    )


def _architectures(config: Any) -> list[str]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return [auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
