"""vLLM in the trainer's own process: its engine runs on a thread, and answers what a server's routes would answer.

It is vLLM's ``LLMEngine`` with the model in this process (``InprocClient``): the asynchronous one, on which its server
stands, always puts the model into another.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import queue
import random
import sys
import threading
import traceback
import urllib.parse
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from roll_envs.errors import EngineError
from trainer.engines.server import ROUTE_TIMEOUT_S, Server, ServerClient, ServerFaultError, ServerRefusalError

_END_S = 30.0
"""How long what the engine is at may take before it counts as hung."""
_TRANSFER = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
"""What workers are asked by the names of the routes."""


class InsideServer(Server):
    """What :class:`Server` is for a process, for an engine on a thread of this one."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        plugins: str,
        folder: TemporaryDirectory[str],
    ) -> None:
        """``arguments`` are those of vLLM's server. ``environment`` is added to that of this process, and the folder
        ``plugins`` has the module that makes our way of weights known to vLLM."""
        super().__init__("vLLM in this process", folder=folder)
        self._arguments, self._added, self._plugins = arguments, environment, plugins
        self._engine: _EngineThread | None = None

    @property
    def can_answer(self) -> bool:
        return self._engine is not None and self._engine.alive

    def asked_through(self, client: ServerClient) -> Callable[..., Awaitable[Any]]:
        return self.ask

    def start(self) -> None:
        self.stop()
        if self._engine is not None:  # there can be no other beside it
            raise EngineError(f"vLLM's engine in this process has not ended within {_END_S:g} s; start the run again")
        os.environ.update(self._added)  # vLLM reads them when it is imported, and later
        self._engine = _EngineThread(self._arguments, self._plugins)

    def stop(self) -> bool:
        if self._engine is None:
            return False
        self._engine.end()
        if not self._engine.alive:
            self._engine = None
        return True

    def last_words(self) -> str:
        return self._engine.problem if self._engine is not None else "It was not started."

    async def ask(
        self, path: str, body: Any = None, *, limit_s: float | None = None, patient: bool = False, **_: Any
    ) -> Any:
        """The answer of a route of vLLM's server. Raises what :meth:`ServerClient.ask` raises."""
        if self._engine is None:
            raise ServerFaultError("vLLM does not run")
        seconds = None if patient else limit_s or ROUTE_TIMEOUT_S
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(self._engine.answer(path, body or {}))
        except TimeoutError as error:
            raise ServerFaultError(f"gave up waiting for {path} after {seconds:g} s") from error


