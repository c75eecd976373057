"""How weights are cut and laid out on their way: in buckets, or one after the other in a file; and what processes that
hold them and send them themselves are told, and say.

The driver and the learner's ranks import it, so it needs torch alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch

from trainer.engines.vllm_worker.roll_transfer import NUMBERS, PLACES, Piece

BUCKET_BYTES = 256 * 2**20
"""Of the weights that are on their way at once; a tensor that is larger has a bucket of its own."""
ALIGNMENT = 64
"""Bytes at which a tensor may begin: more than any type needs."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a number."""

Named: TypeAlias = tuple[str, torch.Tensor]


class Delivery(NamedTuple):
    """What the processes that hold the weights shall do with them."""

    path: str
    """The file that they are written to."""
    writers: tuple[int, ...]
    """The ranks that see it, which share the writing."""
    dtype: torch.dtype | None
    """Wider numbers are rounded to it."""
    group: dict[str, Any] | None = None
    """The process group that rank 0 also broadcasts them in: the arguments of
    :class:`~trainer.engines.vllm_worker.roll_transfer.Group`."""
    most_bytes: int = BUCKET_BYTES
    """Of a bucket that is broadcast."""


class Word(NamedTuple):
    """What rank 0 says of a delivery, in this order: ``joined`` the group; of each bucket ``bucket``, just before it is
    broadcast, and ``sent``; ``written`` when rank 0 has written its share of the file. ``failed`` ends the broadcast,
    not the writing."""

    kind: Literal["joined", "bucket", "sent", "failed", "written"]
    pieces: Sequence[Piece] = ()
    """What lies where in the bucket, or in the file."""
    size: int = 0
    """Bytes of the bucket."""
    problem: str = ""


@runtime_checkable
class Delivered(Protocol):
    """A stream of weights that lie in other processes, which can write and send them: only words pass this one."""

    def writers(self, path: str, token: bytes) -> tuple[tuple[int, ...], torch.device]:
        """The ranks that see the file ``path``, which begins with ``token``: none where it is on another machine. And
        where rank 0 has the weights."""
        ...

    def deliver(self, delivery: Delivery) -> Iterator[Word]:
        """Write and send them. Ends when every rank has done so."""
        ...


@runtime_checkable
class Adapted(Protocol):
    """A stream of weights with adapters merged into them, of which both parts can be had, too: who has kept the bases
    needs only the adapters."""

    def key(self) -> str:
        """Of the bases: as long as it is the same, so are they. Letters and digits."""
        ...

    def bases(self) -> Iterable[Named]:
        """The weights without adapters, by the same names."""
        ...

    def adapters(self) -> Iterable[Named]:
        """The matrices of each adapter: the name of its weight with
        :data:`~trainer.engines.vllm_worker.roll_transfer.ADAPTER_A` or ``ADAPTER_B`` behind it."""
        ...


def rounded(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """``tensor`` in ``dtype`` where that is narrower; without its gradient."""
    tensor = tensor.detach()
    wide = dtype is not None and tensor.is_floating_point() and tensor.element_size() > dtype.itemsize
    return tensor.to(dtype) if wide else tensor


def piece_of(name: str, tensor: torch.Tensor, end: int) -> Piece:
    """Where ``tensor`` lies behind what ends at byte ``end``."""
    start = end + -end % ALIGNMENT
    return name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start, start + tensor.nbytes


def write_at(fd: int, tensor: torch.Tensor, start: int) -> None:
    """Write the bytes of ``tensor`` from byte ``start`` of a file on. Raises OSError where there is no room."""
    plain: Any = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    left = memoryview(plain)
    while left:
        count = os.pwrite(fd, left, start)
        left, start = left[count:], start + count


def written(
    weights: Iterable[Named],
    write: Callable[[torch.Tensor, int], None],
    dtype: torch.dtype | None,
    pieces: list[Piece],
    *,
    mine: Callable[[int], bool],
) -> Iterator[Named]:
    """``weights`` in ``dtype`` as they come, each appended to ``pieces``; those whose number is ``mine`` are given to
    ``write``, with the byte at which they begin."""
    for number, (name, wide) in enumerate(weights):
        tensor = rounded(wide, dtype)
        pieces.append(piece_of(name, tensor, pieces[-1][4] if pieces else 0))
        if mine(number):
            write(tensor, pieces[-1][3])
        yield name, tensor


def changes(before: Iterable[Named], after: Iterable[Named]) -> Iterator[Named]:
    """What of the weights ``after`` has other bits than ``before``, for
    :meth:`~trainer.engines.vllm_worker.roll_transfer.Kept.change`: places and numbers of a weight where these take less
    memory than all of it. Where nothing differs, the last weight whole, so that there is something."""
    old = dict(before)
    nothing, last = True, None
    for name, tensor in after:
        last = name, tensor
        was, kind = old[name], _BITS[tensor.element_size()]
        if was.dtype != tensor.dtype:  # of the model that was loaded, and of a learner of less precision
            nothing = False
            yield name, tensor
            continue
        places = (tensor.view(kind) != was.view(kind)).view(-1).nonzero()[:, 0]
        if not len(places):
            continue
        nothing = False
        if len(places) * (4 + tensor.element_size()) < tensor.nbytes and tensor.numel() < 2**31:
            yield name + PLACES, places.int()
            yield name + NUMBERS, tensor.view(-1)[places]
        else:
            yield name, tensor
    if nothing and last is not None:
        yield last


def in_buckets(
    weights: Iterable[Named], allocate: Callable[[int], torch.Tensor], most_bytes: int
) -> Iterator[tuple[torch.Tensor, list[Piece]]]:
    """Weights in buckets, uint8 [n], and what lies in each. All lie in the same memory of ``most_bytes``, one after the
    other, unless a weight is too large for it."""
    memory = allocate(most_bytes)
    pieces: list[Piece] = []
    end = 0
    for name, tensor in weights:
        piece = piece_of(name, tensor, end)
        if piece[4] > len(memory):
            if pieces:
                yield memory[:end], pieces
            pieces, piece = [], piece_of(name, tensor, 0)
            if tensor.nbytes > len(memory):
                memory = allocate(tensor.nbytes)
        start, end = piece[3:]
        memory[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        pieces.append(piece)
    if pieces:
        yield memory[:end], pieces
