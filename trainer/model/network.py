"""The policy model: built small from a seed, or loaded from a folder; both with their tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config
from transformers.utils.logging import disable_progress_bar

from roll_envs.errors import ConfigError
from trainer.config import ModelConfig
from trainer.model.tokenizer import build_tokenizer, words_of

__all__ = ["LanguageModel", "build_model", "check_model_folder", "choose_device", "load_model", "save_model"]

disable_progress_bar()  # small files; the run has bars of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A causal language model and the tokenizer that belongs to it."""

    network: Any
    """A Hugging Face ``PreTrainedModel`` in float32 on the CPU or the device it was put on."""
    tokenizer: Any

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.network.parameters())


def choose_device(name: str) -> torch.device:
    """The device of a configuration's ``device``: ``auto`` is CUDA where there is one, else the CPU.

    Raises :class:`ConfigError` for another name, or for ``cuda`` where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device {name!r}; allowed: 'auto', 'cpu', 'cuda'")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device 'cuda', but torch finds no CUDA device here; choose 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def build_model(config: ModelConfig, env: gymnasium.Env[str, str], seed: int) -> LanguageModel:
    """The model of ``config``: loaded when ``config.path`` is set, else a small random one for ``env``'s answers.

    Raises :class:`ConfigError` when the folder cannot be loaded.
    """
    if config.path is not None:
        return load_model(Path(config.path))
    tokenizer = build_tokenizer(words_of(env))
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": int(config.hidden_size * config.mlp_ratio),
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "max_position_embeddings": config.max_positions,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "initializer_range": config.init_std,
        "tie_word_embeddings": True,
    }
    family: Any = {"llama": LlamaConfig, "qwen2": Qwen2Config}[config.architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(family(**shape), attn_implementation="sdpa")
    return LanguageModel(network=network.float().train(), tokenizer=tokenizer)


def check_model_folder(folder: Path) -> None:
    """Raise :class:`ConfigError` where there is no model in Hugging Face form."""
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model.path: no Hugging Face model in '{folder}' (config.json is missing); give a folder that has one, or "
            "leave model.path out for a small model that is built here"
        )


def load_model(folder: Path) -> LanguageModel:
    """A model and tokenizer from a local folder in Hugging Face form. Raises :class:`ConfigError`."""
    check_model_folder(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32, attn_implementation="sdpa"
        )
    except Exception as error:  # files of others, read by a library that raises many kinds of errors
        raise ConfigError(f"model.path: cannot load '{folder}' ({type(error).__name__}: {error})") from error
    if not tokenizer.chat_template:
        raise ConfigError(f"model.path: the tokenizer in '{folder}' has no chat template; add chat_template.jinja")
    return LanguageModel(network=network.train(), tokenizer=tokenizer)


def save_model(model: LanguageModel, folder: Path) -> None:
    """Write model and tokenizer in Hugging Face form."""
    model.network.save_pretrained(str(folder))
    model.tokenizer.save_pretrained(str(folder))