class _EngineThread:
    """vLLM's engine, which is made, stepped and asked on one thread."""

    def __init__(self, arguments: Sequence[str], plugins: str) -> None:
        self.problem = ""
        """Why it ended."""
        self._arguments, self._plugins = arguments, plugins
        self._engine: Any = None
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._open: set[Future[Any]] = set()  # what is not answered yet
        self._running: dict[str, Future[Any]] = {}  # requests, by their names at vLLM
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """End it, when it has done what it is at; one that hangs is left to itself."""
        self._calls.put(None)
        self._thread.join(_END_S)

    def answer(self, path: str, body: Mapping[str, Any]) -> Future[Any]:
        """What the route ``path`` answers to ``body``; a request that is cancelled is ended."""
        future: Future[Any] = Future()
        if path == "/health" and self._engine is not None:
            future.set_result("")
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if self._engine is not None:
            self._calls.put(partial(self._call, path, body, future))
        if self._engine is None:  # it is being loaded, or has ended, perhaps just now
            _fail(future, ServerFaultError(self.problem or "vLLM is being loaded"))
        return future

    def _run(self) -> None:
        try:
            self._engine = _made(self._arguments, self._plugins)
            while self._take_calls():
                for output in self._engine.step():
                    if (future := self._running.pop(output.request_id, None)) is not None:
                        _give(future, _reply(output.outputs[0]))
        except BaseException:
            self.problem = f"It ended with an error:\n{traceback.format_exc()}"
        finally:
            engine, self._engine = self._engine, None
            for future in tuple(self._open):
                _fail(future, ServerFaultError(self.problem or "vLLM was ended"))
            if engine is not None:
                engine.engine_core.shutdown()
            del engine
            if (groups := sys.modules.get("vllm.distributed.parallel_state")) is not None:
                groups.cleanup_dist_env_and_memory()

    def _take_calls(self) -> bool:
        """Do what is asked for, and wait for more while there is nothing to sample. False ends the engine."""
        core = self._engine.engine_core.engine_core
        while True:
            idle = core.is_scheduler_paused() or not core.scheduler.has_requests()
            try:
                call = self._calls.get(block=idle)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()

    def _call(self, path: str, body: Mapping[str, Any], future: Future[Any]) -> None:
        if future.done():
            return
        route = urllib.parse.urlsplit(path)
        try:
            if route.path == "/inference/v1/generate":
                self._generate(body, future)
            else:
                _give(future, self._control(route.path[1:], body, dict(urllib.parse.parse_qsl(route.query))))
        except ValueError as error:
            _fail(future, ServerRefusalError(f"vLLM refused {path}: {error}"))
        except Exception as error:
            _fail(future, ServerFaultError(f"{path}: {type(error).__name__}: {error}"))

    def _generate(self, body: Mapping[str, Any], future: Future[Any]) -> None:
        sampling: Any = importlib.import_module("vllm.sampling_params")
        parameters = sampling.SamplingParams(
            **body["sampling_params"], output_kind=sampling.RequestOutputKind.FINAL_ONLY
        )
        name = uuid.uuid4().hex
        self._engine.add_request(name, {"prompt_token_ids": list(body["token_ids"])}, parameters)
        self._running[name] = future
        future.add_done_callback(
            lambda done: self._calls.put(partial(self._abort, [name])) if done.cancelled() else None
        )

    def _abort(self, names: Sequence[str]) -> None:
        """End requests with what they sampled."""
        finish = importlib.import_module("vllm.v1.engine").FinishReason.ABORT
        states = {state.external_req_id: state for state in self._engine.output_processor.request_states.values()}
        for name in names:
            future = self._running.pop(name, None)
            if future is not None and name in states:
                _give(future, _reply(states[name].make_request_output([], None, finish, None).outputs[0]))
        self._engine.abort_request(list(names))

    def _control(self, name: str, body: Mapping[str, Any], options: Mapping[str, str]) -> Any:
        engine, core = self._engine, self._engine.engine_core.engine_core
        if name in _TRANSFER:
            version = body.get("weight_version")
            named = {key: value for key, value in body.items() if key != "weight_version"}
            engine.collective_rpc(name, kwargs=named)
            if version is not None:
                engine.set_weight_version(version)
        elif name == "pause":
            core.pause_scheduler(options["mode"], clear_cache=options["clear_cache"] == "true")
        elif name == "resume":
            core.resume_scheduler()
        elif name == "sleep":
            engine.sleep(int(options["level"]), options["mode"])
        elif name == "wake_up":
            engine.wake_up([options["tags"]])
        elif name == "abort_requests":
            self._abort(tuple(self._running))
        elif name == "reset_prefix_cache":
            return {"success": engine.reset_prefix_cache(options["reset_running_requests"] == "true")}
        elif name == "weight_info":
            return {"weight_version": engine.get_weight_version()}
        elif name == "metrics":
            return importlib.import_module("prometheus_client").generate_latest().decode()
        else:
            raise ValueError("there is no such route")
        return {}


def _made(arguments: Sequence[str], plugins: str) -> Any:
    """vLLM's engine with the ``arguments`` of its server. What of this process it sets is as before."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), np.random.get_state()  # torch's is drawn from at each step
    sys.path.insert(0, plugins)
    try:
        importlib.import_module("roll_vllm").register()
        arguments_of: Any = importlib.import_module("vllm.entrypoints.launchers.cli_args").make_arg_parser
        parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
        parsed = arguments_of(parser).parse_args(list(arguments))
        engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(parsed)
        return importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args(engine)
    finally:
        sys.path.remove(plugins)
        torch.set_num_threads = set_threads  # vLLM puts a function there that does nothing
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])


def _reply(output: Any) -> dict[str, Any]:
    """What vLLM's route says of a request that ended."""
    ids = list(output.token_ids)
    content = [{"token_id": i, "logprob": each[i].logprob} for i, each in zip(ids, output.logprobs or (), strict=True)]
    spans = [asdict(span) for span in output.weight_versions or ()]
    choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": output.finish_reason}
    return {"choices": [choice | {"weight_versions": spans}]}


def _give(future: Future[Any], answer: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled
        future.set_result(answer)


def _fail(future: Future[Any], error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
