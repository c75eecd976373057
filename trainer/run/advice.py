"""What to look at where the numbers of a run say that little can be learnt from its episodes."""

from __future__ import annotations

from collections import Counter

from roll_envs.types import Metrics
from trainer.config import RunConfig

PATIENCE = 3
"""Steps in a row that must show the same before it is said."""


class Adviser:
    """Looks at each training step of a process, and says what it finds once."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._in_a_row: Counter[str] = Counter()

    def after(self, metrics: Metrics) -> list[str]:
        """Sentences for the user after a step with these ``metrics``; mostly none."""
        found = _found(self._config, metrics)
        for kind in _KINDS:
            self._in_a_row[kind] = self._in_a_row[kind] + 1 if kind in found else 0
        return [words for kind, words in found.items() if self._in_a_row[kind] == PATIENCE]


_KINDS = ("cut", "invalid", "alike")


def _found(config: RunConfig, metrics: Metrics) -> dict[str, str]:
    found = {}
    cut, valid = metrics.get("rollout/length_finish_rate", 0.0), metrics.get("rollout/valid_action_rate", 1.0)
    if cut > 0.5:
        found["cut"] = (
            f"{cut:.0%} of the answers were cut off at sampling.max_new_tokens = {config.sampling.max_new_tokens} "
            "(rollout/length_finish_rate); a larger limit lets them end."
        )
    elif valid < 0.1:
        found["invalid"] = (
            f"only {valid:.0%} of the answers had the form that the environment reads (rollout/valid_action_rate); "
            "`roll-train episodes RUN --index 0` shows one. A warm start or a clearer prompt helps."
        )
    if metrics.get("advantage/abs_mean") == 0.0:
        found["alike"] = (
            "all advantages were 0, since the episodes of each task had the same return (rollout/return_std), so that "
            "nothing is learnt from them. Easier tasks, a larger rollout.group_size or a higher sampling.temperature "
            "may help."
        )
    return {kind: f"For {PATIENCE} steps: {words}" for kind, words in found.items()}
