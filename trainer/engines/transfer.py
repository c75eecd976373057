"""Ways of weights into the workers of a vLLM server: what the trainer does, and what it tells them meanwhile.

In all of them weights travel in buckets, each announced by one call of vLLM's ``/update_weights``; they differ in where
the bytes of a bucket are. The workers' side is ``vllm_worker/roll_vllm.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from roll_envs.errors import EngineError
from trainer.engines.buckets import BUCKET_BYTES, Word, in_buckets
from trainer.engines.sent_weights import SentWeights
from trainer.engines.server import ServerFaultError, said
from trainer.engines.vllm_worker.roll_transfer import HERE, Group, Piece, c10d, share_memory

_GRACE_S = 2.0
"""For the server to say what went wrong there, once the trainer's side has failed."""

Ask = Callable[..., Awaitable[Any]]
"""Asks one server: :meth:`trainer.engines.server.ServerClient.ask` without the address."""
Send = Callable[[], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportOptions:
    """What the two sides agree on."""

    on_gpu: bool = False
    """Whether the server's workers have GPUs."""
    address: str = "127.0.0.1"
    """Of the trainer, as the workers reach it."""
    timeout_s: float = 120.0
    """Longest wait for the workers to take part."""
    checksums: bool = False
    """Whether the workers check the files that they read."""
    inside: bool = False
    """Whether the worker is in this process."""


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
        info: dict[str, Any] = {"path": weights.path, "pieces": weights.tensors, "use": weights.use}
        if options.checksums:
            info["checksum"] = await asyncio.to_thread(weights.checksum)
        await ask("/update_weights", {"update_info": info})

    yield send


@contextlib.asynccontextmanager
async def _shared(ask: Ask, weights: SentWeights, options: TransportOptions) -> AsyncIterator[Send]:
    """The workers open the memory of a bucket: CUDA IPC on a GPU that they share with the learner. A worker of this
    process, in which no such memory can be opened, is given the bucket. Weights of other processes, which may have
    other GPUs, are mapped."""
    if weights.elsewhere:
        async with _mapped(ask, weights, options) as send_mapped:
            yield send_mapped
        return
    await ask("/init_weight_transfer_engine", {"init_info": {}})
    files: list[Any] = []

    def allocate(size: int) -> torch.Tensor:
        if options.inside or weights.device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=weights.device)
        files.append(os.fdopen(os.memfd_create("roll-bucket")))
        path = f"/proc/{os.getpid()}/fd/{files[-1].fileno()}"
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)

    async def send() -> None:
        found = in_buckets(weights.read(), allocate, _most_bytes(weights))
        while (bucket := await asyncio.to_thread(next, found, None)) is not None:
            memory, pieces = bucket
            handle = [HERE, memory] if options.inside else share_memory(memory)
            info = {"handle": handle, "pieces": pieces, "use": weights.use}
            await ask("/update_weights", {"update_info": info})

    try:
        yield send
    finally:
        for file in files:
            file.close()
        if weights.device.type == "cuda":
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def _broadcast(ask: Ask, weights: SentWeights, options: TransportOptions) -> AsyncIterator[Send]:
    """The workers receive buckets through a process group: NCCL between GPUs, gloo elsewhere. Rank 0 of it is this
    process, or the one that the weights lie in."""
    nccl = options.on_gpu and weights.device.type == "cuda"
    workers = said(await ask("/get_world_size", method="GET"), "world_size", "/get_world_size")
    store = store_at(options.address, 1 + workers, options.timeout_s)
    agreed = {
        "backend": "nccl" if nccl else "gloo",
        "address": options.address,
        "port": store.port,
        "size": 1 + workers,
        "timeout_s": options.timeout_s,
    }
    sender: _Sender = _SenderElsewhere(weights, agreed) if weights.elsewhere else _SenderHere(weights, agreed)

    async def send() -> None:
        while (bucket := await asyncio.to_thread(sender.bucket)) is not None:
            size, pieces = bucket
            await together(
                ask("/update_weights", {"update_info": {"broadcast": size, "pieces": pieces, "use": weights.use}}),
                sender.send,
                "take the weights",
                options.timeout_s,
            )

    try:
        await together(
            ask("/init_weight_transfer_engine", {"init_info": {"group": agreed}}),
            sender.join,
            f"join the trainer at {options.address} (engine.transfer_address)",
            options.timeout_s,
        )
        yield send
    finally:
        del store
        # A broadcast that failed may hold it until the workers leave the group, too.
        asyncio.get_running_loop().run_in_executor(None, sender.close)


