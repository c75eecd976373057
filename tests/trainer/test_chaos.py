"""A run in trouble for half a minute; ``chaos.py`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import GROUPS, SIZE, run
from forked import Forked

SECONDS = 40.0


def _checked(folder: Path) -> int:
    found = run(folder, SECONDS, pause_s=1.0)
    print(found, flush=True)
    settled = found["cursor"] - found["in_flight"]
    # Everything that was drawn was learnt from once, or is in flight; the ledger itself refuses what counts twice.
    assert found["groups_learnt"] >= settled == GROUPS * found["steps"]
    assert found["in_flight"] <= 3 * GROUPS
    assert sum(found["episodes"].values()) >= SIZE * settled
    assert found["episodes"]["completed"] > 0.9 * SIZE * settled
    assert found["steps"] >= 5
    assert sum(found["trouble"].values()) >= 5
    assert found["lag_max"] <= 2
    assert found["longest_step_s"] < 60
    assert found["failed_writes"] is None or found["failed_writes"] > 0
    assert not [words for words in found["children_left"] if "resource_tracker" not in " ".join(words)]
    return 0


@pytest.mark.slow
def test_no_task_is_lost_whatever_dies(tmp_path: Path) -> None:
    process = Forked(_checked, tmp_path, log=tmp_path / "log")
    assert process.wait(180) == 0, (tmp_path / "log").read_text()
