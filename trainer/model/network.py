"""The policy model and its tokenizer, built small from a seed or loaded; and files of weights.

The tokenizer that is built knows bytes and a few whole words: any text can be encoded, so that the model can read any
environment, and the words of the environment's own answers are one token each, so that an answer is a few tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import gymnasium
import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config
from transformers.utils.logging import disable_progress_bar

from roll_envs.errors import ConfigError
from roll_envs.parsing import FreeFormat, tag_marks
from trainer.config import ModelConfig
from trainer.model.hub import check_model_folder, find_model

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the safetensors format."""

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
END, PAD = "<|end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""One token opens a message and one ends it: the shortest template that keeps roles apart."""

WeightSource: TypeAlias = Callable[[], Iterator[tuple[str, torch.Tensor]]]
"""Gives names and tensors one at a time, the same ones each time it is called; such as ``learner.weights``."""


class SupportsWrite(Protocol):
    """A binary file that is written from start to end."""

    def write(self, data: bytes | memoryview, /) -> object: ...


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
    """The device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; 'auto' is CUDA where there is one. Raises
    :class:`ConfigError`."""
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu") and (kind != "cuda" or not f"0{number}".isdigit()):
        raise ConfigError(f"device {name!r} is not known; allowed: auto, cpu, cuda, cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: torch finds no CUDA device here; use 'cpu' or 'auto'")
    if number:
        return torch.device(name)
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def words_of(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    """The words that become one token each: the action names and tags of the environment's answers, its vocabulary,
    and the symbols outside ASCII that its instructions explain."""
    form = getattr(env.unwrapped, "action_format", None) or FreeFormat(name="text", example="", tag="")
    instructions, vocabulary = getattr(env.unwrapped, "instructions", ""), getattr(env.unwrapped, "vocabulary", ())
    tags = [t for t in (form.tag, "think" if form.think else "") if t]
    marks = [mark for tag in tags for mark in tag_marks(tag)]
    joiner = [f" {form.separator} "] if form.max_actions > 1 else []
    symbols = sorted({c for c in instructions if not c.isascii() and not c.isspace()})
    return tuple(dict.fromkeys([*marks, *joiner, *form.actions, *vocabulary, *symbols]))


def build_tokenizer(words: Iterable[str] = ()) -> Any:
    """A ``PreTrainedTokenizerFast`` over bytes and ``words``, with :data:`CHAT_TEMPLATE`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([PAD, END, *ROLES, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (PAD, END, *ROLES)])
    plain = [w for w in dict.fromkeys(words) if len(w.encode()) > 1 and not re.fullmatch(r"<\|.*\|>", w)]
    core.add_tokens([AddedToken(w, normalized=False, special=False) for w in plain])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(
    config: ModelConfig, env: gymnasium.Env[str, str] | Sequence[gymnasium.Env[str, str]], seed: int
) -> LanguageModel:
    """The model of ``config``: loaded when ``config.path`` is set, else a small random one for the answers of ``env``,
    one or several.

    Raises :class:`ConfigError` when the model cannot be found or loaded.
    """
    if config.path is not None:
        return load_model(find_model(config).folder, config.path)
    envs = env if isinstance(env, Sequence) else [env]
    tokenizer = build_tokenizer(word for each in envs for word in words_of(each))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(small_config(config, tokenizer), attn_implementation="sdpa")
    return LanguageModel(network=network.float().train(), tokenizer=tokenizer)


def small_config(config: ModelConfig, tokenizer: Any) -> Any:
    """The Hugging Face configuration of the small model that is built here."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": int(config.hidden_size * config.mlp_ratio),
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.shared_heads,
        "head_dim": config.width_of_heads,
        "max_position_embeddings": config.max_positions,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "initializer_range": config.init_std,
        "tie_word_embeddings": True,
    }
    family: Any = {"llama": LlamaConfig, "qwen2": Qwen2Config}[config.architecture]
    return family(**shape)


_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Of what is read from a model's folder: no network, and no question whether to run its code."""


def load_tokenizer(folder: Path, name: str | None = None) -> Any:
    """The tokenizer of a folder in Hugging Face form; ``name`` is what errors call the model.

    Raises :class:`ConfigError` when it cannot be loaded or has no chat template.
    """
    name = str(folder) if name is None else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **_LOCAL)
    except Exception as error:  # files of others, read by a library that raises many kinds of errors
        raise _cannot_load(f"the tokenizer of '{name}'", error) from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"model.path: the tokenizer of '{name}' has no chat template, so that it is not known how messages become "
            "ids; choose the model's instruct version, or add a chat_template.jinja to a folder with the model"
        )
    return tokenizer


def load_model(folder: Path, name: str | None = None) -> LanguageModel:
    """A model and tokenizer from a local folder in Hugging Face form; ``name`` is what errors call the model.

    Raises :class:`ConfigError`.
    """
    check_model_folder(folder)
    tokenizer = load_tokenizer(folder, name)
    try:
        network, found = AutoModelForCausalLM.from_pretrained(
            str(folder), **_LOCAL, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
        )
    except Exception as error:  # as above
        raise _cannot_load(f"'{name or folder}'", error) from error
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"model.path: the weights of '{name or folder}' lack {len(missing)} of the tensors that its config.json "
            f"describes ({', '.join(missing[:3])}{', ...' * (len(missing) > 3)}), which would begin anew; "
            "download the model again, or give the config.json that belongs to these weights"
        )
    # A sum needs no memory beside the weight; in half precision it might be too large itself.
    sums = {n: float(weight.sum(dtype=torch.float64)) for n, weight in network.state_dict().items()}
    if spoilt := [n for n, total in sums.items() if not math.isfinite(total)]:
        raise ConfigError(
            f"model.path: {len(spoilt)} weights of '{name or folder}' have numbers that are not finite "
            f"({', '.join(spoilt[:3])}{', ...' * (len(spoilt) > 3)}); download the model again, or give a checkpoint "
            "from before it was spoilt"
        )
    return LanguageModel(network=network.train(), tokenizer=tokenizer)


def _cannot_load(what: str, error: Exception) -> ConfigError:
    return ConfigError(f"model.path: cannot load {what} ({type(error).__name__}: {error})")


def weight_file(path: Path) -> WeightSource:
    """The tensors of a safetensors file, each read when its turn comes. The header is checked at once."""
    with safe_open(path, framework="pt"):
        return partial(_read_weights, path)


def _read_weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, file.get_tensor(name)


def write_weights(file: SupportsWrite, source: WeightSource) -> None:
    """The safetensors format: length of the header, header, numbers. Larger types come first, so that all are aligned.

    https://github.com/huggingface/safetensors#format
    """
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}
    for name, tensor in source():
        shapes[name] = (tensor.dtype, tuple(tensor.shape), tensor.nbytes)
        del tensor  # the next one may be merged on demand; no two are alive
    sizes = sorted({dtype.itemsize for dtype, _, _ in shapes.values()}, reverse=True)
    header: dict[str, Any] = {}
    end = 0
    for size in sizes:
        for name, (dtype, shape, length) in shapes.items():
            if dtype.itemsize == size:
                header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (end, end + length)}
                end += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for size in sizes:
        for _, tensor in source():
            if tensor.dtype.itemsize == size:
                plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                file.write(memoryview(plain.numpy()))  # type: ignore[arg-type]
                del plain
            del tensor


def save_model(model: LanguageModel, folder: Path) -> None:
    """Write model and tokenizer in Hugging Face form."""
    model.network.save_pretrained(str(folder))
    model.tokenizer.save_pretrained(str(folder))
