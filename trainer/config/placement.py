"""The section ``placement``: which processes the parts of a run are in, and on which GPUs and processors.

:mod:`trainer.cluster.seats` works out from it, and from what the machine has, who sits where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from roll_envs.settings import Seconds
from trainer.config.algorithm import Count, Positive, Section

Numbers = tuple[Count, ...]
"""Of GPUs or processors, from 0, in the order in which they are given out."""
RoleName = Literal["reference", "critic"]
"""Networks beside the policy, which may have devices and a backend of their own."""
ROLES: tuple[RoleName, ...] = get_args(RoleName)


class _Placed(Section):
    """A role of the section; what it is given is checked here, so that messages have one form."""

    section: ClassVar[str]

    @field_validator("devices", "cpus", "device", mode="wrap", check_fields=False)
    @classmethod
    def _numbers(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if (cls.section, info.field_name) == ("learner", "cpus"):  # a share, which Ray knows
            return handler(value)
        key = f"placement.{cls.section}.{info.field_name} is {value!r}"
        if isinstance(value, list | tuple) and (not value or len(set(map(str, value))) < len(value)):
            raise ValueError(f"{key}; a list names each number once, and at least one")
        try:
            return handler(tuple(value) if isinstance(value, list) else value)
        except ValidationError:
            what = "processors" if info.field_name == "cpus" else "GPUs"
            other = {"device": "'cpu', ", "devices": "" if cls.section == "learner" else "how many, "}
            words = other.get(str(info.field_name), "how many, ")
            raise ValueError(f"{key}; allowed: {words}a list of numbers of {what} (from 0), or null") from None


class LearnerPlacement(_Placed):
    """The ranks of the learner: processes that train one model together, each on a share of the sequences."""

    section: ClassVar[str] = "learner"
    ranks: Positive = 1
    """Processes; 1 with cluster 'local' is the trainer's own process."""
    devices: Numbers | None = None
    """GPUs of this machine, one for each rank, by their numbers; null is the first ones. Cluster 'local' only."""
    timeout_s: Seconds = 1800.0
    """Longest wait for an answer of a rank; those that are late are then named, and all are ended."""
    start_timeout_s: Seconds = 300.0
    """Longest wait until the ranks have started and met; on a Ray cluster, until there is room for them."""
    restarts: Count = 1
    """How often lost ranks are started again and go on from the last checkpoint, before their loss ends the run."""
    cpus: Annotated[float, Field(gt=0)] = 1.0
    """Processors that each rank reserves; cluster 'ray' only."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that each rank reserves; 0 computes on the processor; cluster 'ray' only."""


class RolloutPlacement(_Placed):
    """The inference engine: the built-in one in the trainer's process, or the servers that a run starts."""

    section: ClassVar[str] = "rollout"
    devices: Positive | Numbers | None = None
    """GPUs of the replicas, the next engine.tensor_parallel_size for each: a list of their numbers, or how many beside
    the learner's. Replicas on a GPU of the learner sleep while it learns, the others go on. null: the learner's GPUs
    and, where more are needed, the next ones; after the learner's with engine.colocated false."""
    cpus: Positive | Numbers | None = None
    """Processors that servers without a GPU run on, dealt to the replicas: a list, or how many; null is all of them."""


class EnvironmentsPlacement(_Placed):
    """The workers of rollout.manager 'process'."""

    section: ClassVar[str] = "environments"
    cpus: Positive | Numbers | None = None
    """Processors that all workers run on: a list, or how many beside those of the servers; null is all of them. Of
    workers, rollout.workers 0 starts one for each."""


class ReferencePlacement(_Placed):
    """The network that KL terms are measured against; of backend 'torch' only (reference.backend)."""

    section: ClassVar[str] = "reference"
    device: Literal["cpu"] | Numbers | None = None
    """Where it is: cpu, or a list of GPUs of this machine, one for each rank of the learner; null: where the policy
    is."""


class CriticPlacement(_Placed):
    """The network that predicts returns; of backend 'torch' only (critic.backend)."""

    section: ClassVar[str] = "critic"
    device: Literal["cpu"] | Numbers | None = None
    """Where it is: cpu, or a list of GPUs of this machine, one for each rank of the learner; null: where the policy
    is."""


class JudgesPlacement(_Placed):
    """The servers of the section judges, in its order."""

    section: ClassVar[str] = "judges"
    devices: Positive | Numbers | None = None
    """GPUs, the next tensor_parallel_size for each judge: a list of numbers, or how many. Judges answer while episodes
    are played, so that they share none with learner or engine. null: the first ones that these leave."""
    cpus: Positive | Numbers | None = None
    """Processors that all judges without a GPU run on: a list, or how many; null is all of them."""


class SandboxesPlacement(_Placed):
    """The processes of sandboxes: of judges of code and of tools."""

    section: ClassVar[str] = "sandboxes"
    cpus: Positive | Numbers | None = None
    """Processors that they run on: a list, or how many beside those of the others; null is all of them."""


class PlacementConfig(Section):
    """Which processes the parts run in, and where."""

    address: str | None = None
    """Address of the Ray cluster (host:port, or auto); null starts one here; cluster 'ray' only."""
    learner: LearnerPlacement = Field(default_factory=LearnerPlacement)
    rollout: RolloutPlacement = Field(default_factory=RolloutPlacement)
    environments: EnvironmentsPlacement = Field(default_factory=EnvironmentsPlacement)
    reference: ReferencePlacement = Field(default_factory=ReferencePlacement)
    critic: CriticPlacement = Field(default_factory=CriticPlacement)
    judges: JudgesPlacement = Field(default_factory=JudgesPlacement)
    sandboxes: SandboxesPlacement = Field(default_factory=SandboxesPlacement)


def placement_problems(
    cluster: str, placement: PlacementConfig, *, manager: str, backends: Mapping[RoleName, str]
) -> list[str]:
    """What of ``placement`` would have no effect, for people. ``backends`` are those of the roles."""
    learner, default = placement.learner, LearnerPlacement()
    problems = []
    if cluster == "local":
        unused = {"address": placement.address is not None}
        unused |= {f"learner.{key}": getattr(learner, key) != getattr(default, key) for key in ("cpus", "gpus")}
        remedy = f"cluster is {cluster!r}; set cluster to 'ray' or leave it out"
        problems += [f"placement.{key} is set, but {remedy}" for key, there in unused.items() if there]
    elif learner.devices is not None:
        problems.append(
            "placement.learner.devices is set, but on cluster 'ray' Ray chooses the GPUs of the ranks; say in "
            "placement.learner.gpus how many each needs"
        )
    if placement.environments.cpus is not None and manager != "process":
        problems.append(
            f"placement.environments.cpus is set, but rollout.manager {manager!r} has no worker processes of this "
            "machine; set rollout.manager to 'process' or leave it out"
        )
    if placement.sandboxes.cpus is not None and manager == "ray":
        problems.append(
            "placement.sandboxes.cpus is set, but sandboxes of rollout.manager 'ray' are on the cluster's machines; "
            "leave it out"
        )
    for name in ROLES:
        device: Any = getattr(placement, name).device
        if device is not None and backends[name] != "torch":
            problems.append(
                f"placement.{name}.device is set, but backend {backends[name]!r} cuts the {name} into shards beside "
                f"those of the policy; set {name}.backend to 'torch' or leave it out"
            )
        elif isinstance(device, tuple) and cluster == "ray":
            problems.append(
                f"placement.{name}.device {list(device)} are GPUs of this machine, and the learner's ranks are on "
                "cluster 'ray'; give 'cpu', or leave it out"
            )
    return problems
