"""Short ways to configure, run and kill tiny runs."""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from forked import Forked

from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import train
from trainer.run.report import Report

BASE: dict[str, Any] = {
    "format": 1,
    "name": "tiny",
    "steps": 5,
    "env": {"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 3, "format_penalty": -0.2}},
    "model": {"hidden_size": 16, "layers": 1, "heads": 2},
    "context": {"kind": "last", "turns": 0, "system_prompt": ""},
    "sampling": {"max_new_tokens": 3},
    "engine": {"max_tokens": 64},
    "warm_start": {"steps": 4, "episodes_per_step": 6, "oracle_share": 0.6, "lr": 1e-2, "lr_warmup_steps": 1},
    "rollout": {"groups_per_step": 3, "group_size": 3, "max_running": 8, "attempts": 1},
    "advantage": {"name": "gigpo"},
    "optimizer": {"lr": 5e-3, "lr_schedule": "linear"},
    "learner": {"pack_tokens": 64, "minibatches": 2},
    "evaluation": {"tasks": 12, "every": 2},
    "checkpoint": {"every": 1, "keep": 3},
}


def values(**changes: dict[str, Any] | Any) -> dict[str, Any]:
    """BASE with sections merged and values replaced; a recipe takes the place of its estimator."""
    merged = copy.deepcopy(BASE)
    if "algorithm" in changes:
        del merged["advantage"]
    for key, value in changes.items():
        if isinstance(value, dict) and key in merged and key != "env":
            merged[key].update(value)
        else:
            merged[key] = value
    return merged


def configured(tmp_path: Path, **changes: Any) -> RunConfig:
    return parse_config(yaml.safe_dump(values(output=str(tmp_path / "runs"), **changes)))


def run(tmp_path: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A whole run in this process; its folder and summary."""
    config = configured(tmp_path, **changes)
    with RunFolder.create(config) as folder:
        return folder.path, train(config, folder, Report.silent())


def write_config(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values(output=str(tmp_path / "runs"), **changes)))
    return path


def the_run(tmp_path: Path) -> Path | None:
    found = list((tmp_path / "runs").glob("tiny-*"))
    return found[0] if found else None


def stop_when(process: Forked, due: Callable[[], bool], number: int = signal.SIGKILL, timeout_s: float = 90) -> bool:
    """Send a signal as soon as ``due``; whether it was sent before the process ended by itself."""
    until = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < until:
        if due():
            process.send_signal(number)
            return True
        time.sleep(0.002)  # a busy wait would take the processor from the run
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        raise AssertionError("the moment to stop the run never came")
    return False


TIMED = ("time", "seconds")


def without_times(path: Path) -> list[dict[str, Any]]:
    """All metrics of a run but clocks."""
    return [
        {k: v for k, v in record.items() if k not in TIMED and not k.startswith("time/")}
        for record in read_metrics(path)
    ]


def assert_same_curve(a: Path, b: Path, tolerance: float = 1e-5) -> None:
    """The same records in the same order with the same numbers, and the same final weights, but for rounding."""
    first, second = without_times(a), without_times(b)
    assert [(r["phase"], r["step"]) for r in first] == [(r["phase"], r["step"]) for r in second]
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            where = f"{one['phase']} {one['step']} {name}: {value} / {other[name]}"
            if isinstance(value, float) and not name.startswith("mismatch/"):
                assert abs(value - other[name]) <= tolerance * max(1.0, abs(value)), where
            elif not isinstance(value, float):
                assert value == other[name], where
    left, right = load_checkpoint(a), load_checkpoint(b)
    assert (left.step, left.version, left.cursor) == (right.step, right.version, right.cursor)
    others = dict(right.model())
    for name, tensor in left.model():
        assert float((tensor - others[name]).abs().max()) < 1e-3, name
