"""What runs inside vLLM's processes: a backend of its weight-transfer API that takes weights in any of three ways.

vLLM loads it as a plugin: this folder is on the server's ``PYTHONPATH``, and ``roll_vllm.dist-info`` declares the entry
point. It imports nothing of the trainer, whose environment is another one.
"""

from __future__ import annotations

import contextlib
import mmap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from roll_transfer import Group, Kept, Piece, Use, open_memory, views  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What has to be agreed on before an update: nothing, or the process group that it comes through."""

    group: dict[str, Any] | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A bucket of weights, and one of the three places where its bytes are."""

    pieces: list[Piece]
    path: str | None = None
    """A file, in memory or in a folder that both sides see."""
    handle: list[Any] | None = None
    """Memory of another process of this machine. It is used again for the next bucket."""
    broadcast: int | None = None
    """So many bytes come through the process group."""
    use: Use = "load"
    """What is done with it."""
    checksum: int | None = None
    """CRC-32 of the file, which is then read at once: it may lie on another machine, and be gone later."""


class RollEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """Weights by their Hugging Face names, loaded as from a checkpoint: sent whole, or made here of weights that are
    kept and adapters, or changed numbers, that are sent each time."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    _group: Group | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kept = Kept()
        self._unloaded = False  # whether what is kept is other than what the model has

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._leave()
        if init_info.group is not None:
            if init_info.group["backend"] == "nccl" and self.device.type != "cuda":
                raise ValueError("the trainer sends from a GPU and this worker has none; set engine.device to cpu")
            parallel = self.parallel_config
            rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
            self._group = Group(**init_info.group, rank=rank)

    def start_weight_update(self) -> None:
        self._unloaded = False
        # What an update that failed midway left behind would be mixed with this one.
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self.receive_weights(self.parse_update_info(update_info))
            if self.device.type != "cpu":
                torch.accelerator.synchronize()
        except BaseException:
            self._leave()  # so that the trainer does not wait for this worker
            raise

    def receive_weights(self, update_info: UpdateInfo) -> None:
        weights = self._weights(update_info)
        if update_info.use == "load":
            self._kept.clear()
            self._load(weights)
        else:
            {"keep": self._kept.keep, "adapt": self._kept.adapt, "change": self._kept.change}[update_info.use](weights)
            self._unloaded = True

    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        with disable_mtp_completeness_check():  # a bucket need not be the whole model
            self.model.load_weights(weights)

    def _weights(self, info: UpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        if info.path is not None:
            with open(info.path, "rb") as file:
                if info.checksum is not None:
                    content = bytearray(file.read())
                    if zlib.crc32(content) != info.checksum:
                        raise ValueError(f"{info.path} is not what was sent: its checksum is another one")
                    yield from views(torch.frombuffer(content, dtype=torch.uint8), info.pieces)
                    return
                # Private to this process: torch wants memory that could be written to, and nobody may change these.
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            yield from views(torch.frombuffer(memory, dtype=torch.uint8), info.pieces)
            return
        if info.handle is not None:
            bucket = open_memory(info.handle)
        else:
            assert self._group is not None
            assert info.broadcast is not None
            device = self.device if self._group.backend == "nccl" else "cpu"
            bucket = torch.empty(info.broadcast, dtype=torch.uint8, device=device)
            self._group.broadcast(bucket)
        # vLLM holds on to weights until it has all of a layer: not to the bucket, in which the next weights may lie.
        for name, tensor in views(bucket, info.pieces):
            yield name, tensor.clone()

    def finish_weight_update(self) -> None:
        self._leave()
        if self._unloaded:
            self._unloaded = False  # where it fails, the next call only puts back what was there
            self._load(self._kept.merged(self.device))
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type != "cpu":
            return
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        # A head that is tied to the embedding goes on with a packed copy of the old weights otherwise.
        for layer in self.model.modules():
            if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "cpu_linear"):
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)

    def shutdown(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def register() -> None:
    """Make the backend known to vLLM; called in each of its processes."""
    with contextlib.suppress(ValueError):  # known already
        WeightTransferEngineFactory.register_engine("roll", RollEngine)
