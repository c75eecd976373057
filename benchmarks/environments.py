"""Speed of the built-in environments: resets, room generation and steps, beside the peers' figures.

    python benchmarks/environments.py [--json] [--quick]

One thread, thread CPU time, medians of several repeats; text observations and the reading of answers are part of a
step, no wrapper is. Peers that are installed (gymnasium's FrozenLake, gym_sokoban) are measured in the same run; the
other figures of peers were recorded on a similar 2-core machine and are marked so. Leaves out: anything with a model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import gymnasium

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import roll_envs
from envs.frozenlake.env import FrozenLakeEnv
from envs.sokoban import generator
from envs.sokoban.env import SokobanEnv
from roll_envs.env import TextEnv

Row = dict[str, Any]

SOKOBAN: dict[str, dict[str, Any]] = {
    "Sokoban 6x6/1/300": {"size": (6, 6), "num_boxes": 1, "search_depth": 300},
    "Sokoban 8x8/2/10": {"size": (8, 8), "num_boxes": 2, "search_depth": 10},
    "Sokoban 8x8/2/300": {"size": (8, 8), "num_boxes": 2, "search_depth": 300},
    "Sokoban 10x10/2/10": {"size": (10, 10), "num_boxes": 2, "search_depth": 10},
    "Sokoban 10x10/4/30": {"size": (10, 10), "num_boxes": 4, "search_depth": 30},
    "Sokoban 10x10/4/300": {"size": (10, 10), "num_boxes": 4, "search_depth": 300},
}
FROZEN_LAKE: dict[str, dict[str, Any]] = {
    "FrozenLake 4x4": {},
    "FrozenLake 4x4 slippery": {"is_slippery": True},
    "FrozenLake 8x8": {"size": 8},
}

# environment, peer, reset ms, steps/s: "recorded on a similar 2-core machine", see the module's docstring.
RECORDED: tuple[tuple[str, str, float, float | None], ...] = (
    ("Sokoban 6x6/1/300", "ROLL", 1.5, 440),
    ("Sokoban 8x8/2/10", "ROLL", 3, 480),
    ("Sokoban 8x8/2/300", "ROLL", 16, 480),
    ("Sokoban 10x10/4/30", "ROLL", 146, 650),
    ("Sokoban 10x10/4/300", "ROLL", 7960, 650),
    ("Sokoban 6x6/1/30", "verl-agent", 1.1, 31_700),
    ("Sokoban easy", "GEM", 5.3, 54_000),
    ("Sokoban hard", "GEM", 677, 43_000),
    ("Sokoban", "TextArena", 44, 8_100),
    ("FrozenLake 4x4", "ROLL", 0.35, 38_000),
    ("FrozenLake 4x4", "RAGEN", 0.43, 45_000),
    ("FrozenLake-v1 (fixed map, integers)", "Gymnasium", 0.011, 200_000),
)


def seconds_each(work: Callable[[int], object], count: int, repeats: int) -> float:
    """Median over ``repeats`` of the thread CPU seconds that one of ``count`` calls takes."""
    found = []
    for repeat in range(repeats):
        start = time.thread_time()
        for i in range(count):
            work(repeat * count + i)
        found.append((time.thread_time() - start) / count)
    return statistics.median(found)


def steps_per_second(env: Any, answers: list[Any], repeats: int) -> float:
    """Median steps per second of playing ``answers``; the resets in between are not counted."""
    found = []
    for repeat in range(repeats):
        env.reset(seed=repeat)
        step, clock, resets = env.step, time.thread_time, 0.0
        start = clock()
        for answer in answers:
            _, _, terminated, truncated, _ = step(answer)
            if terminated or truncated:
                stopped = clock()
                env.reset(seed=repeat)
                resets += clock() - stopped
        found.append(len(answers) / (clock() - start - resets))
    return statistics.median(found)


def measure(name: str, env: TextEnv, repeats: int, count: int) -> Row:
    """One row: reset, steps with answers that come again, steps with answers that are all new."""
    choose = random.Random(0)
    names = range(len(env.action_format.actions))
    again = [env.action_format.format([choose.choice(names)]) for _ in range(count)]
    new = [f"<think>Turn {i}, I try this.</think>{text}" for i, text in enumerate(again)]
    slow = "4/300" in name
    return {
        "environment": name,
        "by": "roll-envs",
        "reset_ms": 1e3 * seconds_each(lambda seed: env.reset(seed=seed), 10 if slow else 200, 3 if slow else repeats),
        "steps_per_s": steps_per_second(env, again, repeats),
        "steps_per_s_new_texts": steps_per_second(env, new, repeats),
        "source": "this run",
    }


def measure_rooms(repeats: int) -> list[Row]:
    """Room generation alone, compiled (if installed) and not."""
    rows: list[Row] = []
    searches = {"compiled": generator._compiled_draw_room, "pure Python": None}
    for label, search in searches.items():
        if label == "compiled" and search is None:
            continue
        generator._compiled_draw_room = search
        for name, kwargs in SOKOBAN.items():
            slow = kwargs["search_depth"] == 300 and kwargs["num_boxes"] > 1
            count, times = (10, 3) if slow else (100, repeats)
            arguments = (kwargs["size"], kwargs["num_boxes"], kwargs["search_depth"])
            each = seconds_each(lambda seed, a=arguments: generator.generate_room(*a, seed), count, times)  # type: ignore[misc]
            rows.append({"rooms": name, "search": label, "room_ms": 1e3 * each})
    generator._compiled_draw_room = searches["compiled"]
    return rows


def measure_batches(repeats: int) -> list[Row]:
    """Steps per second of one environment alone, of Gymnasium's batch of single ones, and of the batch of its own.

    Ended episodes are reset between the steps and not counted, as above; "with resets" counts them, which the usual
    batch (``NextStep``, 10 turns, random moves) does as a part of its steps. Each repeat is as many steps of all
    environments; of a batch of its own also the slowest and the quickest repeat are reported.
    """
    rows: list[Row] = []
    for id in ("roll/SimpleSokoban-v0", "roll/LargerSokoban-v0", "roll/FrozenLake-v0", "roll/FrozenLakeSlippery-v0"):
        single = roll_envs.make(id, max_turns=10**9)
        form = single.action_format  # type: ignore[attr-defined]
        choose = random.Random(0)
        answers = [form.format([choose.randrange(4)]) for _ in range(160 * 1024)]
        row: Row = {"batch": id, "single": steps_per_second(single, answers[: 16 * 1024], repeats)}
        for count in (64, 1024):
            steps = [answers[i : i + count] for i in range(0, 160 * count, count)]
            for mode, settings in (
                ("sync", {"vector_kwargs": {"autoreset_mode": "Disabled"}}),
                ("vector_entry_point", {"autoreset_mode": "Disabled"}),
            ):
                envs = gymnasium.make_vec(id, count, vectorization_mode=mode, max_turns=10**9, **settings)
                few = steps[: 16 if mode == "sync" else None]
                row[f"{mode} {count}"] = batch_steps_per_second(envs, few, repeats)
            usual = gymnasium.make_vec(id, count, vectorization_mode="vector_entry_point")
            row[f"with resets {count}"] = batch_steps_per_second(usual, steps, repeats)
        rows.append(row)
    return rows


def batch_steps_per_second(envs: Any, steps: list[list[str]], repeats: int) -> tuple[float, float, float]:
    """Least, median and most steps of environments per second; resets that are asked for are not counted."""
    disabled = envs.metadata["autoreset_mode"].value == "Disabled"
    found = []
    for repeat in range(repeats):
        envs.reset(seed=repeat)
        clock, resets = time.thread_time, 0.0
        start = clock()
        for answers in steps:
            _, _, terminated, truncated, _ = envs.step(answers)
            over = terminated | truncated
            if disabled and over.any():
                stopped = clock()
                envs.reset(options={"reset_mask": over})
                resets += clock() - stopped
        found.append(len(steps) * len(steps[0]) / (clock() - start - resets))
    return min(found), statistics.median(found), max(found)


def measure_gymnasium(repeats: int, count: int) -> Row:
    """Gymnasium's own FrozenLake (fixed map, integers, no text)."""
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Original

    env = Original(is_slippery=True)
    choose = random.Random(0)
    return {
        "environment": "FrozenLake-v1 (fixed map, integers)",
        "by": "Gymnasium",
        "reset_ms": 1e3 * seconds_each(lambda seed: env.reset(seed=seed), 200, repeats),
        "steps_per_s": steps_per_second(env, [choose.randrange(4) for _ in range(count)], repeats),
        "source": "this run",
    }


