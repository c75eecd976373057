"""Who sits where: the GPU of each rank of the learner and of each replica of the engine, the processors of the others.

Computed from the configuration and from what a machine has; nothing is started, so that a placement that cannot be met
is refused before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roll_envs.errors import ConfigError
from trainer.config import EngineConfig, RoleName, RunConfig
from trainer.config.parts import ENGINES, part_settings
from trainer.engines import HFSettings
from trainer.engines.judges import judge_settings
from trainer.engines.preflight import RemoteSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What there is to sit on."""

    gpus: tuple[str, ...] = ()
    """What CUDA_VISIBLE_DEVICES calls each GPU that this process sees. Configurations number them from 0."""
    cpus: tuple[int, ...] = (0,)
    """Processors that this process may use, by the system's numbers; none where the system gives no choice of them."""
    name: str = "this machine"
    more: str = "set learner.device to 'cpu', or use cluster 'ray' for several machines"
    """Where there are more GPUs, for people."""


def this_machine() -> Machine:
    """The machine that the trainer runs on."""
    import torch

    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else [str(i) for i in range(count)]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return Machine(gpus=tuple(names), cpus=tuple(sorted(cores)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where the parts of a run are. GPUs have the numbers of the configuration."""

    learner: tuple[int, ...] = ()
    """The GPU of each rank; none where ranks compute on processors, or Ray chooses."""
    rollout: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each replica of the engine; none where it has none here, or where they are not known."""
    sleepers: tuple[int, ...] = ()
    """The replicas that sleep while the learner learns."""
    rollout_cpus: tuple[tuple[int, ...], ...] = ()
    """The processors of each server without a GPU; none: all of them."""
    environment_cpus: tuple[int, ...] = ()
    """The processors of environment workers; none: all of them."""
    judges: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each judge that the run serves; () for one on processors."""
    judge_cpus: tuple[int, ...] = ()
    """The processors of judges without a GPU; none: all of them."""
    sandbox_cpus: tuple[int, ...] = ()
    """The processors of sandboxes; none: all of them."""
    reference: tuple[int, ...] | None = None
    """The GPU of each rank's share of it, () on processors; None where the policy is."""
    critic: tuple[int, ...] | None = None
    """As ``reference``."""

    @property
    def shared(self) -> tuple[int, ...]:
        """GPUs that both the learner and the engine use."""
        served = {gpu for gpus in self.rollout for gpu in gpus}
        return tuple(sorted(served & set(self.learner)))

    def visible(self, rank: int) -> tuple[int, ...]:
        """The GPUs that a rank in a process of its own sees: the policy's first."""
        others = [part[rank] for part in (self.reference, self.critic) if part]
        return tuple(dict.fromkeys((self.learner[rank], *others)))

    def devices_of(self, part: str, *, apart: bool) -> tuple[str, ...] | None:
        """Torch's names of the devices of ``part`` (reference, critic), one for each rank; None: where the policy is.
        ``apart``: ranks are processes of their own."""
        gpus: tuple[int, ...] | None = getattr(self, part)
        if not gpus:
            return None if gpus is None else ("cpu",) * max(1, len(self.learner))
        if not apart:
            return tuple(f"cuda:{gpu}" for gpu in gpus)
        return tuple(f"cuda:{self.visible(rank).index(gpu)}" for rank, gpu in enumerate(gpus))

    @property
    def words(self) -> str:
        """How learner and engine share GPUs, for people."""
        if not (self.learner and self.rollout):
            return ""
        if not self.shared:
            return "learner and engine have GPUs of their own and can run at the same time"
        awake = [i for i in range(len(self.rollout)) if i not in self.sleepers]
        if not self.sleepers:
            return "learner and engine share GPUs, and both stay in their memory"
        if not awake:
            return "GPUs of learner and engine take turns: the engine sleeps while the learner learns"
        names = ", ".join(map(str, awake))
        return f"replicas of the engine on the learner's GPUs sleep while it learns; {names} go on"


# -- the computation ---------------------------------------------------------------------------------------------------


def place(config: RunConfig, machine: Machine) -> Placement:
    """Who sits where in a run of ``config`` on ``machine``.

    Raises :class:`ConfigError` for what cannot be met, with what to change.
    """
    settings = part_settings(config.engine, ENGINES.find(config.engine.name))
    learner = _learner(config, machine)
    rollout = _rollout(config, settings, learner, machine)
    sleepers = _sleepers(config, settings, rollout, learner)
    if config.rollout.mode != "sync" and rollout and len(sleepers) == len(rollout):
        raise ConfigError(
            f"rollout.mode {config.rollout.mode!r}: every replica of engine {config.engine.name!r} sleeps on a GPU of "
            "the learner while that learns; give one GPUs of its own (placement.rollout.devices, engine.replicas), or "
            "set rollout.mode: sync"
        )
    judges = _judges(config, {*learner, *(gpu for gpus in rollout for gpu in gpus)}, machine)
    cpus = _cpus(config, settings, rollout, judges, machine)
    served = cpus["rollout"]
    each = len(served) // settings.replicas if served else 1
    return Placement(
        learner=learner,
        rollout=rollout,
        sleepers=sleepers,
        rollout_cpus=tuple(served[i : i + each] for i in range(0, len(served), each)),
        environment_cpus=cpus["environments"],
        judges=judges,
        judge_cpus=cpus["judges"],
        sandbox_cpus=cpus["sandboxes"],
        reference=_beside(config, "reference", learner, machine),
        critic=_beside(config, "critic", learner, machine),
    )


def placed_engine(config: RunConfig, placement: Placement, machine: Machine) -> EngineConfig:
    """The section ``engine`` of ``config`` with the devices that ``placement`` gives to it."""
    engine = config.engine
    settings = part_settings(engine, ENGINES.find(engine.name))
    found: dict[str, Any] = {}
    chosen = config.placement.rollout.devices is not None or config.placement.learner.devices is not None
    if isinstance(settings, HFSettings) and placement.rollout and chosen:
        found["device"] = f"cuda:{placement.rollout[0][0]}"
    elif isinstance(settings, RemoteSettings) and placement.rollout:
        if settings.apart:
            found["gpus"] = ",".join(machine.gpus[gpu] for gpus in placement.rollout for gpu in gpus)
        found["colocated"] = list(placement.sleepers) if placement.sleepers else False
        # A handle of CUDA IPC carries the number that this process has for a GPU; a server with one GPU calls it 0.
        handles = settings.apart and getattr(settings, "transfer", None) == "auto" and placement.sleepers
        if handles and placement.learner[:1] != (0,):
            found["transfer"] = "shared_memory"
    if placement.rollout_cpus:
        found["cpus"] = [list(cpus) for cpus in placement.rollout_cpus]
    return engine.model_copy(update=found)


def learner_device(config: RunConfig) -> str:
    """The device of a learner in this process, as :func:`trainer.model.network.choose_device` reads it."""
    if config.cluster == "local" and config.placement.learner.devices is not None:
        return f"cuda:{place(config, this_machine()).learner[0]}"
    return config.learner.device


def leaves_devices(config: RunConfig) -> bool:
    """Whether learner, critic and reference leave their devices between steps: ``learner.offload``."""
    return getattr(config.learner, "offload", "never") == "between_steps"  # a setting that some backends have


def _learner(config: RunConfig, machine: Machine) -> tuple[int, ...]:
    placed = config.placement.learner
    if config.cluster == "ray":
        return ()
    if config.learner.device == "cpu" or not machine.gpus:
        if placed.devices is not None:
            why = "learner.device is 'cpu'" if config.learner.device == "cpu" else f"{machine.name} has no GPU"
            raise ConfigError(
                f"placement.learner.devices {list(placed.devices)}: {why}, and the learner computes on the processor; "
                "leave it out" + (", or set learner.device to 'auto'" if machine.gpus else "")
            )
        return ()
    if placed.devices is None and placed.ranks > len(machine.gpus):
        raise ConfigError(
            f"placement.learner.ranks {placed.ranks}: each rank needs a GPU of its own, and {machine.name} has "
            f"{len(machine.gpus)}; lower it, {machine.more}"
        )
    numbers = tuple(range(placed.ranks)) if placed.devices is None else placed.devices
    _check_gpus("learner.devices", numbers, machine)
    if len(numbers) != placed.ranks:
        raise ConfigError(
            f"placement.learner.devices {list(numbers)} are {len(numbers)}, and each of placement.learner.ranks "
            f"{placed.ranks} has one; set placement.learner.ranks to {len(numbers)}, or list {placed.ranks}"
        )
    return numbers


def _rollout(
    config: RunConfig, settings: Any, learner: tuple[int, ...], machine: Machine
) -> tuple[tuple[int, ...], ...]:
    devices, name = config.placement.rollout.devices, config.engine.name
    remote = isinstance(settings, RemoteSettings)
    replicas, width = (settings.replicas, settings.tensor_parallel_size) if remote else (1, 1)
    if why := _no_gpu(config, settings, machine):
        if devices is not None:
            raise ConfigError(f"placement.rollout.devices {_shown(devices)}: {why}; leave it out")
        return ()
    if remote and not settings.apart:
        if devices not in (None, (0,)):
            raise ConfigError(
                f"placement.rollout.devices {_shown(devices)}: engine {name!r} takes the first GPU when it is in the "
                "trainer's process; write [0] or leave it out"
            )
        return ((0,),)
    taken = set(learner)
    others = [gpu for gpu in range(len(machine.gpus)) if gpu not in taken]
    need = replicas * width
    wants = f"engine.replicas {replicas} of engine.tensor_parallel_size {width} need {need}" if remote else (
        f"engine {name!r} is in the trainer's process and needs 1"
    )  # fmt: skip
    if remote and settings.gpus is not None:
        if devices is not None:
            raise ConfigError(
                f"placement.rollout.devices {_shown(devices)} and engine.gpus {settings.gpus!r} say the same thing; "
                "leave one of the two out"
            )
        names = settings.gpus.split(",")[:need]
        if len(names) < need or not set(names) <= set(machine.gpus):  # UUIDs, say
            return ()
        chosen = [machine.gpus.index(each) for each in names]
    elif isinstance(devices, tuple):
        _check_gpus("rollout.devices", devices, machine)
        chosen = list(devices)
    elif devices is not None or (remote and settings.colocated is False):
        chosen = others[: need if devices is None else devices]
        if len(chosen) < (devices or need):
            key = "engine.colocated False" if devices is None else f"placement.rollout.devices {devices}"
            raise ConfigError(
                f"{key}: {devices or need} GPUs are needed beside the {len(learner)} of the learner, and "
                f"{machine.name} has {len(machine.gpus)}; lower engine.replicas or placement.learner.ranks, or list "
                "the learner's GPUs in placement.rollout.devices to share them"
            )
    else:
        chosen = [*learner, *others][:need]
    if len(chosen) != need:
        given = "" if devices is None else f"placement.rollout.devices {_shown(devices)} are {len(chosen)}: "
        there = f"; {machine.name} has {len(machine.gpus)}" if devices is None else ""
        raise ConfigError(f"{given}{wants} GPUs{there}; change engine.replicas, or placement.rollout.devices")
    return tuple(tuple(chosen[i * width : (i + 1) * width]) for i in range(replicas))


def _no_gpu(config: RunConfig, settings: Any, machine: Machine) -> str:
    """Why the engine of ``config`` has no GPU that could be chosen; "" where it has."""
    name = config.engine.name
    if isinstance(settings, RemoteSettings) and settings.urls:
        return f"the servers of engine {name!r} run elsewhere (engine.url), on what they were started with"
    if not isinstance(settings, HFSettings | RemoteSettings):
        return f"engine {name!r} has no device that the trainer chooses"
    if not machine.gpus:
        return f"{machine.name} has no GPU"
    on_gpu = settings.on_gpu(config.engine.device) if isinstance(settings, RemoteSettings) else True
    return "" if on_gpu and config.engine.device != "cpu" else f"engine {name!r} computes on the processor"


def _sleepers(
    config: RunConfig, settings: Any, rollout: Sequence[tuple[int, ...]], learner: tuple[int, ...]
) -> tuple[int, ...]:
    if not isinstance(settings, RemoteSettings) or not rollout:
        return ()
    if settings.colocated is not None:
        return settings.sleepers
    # Which GPUs of its nodes Ray gives to ranks is not known here.
    unknown = config.cluster == "ray" and config.placement.learner.gpus > 0 and config.placement.rollout.devices is None
    return tuple(i for i, gpus in enumerate(rollout) if unknown or set(gpus) & set(learner))


def _beside(config: RunConfig, name: RoleName, learner: tuple[int, ...], machine: Machine) -> tuple[int, ...] | None:
    """The GPUs of the reference or the critic."""
    device = getattr(config.placement, name).device
    if device is None:
        return None
    key = f"placement.{name}.device {_shown(device)}"
    lora = bool(getattr(config.learner, "lora_rank", 0))
    if why := config.without(name):
        raise ConfigError(f"{key}: {why}; leave it out")
    of_policy = config.backend_of("reference") == config.learner.backend
    if name == "reference" and lora and of_policy and not config.reference.refresh_every:
        raise ConfigError(
            f"{key}: with learner.lora_rank the reference is the policy without its adapters, on the policy's device; "
            "leave it out"
        )
    if device == "cpu":
        return ()
    if not learner:
        raise ConfigError(f"{key}: the learner computes on the processor, and the {name} beside it; leave it out")
    _check_gpus(f"{name}.device", device, machine)
    if len(device) != len(learner):
        raise ConfigError(
            f"{key} are {len(device)} GPUs, and each of placement.learner.ranks {len(learner)} needs one for its "
            f"share of the {name}; list {len(learner)}"
        )
    return tuple(device)


def _judges(config: RunConfig, taken: set[int], machine: Machine) -> tuple[tuple[int, ...], ...]:
    """The GPUs of each judge; those of learner and engine are ``taken``."""
    devices = config.placement.judges.devices
    widths = [
        judge.tensor_parallel_size if machine.gpus and judge_settings(judge).on_gpu(judge.device) else 0
        for judge in config.judges.values()
    ]
    need, free = sum(widths), [gpu for gpu in range(len(machine.gpus)) if gpu not in taken]
    if devices is not None and not need:
        raise ConfigError(
            f"placement.judges.devices {_shown(devices)}: no judge that this run serves computes on a GPU; leave it out"
        )
    chosen = list(devices) if isinstance(devices, tuple) else free[: need if devices is None else devices]
    _check_gpus("judges.devices", chosen, machine)
    if shared := sorted(taken & set(chosen)):
        raise ConfigError(
            f"placement.judges.devices {chosen}: GPU {shared[0]} is the learner's or the engine's, and judges do not "
            "sleep; choose others"
        )
    if len(chosen) != need:
        given = "" if devices is None else f"placement.judges.devices {_shown(devices)}: "
        raise ConfigError(
            f"{given}the judges {', '.join(config.judges)} need {need} GPUs (judges.*.tensor_parallel_size) beside "
            f"those of learner and engine, and there are {len(chosen)}; {machine.name} has {len(machine.gpus)}"
        )
    gpus = iter(chosen)
    return tuple(tuple(next(gpus) for _ in range(width)) for width in widths)


def _cpus(
    config: RunConfig, settings: Any, rollout: Sequence[Any], judges: Sequence[Any], machine: Machine
) -> dict[str, tuple[int, ...]]:
    """The processors of each role that has some of its own: all servers of the engine, environment workers, all judges
    and sandboxes."""
    roles = ("rollout", "environments", "judges", "sandboxes")
    given = {role: getattr(config.placement, role).cpus for role in roles}
    remote = isinstance(settings, RemoteSettings)
    served = remote and settings.apart and not settings.urls
    if given["rollout"] is not None and (not served or rollout or settings.cpus):
        raise ConfigError(
            f"placement.rollout.cpus {_shown(given['rollout'])}: engine {config.engine.name!r} starts no server that "
            "computes on processors, or engine.cpus says where; leave it out"
        )
    if given["judges"] is not None and all(judges):
        raise ConfigError(
            f"placement.judges.cpus {_shown(given['judges'])}: no judge that this run serves computes on processors; "
            "leave it out"
        )
    taken = {cpu for cpus in given.values() if isinstance(cpus, tuple) for cpu in cpus}
    found = {}
    for role, cpus in given.items():
        found[role] = _chosen_cpus(f"{role}.cpus", cpus, machine, taken)
        taken |= set(found[role])
    served = len(found["rollout"])
    if served and served % settings.replicas:
        raise ConfigError(
            f"placement.rollout.cpus {_shown(given['rollout'])} are {served}, and engine.replicas "
            f"{settings.replicas} share them evenly; give a multiple of {settings.replicas}"
        )
    return found


def _chosen_cpus(key: str, wanted: Any, machine: Machine, taken: set[int]) -> tuple[int, ...]:
    if isinstance(wanted, tuple):
        if missing := [cpu for cpu in wanted if cpu not in machine.cpus]:
            raise ConfigError(
                f"placement.{key}: {machine.name} has no processor {missing[0]} for the trainer; choose among "
                f"{ranges(machine.cpus)}"
            )
        return wanted
    free = [cpu for cpu in machine.cpus if cpu not in taken]
    if wanted is not None and wanted > len(free):
        raise ConfigError(
            f"placement.{key} {wanted}: {machine.name} has {len(machine.cpus)} processors for the trainer, of which "
            f"{len(machine.cpus) - len(free)} are given to others; lower it, or list processors to share them"
        )
    return tuple(free[: wanted or 0])


def _check_gpus(key: str, numbers: Sequence[int], machine: Machine) -> None:
    if missing := [gpu for gpu in numbers if gpu >= len(machine.gpus)]:
        there = f"{len(machine.gpus)}, 0 to {len(machine.gpus) - 1}" if machine.gpus else "none"
        raise ConfigError(f"placement.{key} {list(numbers)}: {machine.name} has no GPU {missing[0]} (it has {there})")


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def ranges(numbers: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` -> ``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
