"""The section ``placement``: which processes the parts of a run are in, and where."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainer.config.algorithm import Count, Positive, Seconds, Section


class LearnerPlacement(Section):
    """The ranks of the learner: processes that train one model together, each on a share of the sequences."""

    ranks: Positive = 1
    """Processes; 1 with cluster 'local' is the trainer's own process."""
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


class PlacementConfig(Section):
    """Which processes the parts run in, and where."""

    address: str | None = None
    """Address of the Ray cluster (host:port, or auto); null starts one here; cluster 'ray' only."""
    learner: LearnerPlacement = Field(default_factory=LearnerPlacement)


def placement_problems(cluster: str, placement: PlacementConfig) -> list[str]:
    """What of ``placement`` would have no effect, for people."""
    if cluster == "ray":
        return []
    learner, default = placement.learner, LearnerPlacement()
    unused = {"address": placement.address is not None}
    unused |= {f"learner.{key}": getattr(learner, key) != getattr(default, key) for key in ("cpus", "gpus")}
    return [
        f"placement.{key} is set, but cluster is {cluster!r}; set cluster to 'ray' or leave it out"
        for key, there in unused.items()
        if there
    ]