def measure_gym_sokoban() -> list[Row]:
    """gym_sokoban's room generation (search depth 300, not ROLL's patched copy), when it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import numpy as np
            from gym_sokoban.envs.room_utils import generate_room  # type: ignore[import-not-found]
    except Exception as error:  # its dependency gym is old and breaks in many ways
        print(f"gym_sokoban is not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return []

    def room(seed: int, size: tuple[int, int], boxes: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        try:
            generate_room(size, num_steps=int(1.7 * sum(size)), num_boxes=boxes)
        except (RuntimeError, RuntimeWarning):
            room(seed + 100_000, size, boxes)

    rows: list[Row] = []
    for size, boxes, count in (((6, 6), 1, 50), ((8, 8), 2, 20)):
        each = seconds_each(lambda seed, s=size, b=boxes: room(seed, s, b), count, 3)  # type: ignore[misc]
        rows.append(
            {
                "environment": f"Sokoban {size[0]}x{size[1]}/{boxes}/300 (rooms only)",
                "by": "gym_sokoban",
                "reset_ms": 1e3 * each,
                "source": "this run",
            }
        )
    return rows


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| environment | by | reset, ms | steps/s | steps/s, every text new | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        numbers = [f"{row[k]:,.0f}" if row.get(k) else "" for k in ("steps_per_s", "steps_per_s_new_texts")]
        lines.append(
            f"| {row['environment']} | {row['by']} | {row['reset_ms']:.3g} | {' | '.join(numbers)} | {row['source']} |"
        )
    return "\n".join(lines)


def batch_table(rows: list[Row]) -> str:
    """Batches as a Markdown table, in thousands: medians, and in brackets the slowest and the quickest repeat."""
    columns = [name for name in rows[0] if name != "batch"]
    lines = ["| 1,000 steps/s | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        shown = [row[name] if isinstance(row[name], tuple) else (row[name],) * 3 for name in columns]
        cells = [f"{middle / 1e3:,.0f} ({low / 1e3:,.0f}-{high / 1e3:,.0f})" for low, middle, high in shown]
        lines.append(f"| {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def room_table(rows: list[Row]) -> str:
    """Room generation as a Markdown table."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        times.setdefault(row["rooms"], {})[row["search"]] = row["room_ms"]
    lines = ["| rooms (size/boxes/search depth) | compiled, ms | pure Python, ms |", "|---|---:|---:|"]
    for name, by in times.items():
        lines.append(f"| {name} | {by.get('compiled', float('nan')):.3g} | {by['pure Python']:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, for a look rather than a record")
    options = parser.parse_args()
    repeats, count = (3, 10_000) if options.quick else (7, 50_000)
    endless: dict[str, Any] = {"max_turns": 10**9}
    rows = [measure(name, SokobanEnv(**kwargs, **endless), repeats, count) for name, kwargs in SOKOBAN.items()]
    rows += [measure(name, FrozenLakeEnv(**kwargs, **endless), repeats, count) for name, kwargs in FROZEN_LAKE.items()]
    rows.append(measure_gymnasium(repeats, count))
    rows += measure_gym_sokoban()
    for environment, by, reset_ms, steps in RECORDED:
        rows.append(
            {"environment": environment, "by": by, "reset_ms": reset_ms, "steps_per_s": steps, "source": "recorded"}
        )
    batches = measure_batches(repeats)
    rooms = measure_rooms(repeats)
    about = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "compiled_rooms": generator.COMPILED,
    }
    if options.json:
        print(json.dumps({"about": about, "environments": rows, "batches": batches, "rooms": rooms}, indent=1))
        return
    print("  ".join(f"{k}: {v}" for k, v in about.items()), end="\n\n")
    print(table(rows), end="\n\n")
    print(batch_table(batches), end="\n\n")
    print(room_table(rooms))


if __name__ == "__main__":
    main()
