"""Measure resets and steps per second of bare environments on one core, with text observations and answers read."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

from roll_envs.cli.common import add_kwargs, make_env, print_json, table
from roll_envs.env import AnyEnv
from roll_envs.errors import ConfigError
from roll_envs.testing.trace import mixed

SUMMARY = "resets and steps per second"

_ROUNDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ID... [--seconds S] [--kwargs ...]``."""
    parser.add_argument("ids", metavar="ID", nargs="+")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure (default 1)")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Print the medians of five rounds of thread time, so that other processes disturb little."""
    if not options.seconds > 0:
        raise ConfigError(f"--seconds must be above 0, not {options.seconds:g}")
    found = []
    for env_id in options.ids:
        env = make_env(env_id, options.kwargs)
        round_s = options.seconds / _ROUNDS
        # Each round resets to seeds of its own, since an environment may remember boards that it made.
        resets = statistics.median(_resets_per_s(env, round_s, first=1_000_000 * n) for n in range(_ROUNDS))
        steps = statistics.median(_steps_per_s(env, round_s) for _ in range(_ROUNDS))
        env.close()
        found.append({"id": env_id, "resets_per_s": round(resets, 1), "steps_per_s": round(steps, 1)})
    if options.json:
        print_json(found)
        return 0
    rows = [(f["id"], f"{f['resets_per_s']:>12,.0f}", f"{f['steps_per_s']:>12,.0f}") for f in found]
    print(table([("environment", "    resets/s", "     steps/s"), *rows]))
    return 0


def _resets_per_s(env: AnyEnv, seconds: float, first: int) -> float:
    count, started = 0, time.thread_time()
    while (took := time.thread_time() - started) < seconds:
        env.reset(seed=first + count)
        count += 1
    return count / took


def _steps_per_s(env: AnyEnv, seconds: float) -> float:
    """Steps of a random legal player; the resets between episodes are not counted."""
    env.reset(seed=0)
    player = mixed(0, garbage=0)
    answers = itertools.cycle([player(env) for _ in range(1009)])
    count, took = 0, 0.0
    while took < seconds:
        env.reset(seed=count)
        started, over = time.thread_time(), False
        while not over:
            count += 1
            _, _, terminated, truncated, _ = env.step(next(answers))
            over = terminated or truncated
        took += time.thread_time() - started
    return count / took
