"""A rank's side of new weights for the engine: what it has goes straight to where the servers take it, not through the
driver, which only hears where each weight lies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial

import torch

from trainer.engines.buckets import Delivery, Named, Word, in_buckets, write_at, written
from trainer.engines.vllm_worker.roll_transfer import Group, Piece


def sees(path: str, token: bytes) -> bool:
    """Whether the file ``path`` is there for this process to write, and is the one that begins with ``token``: a path
    of another machine may name another file here."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return os.pread(fd, len(token), 0) == token
    finally:
        os.close(fd)


def deliver(weights: Iterable[Named], delivery: Delivery, rank: int) -> Iterator[Word]:
    """Write this rank's share of ``weights``, every n-th of them, and on rank 0 broadcast all. Every rank iterates over
    all, since they may be gathered from all ranks.

    A broadcast that fails is said and ends there: the file becomes whole in any case, and the ranks stay together.
    """
    writers, pieces = delivery.writers, list[Piece]()
    fd = os.open(delivery.path, os.O_RDWR) if rank in writers else -1
    try:
        place = writers.index(rank) if rank in writers else -1
        stream = written(
            weights, partial(write_at, fd), delivery.dtype, pieces, mine=lambda number: number % len(writers) == place
        )
        if delivery.group is not None and rank == 0:
            yield from _broadcast(stream, delivery)
        for _ in stream:
            pass
        yield Word("written", pieces)
    finally:
        if fd >= 0:
            os.close(fd)


def _broadcast(weights: Iterator[Named], delivery: Delivery) -> Iterator[Word]:
    assert delivery.group is not None
    try:
        group = Group(**delivery.group, rank=0)
    except RuntimeError as error:  # as torch's errors of process groups are
        yield Word("failed", problem=str(error))
        return
    try:
        yield Word("joined")
        device = torch.device("cuda" if group.backend == "nccl" else "cpu")
        allocate = partial(torch.empty, dtype=torch.uint8, device=device)
        for memory, pieces in in_buckets(_kept_open(weights), allocate, delivery.most_bytes):
            yield Word("bucket", pieces, len(memory))
            try:
                group.broadcast(memory)
            except RuntimeError as error:
                yield Word("failed", problem=str(error))
                return
            yield Word("sent")
    finally:
        group.close()


def _kept_open(weights: Iterator[Named]) -> Iterator[Named]:
    """The same items; whoever stops in the middle leaves ``weights`` to be read on."""
    for item in weights:  # noqa: UP028 - "yield from" would close them
        yield item
