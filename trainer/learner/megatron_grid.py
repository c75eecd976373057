"""The ranks of a model in Megatron-Core: which share of each matrix, which layers, which experts, which tokens and
which replica each has; and the library itself, imported when it is first asked for."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

from roll_envs.errors import ConfigError
from trainer.learner.gradients import Ranks
from trainer.learner.megatron import MegatronSettings, ranks_problems
from trainer.model.context import ContextRanks


@cache
def core() -> Any:
    """What is used of Megatron-Core, imported once. Raises :class:`ConfigError` where it is not installed."""
    # Its overlap of products with sums over ranks counts on one queue; read when CUDA begins.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the optional libraries that it misses
            from megatron.core import parallel_state, tensor_parallel
            from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
            from megatron.core.models.gpt.gpt_model import GPTModel
            from megatron.core.transformer.transformer_config import TransformerConfig
    except ImportError as error:
        raise ConfigError(
            "learner.backend 'megatron' needs the megatron-core library, which cannot be imported "
            f"({error}): pip install 'roll-envs[megatron]'"
        ) from error
    return SimpleNamespace(
        state=parallel_state,
        tensor_parallel=tensor_parallel,
        spec=get_gpt_layer_local_spec,
        GPTModel=GPTModel,
        TransformerConfig=TransformerConfig,
    )


@contextmanager
def silently() -> Iterator[None]:
    """Without the warnings and log lines of Megatron-Core about what it will change, and of Megatron-Bridge."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@dataclass(frozen=True, slots=True)
class Axis:
    """The ranks that differ from this one in one respect only."""

    group: distributed.ProcessGroup

    @property
    def rank(self) -> int:
        return distributed.get_rank(self.group)

    @property
    def count(self) -> int:
        return distributed.get_world_size(self.group)

    @property
    def ranks(self) -> Ranks:
        return Ranks(self.group if self.count > 1 else None)


class Grid:
    """Where this rank stands: which share of each matrix, which stage, which replica."""

    def __init__(self, settings: MegatronSettings, ranks: Ranks, device: torch.device) -> None:
        """``ranks`` are all processes of the group that torch.distributed was started with; without one, this process
        starts a group of its own.

        Raises :class:`ConfigError` when the ranks cannot be divided as ``settings`` ask.
        """
        tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
        context, expert = settings.context_parallel, settings.expert_parallel
        for problem in ranks_problems(settings, ranks.count):
            raise ConfigError(problem)
        state = core().state
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store = distributed.HashStore()  # type: ignore[attr-defined]
            distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        if distributed.get_world_size() != ranks.count:
            raise ConfigError(
                f"learner.backend 'megatron' takes all {distributed.get_world_size()} processes of the group that "
                f"torch.distributed was started with, and was given {ranks.count}; start a group of the learner's own"
            )
        if not state.model_parallel_is_initialized():
            with silently():
                state.initialize_model_parallel(
                    tensor, pipeline, context_parallel_size=context, expert_model_parallel_size=expert
                )
        self.all, self.device = ranks, device
        self.tensor = Axis(state.get_tensor_model_parallel_group())
        self.pipeline = Axis(state.get_pipeline_model_parallel_group())
        self.data = Axis(state.get_data_parallel_group(with_context_parallel=True))
        """Those with the same weights, but for experts."""
        self.expert = Axis(state.get_expert_model_parallel_group())
        self.expert_data = Axis(state.get_expert_data_parallel_group())
        """Those with the same experts."""
        self.model = Axis(state.get_expert_tensor_model_pipeline_parallel_group())
        """Those that hold the model together; each holds weights that are not experts as often as experts are dealt."""
        self.contexts = Axis(state.get_context_parallel_group())
        self.context = ContextRanks(self.contexts.group) if context > 1 else None
        self.team = Axis(self._alike(distributed.get_rank(state.get_data_parallel_group()))).ranks
        """Those that run each other's micro-batches."""
        self.embedding = state.get_embedding_group(check_initialized=False)
        """First and last stage, on those."""
        begun = (self.tensor.count, self.pipeline.count, self.contexts.count, self.expert.count)
        if begun != (tensor, pipeline, context, expert):
            raise ConfigError(
                f"learner.tensor_parallel, pipeline_parallel, context_parallel and expert_parallel are "
                f"{(tensor, pipeline, context, expert)}: this process has begun with {begun}, and keeps to them"
            )
        self.first, self.last = self.pipeline.rank == 0, self.pipeline.rank == pipeline - 1
        line = tuple(distributed.get_process_group_ranks(self.pipeline.group))
        self.backward = self._alike(line) if pipeline > 1 else self.pipeline.group
        """The stages again: with NCCL, what goes back would wait for what goes ahead in the same group."""

    def _alike(self, own: Any) -> Any:
        """A group of the ranks that say the same."""
        said: list[Any] = [None] * self.all.count
        distributed.all_gather_object(said, own)
        groups = {
            key: distributed.new_group([i for i, one in enumerate(said) if one == key]) for key in sorted(set(said))
        }
        return groups[own]

    @property
    def speaks(self) -> bool:
        """Whether this rank counts what all ranks of its team know."""
        return self.last and self.tensor.rank == 0 and self.contexts.rank == 0
