"""Weights on their way to a server: in memory that its process maps, and in a network that says what they answer.

Nothing is copied twice: the server reads the very bytes that are kept here for a server that must be started again, and
the probe runs the network on them.
"""

from __future__ import annotations

import copy
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.func import functional_call

from roll_envs.errors import EngineError
from trainer.model.forward import load_weights

_skeletons = threading.Lock()  # for the time of a call a network holds the weights of that call
_ALIGNMENT = 64
"""Bytes: more than any type of tensor needs."""


def skeleton_of(network: Any) -> Any:
    """A copy of ``network`` with its buffers, ties and code, but without the memory of its weights."""
    empty: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in network.parameters()
    }
    return copy.deepcopy(network, memo=empty).eval()


class SentWeights:
    """The weights of one version, all in one file: in memory only, or in ``folder`` for a server that shares one."""

    def __init__(self, skeleton: Any, source: Iterable[tuple[str, torch.Tensor]], *, folder: str | None = None) -> None:
        """Read ``source`` once. Raises :class:`EngineError` where names or shapes are not those of the network."""
        self._skeleton = skeleton
        if folder is None:
            # A file without a name leaves nothing behind, whatever ends this process.
            self._file: Any = os.fdopen(os.memfd_create("roll-weights"), "w+b")
            self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        else:
            self._file = tempfile.NamedTemporaryFile(dir=folder, prefix="roll-weights-")  # noqa: SIM115 - kept open
            self.path = self._file.name
        self.tensors: list[tuple[str, str, tuple[int, ...], int, int]] = []
        """Name, type, shape, first byte and the byte after the last of each."""
        try:
            # Weights that are copied into a network without memory are checked, and not copied.
            load_weights(skeleton, self._written(source), "the update", error=EngineError)
            self._file.flush()
        except BaseException:
            self.close()
            raise

    def _written(self, source: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in source:
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            start = self._file.tell()
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._file.write(memoryview(plain.numpy()))  # type: ignore[arg-type]
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.tensors.append((name, dtype, tuple(tensor.shape), start, self._file.tell()))
            yield name, tensor

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Log-probabilities of the ids of ``answer`` at temperature 1, by one plain forward pass."""
        whole = torch.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        values = {name: buffer.cpu() for name, buffer in self._skeleton.named_buffers()}
        for name, dtype, shape, start, end in self.tensors:
            values[name] = whole[start:end].view(getattr(torch, dtype)).view(shape)
        ids = torch.tensor([[*prompt, *answer]])
        with _skeletons:
            logits = functional_call(self._skeleton, values, kwargs={"input_ids": ids, "use_cache": False}).logits[0]
        logp = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        return logp.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give the memory back. A server that has it mapped still keeps its own hold."""
        self._file.close()
