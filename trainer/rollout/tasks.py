"""Which tasks are played: train tasks drawn by step, and the fixed held-out panel. Stateless, so nothing is skipped or
played twice after a resume, and any host draws the same tasks.
"""

from __future__ import annotations

import hashlib

from roll_envs.types import Task
from trainer.config import EnvConfig

__all__ = ["HELD_OUT_SEEDS", "draw_tasks", "held_out_panel"]

HELD_OUT_SEEDS = 1_000_000_000
"""Seeds from here on are held out; train seeds lie below."""


def draw_tasks(env: EnvConfig, *, seed: int, first: int, count: int, split: str = "train") -> list[Task]:
    """The tasks with indices ``first`` to ``first + count - 1`` of a run's endless list."""
    return [_task(env, split, index, _train_seed(seed, split, index)) for index in range(first, first + count)]


def held_out_panel(env: EnvConfig, count: int, *, first: int = 0) -> list[Task]:
    """Tasks ``first`` to ``first + count - 1`` of the held-out panel: the same for every run."""
    return [_task(env, "held-out", index, HELD_OUT_SEEDS + index) for index in range(first, first + count)]


def _task(env: EnvConfig, split: str, index: int, seed: int) -> Task:
    return Task(env_id=env.id, split=split, index=index, seed=seed, kwargs=env.kwargs)


def _train_seed(run_seed: int, split: str, index: int) -> int:
    digest = hashlib.blake2b(f"{run_seed}|{split}|{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SEEDS
