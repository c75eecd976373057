"""A run on a cluster that need not be there: who sits where, what memory each GPU needs, how long a step may take.

Memory is :mod:`trainer.run.memory_plan`'s, for one GPU of each kind. Times are these formulas (bounds of what the
hardware could do, times a share of it that is reached): a network that learns takes ``6 P T`` floating-point
operations, 8 with gradient checkpointing, for each pass over the sequences of a step, and one that scores them ``2 P
T``; sampling a token reads the weights once for all sequences that run together. P are the parameters that a token
meets, T the tokens of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll_envs.errors import ConfigError
from trainer.cluster.roles import role_section
from trainer.cluster.seats import Machine, Placement, place
from trainer.config import RunConfig
from trainer.config.parts import BACKENDS, ENGINES, part_settings
from trainer.engines.preflight import RemoteSettings
from trainer.run.memory_items import GIB, bytes_of_weight
from trainer.run.memory_plan import MemoryPlan, gpu_names, make_plan

ENGINE = "a GPU of the engine"
"""What the plan of memory calls a GPU that only the engine is on."""


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

    cpus: int = 64
    """Processors of each node."""

    def machine(self, cluster: str) -> Machine:
        """Where the parts of a run of ``cluster`` may be: on one node, or on all as if they were one."""
        one = cluster == "local" and self.nodes > 1
        gpus = tuple(str(gpu) for gpu in range(self.gpus if one else self.nodes * self.gpus))
        name = "a node of the planned cluster" if one else "the planned cluster"
        more = (
            "or use cluster 'ray' for several machines" if one else "or plan for more of them with --nodes and --gpus"
        )
        return Machine(gpus=gpus, cpus=tuple(range(self.cpus)), name=name, more=more)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """Where the parts of a run are, and what they take."""

    placement: Placement
    """GPUs are numbered node after node."""
    memory: MemoryPlan
    """Of one GPU (``cuda``) with the learner, with the engine beside it where they share; of one of each other kind
    (:data:`ENGINE`, ``cuda:3``); and of the driver's node."""
    role_s: Mapping[str, float]
    """Of learner, reference and critic, one after the other."""
    sample_s: float | None
    """None for servers that run elsewhere."""
    in_turn: bool
    """Whether learning waits for sampling: in mode sync, and where every engine shares its GPUs with the learner."""

    @property
    def learn_s(self) -> float:
        """Of all that is done with the sequences of a step once they are sampled."""
        return sum(self.role_s.values())

    @property
    def step_s(self) -> float:
        times = self.learn_s, self.sample_s or 0.0
        return sum(times) if self.in_turn else max(times)


def plan_cluster(config: RunConfig, model: Any, hardware: Hardware, *, tokens: int) -> ClusterPlan:
    """Plan a run of ``config`` with a model of Hugging Face configuration ``model``, for steps of ``tokens`` tokens.

    Raises :class:`ConfigError` for a run that needs more GPUs, or more memory on one, than ``hardware`` has, whose
    model cannot be divided over the ranks, or whose learner shall be on processors.
    """
    BACKENDS.find(config.learner.backend).check_model(config, model)
    if config.learner.device == "cpu":
        raise ConfigError(
            "learner.device 'cpu': a plan is of GPUs, and the learner would have none of them; set it to 'auto'"
        )
    ranks, engine = config.placement.learner.ranks, part_settings(config.engine, ENGINES.find(config.engine.name))
    served = isinstance(engine, RemoteSettings) and not engine.urls
    replicas, width = (engine.replicas, engine.tensor_parallel_size) if served else (0, 1)
    if width > hardware.gpus:
        raise ConfigError(f"engine.tensor_parallel_size {width} is more than the {hardware.gpus} GPUs of a node")
    everywhere: dict[str, Any] = {"cluster": "local"} | {
        name: getattr(config, name).model_copy(update={"device": "cuda"}) for name in ("learner", "engine")
    }
    placement = _servers_on_one_node(
        place(config.model_copy(update=everywhere), hardware.machine(config.cluster)), hardware
    )
    where = _engine_device(config, placement)
    one = {"replicas": 1, "gpus": None, "colocated": bool(placement.sleepers)}
    alone = config.model_copy(update={"engine": config.engine.model_copy(update=one)}) if served else config
    room = hardware.gpu_gib * GIB
    free = {"cuda": room, where: room, "cpu": hardware.node_gib * GIB}
    memory = make_plan(alone, model, devices=("cuda", where), free=free, here=min(ranks, hardware.gpus))
    memory.check()
    numbers = active_parameters(model, memory.parameters)
    passes = 2 * numbers * tokens / (hardware.mfu * hardware.tflops * 1e12 * ranks)
    sample: float | None = None
    if served:
        running = min(config.rollout.max_running, config.rollout.groups_per_step * config.rollout.group_size) / replicas
        rounds = tokens / replicas / max(1.0, running)
        size = bytes_of_weight(engine, "cuda") if engine.quantization is None else 1  # embedding and head left out
        sample = rounds * size * numbers / width / (hardware.gpu_gib_s * GIB)
    return ClusterPlan(
        placement=placement,
        memory=memory,
        role_s={role: count * passes for role, count in _forward_passes(config).items()},
        sample_s=sample,
        in_turn=config.rollout.mode == "sync" or bool(placement.shared and len(placement.sleepers) == replicas),
    )


