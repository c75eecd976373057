"""Speed and memory of WebShop, beside what was recorded of the original on the same kind of machine.

    python benchmarks/webshop.py --data-dir FOLDER      # files in the original's format; else the shipped catalogue

Every figure is the median of several repetitions, each in a process of its own where memory or loading is measured.
Steps are of whole episodes with a search for the goal's own instruction in each, so that few answers repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import roll_envs
from envs.webshop.env import WebShopEnv

ORIGINAL = {
    "load, s": "4 (with imports)",
    "search, steps/s": "47",
    "open a product, steps/s": "53",
    "choose an option, steps/s": "61",
    "buy, steps/s": "40",
    "mixed, steps/s": "41",
    "100 sessions, MB": "720, and growing",
}
"""webshop-minimal with 1,000 products, one core of a 2-core machine, medians."""


def main() -> int:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with the original's files (default: the shipped catalogue)")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--part", choices=("load", "memory"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    made = {"data_dir": options.data_dir, "human_goals": options.data_dir is None}
    if options.part == "load":
        print(json.dumps(_load(made)))
        return 0
    if options.part == "memory":
        print(json.dumps(_memory(made)))
        return 0
    loads = [_in_process("load", options.data_dir) for _ in range(options.repeat)]
    memory = [_in_process("memory", options.data_dir) for _ in range(max(1, options.repeat // 2))]
    rows = {
        "import roll_envs and make, s": _median(loads, "import_s"),
        "load, s": _median(loads, "load_s"),
        "100 sessions, MB": _median(memory, "sessions_mb"),
        "100 sessions after 10,000 more episodes, MB": _median(memory, "after_mb"),
        "catalogue and index, MB": _median(memory, "catalogue_mb"),
        **_speed(made, options.episodes, options.repeat),
    }
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; roll-envs ", end="")
    print(f"{roll_envs.__version__}; {loads[0]['products']:.0f} products\n")
    print("| what | here | original |\n|---|---|---|")
    for name, value in rows.items():
        print(
            f"| {name} | {value:,.3g} | {ORIGINAL.get(name, '')} |"
            if value < 1000
            else f"| {name} | {value:,.0f} | {ORIGINAL.get(name, '')} |"
        )
    return 0


def _in_process(part: str, data_dir: str | None) -> dict[str, float]:
    chosen = ["--data-dir", data_dir] if data_dir else []
    command = [sys.executable, __file__, "--part", part, *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(f[name] for f in found)


def _load(made: dict[str, Any]) -> dict[str, float]:
    started = time.perf_counter()
    env = WebShopEnv(**made)
    return {
        "load_s": time.perf_counter() - started,
        "import_s": time.perf_counter() - _STARTED,
        "products": len(env.catalogue.store),
    }


_STARTED = time.perf_counter()


def _resident_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _memory(made: dict[str, Any]) -> dict[str, float]:
    before = _resident_mb()
    sessions = [WebShopEnv(**made) for _ in range(100)]
    loaded = _resident_mb()
    for place, env in enumerate(sessions):
        _play(env, place, lambda name, seconds: None)
    used = _resident_mb()
    for number in range(10_000):
        env = sessions[number % 100]
        env.reset(seed=number)
        env.step(f"search[{number} {number % 7}]")
        env.step("click[back to search]")
    return {"sessions_mb": used, "after_mb": _resident_mb(), "catalogue_mb": loaded - before}


def _play(env: WebShopEnv, number: int, tell: Callable[[str, float], None]) -> int:
    """One episode with every kind of step; ``tell`` gets the kind and the seconds of each. Returns its steps."""
    steps = 0

    def step(kind: str, action: str) -> None:
        nonlocal steps
        started = time.perf_counter()
        env.step(action)
        tell(kind, time.perf_counter() - started)
        steps += 1

    started = time.perf_counter()
    env.reset(seed=number)
    tell("reset", time.perf_counter() - started)
    step("search", f"search[{env.goal.instruction}]")
    step("turn the page", "click[next >]")
    step("turn the page", "click[< prev]")
    product = env.page.products[number % len(env.page.products)]
    step("open a product", f"click[{product.asin.lower()}]")
    step("read a sub-page", "click[description]")
    step("go back", "click[< prev]")
    for values in product.options.values():
        step("choose an option", f"click[{values[number % len(values)]}]")
    step("buy", "click[buy now]")
    return steps


def _speed(made: dict[str, Any], episodes: int, repeat: int) -> dict[str, float]:
    env = WebShopEnv(**made)
    seconds: dict[str, list[float]] = {}
    rates: list[float] = []
    for turn in range(repeat):
        steps = 0
        started = time.perf_counter()
        for number in range(turn * episodes, (turn + 1) * episodes):
            steps += _play(env, number, lambda kind, taken: seconds.setdefault(kind, []).append(taken))
        rates.append(steps / (time.perf_counter() - started))
    per_second = {f"{kind}, steps/s": 1 / statistics.median(taken) for kind, taken in seconds.items()}
    return {
        "search, ms": 1e3 * statistics.median(seconds["search"]),
        **per_second,
        "mixed, steps/s": statistics.median(rates),
    }


if __name__ == "__main__":
    sys.exit(main())
