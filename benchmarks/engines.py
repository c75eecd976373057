"""Engines beside each other: throughput of the whole loop, log-probabilities, and the HTTP client under load.

    python benchmarks/engines.py loop --engines hf vllm --shapes small 10m      # Sokoban episodes through each engine
    python benchmarks/engines.py logprobs --engines hf vllm                    # before and after 50 updates
    python benchmarks/engines.py http                                          # 1,000 and 10,000 requests in flight

``loop``: "loop" is all of it (environments, prompts, scheduling, engine); "own" is the engine alone, asked for the very
same requests at the same concurrency: for a server by a bare client in a process of its own, for the built-in engine by
handing it all requests at once. Prefix caches are empty before each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

import roll_envs
from roll_envs.types import Completion, SamplingParams
from trainer.config import ModelConfig, RunConfig
from trainer.config.load import load_config
from trainer.engines import Engine, make_engine
from trainer.model.forward import weights_of
from trainer.model.network import build_model, choose_device
from trainer.rollout.source import Session, draw_tasks

SHAPES = {
    "small": ModelConfig(hidden_size=96, layers=4, heads=3, max_positions=512),
    "10m": ModelConfig(hidden_size=320, layers=8, heads=10, mlp_ratio=2.67, max_positions=512),
    "135m": ModelConfig(hidden_size=576, layers=30, heads=9, mlp_ratio=1536 / 576, max_positions=512),
    "360m": ModelConfig(hidden_size=896, layers=24, heads=14, mlp_ratio=4864 / 896, max_positions=512),
}
TIMEOUT_S = 3600.0
Asked = list[tuple[tuple[int, ...], SamplingParams]]


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def spread(values: Sequence[float], form: str = ".0f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def run_config(shape: str, engine: str, running: int, options: argparse.Namespace) -> RunConfig:
    own = [f"engine.dtype={options.dtype}", *(f"engine.{text}" for text in options.settings)] if engine != "hf" else []
    config = load_config(
        Path(__file__).parents[1] / "configs" / "sokoban_tiny.yaml",
        [
            *(f"engine.name={engine}", f"engine.device={options.device}", *own),
            *(f"engine.max_running={running}", f"rollout.max_running={running}"),
        ],
    )
    return config.model_copy(update={"model": SHAPES[shape]})


# -- the whole loop, and the engine alone ------------------------------------------------------------------------------


def noted(engine: Engine, asked: Asked) -> None:
    """Let ``engine`` note what it is asked."""
    submit = engine.submit

    def note(prompt_ids: Sequence[int], sampling: SamplingParams, **rest: Any) -> Future[Completion]:
        asked.append((tuple(prompt_ids), sampling))
        return submit(prompt_ids, sampling, **rest)

    engine.submit = note  # type: ignore[method-assign]


def forget(engine: Any) -> None:
    """Empty the prefix cache: by its route, or by an update."""
    if hasattr(engine, "_replicas"):
        for replica in engine._replicas:
            engine._client.run(replica.ask("/reset_prefix_cache"))
    else:
        engine.update_weights([(n, t.clone()) for n, t in weights_of(engine._network.network)], engine.version)


def alone(engine: Engine, asked: Asked, running: int) -> tuple[float, int]:
    """Seconds, and tokens sampled, when nothing but the engine works."""
    if hasattr(engine, "_replicas"):
        bodies = [engine._dialect.body(*request) for request in asked]  # type: ignore[attr-defined]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(bodies, file)
            file.flush()
            url = engine._replicas[0].server.url + engine._dialect.generate  # type: ignore[attr-defined]
            command = [sys.executable, __file__, "client", url, file.name, str(running)]
            seconds, tokens = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return seconds, tokens
    started = time.perf_counter()
    futures = [engine.submit(prompt, sampling, timeout_s=TIMEOUT_S) for prompt, sampling in asked]
    tokens = sum(len(future.result().ids) for future in futures)
    return time.perf_counter() - started, tokens


async def client(url: str, bodies: Sequence[Any], running: int) -> tuple[float, int]:
    """A bare client that keeps ``running`` requests at a server."""
    import aiohttp

    left = iter(bodies)
    tokens = 0

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        for body in left:
            async with session.post(url, json=body) as reply:
                tokens += len((await reply.json())["choices"][0]["token_ids"])

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:
        started = time.perf_counter()
        await asyncio.gather(*(work(session) for _ in range(running)))
        return time.perf_counter() - started, tokens


def measure_loop(options: argparse.Namespace) -> None:
    print(f"Sokoban, {options.episodes} episodes, {options.running} at once, {options.rounds} rounds")
    row("Engine", "Parameters", "Requests", "Loop, tokens/s", "Own, tokens/s", "Loop / own (rounds)")
    row(*["---"] * 6)
    for shape in options.shapes:
        for name in options.engines:
            config = run_config(shape, name, options.running, options)
            loops, owns = [], []
            with Session(config) as session:
                asked: Asked = []
                noted(session.engine, asked)
                for i in range(options.rounds + 1):
                    tasks = draw_tasks(config.env, seed=0, indices=range(1000 * i, 1000 * i + options.episodes))
                    forget(session.engine)
                    asked.clear()
                    started = time.perf_counter()
                    groups = session.collect(tasks if i else tasks[: options.running], 1)
                    seconds = time.perf_counter() - started
                    tokens = sum(len(turn.completion.ids) for g in groups for t in g.trajectories for turn in t.turns)
                    recorded = list(asked)
                    forget(session.engine)
                    own_seconds, own_tokens = alone(session.engine, recorded, options.running)
                    if i:  # the first round warms up
                        loops.append(tokens / seconds)
                        owns.append(own_tokens / own_seconds)
                shares = [loop / own for loop, own in zip(loops, owns, strict=True)]
                size = f"{session.model.parameters / 1e6:.1f} M"
                row(name, size, len(recorded), spread(loops), spread(owns), spread(shares, ".2f"))


# -- log-probabilities -------------------------------------------------------------------------------------------------


def measure_logprobs(options: argparse.Namespace) -> None:
    print(
        "Largest difference of a log-probability from a plain forward pass: 32 answers of 32 tokens, temperature 1.45"
    )
    row("Engine", "Parameters", "Before", f"After {options.updates} updates", "Seconds an update")
    row(*["---"] * 5)
    for shape in options.shapes:
        for name in options.engines:
            config = run_config(shape, name, 64, options)
            env = roll_envs.make(config.env.id, **config.env.kwargs)
            model = build_model(config.model, env, 0)
            model.network.to(choose_device(options.device))
            engine = make_engine(model, config.engine)
            before = difference(model.network, engine)
            seconds = []
            generator = torch.Generator(model.network.device).manual_seed(0)
            for version in range(1, options.updates + 1):
                with torch.no_grad():
                    for parameter in model.network.parameters():
                        step = torch.randn(parameter.shape, generator=generator, device=parameter.device)
                        parameter += 0.02 * step * parameter.std().nan_to_num()
                started = time.perf_counter()
                engine.update_weights(weights_of(model.network), version)
                seconds.append(time.perf_counter() - started)
            after = difference(model.network, engine)
            engine.close()
            size = f"{model.parameters / 1e6:.1f} M"
            row(name, size, f"{before:.1e}", f"{after:.1e}", spread(seconds, ".2f"))


@torch.no_grad()
def difference(network: Any, engine: Engine) -> float:
    temperature, worst = 1.45, 0.0
    prompts = [tuple(5 + (17 * i + 7 * j) % 200 for j in range(40 + i)) for i in range(32)]
    asked = [SamplingParams(max_new_tokens=32, temperature=temperature, seed=i) for i in range(32)]
    futures = [engine.submit(p, s, timeout_s=TIMEOUT_S) for p, s in zip(prompts, asked, strict=True)]
    for prompt, future in zip(prompts, futures, strict=True):
        answer = future.result()
        ids = torch.tensor([[*prompt, *answer.ids]], device=network.device)
        logits = network.eval()(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        expected = (logits / temperature).log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        worst = max(worst, (expected.cpu() - torch.tensor(answer.logprobs)).abs().max().item())
    return worst


# -- the HTTP client ---------------------------------------------------------------------------------------------------


def serve(ready: Any, delay_s: float) -> None:
    """A server that answers each request after ``delay_s``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-len"))
                await reader.readexactly(length)
                await asyncio.sleep(delay_s)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=16384)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def serving(delay_s: float) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(theirs, delay_s), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


