"""What runs inside vLLM's processes: a backend of its weight-transfer API that reads new weights from shared memory.

vLLM loads it as a plugin: this folder is on the server's ``PYTHONPATH``, and ``roll_vllm.dist-info`` declares the entry
point. It imports nothing of the trainer, whose environment is another one.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

__all__ = ["SharedMemoryEngine", "register"]


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the weights lie."""

    path: str
    tensors: list[list[Any]]
    """Name, type, shape and first byte of each."""


class SharedMemoryEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """Weights by their Hugging Face names, loaded as from a checkpoint."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing is held open."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The method of the base class also waits for an accelerator, and a CPU build has none.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        with open(update_info.path, "rb") as file:
            # Private to this process: torch wants memory that could be written to, and nobody may change the weights.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self.model.load_weights(
            (name, whole[start:end].view(getattr(torch, dtype)).view(shape))
            for name, dtype, shape, start, end in update_info.tensors
        )

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # A head that is tied to the embedding goes on with a packed copy of the old weights otherwise.
        for layer in self.model.modules():
            if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "cpu_linear"):
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)

    def shutdown(self) -> None:
        """Nothing is held open."""


def register() -> None:
    """Make the backend known to vLLM; called in each of its processes."""
    with contextlib.suppress(ValueError):  # known already
        WeightTransferEngineFactory.register_engine("roll_shared_memory", SharedMemoryEngine)
