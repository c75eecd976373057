"""Steps per second of environments in place, in worker processes and in Ray actors.

    python benchmarks/env_workers.py [--workers 2] [--envs 64] [--seconds 5] [--ray]

Every environment is asked for its next step as soon as its last answer is there, and reset after eight. Nothing else is
done here, so this is what the workers and the way to them allow; a model's answers take longer.
"""

from __future__ import annotations

import argparse
import queue
import time
from concurrent.futures import Future
from typing import Any

import roll_envs
from roll_envs.managers.episode import ResetRequest, StepRequest, perform
from roll_envs.managers.workers import EnvWorkers
from roll_envs.types import Task
from trainer.cluster import env_workers
from trainer.config import RolloutConfig

TASK = Task(env_id="roll/FrozenLake-v0", split="train", index=0, seed=3)
STEPS = 8


def request(count: int) -> ResetRequest | StepRequest:
    return StepRequest("no move") if count % (STEPS + 1) else ResetRequest(3 + count, "train")


def in_place(num_envs: int, seconds: float) -> float:
    envs = [roll_envs.make(TASK.env_id) for _ in range(num_envs)]
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for env in envs:
            perform(env, request(count // num_envs))
            count += 1
    return count / (time.perf_counter() - started)


def on_workers(workers: EnvWorkers, num_envs: int, seconds: float) -> float:
    envs = [made.result(60) for made in [workers.make(TASK) for _ in range(num_envs)]]
    answers: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
    counts = [0] * num_envs

    def ask(number: int) -> None:
        future = envs[number].ask(request(counts[number]))
        counts[number] += 1
        future.add_done_callback(lambda done: answers.put((number, done)))

    for number in range(num_envs):
        ask(number)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        number, done = answers.get(timeout=60)
        done.result()
        count += 1
        ask(number)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, default=64, help="environments of each worker")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ray", action="store_true", help="also Ray actors, on a cluster started here")
    options = parser.parse_args()
    total = options.workers * options.envs
    print(f"{total} environments in place: {in_place(total, options.seconds):,.0f} steps/s", flush=True)
    configs = [RolloutConfig(manager="process", workers=options.workers)]
    if options.ray:
        configs.append(RolloutConfig(manager="ray", workers=options.workers))
    for config in configs:
        with env_workers(config, [TASK]) as workers:
            assert workers is not None
            speed = on_workers(workers, total, options.seconds)
        print(f"{total} environments in {options.workers} workers, {config.manager}: {speed:,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
