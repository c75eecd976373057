"""An environment that does what its actions say, for tests of workers; importing this registers it."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium

import roll_envs
from roll_envs import AnyText, EnvironmentCard
from roll_envs.types import Task

OBEDIENT = "worker_envs:test/Obedient-v0"


class Obedient(gymnasium.Env[str, str]):
    """Answers with its process id, after doing what the action says: a word and a value."""

    instructions = "obey"
    splits = ()

    def __init__(self, *, closed: str = "", fails: str = "", close_s: float = 0.0, make_s: float = 0.0) -> None:
        time.sleep(make_s)
        if fails:
            raise ValueError(fails)
        self.action_space = self.observation_space = AnyText()
        self._closed, self._close_s, self._steps, self._busy = closed, close_s, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._steps = 0
        return f"{os.getpid()} {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._busy = True
        try:
            return self._obey(*action.partition(" ")[::2])
        finally:
            self._busy = False

    def _obey(self, word: str, value: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        info: dict[str, Any] = {}
        if word == "exit":
            os._exit(int(value))
        elif word == "kill":
            os.kill(os.getpid(), int(value))
        elif word == "leave":
            raise SystemExit(int(value))
        elif word == "raise":
            raise LookupError(value)
        elif word == "print":
            print(value, flush=True)
        elif word == "sleep":
            time.sleep(float(value))
        elif word == "lock":  # for ever, and no other thread of the process has a turn
            re.match("(a|a)+$", "a" * 60 + "b")
        elif word == "compute":
            until = time.process_time() + float(value)
            while time.process_time() < until:
                pass
        elif word == "spawn":
            info = {"child": subprocess.Popen(["sleep", "3600"]).pid}
        elif word == "fork":
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            info = {"child": child}
        elif word == "shell":
            os.system("sleep 60 &")
        elif word == "unsendable":
            info = {"lock": threading.Lock()}
        self._steps += 1
        return f"{os.getpid()} {self._steps}", 0.5, word == "end", False, info

    def close(self) -> None:
        time.sleep(self._close_s)
        if self._closed:
            with Path(self._closed).open("a") as file:
                file.write("closed in a step\n" if self._busy else "closed\n")


roll_envs.register(
    EnvironmentCard(
        id="test/Obedient-v0", entry_point="worker_envs:Obedient", summary="-", tests="-", turns="-",
        reward_range=(0.0, 1.0), rewards="-", success="-",
    )
)  # fmt: skip


def obedient(**kwargs: Any) -> Task:
    return Task(env_id=OBEDIENT, split="train", index=0, seed=7, kwargs=kwargs)