class _Sender(Protocol):
    """Rank 0 of a process group with a server's workers. RuntimeError, as torch's errors of such groups are, says that
    these do not take part."""

    def join(self) -> None: ...

    def bucket(self) -> tuple[int, Sequence[Piece]] | None:
        """Bytes of the next bucket, and what lies where in it; None behind the last."""
        ...

    def send(self) -> None:
        """Broadcast it."""
        ...

    def close(self) -> None: ...


class _SenderHere:
    """This process."""

    def __init__(self, weights: SentWeights, agreed: dict[str, Any]) -> None:
        self._agreed = agreed
        self._group: Group | None = None
        device = weights.device if agreed["backend"] == "nccl" else "cpu"
        allocate = partial(torch.empty, dtype=torch.uint8, device=device)
        self._found = in_buckets(weights.read(), allocate, _most_bytes(weights))
        self._memory: torch.Tensor | None = None

    def join(self) -> None:
        self._group = Group(**self._agreed, rank=0)

    def bucket(self) -> tuple[int, Sequence[Piece]] | None:
        found = next(self._found, None)
        if found is None:
            return None
        self._memory, pieces = found
        return len(self._memory), pieces

    def send(self) -> None:
        assert self._group is not None
        assert self._memory is not None
        self._group.broadcast(self._memory)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


class _SenderElsewhere:
    """The process that the weights lie in, which says what it does; it leaves the group behind the last bucket."""

    def __init__(self, weights: SentWeights, agreed: dict[str, Any]) -> None:
        self._weights = weights
        weights.deliver(agreed, _most_bytes(weights))  # which the first word begins, whoever asks for it

    def join(self) -> None:
        self._next()

    def bucket(self) -> tuple[int, Sequence[Piece]] | None:
        word = self._next()
        if word.kind == "bucket":
            return word.size, word.pieces
        self._weights.keep()  # every rank has written its share, and all of it fits
        return None

    def send(self) -> None:
        self._next()

    def _next(self) -> Word:
        word = self._weights.word()
        assert word is not None, "a delivery ends with 'written'"
        if word.kind == "failed":
            raise RuntimeError(word.problem)
        return word

    def close(self) -> None: ...


def _most_bytes(weights: SentWeights) -> int:
    return min(BUCKET_BYTES, weights.most_bytes)


def store_at(address: str, size: int, timeout_s: float) -> Any:
    """The store of a process group of ``size``, at a free port (``store.port``) of this machine's ``address``.

    Members join it as clients, the trainer too: whoever waits there for others gives up once it is deleted.
    Raises :class:`EngineError` for an address of another machine.
    """
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise EngineError(f"engine.transfer_address '{address}' is no address of this machine: {error}") from error
    port, limit = listener.getsockname()[1], timedelta(seconds=timeout_s)
    return c10d.TCPStore(address, port, size, True, limit, wait_for_workers=False, master_listen_fd=listener.detach())


async def together(asking: Awaitable[Any], own: Callable[[], T], what: str, timeout_s: float) -> T:
    """Let a server and the trainer each do their side of a step, and give what the trainer's gives.

    The first side that fails ends it; where both do, the server says why. ``own``, in a thread, is left to itself then:
    it ends with its store, when the workers leave the group, or after ``timeout_s``. Raises :class:`EngineError`: where
    ``own`` failed, that the server's workers did not do ``what``.
    """
    asked, mine = asyncio.ensure_future(asking), asyncio.ensure_future(asyncio.to_thread(own))
    try:
        await asyncio.wait({asked, mine}, return_when=asyncio.FIRST_EXCEPTION)
        if not asked.done():
            await asyncio.wait({asked}, timeout=_GRACE_S)
        if asked.done():
            await asked  # raises what went wrong there
        return await mine
    except RuntimeError as error:  # as torch's errors of process groups are
        problem = f"the server's workers did not {what} within engine.transfer_timeout_s {timeout_s:g}"
        raise ServerFaultError(f"{problem}: {error}") from error
    finally:
        mine.add_done_callback(lambda each: each.cancelled() or each.exception())  # which asyncio wants to be seen
        asked.cancel()
        mine.cancel()


TRANSPORTS: dict[str, Transport] = {
    "shared_memory": Transport(open=_mapped, live=False),
    "ipc": Transport(open=_shared, live=True),
    "broadcast": Transport(open=_broadcast, live=True),
}
"""By the names of ``engine.transfer``."""
