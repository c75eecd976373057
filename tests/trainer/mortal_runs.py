"""Runs that kill themselves with SIGKILL at a chosen point, each in a process of its own.

Where a run dies is told by what anyone can see of it, not by the names of its functions: the environment counts resets
by the split of their tasks, and an audit hook counts what is done to files that a save has not finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forked import Forked

import roll_envs
import trainer.run.loop
from envs.frozenlake import FROZEN_LAKE
from envs.frozenlake.env import FrozenLakeEnv
from trainer.cli import main
from trainer.rollout.source import HELD_OUT_SEEDS

CARD = replace(FROZEN_LAKE, id="test/MortalLake-v0", entry_point="mortal_runs:MortalLake")
PLACES = ("train", "evaluation", "save")


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


def mortal_run(arguments: list[str], death: Death | None, log: Path) -> int:
    """``roll-train ARGUMENTS``: its exit status, or the number of its signal below 0. ``log`` gets its output and,
    where it ends by itself, in its last line how often it passed each place."""
    return Forked(_run, arguments, death, log=log).wait(120)


def _no_picture(folder: Path) -> None:
    """As in the fixture ``no_pictures``, which these processes don't have."""
    (folder / "learning_curve.png").write_bytes(b"\x89PNG, but for a picture")


def _run(arguments: list[str], death: Death | None) -> int:
    roll_envs.register(CARD)
    trainer.run.loop.plot_run = _no_picture
    COUNTER.death = death
    sys.addaudithook(_watch_saves)
    try:
        code = main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 99
    print("\n" + json.dumps(COUNTER.done), flush=True)
    return code
