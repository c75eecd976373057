"""A server with the routes of vLLM that the engine uses, for what a real one cannot be made to do: garbage, half a
body, a dropped connection, a death at the worst moment.

It answers as a model whose weights are all 0 does: every id has the log-probability -log(vocabulary). A request of
``/misbehave`` says what goes wrong next. Run as a program it takes the command line of vLLM's server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 265
METRICS = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {used}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} {waiting}
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preempted}
vllm:num_preemptions_created{{engine="0",model_name="m"}} 1.7e+09
"""
"""Lines of vLLM 0.32's /metrics."""

QUERIES = {
    "/pause": "mode=keep&clear_cache=false",
    "/reset_prefix_cache": "reset_running_requests=true",
    "/sleep": "level=2&mode=keep",
}
"""What these routes are asked with: else vLLM ends requests, keeps what old weights computed, or saves weights."""


class FakeVLLM:
    """One server, on an event loop."""

    def __init__(self, log: str = "") -> None:
        self.version, self.paths, self.updates = "default", [], 0
        self.release, self.longest = "0.32.0", 32768
        self.running = asyncio.Event()
        self.running.set()
        self.aborted, self.never = asyncio.Event(), asyncio.Event()
        self.bad: dict[str, Any] = {}
        """What goes wrong: ``generate``, a list of faults for the next requests; ``delay_s`` of each; ``shift`` of
        all log-probabilities, ``outlier`` of the first alone; and routes: ``die_in`` ends the process, ``fail_in``
        answers 500, ``hang_in`` never ("all": all routes), ``busy_in`` 503 so many times; all is well again when a
        route of ``heals_in`` is called for its nth time."""
        self.load: dict[str, float] = {}
        self.preempted = 0
        self.asleep: set[str] = set()
        self.group: Any = None
        self.weights: dict[str, Any] = {}
        """What the last updates brought."""
        self.received: list[str] = []
        """Names of the tensors that came."""
        self.received_bytes = 0
        self.kept: Any = None
        self.kept_on: Any = None
        self.unloaded = False
        self.most_at_once = self.at_once = self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                target = head.split(b" ")[1].decode()
                plain, _, query = target.partition("?")
                path = target if "tags=" in target else plain
                length = next((int(v) for k, v in _headers(head) if k == "content-length"), 0)
                body = json.loads(await reader.readexactly(length) or b"null")
                status, answer = await self.answer(path, body)
                if query != QUERIES.get(plain, query):
                    status, answer = 400, {"error": f"{plain} is asked with {query!r}"}
                if answer is None:
                    break
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                cut = text[: len(text) // 2] if status == 299 else text
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + cut)
                await writer.drain()
                if cut != text:
                    break
        writer.close()

    async def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.paths.append(path)
        healing = self.bad.get("heals_in", {})
        if path in healing:
            healing[path] -= 1
            self.bad = self.bad if healing[path] else {}
        if self.bad.get("die_in") == path:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.bad.get("fail_in") == path:
            return 500, {"error": f"{path} fails"}
        if self.bad.get("busy_in", {}).get(path, 0) > 0:
            self.bad["busy_in"][path] -= 1
            return 503, {"error": "busy"}
        if self.bad.get("hang_in") in (path, "all"):
            await self.never.wait()
        match path:
            case "/misbehave":
                self.bad = body
            case "/start_weight_update":
                self.unloaded = False
            case "/finish_weight_update":
                self.leave()
                if self.unloaded:
                    self.unloaded = False
                    self.weights.update(self.kept.merged(self.kept_on))
                if body is not None:
                    self.version, self.updates = body["weight_version"], self.updates + 1
            case "/pause":
                self.running.clear()
            case "/resume":
                self.running.set()
            case "/version":
                return 200, {"version": self.release}
            case "/v1/models":
                return 200, {"data": [{"id": "model", "max_model_len": self.longest}]}
            case "/weight_info":
                return 200, {"weight_version": self.version}
            case "/reset_prefix_cache":
                self.preempted += self.at_once
                return 200, {"success": not self.bad.get("keeps_cache")}
            case "/abort_requests":
                self.aborted.set()
                self.aborted = asyncio.Event()
            case "/init_weight_transfer_engine" if body["init_info"]:
                from trainer.engines.vllm_worker.roll_transfer import Group  # torch, which a start need not wait for

                self.leave()
                self.group = await asyncio.to_thread(Group, **body["init_info"]["group"], rank=1)
            case "/get_world_size":
                return 200, {"world_size": 1}
            case "/update_weights":
                if "weights" in self.asleep:
                    return 500, {"error": "no memory for weights"}
                await asyncio.to_thread(self.take, **body["update_info"])
            case "/sleep":
                self.asleep = {"weights", "kv_cache"}
                self.running.clear()
            case "/wake_up?tags=weights" | "/wake_up?tags=kv_cache":
                self.asleep.discard(path.partition("=")[2])
                if not self.asleep:
                    self.running.set()
            case "/inference/v1/generate":
                return await self.generate(body)
            case "/metrics":
                return 200, METRICS.format(
                    **{"used": 0.0, "waiting": 0, "preempted": self.preempted} | self.load
                ).encode()
        return 200, {}

    def leave(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None

    def take(
        self,
        pieces: Any,
        path: str = "",
        handle: Any = None,
        broadcast: int = 0,
        use: str = "load",
        checksum: int | None = None,
    ) -> None:
        """Weights in any of the ways of the plugin."""
        import torch

        from trainer.engines.vllm_worker.roll_transfer import Kept, open_memory, views

        self.kept, self.kept_on = self.kept or Kept(), torch.device("cpu")
        if path:
            content = bytearray(Path(path).read_bytes())
            if checksum not in (None, zlib.crc32(content)):
                raise ValueError("the checksum is another one")
            bucket = torch.frombuffer(content, dtype=torch.uint8)
        elif handle:
            bucket = open_memory(handle)
        else:
            assert self.group is not None
            bucket = torch.empty(broadcast, dtype=torch.uint8)
            self.group.broadcast(bucket)
        self.received.extend(name for name, *_ in pieces)
        self.received_bytes += sum(end - start for *_, start, end in pieces)
        found = ((name, tensor.clone()) for name, tensor in views(bucket, pieces))
        if use == "load":
            self.kept.clear()
            self.weights.update(found)
        else:
            {"keep": self.kept.keep, "adapt": self.kept.adapt, "change": self.kept.change}[use](found)
            self.unloaded = True

    async def generate(self, body: Any) -> tuple[int, Any]:
        self.requests += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            aborted = await self._finish(self.bad.get("delay_s", 0.0))
        finally:
            self.at_once -= 1
        answer = self.complete(body["sampling_params"], aborted)
        faults = self.bad.get("generate", [])
        return spoil(faults.pop(0), answer) if faults else (200, answer)

    async def _finish(self, delay_s: float) -> bool:
        """Sample for ``delay_s`` while not paused; whether it was aborted."""
        work = asyncio.ensure_future(self._sample(delay_s))
        abort = asyncio.ensure_future(self.aborted.wait())
        await asyncio.wait([work, abort], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        abort.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return abort.done() and not abort.cancelled()

    async def _sample(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self.running.wait()

    def complete(self, sampling: Any, aborted: bool) -> dict[str, Any]:
        count = sampling["max_tokens"] // (2 if aborted else 1)
        draw = random.Random(sampling.get("seed"))
        ids = [draw.randrange(5, VOCABULARY) for _ in range(count)]
        logprobs = [-math.log(VOCABULARY) + self.bad.get("shift", 0.0)] * count
        logprobs[:1] = [each + self.bad.get("outlier", 0.0) for each in logprobs[:1]]
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=True)]},
            "finish_reason": "abort" if aborted else "length",
            "weight_versions": [{"version": self.version, "start": 0, "end": count}] if ids else None,
        }
        return {"request_id": "1", "choices": [choice]}


