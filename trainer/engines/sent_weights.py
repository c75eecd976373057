"""Weights on their way to a server: read once from the learner, kept in memory that other processes can map, and in a
network that says what they answer.

Nothing is copied twice: a server on the same machine reads the very bytes that are kept here for one that must be
started again, and the probe runs the network on them. Those that come from a GPU while they are sent are kept in pinned
memory: writing a file would take longer than all the rest of an update. Weights that lie in other processes of this
machine are written there by these. Where adapters are trained, the weights beside them are kept once, and of each
version the adapters.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import mmap
import os
import secrets
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.func import functional_call

from roll_envs.errors import EngineError, RollError
from trainer.engines.buckets import ALIGNMENT, Delivered, Delivery, Word, write_at, written
from trainer.engines.vllm_worker.roll_transfer import Kept, Piece, Use, views
from trainer.model.forward import fitting

_skeletons = threading.Lock()  # for the time of a call a network holds the weights of that call


def skeleton_of(network: Any) -> Any:
    """A copy of ``network`` with its buffers, ties and code, but without the memory of its weights."""
    empty: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in network.parameters()
    }
    return copy.deepcopy(network, memo=empty).eval()


class SentWeights:
    """The weights of one version, or the adapters of one, all in one file: in memory, or in ``folder`` for a server
    that shares one. Weights that are read from a GPU while they are sent are not in the file."""

    def __init__(
        self,
        skeleton: Any,
        source: Iterable[tuple[str, torch.Tensor]],
        *,
        folder: str | None = None,
        dtype: torch.dtype | None = None,
        live: bool = False,
        use: Use = "load",
        base_key: str = "",
        base: SentWeights | None = None,
    ) -> None:
        """Read ``source`` once: here, or when ``live`` while it is sent, by :meth:`read`.

        Numbers that are wider than ``dtype``, what the server computes in, are rounded to it. ``use`` is what workers
        do with what is sent: with weights, or with adapters of a ``base`` or changes, which are not rounded or checked.
        ``base_key`` is that of weights to which adapters belong. Raises :class:`EngineError` where names or shapes are
        not those of the network.
        """
        self._are_weights = use in ("load", "keep")
        self._skeleton, self._dtype = skeleton, dtype if self._are_weights else None
        self.use, self.base_key, self.base = use, base_key, base
        if folder is None:
            # A file without a name leaves nothing behind, whatever ends this process.
            self._file: Any = os.fdopen(os.memfd_create("roll-weights"), "w+b")
            self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(dir=folder, prefix="roll-weights-")  # noqa: SIM115 - kept open
            self.path = self._file.name
        self.tensors: list[Piece] = []
        """What lies where in the file."""
        self._reading = threading.Lock()  # one thread at a time asks other processes for their weights
        self._keeping = threading.Lock()  # several servers may want them at the same time
        self._words: Iterator[Word] | None = None
        self._unread: Iterator[tuple[str, torch.Tensor]] | None = None
        self._delivered: Delivered | None = None
        self._writers: tuple[int, ...] = ()
        self.device = torch.device("cpu")
        """Where the weights come from: the memory of this machine, unless they are read while they are sent."""
        self._pinned: torch.Tensor | None = None
        try:
            if isinstance(source, Delivered):
                self._writers, self.device = self._found_by(source)
            if isinstance(source, Delivered) and self._writers:
                self._delivered = source
            else:
                stream = iter(source)
                first = next(stream, None) if live else None
                self.device = torch.device("cpu") if first is None else first[1].device
                if self.device.type == "cuda" and self._are_weights and folder is None:
                    self._pinned = torch.empty(self.most_bytes, dtype=torch.uint8, pin_memory=True)
                self._unread = self._written(stream if first is None else itertools.chain([first], stream))
            if not live:
                self.keep()
        except BaseException:
            self.close()
            raise

    @property
    def elsewhere(self) -> bool:
        """Whether they lie in other processes, which have not been asked for them yet."""
        return self._delivered is not None and self._words is None

    def _found_by(self, delivered: Delivered) -> tuple[tuple[int, ...], torch.device]:
        """The ranks that can write to the file, and where the weights are."""
        token = secrets.token_bytes(16)
        os.pwrite(self._file.fileno(), token, 0)
        return delivered.writers(self.path, token)

    def deliver(self, group: dict[str, Any] | None = None, most_bytes: int = 0) -> None:
        """Have the processes that hold the weights write them, and broadcast them to ``group``, in buckets of
        ``most_bytes``: :meth:`word` says how far they are."""
        assert self._delivered is not None
        self._words = self._delivered.deliver(Delivery(self.path, self._writers, self._dtype, group, most_bytes))

    def word(self) -> Word | None:
        """What the processes that hold the weights say next; None behind the last."""
        with self._reading:
            if self._words is None:
                return None
            try:
                word = next(self._words, None)
            except BaseException:
                self._delivered = self._words = None
                self.close()
                raise
            if word is None:
                self._delivered = self._words = None
                self.device = torch.device("cpu")  # the ranks' names of devices mean nothing here
                shapes = ((name, torch.empty(shape, device="meta")) for name, _, shape, *_ in self.tensors)
                self._unread = self._fitting(shapes)
            elif word.kind == "written":
                self.tensors = list(word.pieces)
            return word

    @property
    def most_bytes(self) -> int:
        """No less than all of it takes."""
        if self._unread is None and self.tensors:
            return self.tensors[-1][4]
        parameters = list(self._skeleton.parameters())
        size = self._dtype.itemsize if self._dtype is not None else max(p.element_size() for p in parameters)
        return sum(size * p.numel() + ALIGNMENT for p in parameters)

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights: live ones as they come from the learner, on its device, and kept at the same time; the
        next time those that were kept. Raises :class:`EngineError` behind the last where they do not fit."""
        if self._unread is not None and not self.tensors:
            # Not by "yield from", which would end it with this one: the rest is kept when the server fails midway.
            for name, tensor in self._unread:  # noqa: UP028
                yield name, tensor
            self.keep()
        else:
            self.keep()
            yield from views(self._bytes(), self.tensors)

    def keep(self) -> None:
        """Read what is not read yet. Raises :class:`EngineError` where names or shapes are not those of the network."""
        if self.elsewhere:
            self.deliver()
        while self._delivered is not None:
            self.word()
        with self._keeping:
            if self._unread is None:
                return
            try:
                for _ in self._unread:
                    pass
            except BaseException:
                self.close()
                raise
            self._unread = None

    def _fitting(self, source: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        if not self._are_weights:
            return iter(source)
        return fitting(self._skeleton, source, "the update", error=EngineError)

    def _written(self, source: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        return written(self._fitting(source), self._write, self._dtype, self.tensors, mine=lambda _: True)

    def _write(self, tensor: torch.Tensor, start: int) -> None:
        if self._pinned is None:
            write_at(self._file.fileno(), tensor, start)
            return
        # A GPU does it when it comes to it: whoever reads waits for that.
        place = self._pinned[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor, non_blocking=True)

    def checksum(self) -> int:
        """CRC-32 of the file."""
        self.keep()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return zlib.crc32(content)

    def _bytes(self) -> torch.Tensor:
        """All that is kept, uint8 [n]; nothing is copied."""
        if self._pinned is not None:
            torch.cuda.synchronize(self.device)
            return self._pinned
        return torch.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probabilities of the ids of ``answer`` at ``temperature``, by one plain forward pass."""
        values = {name: buffer.cpu() for name, buffer in self._skeleton.named_buffers()}
        own = self._skeleton.state_dict(keep_vars=True)
        kept = Kept()
        kept.keep((self if self.base is None else self.base).read())
        if self.base is not None:
            kept.adapt(self.read())
        merged = kept.merged(torch.device("cpu"))
        by_weight = {id(own[name]): (name, value) for name, value in merged}  # one name of a weight that has two
        values.update(by_weight.values())
        ids = torch.tensor([[*prompt, *answer]])
        with _skeletons:
            logits = functional_call(self._skeleton, values, kwargs={"input_ids": ids, "use_cache": False}).logits[0]
        logp = (logits[len(prompt) - 1 : -1].float() / temperature).log_softmax(-1)
        return logp.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Return once the processes that the weights lie in are done with what they were asked."""
        with contextlib.suppress(RollError):  # which the next one who asks them hears, too
            while self.word() is not None:
                pass

    def close(self) -> None:
        """Give the memory back. A server that has it mapped still keeps its own hold."""
        self._file.close()
        self._pinned = None
