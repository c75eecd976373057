"""A contract server: the native routes of SGLang 0.5.23 in front of a Hugging Face model on the CPU.

It takes what that release takes and answers as it answers, by its source, below ``sglang/srt``:
``entrypoints/http_server.py`` (routes, status codes), ``managers/tokenizer_manager.py`` and
``managers/tokenizer_control_mixin.py`` (who waits for what), ``entrypoints/v1_loads.py``, ``server_args.py``. The rest
is in ``fake_sglang_bodies`` and ``fake_sglang_scheduler``.

A request of ``/misbehave`` says what goes wrong next. Run as a program it takes the command line of SGLang's server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import torch
from aiohttp import web
from fake_sglang_bodies import (
    Abort,
    Begin,
    Body,
    Continue,
    End,
    FromDisk,
    FromDistributed,
    FromTensor,
    Generate,
    InitGroup,
    Memory,
    Pause,
)
from fake_sglang_scheduler import ALL_TAGS, Died, Request, Scheduler, join_group
from pydantic import ValidationError

VERSION = "0.5.23"
Handler = Callable[[Any, Any], Any]


class FakeSGLang:
    """One server, on an event loop."""

    def __init__(self, network: Any, *, context: int = 128, **arguments: Any) -> None:
        self.context, self.arguments = context, arguments
        self.scheduler = Scheduler(
            network,
            context=context,
            running=arguments.get("max_running_requests") or 64,
            memory_saver=arguments.get("enable_memory_saver", False),
            loaders=arguments.get("custom_weight_loader") or (),
            quantized=arguments.get("quantization") == "fp8",
        )
        self.paused = False
        self.may_enter = asyncio.Condition()
        self.asking: set[Request] = set()
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.release, self.health_generates = VERSION, True
        self.numbers = itertools.count()
        self.bad: dict[str, Any] = self.scheduler.bad
        """What goes wrong: ``generate``, a list of faults for the next requests; ``step_s``, seconds of a forward
        pass; ``shift`` of all log-probabilities, or those ``before_temperature``; ``keeps_cache``; and routes:
        ``die_in`` ends the process, ``fail_in`` answers 500, ``hang_in`` never, ``half_in`` half, ``busy_in`` 503 so
        many times; all is well again when a route of ``heals_in`` is called for its nth time."""
        self.work = asyncio.Event()
        self.died = ""
        self.kill: Callable[[], None] = lambda: None
        """Ends the process, where it has one of its own."""

    def die(self, why: object) -> None:
        """As SGLang does when its scheduler fails: all of it ends."""
        self.died = f"Scheduler hit an exception: {why}"
        print(self.died, flush=True)
        self.kill()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("GET", "/{path:.*}", self.handle)
        app.router.add_route("POST", "/{path:.*}", self.handle)
        app.cleanup_ctx.append(self._sampling)
        return app

    async def _sampling(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        yield
        task.cancel()

    async def _run(self) -> None:
        scheduler = self.scheduler
        while True:
            if scheduler.paused or not (scheduler.waiting or scheduler.running):
                self.work.clear()
                await self.work.wait()
                continue
            try:
                with torch.inference_mode():
                    scheduler.step()
            except (Died, Exception) as death:
                return self.die(death)
            await asyncio.sleep(self.bad.get("step_s", 0.0))

    async def handle(self, asked: web.Request) -> web.StreamResponse:
        path = asked.path
        self.paths.append(path)
        healing = self.bad.get("heals_in", {})
        if path in healing:
            healing[path] -= 1
            if not healing[path]:
                self.bad.clear()
        if self.bad.get("die_in") == path:
            self.die("to order")
        if self.died:
            return self._gone(asked)
        if self.bad.get("fail_in") == path:
            return web.json_response({"detail": f"{path} fails"}, status=500)
        if self.bad.get("busy_in", {}).get(path, 0) > 0:
            self.bad["busy_in"][path] -= 1
            return web.json_response({"detail": "busy"}, status=503)
        if self.bad.get("hang_in") == path:
            await asyncio.Event().wait()
        text = await asked.read()
        body = json.loads(text) if text else None
        if path == "/misbehave":
            self.bad.clear()
            self.bad.update(body)
            return web.json_response({})
        route = ROUTES.get((asked.method, path))
        if route is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        kind, act = route
        try:
            if kind is not None and not isinstance(body, dict):
                raise ValueError("Field required: body")
            parsed = kind.model_validate(body) if kind is not None else dict(asked.query)
        except (ValidationError, ValueError) as error:
            return web.json_response({"object": "error", "message": str(error), "code": 400}, status=400)
        if kind is not None:
            self.bodies.append((path, parsed))
        try:
            status, answer = await act(self, parsed)
        except Died as death:
            self.die(death)
            return self._gone(asked)
        if isinstance(answer, bytes):
            return web.Response(body=answer, status=status)
        reply = json.dumps(answer).encode()
        if status == 299 or self.bad.get("half_in") == path:
            return await _half(asked, reply)
        if status == 298:
            return self._gone(asked)
        return web.Response(body=reply, status=status, content_type="application/json")

    @staticmethod
    def _gone(asked: web.Request) -> web.Response:
        assert asked.transport is not None
        asked.transport.close()
        return web.Response()

    # -- requests

    async def generate(self, body: Generate) -> tuple[int, Any]:
        if problem := self._problem(body):
            return 400, {"error": {"message": problem}}
        async with self.may_enter:
            await self.may_enter.wait_for(lambda: not self.paused)
        request = Request(
            body.rid or f"r{next(self.numbers)}",
            body.input_ids,
            body.sampling_params,
            asyncio.get_running_loop().create_future(),
        )
        self.asking.add(request)
        self.scheduler.waiting.append(request)
        self.work.set()
        try:
            answer = await request.reply
        except asyncio.CancelledError:
            self.scheduler.drop(request)
            raise
        finally:
            self.asking.discard(request)
        if not body.return_logprob:
            answer["meta_info"] = {k: v for k, v in answer["meta_info"].items() if "logprob" not in k}
        faults = self.bad.get("generate", [])
        return spoil(faults.pop(0), answer) if faults else (200, answer)

    def _problem(self, body: Generate) -> str:
        """``_validate_one_request`` and ``SamplingParams.verify``; "" where there is none."""
        sampling, count = body.sampling_params, len(body.input_ids)
        if not count:
            return "input_ids cannot be empty."
        if count >= self.scheduler.limit - 5 or count + (sampling.max_new_tokens or 0) > self.context:
            return f"The input ({count} tokens) is longer than the model's context length ({self.context} tokens)."
        if (sampling.temperature or 0) < 0 or not math.isfinite(sampling.temperature or 0):
            return f"temperature must be a non-negative finite number, got {sampling.temperature}."
        if sampling.top_k not in (-1, None) or sampling.top_p not in (1.0, None) or sampling.min_p not in (0.0, None):
            return "the contract server does not truncate"
        if body.stream or body.top_logprobs_num or (sampling.n or 1) != 1 or body.logprob_start_len not in (-1, None):
            return "the contract server gives one plain answer"
        return ""

    async def abort(self, body: Abort) -> tuple[int, Any]:
        if body.abort_all or body.rid:
            self.scheduler.abort(body.rid or "", body.abort_all)
            self.work.set()
        return 200, b""

    async def pause(self, body: Pause) -> tuple[int, Any]:
        async with self.may_enter:
            self.paused = True
            if body.mode == "abort":
                while self.asking:
                    self.scheduler.abort("", True)
                    await asyncio.sleep(0.05)
            else:
                self.scheduler.paused = True
                if body.mode == "retract":
                    self.scheduler.retract()
        return 200, {"message": "Generation paused successfully.", "status": "ok"}

    async def go_on(self, _: Continue) -> tuple[int, Any]:
        async with self.may_enter:
            self.paused = self.scheduler.paused = False
            self.may_enter.notify_all()
        self.work.set()
        return 200, {"message": "Generation continued successfully.", "status": "ok"}

    async def health(self, _: Any) -> tuple[int, Any]:
        """By default it generates an id, which takes a second, and 20 s when paused."""
        deadline = time.monotonic() + (20.0 if self.health_generates else 0.0)
        while time.monotonic() < deadline:
            await asyncio.sleep(1)
            if not self.paused:
                return 200, b""
        return (503 if self.health_generates else 200), b""

    async def model_info(self, _: Any) -> tuple[int, Any]:
        config = self.scheduler.network.config
        return 200, {
            "model_path": self.arguments.get("model_path", "model"),
            "is_generation": True,
            "weight_version": self.scheduler.version,
            "load_format": self.arguments.get("load_format", "auto"),
            "model_type": config.model_type,
            "architectures": [type(self.scheduler.network).__name__],
        }

    async def server_info(self, _: Any) -> tuple[int, Any]:
        return 200, {
            "tp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "context_length": self.context,
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "enable_memory_saver": self.scheduler.memory_saver,
            "preferred_sampling_params": None,
            "max_total_num_tokens": 4096,
            "max_req_input_len": self.scheduler.limit - 5,
            **self.arguments,
            "version": self.release,
        }

    async def loads(self, _: Any) -> tuple[int, Any]:
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        used = sum(len(each.prompt) + len(each.ids) for each in self.scheduler.running)
        load = {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "num_used_tokens": used}
        load |= {"max_total_num_tokens": 4096, "token_usage": used / 4096, **self.bad.get("load", {})}
        return 200, {"version": self.release, "loads": [load]}

    # -- weights

    async def _alone(self, work: Callable[[], tuple[bool, str]]) -> tuple[int, Any]:
        """Without a pause a route for weights waits until every request ended."""
        while not self.paused and self.asking:
            await asyncio.sleep(0.02)
        success, message = work()
        return (200 if success else 400), {"success": success, "message": message}

    async def begin(self, _: Begin) -> tuple[int, Any]:
        return await self._alone(self.scheduler.begin)

    async def finish(self, _: End) -> tuple[int, Any]:
        return await self._alone(self.scheduler.end)

    async def from_tensor(self, body: FromTensor) -> tuple[int, Any]:
        return await self._alone(lambda: self.scheduler.from_tensor(body, self.arguments.get("tp_size", 1)))

    async def from_disk(self, body: FromDisk) -> tuple[int, Any]:
        load_format = self.arguments.get("load_format", "auto")
        status, answer = await self._alone(lambda: self.scheduler.from_disk(body, load_format))
        return status, {**answer, "num_paused_requests": 0}

    async def init_group(self, body: InitGroup) -> tuple[int, Any]:
        try:
            group = await asyncio.to_thread(join_group, body, self.arguments.get("group_timeout_s", 20.0))
        except Exception as error:
            return 400, {"success": False, "message": f"Failed to initialize custom process group: {error}."}
        self.scheduler.groups[body.group_name] = group
        return 200, {"success": True, "message": "Succeeded to initialize custom process group."}

    async def from_distributed(self, body: FromDistributed) -> tuple[int, Any]:
        if not self.scheduler.session:
            problem = "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
            return 400, {"success": False, "message": problem}
        try:
            weights = await asyncio.to_thread(self.scheduler.receive, body)
        except Exception as error:
            return 400, {"success": False, "message": f"Failed to receive weights: {error}"}
        return await self._alone(lambda: self.scheduler.from_distributed(body, weights))

    # -- memory

    async def release_memory(self, body: Memory) -> tuple[int, Any]:
        self.scheduler.release(body.tags or ALL_TAGS)
        return 200, None

    async def resume_memory(self, body: Memory) -> tuple[int, Any]:
        self.scheduler.resume(body.tags or ALL_TAGS)
        return 200, None


ROUTES: dict[tuple[str, str], tuple[type[Body] | None, Handler]] = {
    ("POST", "/generate"): (Generate, FakeSGLang.generate),
    ("POST", "/abort_request"): (Abort, FakeSGLang.abort),
    ("POST", "/pause_generation"): (Pause, FakeSGLang.pause),
    ("POST", "/continue_generation"): (Continue, FakeSGLang.go_on),
    ("GET", "/health"): (None, FakeSGLang.health),
    ("GET", "/model_info"): (None, FakeSGLang.model_info),
    ("GET", "/server_info"): (None, FakeSGLang.server_info),
    ("GET", "/v1/loads"): (None, FakeSGLang.loads),
    ("POST", "/begin_weight_update"): (Begin, FakeSGLang.begin),
    ("POST", "/end_weight_update"): (End, FakeSGLang.finish),
    ("POST", "/update_weights_from_tensor"): (FromTensor, FakeSGLang.from_tensor),
    ("POST", "/update_weights_from_disk"): (FromDisk, FakeSGLang.from_disk),
    ("POST", "/update_weights_from_distributed"): (FromDistributed, FakeSGLang.from_distributed),
    ("POST", "/init_weights_update_group"): (InitGroup, FakeSGLang.init_group),
    ("POST", "/release_memory_occupation"): (Memory, FakeSGLang.release_memory),
    ("POST", "/resume_memory_occupation"): (Memory, FakeSGLang.resume_memory),
}


async def _half(asked: web.Request, text: bytes) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-length": str(len(text))})
    await reply.prepare(asked)
    await reply.write(text[: len(text) // 2])
    assert asked.transport is not None
    asked.transport.close()
    return reply


def spoil(fault: str, answer: dict[str, Any]) -> tuple[int, Any]:
    """``answer`` gone wrong."""
    info = answer["meta_info"]
    match fault:
        case "half":
            return 299, answer
        case "drop":
            return 298, answer
        case "text":
            return 200, b"<html>busy</html>"
        case "500" | "503" | "400":
            return int(fault), {"detail": "the scheduler has an issue"}
        case "empty":
            return 200, {}
        case "list":
            return 200, [answer]
        case "short":
            answer["output_ids"].pop()
        case "other id":
            answer["output_ids"][0] = (answer["output_ids"][0] + 1) % 200
        case "text ids":
            answer["output_ids"] = [str(i) for i in answer["output_ids"]]
        case "no log-probs":
            info["output_token_logprobs"] = None
        case "finish":
            info["finish_reason"] = None
        case "half abort" | "half stop":  # earlier than it should
            kept = len(answer["output_ids"]) // 2
            del answer["output_ids"][kept:], info["output_token_logprobs"][kept:]
            info["weight_versions"][-1]["end"] = kept
            ended = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            stopped = {"type": "stop", "matched": answer["output_ids"][-1]}
            info["finish_reason"] = stopped if fault == "half stop" else ended
        case "foreign":
            info["weight_versions"][0]["version"] = "0-other-1"
        case "unlabelled":
            info["weight_versions"][0]["version"] = info["weight_version"] = "default"
        case "no versions":
            del info["weight_versions"]
        case "no spans":
            info["weight_versions"] = []
        case "spans":
            info["weight_versions"][0]["end"] -= 1
        case "gap":
            info["weight_versions"][0]["start"] = 1
        case "nan":
            info["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        case "-inf":
            info["output_token_logprobs"][0][0] = torch.finfo(torch.float32).min
    return 200, answer


# -- running it --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_fake(network: Any, **arguments: Any) -> Iterator[tuple[str, FakeSGLang]]:
    """A server in a thread of this process with weights of its own in ``network``, and its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[FakeSGLang, web.AppRunner, int]:
        fake = FakeSGLang(network, **arguments)
        runner, port = await serve(fake, 0)
        return fake, runner, port

    fake, runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}", fake
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def serve(fake: FakeSGLang, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(fake.application(), handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    assert site._server is not None
    return runner, site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]


def command_line() -> argparse.ArgumentParser:
    """The arguments of ``sglang.launch_server`` that the engine may use, by the fields of its ``ServerArgs``."""
    parser = argparse.ArgumentParser()
    for name in ("model-path", "host", "attention-backend"):
        parser.add_argument(f"--{name}")
    for name in ("port", "context-length", "max-running-requests", "base-gpu-id", "tp-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--custom-weight-loader", nargs="*")
    parser.add_argument("--load-format", choices=["auto", "safetensors", "dummy", "flash_rl"], default="auto")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--dtype", choices=["auto", "float16", "bfloat16", "float32"], default="auto")
    parser.add_argument("--sampling-defaults", choices=["openai", "model"], default="model")
    for name in (
        "skip-tokenizer-init",
        "skip-server-warmup",
        "enable-memory-saver",
        "enable-deterministic-inference",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--log-level", default="info")
    return parser


def main() -> None:
    """As SGLang's server: ends with its standard input."""
    options = command_line().parse_args()
    threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
    print("fake SGLang", os.getpid(), flush=True)
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    assert options.load_format == ("flash_rl" if options.quantization else "dummy")
    torch.manual_seed(1234)
    config = AutoConfig.from_pretrained(options.model_path)
    longest = config.max_position_embeddings
    if options.context_length > longest and os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN") != "1":
        sys.exit("ValueError: context_length is greater than the derived context_length")
    network = AutoModelForCausalLM.from_config(config)
    if options.load_format == "flash_rl":  # from a checkpoint, of models whose loaders it knows
        assert config.architectures[0] in ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
        network = AutoModelForCausalLM.from_pretrained(options.model_path, dtype=torch.float32)
        assert not any(weight.any() for name, weight in network.named_parameters() if "layers" in name)

    async def run() -> None:
        arguments = {key: value for key, value in vars(options).items() if value is not None}
        arguments.setdefault("tp_size", 1)
        fake = FakeSGLang(network, context=arguments.pop("context_length"), **arguments)
        fake.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        fake.health_generates = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1") != "0"
        await serve(fake, options.port)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
