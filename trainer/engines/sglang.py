"""SGLang as an engine: its settings, what is checked before anything starts, and the server that is started.

SGLang is a program of its own in an environment of its own; the trainer's stays free of it. It computes on GPUs only:
what PyPI has of it has no kernels for a CPU.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roll_envs.errors import ConfigError
from trainer.config.parts import part_settings
from trainer.engines import Engine, EnginePart
from trainer.engines.preflight import (
    WORKER,
    RemoteSettings,
    addresses,
    check_client,
    check_environment,
    check_quantization,
)

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.engines.server import Server
    from trainer.model.network import LanguageModel

TESTED = {"sglang": "0.5.23"}
"""The release whose routes the engine was written for and tested against."""
QUANTIZED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The models that SGLang quantises again when new weights come (its loader ``flash_rl``); the others fail then."""
_NO_GPU = (
    "SGLang computes on GPUs only; give engine.url of a server that has one (`ssh -L 30000:127.0.0.1:30000 HOST` "
    "brings a port of another machine here; engine.transfer is then disk or distributed), or take engine.name hf or "
    "vllm"
)


class SGLangSettings(RemoteSettings):
    """Settings of the SGLang engine."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """What the server computes in."""
    transfer: Literal["tensor", "disk", "distributed"] = "tensor"
    """How new weights reach the server: in the memory of one machine, by a folder that both see (weights_folder), or
    broadcast over the network."""
    deterministic: bool = False
    """Answers of a seed do not depend on what else runs; slower. Without it SGLang ignores seeds."""


# -- what is checked before anything starts ----------------------------------------------------------------------------


def has_gpu() -> bool:
    """Whether this machine has a GPU that SGLang can use."""
    import torch

    return torch.cuda.is_available() or any(Path("/dev").glob("nvidia[0-9]*"))


def check_sglang(settings: SGLangSettings) -> None:
    """Raise :class:`ConfigError` where SGLang cannot run, is not installed, or in a release that was not tested."""
    if not has_gpu():
        raise ConfigError(f"engine 'sglang': this machine has no GPU, and {_NO_GPU}")
    check_quantization(settings)
    place = settings.environment("sglang")
    pinned = " ".join(f"{name}=={release}" for name, release in TESTED.items())
    make = f"make its environment with `{sys.executable} -m venv {place} && {place}/bin/pip install {pinned}`"
    check_environment(
        "sglang", settings, TESTED, f"{make} (CUDA 13, several GB), or say in engine.venv where its environment is"
    )


class SGLangPart(EnginePart):
    """The SGLang engine; what it asks of the machine is checked with the configuration."""

    def problems(self, config: RunConfig) -> list[str]:
        settings: SGLangSettings = part_settings(config.engine, self)
        problems = settings.url_problems() + settings.quantization_problems()
        if config.engine.device == "cpu" and settings.url is None:
            problems.append(f"engine.device 'cpu': {_NO_GPU}")
        return problems

    def check_machine(self, config: RunConfig) -> None:
        check_client("sglang")
        settings: SGLangSettings = part_settings(config.engine, self)
        addresses(settings)
        if not settings.urls:
            check_sglang(settings)

    def check_model(self, config: RunConfig, model: Any) -> None:
        names = getattr(model, "architectures", None) or [""]
        _refuse(part_settings(config.engine, self), model, names[0], config.engine.max_tokens)


# -- the server --------------------------------------------------------------------------------------------------------


_ARGUMENTS = {
    "load-format": "dummy",  # the engine sends weights before it asks anything
    "sampling-defaults": "openai",  # no top-p of the model's folder
    "host": "127.0.0.1",  # the routes for weights ask for no key
}
_FLAGS = ("skip-tokenizer-init", "skip-server-warmup")
LOADERS = {use: f"roll_sglang.{use}" for use in ("keep", "adapt", "load")}
"""What a server does with the tensors of an update of adapters, which our code in its process knows."""
_VARIABLES = {
    "PYTHONPATH": str(WORKER),
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # log-probabilities after temperature
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by the tokens that it reserves and no request uses
    "HF_HUB_OFFLINE": "1",
}


def _write_blank(weights: Mapping[str, Any], path: Path) -> None:
    """A checkpoint of ``weights``, all of them 0 in bfloat16, which takes no space on the disk.

    A server that quantises new weights must begin with ones from a checkpoint; what is sent replaces them.
    """
    header, end = {}, 0
    for name, weight in weights.items():
        start, end = end, end + 2 * weight.numel()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns its data
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)


def _own_server(
    config: Any, settings: SGLangSettings, url: str, number: int, max_tokens: int, weights: Mapping[str, Any]
) -> Server:
    """Server ``number`` for a model of ``config`` with ``weights``, whose numbers are not read; its files are in a
    temporary folder."""
    from trainer.engines.server import Server
    from trainer.engines.sglang_dialect import RESERVED_TOKENS

    folder = tempfile.TemporaryDirectory(prefix="roll-sglang-")
    config.save_pretrained(folder.name)
    arguments = _ARGUMENTS | {
        "model-path": folder.name,
        "port": url.rpartition(":")[2],
        "dtype": settings.dtype,
        "context-length": str(max_tokens + RESERVED_TOKENS),
        "max-running-requests": str(settings.max_running + 1),  # one for the probe
        "mem-fraction-static": str(settings.gpu_memory_utilization),
        "tp-size": str(settings.tensor_parallel_size),
    }
    if settings.quantization is not None:
        _write_blank(weights, Path(folder.name) / "model.safetensors")
        arguments |= {"load-format": "flash_rl", "quantization": settings.quantization}
    if settings.dtype == "float32":
        arguments["attention-backend"] = "triton"  # the faster ones know half precision only
    pairs = [text for key, value in arguments.items() for text in (f"--{key}", value)]
    pairs += ["--custom-weight-loader", *LOADERS.values()]
    flags = [*_FLAGS, *(["enable-deterministic-inference"] if settings.deterministic else [])]
    flags += ["enable-memory-saver"] if number in settings.sleepers else []
    return Server(
        url,
        [
            *settings.program("sglang", "sglang.launch_server"),
            *pairs,
            *(f"--{flag}" for flag in flags),
            *settings.arguments,
        ],
        environment=settings.variables(number) | _VARIABLES | {"ROLL_SERVER_FOLDER": folder.name},
        log=settings.log_of(number),
        folder=folder,
        cpus=settings.cpus[number] if settings.cpus else (),
    )


def _refuse(settings: SGLangSettings, config: Any, architecture: str, max_tokens: int) -> None:
    """Raise :class:`ConfigError` for what stands in the way of a server for a model of ``config``; ``architecture`` is
    "" where it is not known yet."""
    problems = settings.problems(config, max_tokens)
    if settings.weights_folder and settings.transfer != "disk":
        problems.append(f"engine.weights_folder is for engine.transfer disk; it is {settings.transfer}")
    if settings.quantization is not None and architecture and architecture not in QUANTIZED:
        problems.append(
            f"engine.quantization {settings.quantization!r}: SGLang quantises new weights of {' and '.join(QUANTIZED)} "
            f"only, and the model is a {architecture}; set it to null, or take engine.name vllm"
        )
    if problems:
        raise ConfigError("engine 'sglang': " + "; ".join(problems))


def _make(model: LanguageModel | Path, settings: SGLangSettings, *, max_tokens: int, device: str) -> Engine:
    check_client("sglang")
    from trainer.engines.remote import RemoteEngine
    from trainer.engines.server import Server
    from trainer.engines.sglang_dialect import SGLangDialect
    from trainer.model.network import load_model

    urls, ours = addresses(settings), not settings.urls
    if ours:
        check_sglang(settings)
    if settings.colocated is None:
        settings = settings.model_copy(update={"colocated": ours and settings.gpus is None})
    loaded = load_model(model) if isinstance(model, Path) else model
    config: Any = copy.deepcopy(loaded.network.config)
    architecture = type(loaded.network).__name__
    _refuse(settings, config, architecture, max_tokens)
    config.architectures = [architecture]
    config.eos_token_id = None  # only the ids of a request end an answer
    first: dict[int, str] = {}
    weights = loaded.network.state_dict(keep_vars=True)
    names = {name: first.setdefault(id(weight), name) for name, weight in weights.items()}
    once = {name: weight for name, weight in weights.items() if names[name] == name}
    servers = [
        _own_server(config, settings, url, number, max_tokens, once) if ours else Server(url)
        for number, url in enumerate(urls)
    ]
    dialect = SGLangDialect(settings, max_tokens=max_tokens, names=names)
    in_memory = settings.model_copy(update={"weights_folder": None})  # only what is sent goes to the folder
    return RemoteEngine(loaded, dialect, in_memory, servers, max_tokens=max_tokens)


SGLANG = SGLangPart(settings=SGLangSettings, make=_make)
"""SGLang, in a process of its own or as a server that runs already."""
