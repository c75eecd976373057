"""The whole service under load, with workers killed meanwhile: nothing is lost, and every answer is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from service_fakes import local_or_skip

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "sandbox_service.py"


@pytest.mark.slow
def test_nothing_is_lost_when_workers_are_killed(tmp_path: Path) -> None:
    local_or_skip()
    seconds = os.environ.get("LOAD_SECONDS", "15")
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-P", str(BENCHMARK), "load", "--clients", "64", "--slots", "4", "--seconds", seconds]
    command += ["--kill-every", "0.7", "--json", str(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=float(seconds) + 180, check=False)
    print(done.stdout)
    assert numbers.is_file(), done.stderr[-3000:]
    found = json.loads(numbers.read_text())
    assert found["sent"] == found["answers"] == found["right"] >= 64, found
    assert (found["wrong"], found["faults"], found["health"]) == (0, 0, "ok"), found
    assert found["killed"] >= 5
    assert found["restarts"] >= 5
    # A warm-up aside, the memory of the service stays where it is.
    assert found["resident_mb_last_third"] < 1.1 * found["resident_mb_second_third"] + 5, found
    assert set(found["kinds"]) == {"exit code", "files", "output", "print", "stdin", "time out"}
    assert done.returncode == 0
