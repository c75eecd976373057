"""How much memory a run will take on which device, from the configuration of its model alone: no weight is loaded.

What there is, is in :mod:`trainer.run.memory_items`; here it is put on devices and compared with what they have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from roll_envs.errors import ConfigError
from trainer.cluster.seats import leaves_devices, place, placed_engine, this_machine
from trainer.config import AdvantageConfig, LossConfig, RunConfig
from trainer.config.parts import BACKENDS, ENGINES, part_settings
from trainer.engines.preflight import RemoteSettings
from trainer.model.network import choose_device
from trainer.run.counted import count
from trainer.run.memory_items import (
    ALWAYS,
    BACKWARD,
    CRITIC_BACKWARD,
    CRITIC_STEP,
    LOADING,
    SAMPLING,
    STEP,
    Item,
    engine_items,
    gib,
    learner_items,
)

DOUBT = 1.25
"""A plan that is larger than the memory by more than this factor is refused; one between is run with a warning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """What takes memory, by device, and what the devices have."""

    items: Mapping[str, tuple[Item, ...]]
    """By the name of a device: cpu, cuda."""
    free: Mapping[str, float]
    """Bytes."""
    parameters: int
    """Of the model; tied weights once."""

    def phases(self, device: str) -> dict[str, float]:
        """Bytes in each phase: what is there always, and what is there in it."""
        sums: dict[str, float] = defaultdict(float)
        for item in self.items[device]:
            sums[item.when] += item.bytes
        always = sums.pop(ALWAYS, 0.0)
        return {ALWAYS: always, **{when: always + size for when, size in sums.items()}}

    def peak(self, device: str) -> tuple[str, float]:
        """The phase that takes most, and its bytes."""
        return max(self.phases(device).items(), key=lambda entry: entry[1])

    def problem(self, device: str) -> str:
        """What to say when it is larger than the device's memory, and which keys to turn; else nothing."""
        when, size = self.peak(device)
        if size <= self.free[device]:
            return ""
        there = sorted((i for i in self.items[device] if i.when in (ALWAYS, when)), key=lambda item: -item.bytes)
        largest = ", ".join(f"{item.owner}: {item.what} {gib(item.bytes)}" for item in there[:4])
        keys = dict.fromkeys(key for item in there for key in item.keys)
        smaller = f"what makes it smaller, the most first: {', '.join(keys)}" if keys else "no key makes it smaller"
        return (
            f"{device}: the run takes about {gib(size)} GiB (most of it: {largest}), and {gib(self.free[device])} "
            f"GiB are free; {smaller}"
        )

    def check(self) -> list[str]:
        """Warnings about what may not fit. Raises :class:`ConfigError` for what cannot."""
        problems = {device: self.problem(device) for device in self.items}
        hopeless = [p for device, p in problems.items() if p and self.peak(device)[1] > DOUBT * self.free[device]]
        if hopeless:
            raise ConfigError("not enough memory; nothing was loaded.\n" + "\n".join(hopeless))
        return [f"This may not fit. {problem}" for problem in problems.values() if problem]