def spoil(fault: str, answer: dict[str, Any]) -> tuple[int, Any]:
    """``answer`` gone wrong."""
    choice = answer["choices"][0]
    match fault:
        case "half":
            return 299, answer
        case "drop":
            return 200, None
        case "text":
            return 200, b"<html>busy</html>"
        case "500" | "503" | "400":
            return int(fault), {"error": {"message": "EngineCore encountered an issue"}}
        case "empty":
            return 200, {}
        case "list":
            return 200, [answer]
        case "short":
            choice["token_ids"].pop()
        case "other id":
            choice["token_ids"][0] += 1
        case "no id" | "negative id":
            strange = VOCABULARY if fault == "no id" else -1
            choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = strange
        case "text ids":
            choice["token_ids"] = [str(i) for i in choice["token_ids"]]
        case "no log-probs":
            choice["logprobs"] = None
        case "finish":
            choice["finish_reason"] = "error"
        case "stop":
            choice["finish_reason"] = "stop"
        case "foreign":
            choice["weight_versions"][0]["version"] = "0-other-start"
        case "unlabelled":
            choice["weight_versions"][0]["version"] = "default"
        case "spans":
            choice["weight_versions"][0]["end"] -= 1
        case "nan":
            choice["logprobs"]["content"][0]["logprob"] = -9999.0
        case "abort":
            choice["finish_reason"] = "abort"
    return 200, answer


def _headers(head: bytes) -> Iterator[tuple[str, str]]:
    for line in head.decode("latin-1").splitlines()[1:]:
        key, _, value = line.partition(":")
        yield key.strip().lower(), value.strip()


@contextlib.contextmanager
def running_fake(make: Callable[[], FakeVLLM] = FakeVLLM) -> Iterator[tuple[str, FakeVLLM]]:
    """A server in a thread of this process, and its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[FakeVLLM, asyncio.Server]:
        fake = make()
        return fake, await asyncio.start_server(fake.serve, "127.0.0.1", 0, backlog=4096, reuse_port=True)

    async def stop() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    fake, server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", fake
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def main() -> None:
    """As vLLM's server: ends with its standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--ends-at-once", action="store_true")
    parser.add_argument("--never-answers", action="store_true")
    parser.add_argument("--starts-after", type=float, default=0.0)
    options, _ = parser.parse_known_args()
    threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
    print("fake vLLM", os.getpid(), flush=True)
    if options.ends_at_once:
        sys.exit("ValueError: no such model")

    async def serve() -> None:
        await asyncio.sleep(options.starts_after)
        if not options.never_answers:
            await asyncio.start_server(FakeVLLM().serve, "127.0.0.1", options.port, reuse_port=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
