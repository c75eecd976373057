"""A share of a checkpoint for each rank: whole tensors, dealt over the ranks as they are put together one at a time.

No rank and no driver ever holds the model's state: a tensor that is gathered from the ranks' shares is kept by the rank
that has least so far, and dropped by the others. What is kept are copies, so that training goes on while a thread
writes them. A file of a rank holds whole tensors in the safetensors format under ``network/weight`` and
``optimizer/network/path``, so that any number of ranks, of any backend, reads what it needs of all files. Files are
mapped into memory: a rank that takes slices of tensors reads those alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch.utils._pytree import keystr, tree_map_only, tree_map_with_path

from trainer.model.network import SupportsWrite, write_weights

Keep: TypeAlias = Callable[[torch.Tensor], bool]
"""Whether this rank keeps a tensor; asked by all ranks for the same tensors in the same order."""


class Dealer:
    """Deals tensors over ranks, by their bytes: each goes to the rank that has least so far."""

    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._held = rank, [0] * count

    def __call__(self, tensor: torch.Tensor) -> bool:
        lightest = self._held.index(min(self._held))
        self._held[lightest] += tensor.nbytes
        return lightest == self._rank


def kept(tensor: torch.Tensor, keep: Keep) -> torch.Tensor:
    """A copy on the CPU where ``keep`` says so, else shape and type alone (the meta device). Single numbers are kept
    by all."""
    if not tensor.ndim or keep(tensor):
        return tensor.detach().to("cpu", copy=True)
    return torch.empty_like(tensor, device="meta")


def kept_state(state: dict[str, Any], keep: Keep) -> dict[str, Any]:
    """``state`` with :func:`kept` of each of its tensors."""
    found: dict[str, Any] = tree_map_only(torch.Tensor, lambda tensor: kept(tensor, keep), state)
    return found


def own_copy(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` in memory of its own: a file's, mapped, would hold the room of a removed checkpoint on the disk."""
    found: dict[str, Any] = tree_map_only(torch.Tensor, lambda t: t.clone() if type(t) is torch.Tensor else t, state)
    return found


# -- writing -----------------------------------------------------------------------------------------------------------


def share_name(rank: int) -> str:
    """The file of a rank."""
    return f"rank-{rank:05d}.safetensors"


class Share:
    """What one rank keeps of a checkpoint, in memory until it is written."""

    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._keep = rank, Dealer(rank, count)
        self._tensors: dict[str, torch.Tensor] = {}

    def add_weights(self, network: str, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take this rank's part of a stream, along which all ranks iterate."""
        for name, tensor in weights:
            if self._keep(tensor):
                self._tensors[f"{network}/{name}"] = tensor.detach().to("cpu", copy=True)

    def add_state(self, network: str, state_of: Callable[[Keep], dict[str, Any]]) -> dict[str, Any]:
        """Take this rank's part of an optimiser's state; returns the state without numbers, whose tensors are on the
        meta device: the same on all ranks."""

        def take(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.ndim:
                return leaf
            if not leaf.is_meta:
                self._tensors[_key(network, path)] = leaf
            return torch.empty_like(leaf, device="meta")

        form: dict[str, Any] = tree_map_with_path(take, state_of(self._keep))
        return form

    def write(self, folder: Path) -> threading.Thread:
        """Write the share into ``folder`` in a thread, and forget it. Beside the file comes ``NAME.json`` when it is
        whole on the disk, with its size and SHA-256, or with the error that ended it."""
        tensors, self._tensors = self._tensors, {}
        thread = threading.Thread(target=_write_share, args=(folder, self._rank, tensors), name="write_share")
        thread.start()
        return thread


def _key(network: str, path: Any) -> str:
    return f"optimizer/{network}/{keystr(path)}"


class _Hashed:
    """A file that is hashed while it is written."""

    def __init__(self, file: SupportsWrite) -> None:
        self._file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview, /) -> None:
        self._file.write(data)
        self.sha256.update(data)
        self.size += len(data)


def _write_share(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor]) -> None:
    path, note = folder / share_name(rank), folder / f"{share_name(rank)}.json"
    unfinished = note.with_suffix(".unfinished")
    with suppress(OSError):
        unfinished.touch()  # its name takes no room any more when the disk is full
        try:
            with path.open("wb") as file:
                hashed = _Hashed(file)
                write_weights(hashed, lambda: iter(tensors.items()))
                file.flush()
                os.fsync(file.fileno())
            found: dict[str, Any] = {"sha256": hashed.sha256.hexdigest(), "size": hashed.size}
        except OSError as error:
            path.unlink(missing_ok=True)
            found = {"errno": error.errno, "error": error.strerror or str(error)}
        except Exception as error:  # told to the driver, which waits for this file
            found = {"errno": 0, "error": f"{type(error).__name__}: {error}"}
        with suppress(OSError):
            unfinished.write_text(json.dumps(found))
        unfinished.replace(note)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The tensors of a checkpoint's files; can be sent to ranks, which read what they need."""

    folder: Path
    shares: tuple[str, ...] = ()
    """Files of ranks; without them each network has a file of its own and ``training.pt`` has the optimisers whole."""

    def weights(self, network: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights of a network, in the order of the names; not read before they are used."""
        if not self.shares:
            yield from _mapped(self.folder / f"{network}.safetensors", "")
            return
        tensors = dict(pair for share in self.shares for pair in _mapped(self.folder / share, f"{network}/"))
        yield from sorted(tensors.items())

    def training(self) -> dict[str, Any]:
        """What ``training.pt`` holds, with the numbers of the optimisers' states, not read before they are used."""
        saved: dict[str, Any] = torch.load(
            self.folder / "training.pt", map_location="cpu", weights_only=True, mmap=True
        )
        if self.shares:
            tensors = dict(pair for share in self.shares for pair in _mapped(self.folder / share, "optimizer/"))
            saved["optimizer"] = {
                network: _filled(network, form, tensors) for network, form in saved["optimizer"].items()
            }
        return saved


def _mapped(path: Path, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            if name.startswith(prefix):
                yield name.removeprefix(prefix), file.get_tensor(name)


def _filled(network: str, form: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    def fill(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_meta:
            return tensors[_key(network, path).removeprefix("optimizer/")]
        return leaf

    return tree_map_with_path(fill, form)


def notes_of(folder: Path, count: int) -> Sequence[dict[str, Any] | None]:
    """What the ranks have noted of their shares in ``folder``; None for those that are still writing. A note without a
    word is of a rank for which the disk had no room."""
    notes: list[dict[str, Any] | None] = []
    for rank in range(count):
        try:
            text = (folder / f"{share_name(rank)}.json").read_bytes()
            notes.append(json.loads(text) if text else {"errno": errno.ENOSPC, "error": os.strerror(errno.ENOSPC)})
        except FileNotFoundError:
            notes.append(None)
    return notes