def free_memory(device: str) -> float:
    """Bytes that can be had of a device now; of the CPU's, what the system says and the control group allows."""
    if device != "cpu":
        return float(torch.cuda.mem_get_info(torch.device(device))[0])
    found = [
        1024.0 * int(line.split()[1]) for line in _read("/proc/meminfo").splitlines() if line.startswith("MemAvailable")
    ]
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.strip().isdigit() and used.strip().isdigit():
        inactive = [
            int(x.split()[1]) for x in _read("/sys/fs/cgroup/memory.stat").splitlines() if "inactive_file " in x
        ]
        found.append(float(limit) - float(used) + sum(inactive[:1]))
    return min(found, default=float("inf"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _placed(config: RunConfig) -> tuple[RunConfig, tuple[str, str]]:
    """The configuration with the devices that its engine has here, and the names of the learner's and the engine's."""
    machine = this_machine()
    placement = place(config, machine)
    engine = placed_engine(config, placement, machine)
    learner = (
        f"cuda:{placement.learner[0]}" if any(placement.learner[:1]) else choose_device(config.learner.device).type
    )
    settings = part_settings(engine, ENGINES.find(engine.name))
    processor = isinstance(settings, RemoteSettings) and not settings.on_gpu(engine.device)
    serves = choose_device("cpu" if processor else engine.device)
    gpu = serves.index or 0
    other = "cpu" if serves.type == "cpu" else gpu_names(config, learner).get(gpu, f"cuda:{gpu}")
    if placement.shared and "gpus" in (engine.model_extra or {}) and not placement.sleepers:  # awake beside the learner
        engine = engine.model_copy(update={"gpus": None, "replicas": 1})
    if placement.shared:
        other = learner
    return config.model_copy(update={"engine": engine}), (learner, other)


def gpu_names(config: RunConfig, learner: str) -> dict[int, str]:
    """What a plan calls each GPU of ``learner`` (which is its name for them), reference and critic: those of one part
    are alike, and called by the first."""
    placed = config.placement
    names = {} if learner == "cpu" else dict.fromkeys(placed.learner.devices or range(placed.learner.ranks), learner)
    for chosen in (placed.reference.device, placed.critic.device):
        if isinstance(chosen, tuple) and (others := [gpu for gpu in chosen if gpu not in names]):
            names.update(dict.fromkeys(others, f"cuda:{others[0]}"))
    return names


def _devices_of(config: RunConfig, item: Item, learner: str) -> tuple[str, ...]:
    """Where something of the learner is: ``placement`` may say otherwise for reference and critic."""
    if item.home:
        return (item.home,)
    name = item.what.partition(":")[0]
    chosen = getattr(config.placement, name).device if name in ("reference", "critic") else None
    if chosen is None:
        return (learner,)
    names = gpu_names(config, learner)
    return ("cpu",) if chosen == "cpu" else tuple(dict.fromkeys(names[gpu] for gpu in chosen))


def _between_steps(config: RunConfig, item: Item, where: str) -> list[Item]:
    """What is on a device always, for a learner that leaves it between steps: in the phases of a step alone."""
    if where == "cpu" or item.when != ALWAYS or not leaves_devices(config):
        return [item]
    phases = (BACKWARD, STEP, CRITIC_BACKWARD, CRITIC_STEP) if not config.without("critic") else (BACKWARD, STEP)
    return [item._replace(when=phase) for phase in phases]


def make_plan(
    config: RunConfig,
    model: Any,
    *,
    devices: tuple[str, str] | None = None,
    free: Mapping[str, float] | None = None,
    threads: Callable[[int], int] = lambda numbers: 1,
    here: int | None = None,
) -> MemoryPlan:
    """The plan of a run of ``config`` with a model of Hugging Face configuration ``model``: on each device that of the
    warm start or of training, whichever takes more.

    ``devices`` (the learner's, the engine's) and ``free`` bytes stand for those of this machine; ``threads`` says how
    many micro-batches of a model of so many parameters run side by side. ``here`` ranks of the learner are on the
    planned machine, where that does not follow from ``cluster``.
    """
    if devices is None:
        config, devices = _placed(config)
    plan = _phase_plan(config, model, devices, free, threads, here)
    if config.warm_start.steps:
        warm = _phase_plan(_warm_start_of(config), model, devices, free, threads, here)
        items = dict(plan.items)
        for device in items:
            if warm.peak(device)[1] > plan.peak(device)[1]:
                items[device] = tuple(item._replace(keys=_of_warm_start(item.keys)) for item in warm.items[device])
        plan = replace(plan, items=items)
    return plan


def _warm_start_of(config: RunConfig) -> RunConfig:
    """What is configured of the warm start, as if it were training: all weights, and neither reference nor critic."""
    learner = config.learner
    if hasattr(learner, "lora_rank"):
        learner = learner.model_copy(update={"lora_rank": 0})
    return config.model_copy(
        update={
            "learner": learner,
            "optimizer": config.warm_optimizer,
            "loss": LossConfig(name="reinforce"),
            "reward": config.reward.model_copy(update={"kl_coef": 0.0}),
            "advantage": AdvantageConfig(),
        }
    )


def _of_warm_start(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Adapters make the warm start no smaller: it always trains all weights."""
    return tuple("warm_start.steps" if key == "learner.lora_rank" else key for key in keys)


def _phase_plan(
    config: RunConfig,
    model: Any,
    devices: tuple[str, str],
    free: Mapping[str, float] | None,
    threads: Callable[[int], int],
    here: int | None,
) -> MemoryPlan:
    counted = count(config, model)
    learner, engine = devices
    items: dict[str, list[Item]] = defaultdict(list)
    if here is None:
        here = config.placement.learner.ranks if config.cluster == "local" else 0
    for item in learner_items(config, counted, learner, max(1, threads(counted.numbers) // max(here, 1))):
        for where in ("cpu",) if item.when == LOADING else _devices_of(config, item, learner):
            if here > 1 and where == "cpu":  # GPUs have a rank each
                keys = (*item.keys, "placement.learner.ranks")
                item = item._replace(what=f"{item.what}, in {here} ranks", bytes=here * item.bytes, keys=keys)
            items[where] += _between_steps(config, item, where) if here else []
            dropped = item.what.endswith("gradients")  # when the learner leaves
            if where != "cpu" and here and leaves_devices(config) and item.when == ALWAYS and not dropped:
                items["cpu"].append(item._replace(what=f"{item.what}, between steps", when=SAMPLING))
    # In one process, too, what is cut is a copy.
    if here != 1 or (config.placement.learner.ranks == 1 and BACKENDS.find(config.learner.backend).cuts):
        items["cpu"].append(Item("driver", "weights in float32", 4 * counted.numbers))
    if free is None:
        free = {device: free_memory(device) for device in {*items, learner, engine, "cpu"}}
        memory = free["cpu"] if engine == "cpu" else float(torch.cuda.mem_get_info(torch.device(engine))[1])
    else:
        free = {**dict.fromkeys(items, free[learner]), **free}
        memory = free[engine]
    items[engine] += engine_items(config, counted, engine, memory)
    there = {d: tuple(i for i in found if i.bytes) for d, found in items.items()}
    return MemoryPlan(items=there, free={device: free[device] for device in there}, parameters=counted.numbers)


def read_model_config(folder: Path) -> Any:
    """The Hugging Face configuration of the model in ``folder``. Raises :class:`ConfigError` where it cannot be read,
    or is of no causal language model of text alone."""
    try:
        found: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # files of others, read by a library that raises many kinds of errors
        raise ConfigError(f"model.path: cannot read '{folder}/config.json' ({error})") from error
    if type(found) not in MODEL_FOR_CAUSAL_LM_MAPPING or found.get_text_config() is not found:
        raise ConfigError(
            f"model.path: '{folder}' has a model of type {found.model_type!r}, which is no causal language model of "
            "text alone that transformers knows; use another model, or the text part of this one"
        )
    return found
