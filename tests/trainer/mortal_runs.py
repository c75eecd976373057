"""Runs that kill themselves with SIGKILL at a chosen point, each in a process of its own.

The processes are forked from one that has loaded PyTorch already, so that a run costs its steps only. Where a run dies
is told by what anyone can see of it, not by the names of its functions: the environment counts resets by the split of
their tasks, and an audit hook counts what is done to files that a save has not finished.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import roll_envs
from envs.frozenlake import FROZEN_LAKE
from envs.frozenlake.env import FrozenLakeEnv
from trainer.cli import main
from trainer.rollout.source import HELD_OUT_SEEDS
from trainer.run.loop import train

CARD = replace(FROZEN_LAKE, id="test/MortalLake-v0", entry_point="mortal_runs:MortalLake")
PLACES = ("train", "evaluation", "save")
LOADED = train
"""The commands import the loop when they need it; here it must be loaded before anything is forked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """Die at the ``count``-th reset of a training or held-out task, or the ``count``-th change of a file of a save;
    ``delay_s`` later where that is above 0, which after a step's last reset is within its update."""

    place: str
    count: int
    delay_s: float = 0.0


class Counter:
    """What this process has done so far, by place, and what it dies of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = dict.fromkeys(PLACES, 0)
        self.death: Death | None = None

    def count(self, place: str) -> None:
        with self.lock:
            self.done[place] += 1
            death = self.death
            due = death is not None and death.place == place and death.count == self.done[place]
        if due:
            assert death is not None
            if death.delay_s:
                threading.Timer(death.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)


COUNTER = Counter()


class MortalLake(FrozenLakeEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        COUNTER.count("evaluation" if seed is not None and seed >= HELD_OUT_SEEDS else "train")
        return super().reset(seed=seed, options=options)


def _watch_saves(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.rename") and "/checkpoints/.unfinished-" in str(arguments[0]):
        COUNTER.count("save")


class Nursery:
    """A process that has loaded what a run needs and forks one for each."""

    def __init__(self) -> None:
        here = Path(__file__)
        path = os.pathsep.join([str(here.parent), *(p for p in sys.path if p)])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        program = f"import {here.stem}; {here.stem}.serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def run(self, arguments: list[str], death: Death | None, log: Path) -> int:
        """``roll-train ARGUMENTS``: its exit status, or the number of its signal below 0. ``log`` gets its output and,
        where it ends by itself, in its last line how often it passed each place."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": arguments, "death": None if death is None else asdict(death), "log": str(log)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=30)


def serve() -> None:
    """Fork a run for each line of stdin; print the status of its wait."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_run(order))
        print(os.waitpid(pid, 0)[1], flush=True)


def _run(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    torch.manual_seed(time.monotonic_ns() % 2**32)  # a process of its own would not begin like another one either
    roll_envs.register(CARD)
    COUNTER.death = None if order["death"] is None else Death(**order["death"])
    sys.addaudithook(_watch_saves)
    try:
        code = main(order["arguments"])
    except BaseException:
        traceback.print_exc()
        code = 99
    print("\n" + json.dumps(COUNTER.done), flush=True)
    return code
