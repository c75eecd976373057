"""A run in trouble: everything around it dies, hangs or answers nonsense, and no task may be lost or count twice.

    python tests/trainer/chaos.py --minutes 10

Environments in worker processes raise, hang and end their process; workers and inference servers are killed; servers
drop connections, answer half or refuse; the disk of the records is full from the start. At the end the run is
interrupted as by Ctrl-C, and its ledger is printed and checked. The servers are ``fake_vllm``'s, in processes of their
own that the engine starts and restarts; all else is as in any run, in mode async.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from loop_runs import configured
from unreliable import UNRELIABLE
from vllm_engines import blank_model, made_environment

from trainer.config import RunConfig
from trainer.model.network import save_model
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import train
from trainer.run.report import Report

GROUPS, SIZE = 6, 4


def config_of(folder: Path) -> RunConfig:
    """A learning rate of 0, so that what the servers say stays true: every id as likely as any other."""
    save_model(blank_model(), folder / "model")
    return configured(
        folder,
        steps=1_000_000,
        env={"id": UNRELIABLE, "kwargs": {"raises": 0.01, "hangs": 0.001, "dies": 0.001}},
        model={"path": str(folder / "model"), "hidden_size": 64},
        engine={
            "name": "vllm",
            "venv": str(made_environment(folder / "venv")),
            "replicas": 2,
            "max_tokens": 64,
            "start_timeout_s": 30.0,
        },
        warm_start={"steps": 0},
        advantage={"name": "grpo"},
        optimizer={"lr": 0.0},
        rollout={
            "mode": "async", "max_staleness": 2, "manager": "process", "workers": 2,
            "groups_per_step": GROUPS, "group_size": SIZE, "max_running": 48, "attempts": 3,
            "env_timeout_s": 2.0, "turn_timeout_s": 20.0, "episode_timeout_s": 60.0, "max_failed_share": 1.0,
        },
        evaluation={"tasks": 4, "every": 50},
        checkpoint={"every": 10, "keep": 1},
    )  # fmt: skip


class Trouble:
    """Does one bad thing after the other, from a thread of its own."""

    def __init__(self, pause_s: float, runs: Callable[[], bool]) -> None:
        self.done: Counter[str] = Counter()
        self.rss: list[int] = []
        """Of this process, in bytes, about twice a second."""
        self._pause_s, self._runs, self._luck, self._over = pause_s, runs, random.Random(0), threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        kinds: dict[str, Callable[[], None]] = {
            "environment worker killed": lambda: self._kill("roll_envs.managers.host"),
            "server killed": lambda: self._kill("fake_vllm"),
            "connections dropped": lambda: self._misbehave(["drop", "half"] * 5),
            "nonsense answered": lambda: self._misbehave(["text", "empty", "list", "short"]),
            "refusals": lambda: self._misbehave(["503", "500"] * 5),
        }
        own = psutil.Process()
        wait_s = 0.0
        while not self._over.wait(0.5):
            if not self._runs():  # what fails while a run starts is its user's to see
                continue
            self.rss.append(own.memory_info().rss)
            wait_s += 0.5
            if wait_s < self._pause_s:
                continue
            wait_s = 0.0
            name = self._luck.choice(list(kinds))
            with contextlib.suppress(OSError, psutil.Error, IndexError):  # it is dead already, or not there yet
                kinds[name]()
                self.done[name] += 1

    def _processes(self, part: str) -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [child for child in children if any(part in word for word in child.cmdline())]

    def _kill(self, part: str) -> None:
        self._luck.choice(self._processes(part)).send_signal(signal.SIGKILL)

    def _misbehave(self, faults: list[str]) -> None:
        words = self._luck.choice(self._processes("fake_vllm")).cmdline()
        port = words[words.index("--port") + 1]
        body = json.dumps({"generate": faults}).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/misbehave", body, timeout=5).close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 64 KiB at ``folder``, which the records fill up soon; False where mounting is not allowed."""
    order = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(order, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def run(folder: Path, seconds: float, pause_s: float = 2.0) -> dict[str, Any]:
    """A run of so many seconds in trouble; what there is to check of it."""
    config = config_of(folder)
    alarm = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    alarm.daemon = True
    with (
        RunFolder.create(config) as made,
        small_disk(made.episodes_path) as full,
        Trouble(pause_s, lambda: bool(read_metrics(made.path, "train"))) as trouble,
        contextlib.suppress(KeyboardInterrupt),
    ):
        alarm.start()
        train(config, made, Report.silent())
    state = load_checkpoint(made.path)
    steps = read_metrics(made.path, "train")
    ends = [step["time"] for step in steps]
    half = len(trouble.rss) // 2
    return {
        "steps": len(steps),
        "groups_learnt": sum(step["rollout/episodes"] for step in steps) / SIZE,
        "cursor": state.cursor,
        "in_flight": len(state.progress["in_flight"]),
        "episodes": dict(state.progress["episodes"]),
        "trouble": dict(trouble.done),
        "longest_step_s": max((b - a for a, b in pairwise(ends)), default=0.0),
        "lag_max": max(step.get("staleness/lag_max", 0.0) for step in steps),
        "failed_writes": steps[-1].get("records/failed_writes", 0.0) if full else None,
        "rss_growth": max(trouble.rss[half:]) / max(trouble.rss[:half]) if half else 1.0,
        "children_left": [child.cmdline() for child in psutil.Process().children(recursive=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two troubles")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, value in run(Path(folder), 60 * options.minutes, options.pause).items():
            print(f"{name:16} {value}")


if __name__ == "__main__":
    main()
