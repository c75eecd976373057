"""Ways of weights into the workers of a vLLM server: what the trainer does, and what it tells them meanwhile.

In all of them weights travel in buckets, each announced by one call of vLLM's ``/update_weights``; they differ in where
the bytes of a bucket are. The workers' side is ``vllm_worker/roll_vllm.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from roll_envs.errors import EngineError
from trainer.engines.sent_weights import ALIGNMENT, SentWeights
from trainer.engines.vllm_worker.roll_transfer import Group, Piece, share_memory

BUCKET_BYTES = 256 * 2**20
"""Of the weights that are on their way at once; a tensor that is larger has a bucket of its own."""

_GRACE_S = 2.0
"""For the server to say what went wrong there, once the trainer's side has failed."""

Ask = Callable[..., Awaitable[Any]]
"""Asks one server: :meth:`trainer.engines.server.ServerClient.ask` without the address."""
Send = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportOptions:
    """What the two sides agree on."""

    on_gpu: bool = False
    """Whether the server's workers have GPUs."""
    address: str = "127.0.0.1"
    """Of the trainer, as the workers reach it."""
    timeout_s: float = 120.0
    """Longest wait for the workers to take part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """A way of weights to the workers."""

    open: Callable[[Ask, SentWeights, TransportOptions], AbstractAsyncContextManager[Send]]
    """Agree with the workers, before they forget the weights they have; gives what sends the new ones."""
    live: bool
    """Whether weights are sent as they come from the learner, so that they need not leave its device."""


@contextlib.asynccontextmanager
async def _mapped(ask: Ask, weights: SentWeights, options: TransportOptions) -> AsyncIterator[Send]:
    """The workers map the file in which the weights are kept: nothing is copied for them."""
    await ask("/init_weight_transfer_engine", {"init_info": {}})

    async def send() -> None:
        await asyncio.to_thread(weights.keep)
        await ask("/update_weights", {"update_info": {"path": weights.path, "pieces": weights.tensors}})

    yield send


@contextlib.asynccontextmanager
async def _shared(ask: Ask, weights: SentWeights, options: TransportOptions) -> AsyncIterator[Send]:
    """The workers open the memory of a bucket: CUDA IPC on a GPU that they share with the learner."""
    await ask("/init_weight_transfer_engine", {"init_info": {}})
    files: list[Any] = []

    def allocate(size: int) -> torch.Tensor:
        if weights.device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=weights.device)
        files.append(os.fdopen(os.memfd_create("roll-bucket")))
        path = f"/proc/{os.getpid()}/fd/{files[-1].fileno()}"
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)

    async def send() -> None:
        found = _buckets(weights, allocate)
        while (bucket := await asyncio.to_thread(next, found, None)) is not None:
            memory, pieces = bucket
            await ask("/update_weights", {"update_info": {"handle": share_memory(memory), "pieces": pieces}})

    try:
        yield send
    finally:
        for file in files:
            file.close()
        if weights.device.type == "cuda":
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def _broadcast(ask: Ask, weights: SentWeights, options: TransportOptions) -> AsyncIterator[Send]:
    """The workers receive buckets through a process group: NCCL between GPUs, gloo elsewhere."""
    nccl = options.on_gpu and weights.device.type == "cuda"
    workers = (await ask("/get_world_size", method="GET"))["world_size"]
    with listener_at(options.address) as listener:
        agreed = {
            "backend": "nccl" if nccl else "gloo",
            "address": options.address,
            "port": listener.getsockname()[1],
            "size": 1 + workers,
            "timeout_s": options.timeout_s,
        }
        _, group = await _together(
            ask("/init_weight_transfer_engine", {"init_info": {"group": agreed}}),
            asyncio.to_thread(Group, **agreed, rank=0, listener=listener),
            f"the server's workers did not join the trainer at {options.address} (engine.transfer_address) within "
            f"engine.transfer_timeout_s {options.timeout_s:g}",
        )

    async def send() -> None:
        found = _buckets(weights, partial(torch.empty, dtype=torch.uint8, device=weights.device if nccl else "cpu"))
        while (bucket := await asyncio.to_thread(next, found, None)) is not None:
            memory, pieces = bucket
            await _together(
                ask("/update_weights", {"update_info": {"broadcast": len(memory), "pieces": pieces}}),
                asyncio.to_thread(group.broadcast, memory),
                f"the server's workers did not take the weights within engine.transfer_timeout_s {options.timeout_s:g}",
            )

    try:
        yield send
    finally:
        await asyncio.to_thread(group.close)


def listener_at(address: str) -> socket.socket:
    """A socket at which workers find the trainer. Raises :class:`EngineError` for an address of another machine."""
    try:
        return socket.create_server((address, 0))
    except OSError as error:
        raise EngineError(f"engine.transfer_address '{address}' is no address of this machine: {error}") from error


async def _together(asking: Awaitable[Any], own: Awaitable[Any], problem: str) -> tuple[Any, Any]:
    """What both sides of a step give. Where both fail, the server says why; its own side has a deadline."""
    asked, mine = asyncio.ensure_future(asking), asyncio.ensure_future(own)
    await asyncio.wait({mine})
    fault = mine.exception()
    if fault is None:
        return await asked, mine.result()
    await asyncio.wait({asked}, timeout=_GRACE_S)
    if asked.done():
        await asked  # raises what went wrong there
    asked.cancel()
    if isinstance(fault, RuntimeError):  # as torch's errors of process groups are
        raise EngineError(f"{problem}: {fault}") from fault
    raise fault


def _buckets(
    weights: SentWeights, allocate: Callable[[int], torch.Tensor]
) -> Iterator[tuple[torch.Tensor, list[Piece]]]:
    """Weights in buckets, uint8 [n], and what lies in each. All lie in the same memory, one after the other, unless a
    weight is too large for it."""
    memory = allocate(min(BUCKET_BYTES, weights.most_bytes))
    pieces: list[Piece] = []
    end = 0
    for name, tensor in weights.read():
        start = end + -end % ALIGNMENT
        if start + tensor.nbytes > len(memory):
            if pieces:
                yield memory[:end], pieces
            pieces, start = [], 0
            if tensor.nbytes > len(memory):
                memory = allocate(tensor.nbytes)
        end = start + tensor.nbytes
        memory[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        pieces.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start, end))
    if pieces:
        yield memory[:end], pieces


TRANSPORTS: dict[str, Transport] = {
    "shared_memory": Transport(open=_mapped, live=False),
    "ipc": Transport(open=_shared, live=True),
    "broadcast": Transport(open=_broadcast, live=True),
}
"""By the names of ``engine.transfer``."""
