"""Language models that a run serves for its verifiers: vLLM's chat API on this machine, started again when it dies.

Verifiers find a judge by its environment variable (:func:`~roll_envs.verifiers.judge_llm_client.judge_variable`), which
worker processes of environments inherit.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll_envs.errors import ConfigError, EngineError
from roll_envs.verifiers.judge_llm_client import JUDGE, judge_variable
from trainer.config import ModelConfig, RunConfig
from trainer.config.judges import JudgeConfig
from trainer.engines.vllm import (
    VLLMSettings,
    check_vllm,
    files_in,
    hardware,
    hardware_variables,
    serve_program,
    server_folder,
)

_log = logging.getLogger(__name__)
_POLL_S = 0.5


def check_judges(config: RunConfig) -> None:
    """Raise :class:`ConfigError` for a judge that a verifier asks and nobody serves, or whose vLLM is not there."""
    for env in config.environments:
        for name in _asked(env.kwargs):
            if name not in config.judges and judge_variable(name) not in os.environ:
                known = ", ".join(config.judges) or "none"
                raise ConfigError(
                    f"{env.id}: its settings ask '{JUDGE}{name}', and the judges of this run are {known}; add "
                    f"judges.{name} with its model, or put the address of a server that runs into the environment "
                    f"variable {judge_variable(name)}"
                )
    if config.judges and config.rollout.manager == "ray":
        raise ConfigError(
            "judges are served at this machine's loopback address, which environments of rollout.manager 'ray' do not "
            "reach; set rollout.manager to 'process' or 'thread', or serve the judge yourself and give its url"
        )
    for name, judge in config.judges.items():
        try:
            check_vllm(judge_settings(judge), judge.device)
        except ConfigError as error:
            raise ConfigError(f"judges.{name}: {str(error).replace('engine.', f'judges.{name}.')}") from None


@contextlib.contextmanager
def served_judges(config: RunConfig, gpus: Sequence[Sequence[str]], cpus: Sequence[int]) -> Iterator[None]:
    """The judges of ``config``, each on its ``gpus`` (by the names of CUDA_VISIBLE_DEVICES), those without on the
    processors ``cpus``, or on any; all answer when the body begins.

    Raises :class:`ConfigError` for a model that is not there, and :class:`EngineError` for a server that does not come
    up, with its last words.
    """
    with contextlib.ExitStack() as everyone:
        started = [
            everyone.enter_context(_Judge(name, judge, its, () if its else cpus))
            for (name, judge), its in zip(config.judges.items(), gpus, strict=True)
        ]
        for each in started:
            each.wait()
        yield


class _Judge(contextlib.AbstractContextManager["_Judge"]):
    """One server. Its variable is set from its start to its end."""

    def __init__(self, name: str, judge: JudgeConfig, gpus: Sequence[str], cpus: Sequence[int]) -> None:
        from trainer.engines.server import Server, free_port
        from trainer.model.hub import find_model

        self.name, self.judge = name, judge
        try:
            found = find_model(ModelConfig.model_validate({"path": judge.model, "revision": judge.revision}))
        except ConfigError as error:
            raise ConfigError(f"judges.{name}: {str(error).replace('model.path', f'judges.{name}.model')}") from None
        self.url = f"http://127.0.0.1:{free_port()}"
        folder = server_folder("roll-judge-")
        self.server = Server(
            self.url,
            command_line(name, judge, found.folder, self.url),
            environment=_variables(judge, gpus) | files_in(folder.name),
            log=judge.log_file,
            folder=folder,
            cpus=cpus,
        )
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name=f"judge-{name}", daemon=True)

    def __enter__(self) -> _Judge:
        self.server.start()
        os.environ[judge_variable(self.name)] = f"{self.url}/v1"
        return self

    def wait(self) -> None:
        """Until it answers; from then on it is started again when it dies. Raises :class:`EngineError`."""
        until = time.monotonic() + self.judge.start_timeout_s
        while not self._answers():
            late = time.monotonic() > until
            if late or not self.server.can_answer:
                why = f"did not answer within {self.judge.start_timeout_s:g} s" if late else "ended"
                raise EngineError(f"judges.{self.name}: its server {why}. {self.server.last_words()}")
            time.sleep(_POLL_S)
        self._watcher.start()

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _watch(self) -> None:
        for left in reversed(range(self.judge.restarts + 1)):
            while self.server.can_answer:
                if self._closing.wait(_POLL_S):
                    return
            with self._lock:
                if self._closing.is_set():
                    return
                told = f"restarts left: {left}" if left else "it is not started again: every verdict of it fails"
                _log.warning("judges.%s has died; %s. %s", self.name, told, self.server.last_words())
                if left:
                    self.server.start()

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._lock:
            self.server.close()
        if self._watcher.is_alive():
            self._watcher.join(timeout=10)
        os.environ.pop(judge_variable(self.name), None)


def command_line(name: str, judge: JudgeConfig, folder: Path, url: str) -> list[str]:
    """The command of a server that calls the model in ``folder`` by the judge's name."""
    settings, gpu = judge_settings(judge), judge_settings(judge).on_gpu(judge.device)
    arguments, flags = hardware(settings, max_tokens=judge.max_tokens, gpu=gpu)
    arguments |= {
        "model": str(folder),
        "served-model-name": name,
        "host": "127.0.0.1",
        "port": url.rpartition(":")[2],
        "dtype": settings.resolved(judge.device).dtype,
        "max-model-len": str(judge.max_tokens),
        "max-num-seqs": str(judge.max_running),
    }
    pairs = [text for key, value in arguments.items() for text in (f"--{key}", value)]
    flags = ["disable-uvicorn-access-log", *flags]
    return [*serve_program(settings), *pairs, *(f"--{flag}" for flag in flags), *judge.arguments]


def _variables(judge: JudgeConfig, gpus: Sequence[str]) -> dict[str, str]:
    settings = judge_settings(judge)
    named = settings.model_copy(update={"gpus": ",".join(gpus) or None})
    own = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return named.variables(0) | own | hardware_variables(settings, gpu=settings.on_gpu(judge.device))


def judge_settings(judge: JudgeConfig) -> VLLMSettings:
    """What a judge has of vLLM's settings as an engine."""
    shared = judge.model_dump(include=set(VLLMSettings.model_fields))
    return VLLMSettings(**copy.deepcopy({**shared, "arguments": list(judge.arguments)}))


def _asked(settings: Any) -> Iterator[str]:
    """Names of judges in the arguments of an environment."""
    if isinstance(settings, str) and settings.startswith(JUDGE):
        yield settings.removeprefix(JUDGE)
    elif isinstance(settings, Mapping):
        yield from (name for value in settings.values() for name in _asked(value))
    elif isinstance(settings, list | tuple):
        yield from (name for value in settings for name in _asked(value))