def _servers_on_one_node(placement: Placement, hardware: Hardware) -> Placement:
    """``placement`` with engines and judges on a node of their own where they would be on two: a run starts its servers
    on the driver's machine.

    Raises :class:`ConfigError` where they do not fit on one node.
    """
    served = sorted(gpu for gpus in (*placement.rollout, *placement.judges) for gpu in gpus)
    if not served or served[0] // hardware.gpus == served[-1] // hardware.gpus:
        return placement
    if placement.shared or served[-1] - served[0] >= hardware.gpus:
        raise ConfigError(
            f"engines and judges would have GPUs {served[0]} to {served[-1]}, of several nodes of {hardware.gpus}, and "
            "a run starts its servers on the driver's machine; lower engine.replicas or engine.tensor_parallel_size, "
            "or start servers on the other nodes and list all in engine.url"
        )
    shift = -served[0] % hardware.gpus  # to the first GPU of the next node
    rollout, judges = (
        tuple(tuple(gpu + shift for gpu in gpus) for gpus in part) for part in (placement.rollout, placement.judges)
    )
    return replace(placement, rollout=rollout, judges=judges)


def _engine_device(config: RunConfig, placement: Placement) -> str:
    """What the plan of memory calls a GPU of the engine: the learner's, or one that reference or critic are on, too,
    where they share."""
    if placement.shared or not placement.rollout:
        return "cuda"
    names = gpu_names(config, "cuda")
    return next((names[gpu] for gpus in placement.rollout for gpu in gpus if gpu in names), ENGINE)


def _forward_passes(config: RunConfig) -> dict[str, int]:
    """How many forward passes over the sequences of a step each network takes; one backward is as much as two."""
    learner, critic = config.learner, config.critic
    trained, valued = (
        4 if getattr(section, "gradient_checkpointing", False) else 3
        for section in (learner, role_section(config, "critic"))
    )
    several = learner.minibatches * learner.epochs > 1 or config.reward.kl_coef
    before = bool(several and config.loss.proximal == "recompute")  # log-probs of the policy before the first of them
    found = {"learner": trained * learner.epochs + before}
    if not config.without("reference"):
        found["reference"] = 1
    if not config.without("critic"):
        found["critic"] = valued * critic.epochs + 1
    return found


def active_parameters(model: Any, parameters: int) -> float:
    """Of ``parameters`` those that a token meets: all but the experts that it is not sent to."""
    experts = int(getattr(model, "num_experts", 0) or 0)
    if not experts:
        return float(parameters)
    sparse = model.num_hidden_layers // max(1, getattr(model, "decoder_sparse_step", 1))
    one = 3 * model.hidden_size * model.moe_intermediate_size
    return float(parameters - sparse * one * (experts - model.num_experts_per_tok))


def plan_lines(plan: ClusterPlan, hardware: Hardware, *, tokens: int) -> Iterator[str]:
    """The plan for people: memory by what takes it, and times."""
    names = {"cuda": "a GPU of the learner", ENGINE: ENGINE, "cpu": "memory of the driver's node"}
    for device in sorted(plan.memory.items, key=lambda name: (name == "cpu", name != "cuda", name)):
        when, size = plan.memory.peak(device)
        name = names.get(device, f"GPU {device.removeprefix('cuda:')}")
        yield f"{name}: about {size / GIB:.1f} of {plan.memory.free[device] / GIB:.0f} GiB at most ({when})"
        for item in sorted(plan.memory.items[device], key=lambda item: -item.bytes):
            if item.bytes >= GIB / 200:  # less is shown as 0.00
                yield f"  {item.bytes / GIB:8.2f} GiB  {item.owner}: {item.what} ({item.when})"
    full = f"about {plan.sample_s or 0.0:.1f} s if engines are always full"
    sampling = "not counted (no server of the run's)" if plan.sample_s is None else full
    roles = ", ".join(f"{role} {seconds:.1f} s" for role, seconds in plan.role_s.items())
    of_roles = f" ({roles})" if len(plan.role_s) > 1 else ""
    yield (
        f"a step of {tokens:,} tokens: learning about {plan.learn_s:.1f} s{of_roles} at {hardware.mfu:.0%} of "
        f"{hardware.tflops:g} TFLOP/s, sampling {sampling}: {plan.step_s:.1f} s, "
        f"{'one after the other' if plan.in_turn else 'side by side'}"
    )
