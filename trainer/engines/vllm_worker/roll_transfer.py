"""Both ends of the ways by which weights reach another process: memory that both have open, or a process group.

The trainer imports it, and so does what runs inside vLLM's processes, so it needs torch alone. Weights travel in
buckets: a flat tensor of bytes, and what lies where in it.
"""

from __future__ import annotations

import base64
import datetime
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed

c10d: Any = torch.distributed
_CONNECTING = datetime.timedelta(seconds=10)
Piece = tuple[str, str, tuple[int, ...], int, int]
"""Name, type, shape, first byte and the byte after the last of a tensor in a bucket."""
Use = Literal["load", "keep", "adapt", "change"]
"""What the workers do with tensors: load these weights as they are, or keep them, and load what they keep: with these
adapters merged into it, or these numbers changed in it."""
ADAPTER_A, ADAPTER_B = ".lora_A", ".lora_B"
"""Behind the name of a weight [out, in], its adapter's matrices [r, in] and [out, r]: the product B @ A is added."""
HERE = "here"
"""Of a handle: memory of this process, which is in the handle itself."""
PLACES, NUMBERS = ".places", ".numbers"
"""Behind the name of a weight, one after the other: where numbers of it change, int32 [k] of the flat weight, and what
they are now [k]. A weight of which much changes comes whole, by its name."""


def views(bucket: torch.Tensor, pieces: Iterable[Piece]) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors that lie in ``bucket``, uint8 [n]; nothing is copied. Raises ValueError where none can lie."""
    for name, dtype, shape, start, end in pieces:
        if not 0 <= start <= end <= len(bucket):
            raise ValueError(f"{name} lies at bytes {start} to {end} of a bucket of {len(bucket)}")
        yield name, bucket[start:end].view(getattr(torch, dtype)).view(shape)


class Kept:
    """Weights that are kept to be merged with adapters, and the adapters that came last; or to be changed."""

    def __init__(self) -> None:
        self._weights: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, torch.Tensor] = {}
        self._places = torch.empty(0, dtype=torch.int32)

    def keep(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Keep ``weights``, in which adapters that came before do not belong."""
        self._adapters.clear()
        self._weights.update(weights)

    def adapt(self, adapters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take adapters instead of those of the same names. Raises ValueError where their weight was not kept."""
        for name, tensor in adapters:
            weight = name.removesuffix(ADAPTER_A).removesuffix(ADAPTER_B)
            if weight == name or weight not in self._weights:
                raise ValueError(f"{name} is no adapter of a weight that was kept before")
            self._adapters[name] = tensor

    @torch.no_grad()
    def change(self, changes: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Change numbers of the weights. Raises ValueError for a weight that was not kept before."""
        for name, tensor in changes:
            weight = name.removesuffix(PLACES).removesuffix(NUMBERS)
            if weight not in self._weights:
                raise ValueError(f"{name} changes a weight that was not kept before")
            if name.endswith(PLACES):
                self._places = tensor
            elif name.endswith(NUMBERS):
                self._weights[weight].view(-1)[self._places.long()] = tensor
            else:
                self._weights[weight] = tensor

    def clear(self) -> None:
        """Forget all of it."""
        self._weights.clear()
        self._adapters.clear()

    @torch.no_grad()
    def merged(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights; those with an adapter are computed on ``device`` in float32, and have the type of what was
        kept. Raises ValueError where an adapter lacks one of its matrices."""
        for name, weight in self._weights.items():
            a, b = self._adapters.get(name + ADAPTER_A), self._adapters.get(name + ADAPTER_B)
            if a is None and b is None:
                yield name, weight
                continue
            if a is None or b is None:
                raise ValueError(f"the adapter of {name} lacks one of its two matrices")
            product = b.to(device).float() @ a.to(device).float()
            yield name, (weight.to(device).float() + product).to(weight.dtype)


def share_memory(bucket: torch.Tensor) -> list[Any]:
    """A handle of the memory of ``bucket`` in JSON, for :func:`open_memory` in another process of this machine.

    It can be opened once; on the CPU the memory must be that of a file (``torch.from_file``).
    """
    storage: Any = bucket.untyped_storage()
    # As torch.multiprocessing does it, but not pickled: at a route that asks no key, a pickle could run any code.
    parts = storage._share_cuda_() if bucket.is_cuda else (storage.filename, storage.nbytes())
    coded = [["bytes", base64.b64encode(p).decode()] if isinstance(p, bytes) else ["value", p] for p in parts]
    return [bucket.device.type, coded]


def open_memory(handle: list[Any]) -> torch.Tensor:
    """The memory that :func:`share_memory` gave a handle of, or that is :data:`HERE`, uint8 [n]."""
    device, coded = handle
    if device == HERE:
        memory: torch.Tensor = coded
        return memory
    parts: list[Any] = [base64.b64decode(value) if kind == "bytes" else value for kind, value in coded]
    if device == "cpu":
        return torch.from_file(parts[0], shared=True, size=parts[1], dtype=torch.uint8)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    new: Any = torch.UntypedStorage
    storage = new._new_shared_cuda(*parts)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Group:
    """A process group of the trainer (rank 0) and a server's workers, beside all other groups of each process."""

    def __init__(
        self,
        backend: str,
        address: str,
        port: int,
        *,
        rank: int,
        size: int,
        timeout_s: float,
    ) -> None:
        """Waits for all the others, in the trainer's store at ``address`` and ``port``."""
        timeout = datetime.timedelta(seconds=timeout_s)
        # The store is there before anybody is told of it, and gone when the other side has given up.
        connecting = min(timeout, _CONNECTING)
        self._store = c10d.TCPStore(address, port, size, False, connecting, wait_for_workers=False)
        self._store.set_timeout(timeout)
        self.backend, self._timeout = backend, timeout
        if backend == "nccl":
            options: Any = c10d.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: Any = c10d.ProcessGroupNCCL(self._store, rank, size, options)
        else:
            options = c10d.ProcessGroupGloo._Options()
            options._timeout = timeout
            # At the address that was agreed on, not at all of this machine's.
            options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(address, port))]
            self._group = c10d.ProcessGroupGloo(self._store, rank, size, options)

    def broadcast(self, bucket: torch.Tensor) -> None:
        """Fill ``bucket`` with that of rank 0. Raises RuntimeError when the others do not take part in time."""
        self._group.broadcast(bucket, 0).wait(self._timeout)

    def close(self) -> None:
        """Leave; whoever waits for this process learns of it."""
        self._group.abort()
        del self._group, self._store


def _own_address(address: str, port: int) -> str:
    """The address of this machine by which it reaches ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        return str(probe.getsockname()[0])
