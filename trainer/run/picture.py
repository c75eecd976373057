"""Who sits where as a picture: the parts of a run by the device or the processors that they are on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from trainer.cluster.seats import Placement, ranges
from trainer.config import ROLES, RunConfig
from trainer.config.parts import ENGINES, part_settings
from trainer.engines.preflight import RemoteSettings

_ANY = "processors"
_SHOWN = 8
"""GPUs of a node that are shown; of more of them the first ones and the last."""


class Seat(NamedTuple):
    """A part of a run, and where it is."""

    place: str
    """A GPU's number, CPUs 2-3, processors, the address of a server."""
    who: str
    process: str


def seats(config: RunConfig, placement: Placement) -> list[Seat]:
    """Every part of the run that has a device or a process, those on GPUs first."""
    found = [*_learner(config, placement), *_engine(config, placement)]
    cpus, manager = placement.environment_cpus, config.rollout.manager
    where = "Ray cluster" if manager == "ray" else _cpus(cpus)
    kinds = {"thread": "this process", "process": "worker processes", "ray": "Ray actors"}
    found += [Seat(where, "environments", kinds[manager]), Seat(_ANY, "episodes", "this process")]
    for judge, gpus in zip(config.judges, placement.judges, strict=True):
        found += [Seat(place, f"judge {judge}", "a server") for place in map(str, gpus)]
        if not gpus:
            found.append(Seat(_cpus(placement.judge_cpus), f"judge {judge}", "a server"))
    if placement.sandbox_cpus:
        found.append(Seat(_cpus(placement.sandbox_cpus), "sandboxes", "processes of the environments"))
    return sorted(found, key=lambda seat: (not seat.place.isdigit(), int(seat.place) if seat.place.isdigit() else 0))


def _learner(config: RunConfig, placement: Placement) -> Iterator[Seat]:
    placed, on_ray = config.placement.learner, config.cluster == "ray"
    process = "a Ray actor" if on_ray else "a process" if placed.ranks > 1 else "this process"
    ray = f"Ray cluster, {placed.gpus:g} GPUs" if placed.gpus else "Ray cluster"
    for rank in range(placed.ranks):
        policy = str(placement.learner[rank]) if placement.learner else ray if on_ray else _ANY
        yield Seat(policy, f"learner {rank}", process)
        for name in (name for name in ROLES if not config.without(name)):
            gpus: tuple[int, ...] | None = getattr(placement, name)
            backend = config.backend_of(name)
            who = f"{name} {rank}" if backend == config.learner.backend else f"{name} {rank} ({backend})"
            yield Seat(policy if gpus is None else str(gpus[rank]) if gpus else _ANY, who, process)


def _engine(config: RunConfig, placement: Placement) -> Iterator[Seat]:
    settings = part_settings(config.engine, ENGINES.find(config.engine.name))
    if not isinstance(settings, RemoteSettings):
        yield Seat(str(placement.rollout[0][0]) if placement.rollout else _ANY, "engine 0", "this process")
        return
    for number in range(settings.servers):
        places = [f"GPUs {settings.gpus}" if settings.gpus else _ANY]
        if settings.urls:
            places = [settings.urls[number]]
        elif placement.rollout:
            places = [str(gpu) for gpu in placement.rollout[number]]
        elif placement.rollout_cpus:
            places = [_cpus(placement.rollout_cpus[number])]
        process = "a server" if settings.apart else "this process"
        process += ", asleep while the learner learns" if number in placement.sleepers else ""
        yield from (Seat(place, f"engine {number}", process) for place in places)


def _cpus(numbers: tuple[int, ...]) -> str:
    return f"CPUs {ranges(numbers)}" if numbers else _ANY


def worth_showing(found: list[Seat]) -> bool:
    """Whether more than one process or device takes part."""
    return len({seat.place for seat in found}) > 1 or {seat.process for seat in found} != {"this process"}


def picture(found: list[Seat], *, gpus_of_node: int | None = None) -> Table:
    """A row for each place; GPUs are named by their node where nodes have ``gpus_of_node`` each."""
    table = Table("Where", "Who", "Process", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    by_place: dict[str, list[Seat]] = {}
    for seat in found:
        by_place.setdefault(seat.place, []).append(seat)
    numbers = [int(place) for place in by_place if place.isdigit()]
    for place, here in by_place.items():
        words = place
        if place.isdigit():
            node, gpu = divmod(int(place), gpus_of_node or len(numbers) + int(place) + 1)
            words = f"GPU {gpu}" if gpus_of_node is None else f"node {node}, GPU {gpu}"
            last = gpu + 1 == gpus_of_node or int(place) == numbers[-1]
            if gpu >= _SHOWN and not last:
                continue
            if gpu > _SHOWN:
                table.add_row("...")
        processes = dict.fromkeys(seat.process for seat in here)
        table.add_row(words, Text(" + ".join(seat.who for seat in here)), Text("; ".join(processes), style="dim"))
    return table
