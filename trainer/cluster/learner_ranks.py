"""Starts and ends the ranks of a run's learner as ``placement.learner`` says; with one of them and no cluster, none."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll_envs.errors import RollError
from trainer.cluster.crew import Crew, Links, LocalLinks
from trainer.cluster.ranked import RankedLearner, RankedScorer, make_phase_learner, releases
from trainer.cluster.seats import place, this_machine
from trainer.config import RunConfig
from trainer.config.load import dump_config
from trainer.learner import Learner
from trainer.learner.snapshot import SavedFiles, notes_of, share_name
from trainer.model.network import LanguageModel, choose_device

_COLLECTIVES_S = 60.0
"""Collectives wait longer than the driver does by this, so that it is the driver that finds who is late."""
_POLL_S = 0.02
"""Between two looks at what ranks have written."""
_PARTS = {"model": "learner", "policy": "learner"}
"""What a checkpoint calls otherwise."""


class LearnerRanks(contextlib.AbstractContextManager["LearnerRanks"]):
    """The processes that a run's learner is in; use it with ``with``."""

    def __init__(self, config: RunConfig) -> None:
        """Nothing is started before the first learner is made."""
        self._config = config
        self._crew: Crew | None = None

    def learner(self, model: LanguageModel, *, warm_start: bool, threads: int) -> Learner:
        """The learner of a phase. One in this process trains ``model`` in place; one of ranks leaves it as it is.

        ``threads`` are those of all ranks on this machine. Raises :class:`ConfigError` where the ranks cannot be
        started, :class:`RankError` where one of them fails.
        """
        config = self._config
        if config.cluster == "local" and config.placement.learner.ranks == 1:
            return make_phase_learner(config, model, warm_start=warm_start, threads=threads)
        if self._crew is None:
            self._crew = self._started()
        threads = int(getattr(config.learner, "threads", 0)) or max(1, self._threads_of_a_rank(threads))
        return RankedLearner(self._crew, config, model, warm_start=warm_start, threads=threads)

    def snapshot(self, folder: Path, networks: Sequence[str], trained: Sequence[str]) -> RankSnapshot | None:
        """Copies, in the ranks' memory, of the weights of ``networks`` and the optimisers' states of ``trained``; None
        where the learner is in this process, or ranks on other machines do not see ``folder``."""
        crew = self._crew
        if crew is None or not _all_write_in(folder.resolve(), crew):
            return None
        states = crew.call("snapshot", _parts_of(networks), _parts_of(trained))[0]
        return RankSnapshot(crew, states, self._config.placement.learner.timeout_s)

    def restore(self, files: SavedFiles, networks: Sequence[str], trained: Sequence[str]) -> bool:
        """Give the ranks the weights and states in ``files``, which they read themselves; False where they cannot, or
        the learner is in this process."""
        crew = self._crew
        if crew is None or not all(crew.call("sees_folder", files.folder)):
            return False
        crew.call("load_share", files, _parts_of(networks), _parts_of(trained))
        return True

    def end(self) -> None:
        """End the ranks; the next learner has new ones."""
        if self._crew is not None:
            self._crew.end()
            self._crew = None

    def __exit__(self, *_: object) -> None:
        self.end()

    def _threads_of_a_rank(self, threads: int) -> int:
        placed = self._config.placement.learner
        return int(placed.cpus) if self._config.cluster == "ray" else threads // placed.ranks

    def _started(self) -> Crew:
        config, placed = self._config, self._config.placement.learner
        crew = Crew(_links(config), placed.start_timeout_s, "placement.learner.start_timeout_s")
        try:
            crew.call("check", dump_config(config), releases())
            host, port = crew.call("meet")[0]
            crew.call("join", host, port, config.learner.device, placed.timeout_s + _COLLECTIVES_S)
        except BaseException:
            crew.end()
            raise
        crew.set_timeout(placed.timeout_s)
        return crew