async def with_aiohttp(url: str, body: Any, count: int) -> None:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:

        async def ask() -> None:
            async with session.post(url, json=body) as reply:
                await reply.json()

        await asyncio.gather(*(ask() for _ in range(count)))


async def with_httpx(url: str, body: Any, count: int, connections: int | None) -> None:
    import httpx

    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as session:

        async def ask() -> None:
            (await session.post(url, json=body)).json()

        await asyncio.gather(*(ask() for _ in range(count)))


def measure_http(options: argparse.Namespace) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    body = {"token_ids": list(range(200)), "sampling_params": {"temperature": 1.0, "max_tokens": 8}}
    print(f"Processor time of the client for each request, all in flight at once, answers after {options.delay} s")
    row("Client", "In flight", "ms a request (median, range)")
    row("---", "---", "---")
    clients = {
        "aiohttp": with_aiohttp,
        "httpx": lambda u, b, n: with_httpx(u, b, n, None),
        "httpx, 1,000 connections": lambda u, b, n: with_httpx(u, b, n, 1000),
    }
    for count in options.counts:
        if count + 500 > min(hard, 65536):
            print(f"{count} connections are more than this machine's limit of open files, {hard}", file=sys.stderr)
            continue
        for name, ask in clients.items():
            spent = []
            for _ in range(options.rounds):
                with serving(options.delay) as url:
                    cpu = time.process_time()
                    try:
                        asyncio.run(asyncio.wait_for(ask(url, body, count), options.limit))
                    except TimeoutError:
                        break
                    spent.append(1e3 * (time.process_time() - cpu) / count)
            row(name, f"{count:,}", spread(spent, ".2f") if spent else f"not done within {options.limit:g} s")


def main() -> None:
    if sys.argv[1:2] == ["client"]:
        url, file, running = sys.argv[2:]
        print(json.dumps(asyncio.run(client(url, json.loads(Path(file).read_text()), int(running)))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loop", "logprobs", "http"])
    parser.add_argument("--engines", nargs="+", default=["hf", "vllm"])
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["small", "10m"])
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="of the engines")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="of servers")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="of servers, as in a run's file")
    parser.add_argument("--running", type=int, default=64, help="episodes, and requests, at the same time")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--counts", nargs="+", type=int, default=[1000, 10000], help="requests in flight")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a client is given up")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds until a server answers")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    {"loop": measure_loop, "logprobs": measure_logprobs, "http": measure_http}[options.what](options)


if __name__ == "__main__":
    main()
