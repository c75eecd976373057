"""The mix of environments that a run plays: which of them each task is of, their filters, and numbers of each.

Left out: the tasks themselves and how they are played (:mod:`trainer.rollout.source`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from roll_envs.types import Group, Metrics, Task
from trainer.algorithms.shaping import keep_groups
from trainer.config import MixedEnvConfig, RunConfig
from trainer.data.metrics import rollout_metrics

_STEP = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio."""
_REPORTED = ("success_rate", "return_mean", "turns_mean")
"""What is reported of each environment, of all that is measured of a rollout."""


class Mix:
    """The environments of a run, and how often each is played.

    Task ``i`` is of the environment in whose part of [0, 1), cut by the weights, the fractional part of
    ``offset + i / golden ratio`` falls; the offset follows from the run's seed. That sequence is spread evenly over
    every stretch of tasks (Weyl; of n tasks in a row an environment with share w has n w but for a few), and the same
    on any host. A run of one environment is a mix of it alone.
    """

    def __init__(self, config: RunConfig) -> None:
        self.environments = config.environments
        self._curriculum, self._mixed = config.curriculum, config.env is None
        self._filters = {env.short_name: config.filter_of(env) for env in self.environments}
        digest = hashlib.blake2b(f"{config.seed}|mix".encode(), digest_size=8).digest()
        self._offset = int.from_bytes(digest, "big")
        # In the middle, where the curriculum leaves the weights as they are configured.
        self._success = {env.short_name: 0.5 for env in self.environments}
        self._drawn: dict[int, str] = {}
        """Environments of the tasks in flight, which were drawn by the weights of their time."""

    def environment_of(self, task: Task) -> MixedEnvConfig:
        """The environment that ``task`` is of. Raises ValueError when it is of none of a mix."""
        if len(self.environments) == 1:
            return self.environments[0]
        for env in self.environments:
            if env.id == task.env_id and env.kwargs == task.kwargs:
                return env
        raise ValueError(f"a task of {task.env_id} with {dict(task.kwargs)} is of no environment of this mix")

    def weights(self) -> dict[str, float]:
        """Of each environment, with the curriculum: 4p(1-p), at least its floor, is 1 where half is solved."""
        found = {env.short_name: env.weight for env in self.environments}
        if self._curriculum.by == "success":
            for name, p in self._success.items():
                found[name] *= max(self._curriculum.floor, 4.0 * p * (1.0 - p))
        return found

    def configured(self, index: int) -> MixedEnvConfig:
        """The environment of task ``index`` by the configured weights alone."""
        return self._pick(index, [env.weight for env in self.environments])

    def draw(self, index: int) -> MixedEnvConfig:
        """The environment of training task ``index`` by the present weights; one that was drawn before stays."""
        drawn = self._drawn.get(index)
        env = next((env for env in self.environments if env.short_name == drawn), None)
        if env is None:
            env = self._pick(index, list(self.weights().values()))
            self._drawn[index] = env.short_name
        return env

    def _pick(self, index: int, weights: Sequence[float]) -> MixedEnvConfig:
        ends = list(accumulate(weights))
        # The upper 53 bits, so that the number is below 1 and exact.
        place = ((self._offset + index * _STEP) % 2**64 >> 11) / 2**53
        return self.environments[bisect_right(ends, place * ends[-1])]

    def settle(self, groups: Iterable[Group]) -> None:
        """Note how groups went that were trained on or dropped; the curriculum follows."""
        for group in groups:
            self._drawn.pop(group.task.index, None)
            scored = [episode.success for episode in group.trajectories if episode.scored]
            if scored:
                name = self.environment_of(group.task).short_name
                self._success[name] += (sum(scored) / len(scored) - self._success[name]) / self._curriculum.memory

    def save(self) -> dict[str, Any]:
        """What a checkpoint holds of the curriculum and of the tasks in flight."""
        return {"success": dict(self._success), "drawn": {str(i): name for i, name in sorted(self._drawn.items())}}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what :meth:`save` gave; of environments that are no longer in the mix nothing is kept."""
        self._success |= {name: float(p) for name, p in saved.get("success", {}).items() if name in self._success}
        self._drawn = {int(index): str(name) for index, name in saved.get("drawn", {}).items()}

    # -- groups ------------------------------------------------------------------------------------------------------

    def by_environment(self, groups: Iterable[Group]) -> dict[str, list[Group]]:
        """The groups of each environment by its name, in the order of the mix; empty lists too."""
        found: dict[str, list[Group]] = {env.short_name: [] for env in self.environments}
        for group in groups:
            found[self.environment_of(group.task).short_name].append(group)
        return found

    def keep(self, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
        """The groups that pass the filter of their environment, in order, and the counts of all filters together; see
        :func:`~trainer.algorithms.shaping.keep_groups`."""
        passed: set[int] = set()
        counts: Metrics = {}
        for name, mine in self.by_environment(groups).items():
            found, metrics = keep_groups(self._filters[name], mine)
            passed.update(map(id, found))
            for key, count in metrics.items():
                counts[key] = counts.get(key, 0.0) + count
        kept = [group for group in groups if id(group) in passed]
        if counts:  # of all groups, those of environments without a filter too
            counts |= {"filter/groups": float(len(groups)), "filter/kept": float(len(kept))}
        return kept, counts

    def metrics(self, groups: Sequence[Group]) -> Metrics:
        """What the groups of each environment of a mix were like; nothing where there is one environment.

        ``env/NAME/`` and: ``share`` of the groups; ``failed_share`` of the episodes; ``success_rate``, ``return_mean``
        and ``turns_mean`` over scored episodes; with a curriculum the ``weight`` by which tasks are drawn, as a share
        of all.
        """
        found: Metrics = {}
        if not self._mixed:
            return found
        weights = self.weights()
        for name, mine in self.by_environment(groups).items():
            measured, prefix = rollout_metrics(mine, prefix=""), f"env/{name}/"
            found |= {prefix + key: measured[key] for key in _REPORTED if key in measured}
            found[f"{prefix}share"] = len(mine) / max(1, len(groups))
            if measured["episodes"]:
                found[f"{prefix}failed_share"] = measured["outcome/failed"] / measured["episodes"]
            if self._curriculum.by != "none":
                found[f"{prefix}weight"] = weights[name] / sum(weights.values())
        return found
