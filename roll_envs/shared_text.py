"""Text in shared memory, so that ``gymnasium.make_vec(id, vectorization_mode="async")`` works with its defaults.

Gymnasium asks a space for three functions. Each environment gets a fixed buffer of :data:`MAX_BYTES`; a longer
observation raises and names the option that lifts the limit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any, overload

from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from roll_envs.env import AnyText

__all__ = ["MAX_BYTES", "SharedTexts"]

MAX_BYTES = 1 << 16
"""Longest observation in bytes (UTF-8, lone surrogates kept)."""
_HEAD = 4


class SharedTexts(Sequence[str]):
    """A live view of the current texts; copying it (Gymnasium's ``copy=True``, the default) gives a plain tuple."""

    def __init__(self, buffer: Any, count: int) -> None:
        self._buffer, self._count = buffer, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self._text(i) for i in range(*index.indices(self._count)))
        return self._text(range(self._count)[index])

    def _text(self, index: int) -> str:
        start = index * (_HEAD + MAX_BYTES)
        raw = memoryview(self._buffer.get_obj()).cast("B")
        size = int.from_bytes(raw[start : start + _HEAD], "little")
        return bytes(raw[start + _HEAD : start + _HEAD + size]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"SharedTexts({list(self)!r})"


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * (_HEAD + MAX_BYTES))


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, value: str, shared_memory: Any) -> None:
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        raise ValueError(
            f"an observation of {len(raw)} bytes is longer than the {MAX_BYTES} of shared memory; "
            "pass vector_kwargs={'shared_memory': False} to gymnasium.make_vec"
        )
    start = index * (_HEAD + MAX_BYTES)
    memory = memoryview(shared_memory.get_obj()).cast("B")
    memory[start : start + _HEAD] = len(raw).to_bytes(_HEAD, "little")
    memory[start + _HEAD : start + _HEAD + len(raw)] = raw
