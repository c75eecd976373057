"""Weights on their way to a server: read once from the learner, kept in memory that other processes can map, and in a
network that says what they answer.

Nothing is copied twice: a server on the same machine reads the very bytes that are kept here for one that must be
started again, and the probe runs the network on them.
"""

from __future__ import annotations

import copy
import itertools
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.func import functional_call

from roll_envs.errors import EngineError
from trainer.engines.vllm_worker.roll_transfer import Piece, views
from trainer.model.forward import fitting

_skeletons = threading.Lock()  # for the time of a call a network holds the weights of that call
ALIGNMENT = 64
"""Bytes at which a tensor may begin: more than any type needs."""


def skeleton_of(network: Any) -> Any:
    """A copy of ``network`` with its buffers, ties and code, but without the memory of its weights."""
    empty: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in network.parameters()
    }
    return copy.deepcopy(network, memo=empty).eval()


class SentWeights:
    """The weights of one version, all in one file: in memory only, or in ``folder`` for a server that shares one."""

    def __init__(
        self,
        skeleton: Any,
        source: Iterable[tuple[str, torch.Tensor]],
        *,
        folder: str | None = None,
        dtype: torch.dtype | None = None,
        live: bool = False,
    ) -> None:
        """Read ``source`` once: here, or when ``live`` while it is sent, by :meth:`read`.

        Numbers that are wider than ``dtype``, what the server computes in, are rounded to it. Raises
        :class:`EngineError` where names or shapes are not those of the network.
        """
        self._skeleton, self._dtype = skeleton, dtype
        if folder is None:
            # A file without a name leaves nothing behind, whatever ends this process.
            self._file: Any = os.fdopen(os.memfd_create("roll-weights"), "w+b")
            self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(dir=folder, prefix="roll-weights-")  # noqa: SIM115 - kept open
            self.path = self._file.name
        self.tensors: list[Piece] = []
        """What lies where in the file."""
        stream = iter(source)
        first = next(stream, None) if live else None
        self.device = torch.device("cpu") if first is None else first[1].device
        """Where the weights come from."""
        self._unread: Iterator[tuple[str, torch.Tensor]] | None = self._written(
            stream if first is None else itertools.chain([first], stream)
        )
        if not live:
            self.keep()

    @property
    def most_bytes(self) -> int:
        """No less than all the weights take."""
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
        if self._unread is None:
            return
        try:
            for _ in self._unread:
                pass
            self._file.flush()
        except BaseException:
            self.close()
            raise
        self._unread = None

    def _written(self, source: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, wide in fitting(self._skeleton, source, "the update", error=EngineError):
            tensor = wide.detach()
            if self._dtype is not None and tensor.is_floating_point() and tensor.element_size() > self._dtype.itemsize:
                tensor = tensor.to(self._dtype)
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))
            start = self._file.tell()
            plain = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            self._file.write(memoryview(plain.numpy()))  # type: ignore[arg-type]
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.tensors.append((name, dtype, tuple(tensor.shape), start, self._file.tell()))
            yield name, tensor

    def _bytes(self) -> torch.Tensor:
        """All that is kept, uint8 [n]; nothing is copied."""
        return torch.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Log-probabilities of the ids of ``answer`` at temperature 1, by one plain forward pass."""
        values = {name: buffer.cpu() for name, buffer in self._skeleton.named_buffers()}
        own = self._skeleton.state_dict(keep_vars=True)
        by_weight = {id(own[name]): (name, value) for name, value in self.read()}  # one name of a weight that has two
        values.update(by_weight.values())
        ids = torch.tensor([[*prompt, *answer]])
        with _skeletons:
            logits = functional_call(self._skeleton, values, kwargs={"input_ids": ids, "use_cache": False}).logits[0]
        logp = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        return logp.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give the memory back. A server that has it mapped still keeps its own hold."""
        self._file.close()
