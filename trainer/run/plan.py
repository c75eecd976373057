"""A run on a cluster that need not be there: who sits where, what memory each GPU needs, how long a step may take.

Memory is :mod:`trainer.run.memory_plan`'s, for one GPU of each kind. Times are these formulas (bounds of what the
hardware could do, times a share of it that is reached): learning takes ``6 P T`` floating-point operations, 8 with
gradient checkpointing; sampling a token reads the weights once for all sequences that run together. P are the
parameters that a token meets, T the tokens of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roll_envs.errors import ConfigError
from trainer.config import RunConfig
from trainer.config.parts import ENGINES, part_settings
from trainer.engines.preflight import RemoteSettings
from trainer.run.memory_plan import GIB, MemoryPlan, make_plan

_SHOWN = 4
"""GPUs of a node that are listed; of more of them the first ones and the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The machines to plan for."""

    nodes: int
    gpus: int
    """Of each node."""
    gpu_gib: float
    node_gib: float
    """Memory of a node's processors."""
    tflops: float
    """Peak of a GPU in the learner's precision, 10^12 floating-point operations a second."""
    gpu_gib_s: float
    """Bandwidth of a GPU's memory, GiB/s."""
    mfu: float
    """Share of the peak that the learner reaches."""

    @property
    def count(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """Where the parts of a run are, and what they take."""

    seats: tuple[tuple[str, ...], ...]
    """Of each GPU in use, who is on it; node after node."""
    memory: MemoryPlan
    """Of one GPU (``cuda``) with the learner, with the engine beside it where they share, and of the driver's node."""
    learn_s: float
    sample_s: float | None
    """None for servers that run elsewhere."""
    colocated: bool

    @property
    def step_s(self) -> float:
        """Turn by turn on shared GPUs; else side by side."""
        times = self.learn_s, self.sample_s or 0.0
        return sum(times) if self.colocated else max(times)


def plan_cluster(config: RunConfig, model: Any, hardware: Hardware, *, tokens: int) -> ClusterPlan:
    """Plan a run of ``config`` with a model of Hugging Face configuration ``model``, for steps of ``tokens`` tokens.

    Raises :class:`ConfigError` for a run that needs more GPUs, or more memory on one, than ``hardware`` has.
    """
    ranks, engine = config.placement.learner.ranks, part_settings(config.engine, ENGINES.find(config.engine.name))
    served = isinstance(engine, RemoteSettings) and not engine.urls
    replicas, width = (engine.replicas, engine.tensor_parallel_size) if served else (0, 1)
    shared = not served or (engine.gpus is None if engine.colocated is None else engine.colocated)
    learners, engines = (
        [f"learner {i}" for i in range(ranks)],
        [f"engine {i // width}" for i in range(replicas * width)],
    )
    needed = max(ranks, len(engines)) if shared else ranks + len(engines)
    if needed > hardware.count:
        beside = f"{ranks} ranks of the learner (placement.learner.ranks)"
        beside += (
            f", {replicas} engines of {width} GPUs (engine.replicas, engine.tensor_parallel_size)" if served else ""
        )
        raise ConfigError(
            f"{needed} GPUs are needed for {beside}{'' if shared else ', apart'}, and {hardware.nodes} nodes of "
            f"{hardware.gpus} have {hardware.count}; nothing was started"
        )
    if width > hardware.gpus:
        raise ConfigError(f"engine.tensor_parallel_size {width} is more than the {hardware.gpus} GPUs of a node")
    parts = [learners, engines] if shared else [[*learners, *engines]]
    seats = tuple(tuple(part[gpu] for part in parts if gpu < len(part)) for gpu in range(needed))
    one = {"replicas": 1, **({"gpus": None} if shared else {"gpus": "0", "colocated": False})}
    alone = config.model_copy(update={"engine": config.engine.model_copy(update=one)}) if served else config
    free = {"cuda": hardware.gpu_gib * GIB, "cpu": hardware.node_gib * GIB}
    memory = make_plan(alone, model, devices=("cuda", "cuda"), free=free, here=min(ranks, hardware.gpus))
    memory.check()
    numbers = active_parameters(model, memory.parameters)
    operations = (8 if getattr(config.learner, "gradient_checkpointing", False) else 6) * numbers * tokens
    size = 2 if getattr(engine, "dtype", "float32") == "bfloat16" else 4
    sample: float | None = None
    if served:
        running = min(config.rollout.max_running, config.rollout.groups_per_step * config.rollout.group_size) / replicas
        passes = tokens / replicas / max(1.0, running)
        sample = passes * size * numbers / width / (hardware.gpu_gib_s * GIB)
    return ClusterPlan(
        seats=seats,
        memory=memory,
        learn_s=operations / (hardware.mfu * hardware.tflops * 1e12 * ranks),
        sample_s=sample,
        colocated=shared,
    )


def active_parameters(model: Any, parameters: int) -> float:
    """Of ``parameters`` those that a token meets: all but the experts that it is not sent to."""
    experts = int(getattr(model, "num_experts", 0) or 0)
    if not experts:
        return float(parameters)
    sparse = model.num_hidden_layers // max(1, getattr(model, "decoder_sparse_step", 1))
    one = 3 * model.hidden_size * model.moe_intermediate_size
    return float(parameters - sparse * one * (experts - model.num_experts_per_tok))


def plan_lines(plan: ClusterPlan, hardware: Hardware, *, tokens: int) -> Iterator[str]:
    """The plan for people: a line for each group of GPUs with the same work, memory by what takes it, times."""
    for node in range(math.ceil(len(plan.seats) / hardware.gpus)):
        mine = plan.seats[node * hardware.gpus : (node + 1) * hardware.gpus]
        names = [" + ".join(seat) for seat in mine]
        shown = names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "...", names[-1]]
        yield f"node {node}, {len(mine)} GPUs: {' | '.join(shown)}"
    yield "GPUs of learner and engines take turns" if plan.colocated else "learner and engines have GPUs of their own"
    for device, name in (("cuda", "a GPU of the learner"), ("cpu", "memory of the driver's node")):
        if device in plan.memory.items:
            when, size = plan.memory.peak(device)
            yield f"{name}: about {size / GIB:.1f} of {plan.memory.free[device] / GIB:.0f} GiB at most ({when})"
            for item in sorted(plan.memory.items[device], key=lambda item: -item.bytes):
                yield f"  {item.bytes / GIB:8.2f} GiB  {item.owner}: {item.what} ({item.when})"
    sampling = "by servers elsewhere" if plan.sample_s is None else f"about {plan.sample_s:.1f} s"
    yield (
        f"a step of {tokens:,} tokens: learning about {plan.learn_s:.1f} s at {hardware.mfu:.0%} of "
        f"{hardware.tflops:g} TFLOP/s, sampling {sampling} if engines are always full: {plan.step_s:.1f} s"
    )
