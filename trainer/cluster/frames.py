"""What crosses between the driver and its ranks: pickled messages in which tensors are their plain numbers.

Both ends are processes of one run: a frame is trusted. A tensor comes on the CPU, without its gradient, and without the
rest of a storage that it is a view of; so no rank needs a device that another one has.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

Kind: TypeAlias = Literal["done", "error", "item", "more", "where"]


class Stream:
    """Stands for the items that the driver gives."""


class Call(NamedTuple):
    """A method that a rank shall run. An argument that is a :class:`Stream` becomes an iterator over the items that
    follow."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class Item(NamedTuple):
    """The next of a stream that the driver gives, when all ranks wait for it; ``value`` is None behind the last."""

    value: Any


class Where(NamedTuple):
    """A question that is answered while a method runs: where is it?"""

    number: int


class Answer(NamedTuple):
    """What a rank says of call ``number``: it has ended, failed, gives an item of a stream, asks for one, is here."""

    number: int
    kind: Kind
    value: Any = None


class Failure(NamedTuple):
    """An exception of a rank: itself where it is one of ours, and its traceback."""

    error: Exception | None
    traceback: str


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.is_meta:
            return _form, (tuple(value.shape), value.dtype)
        plain = value.detach().cpu().contiguous()
        numbers: Any = plain.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(numbers), plain.dtype, tuple(plain.shape))


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tensor(numbers: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not numbers:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(numbers, dtype=torch.uint8).view(dtype).reshape(shape)


def packed(message: Call | Item | Where | Answer) -> bytes:
    """The bytes of a message. Half as slow as pickling tensors plainly, since their numbers are copied once."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(message)
    return file.getvalue()  # which copies nothing


def unpacked(frame: bytes) -> Any:
    """The message of :func:`packed`; its tensors can be written to."""
    return pickle.loads(frame)