def _all_write_in(folder: Path, crew: Crew) -> bool:
    """Whether all ranks may write into the driver's ``folder``: on another machine one of that name may be another."""
    token = secrets.token_bytes(16)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as file:
            file.write(token)
            file.flush()
            return all(crew.call("sees_file", file.name, token))
    except OSError:  # what writes the checkpoint says it
        return False


class RankSnapshot:
    """A checkpoint's tensors in the memory of the ranks."""

    def __init__(self, crew: Crew, states: dict[str, Any], timeout_s: float) -> None:
        self._crew, self._timeout_s = crew, timeout_s
        self.states = states
        """Of the optimisers, by network; tensors on the meta device."""

    def write(self, folder: Path) -> None:
        """The ranks begin to write their files into ``folder``."""
        self._crew.call("write_share", folder.resolve())

    def wait(self, folder: Path, given_up: threading.Event) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of the ranks' files in ``folder``, by name, when all are whole. May be called in any thread.

        Raises OSError where a rank could not write, :class:`RankError` where one has ended, :class:`RollError` when
        they take longer than ``placement.learner.timeout_s`` or ``given_up`` is set.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            notes = notes_of(folder, self._crew.count)
            for rank, note in enumerate(notes):
                if note is not None and "error" in note:
                    raise OSError(note["errno"], f"rank {rank}: {note['error']}")
            if None not in notes:
                return {share_name(rank): note for rank, note in enumerate(notes) if note is not None}
            late = ", ".join(str(rank) for rank, note in enumerate(notes) if note is None)
            self._crew.check("write_share")
            if given_up.wait(_POLL_S):
                raise RollError(f"gave up waiting for rank {late} of the learner to write its part of a checkpoint")
            if time.monotonic() > until:
                raise RollError(
                    f"rank {late} of the learner did not write its part of a checkpoint to {folder.parent} within "
                    f"{self._timeout_s:g} s (placement.learner.timeout_s)"
                )


def _parts_of(names: Sequence[str]) -> dict[str, str]:
    """The ranks' names of a checkpoint's networks."""
    return {name: _PARTS.get(name, name) for name in names}


def _links(config: RunConfig) -> Links:
    if config.cluster == "ray":
        from trainer.cluster.ray_ranks import RayLinks

        return RayLinks(config)
    return LocalLinks(config.placement.learner.ranks, local_environments(config), config.placement.learner.timeout_s)


def check_ranks(config: RunConfig) -> None:
    """Raise :class:`ConfigError` or :class:`MissingExtraError` for ranks that cannot be started, before anything is."""
    if config.cluster == "ray":
        from trainer.cluster.ray_cluster import check_cluster
        from trainer.cluster.ray_ranks import cluster_wish

        check_cluster(cluster_wish(config))
    elif config.placement.learner.ranks > 1:
        local_environments(config)


def local_environments(config: RunConfig) -> list[dict[str, str]]:
    """The environment variables of each rank on this machine: which GPUs it has, and how it is reached.

    Raises :class:`ConfigError` for a placement that cannot be met, such as more ranks than GPUs.
    """
    count = config.placement.learner.ranks
    # Ranks of one machine need no network.
    common = {} if "GLOO_SOCKET_IFNAME" in os.environ or sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}
    if choose_device(config.learner.device).type == "cpu":
        return [common] * count
    machine = this_machine()
    placement = place(config, machine)
    seen = [",".join(machine.gpus[gpu] for gpu in placement.visible(rank)) for rank in range(count)]
    return [{**common, "CUDA_VISIBLE_DEVICES": names} for names in seen]


def move_beside(config: RunConfig, name: str, part: Any) -> None:
    """Bring the ``part`` (reference or critic) of a learner to the devices that ``placement`` gives to it."""
    if getattr(config.placement, name).device is None:
        return
    placement = place(config, this_machine())
    if devices := placement.devices_of(name, apart=isinstance(part, RankedScorer)):
        part.move(*devices)
