"""Time and memory of playing episodes, an old checkout and this one in turns.

    python benchmarks/rollout_overhead.py --old ../main                   # machinery per turn, answers at once
    python benchmarks/rollout_overhead.py --old ../main --running 10000   # many running episodes: peak memory, too
    python benchmarks/rollout_overhead.py --old ../main --step            # quickstart's whole training step

Each measurement runs in a process of its own, in its checkout's folder, with its ``.venv`` where there is one.
"Machinery" is all but the model: environments, prompts, scheduling; one engine thread answers at once, with an id
that follows from the request's seed. Settings are those of configs/frozenlake_tiny.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

IMPORTS = r'''
import importlib

def find(name, *modules):
    """A name from where this commit, or one before trainer/ had rooms, has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise ImportError(name)

load_config = find("load_config", "trainer.config.load", "trainer.config_file")
Session = find("Session", "trainer.rollout.source", "trainer.rollout.session", "trainer.session")
'''

MEASURE = r'''
import json, queue, resource, sys, tempfile, threading, time
from concurrent.futures import Future
from pathlib import Path
import torch
torch.set_num_threads(1)
from roll_envs.policy import Policy
from roll_envs.types import Completion

mode, running, turns_wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = load_config(Path("configs/frozenlake_tiny.yaml"))
rollout = config.rollout.model_copy(update={"max_running": running})
config = config.model_copy(update={"rollout": rollout})


class AtOnce(Policy):
    """An engine thread that answers whatever is queued at once."""

    def __init__(self, tokenizer, stop_id):
        words = [tokenizer(w, add_special_tokens=False)["input_ids"] for w in ("Left", "Right", "Up", "Down")]
        self.said = [(*ids, stop_id) for ids in words]
        self.queue = queue.SimpleQueue()
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self):
        while True:
            seed, future = self.queue.get()
            ids = self.said[seed % 4]
            future.set_result(Completion(ids=ids, logprobs=(-1.0,) * len(ids), finish="stop", weight_version=0))

    def submit(self, prompt_ids, sampling, *, timeout_s, session=None):
        future = Future()
        self.queue.put((sampling.seed, future))
        return future

    def generate(self, prompt_ids, sampling, *, timeout_s, session=None):
        return self.submit(prompt_ids, sampling, timeout_s=timeout_s).result(timeout_s)

    def close(self):
        pass


draw_tasks = find("draw_tasks", "trainer.rollout.source", "trainer.rollout.tasks", "trainer.tasks")


def draw(first, count):
    if "indices" in draw_tasks.__code__.co_varnames:
        return draw_tasks(config.env, seed=0, indices=range(first, first + count))
    return draw_tasks(config.env, seed=0, first=first, count=count)


with Session(config) as session:
    if mode == "machinery":
        session._engine = AtOnce(session.model.tokenizer, session.settings.renderer.stop_ids[0])
    size = config.rollout.group_size
    groups = max(1, running // size)
    session.collect(draw(0, min(groups, 48)), size)  # makes the environments
    turns, first, started, cpu = 0, 1000, time.perf_counter(), time.process_time()
    while turns < turns_wanted:
        played = session.collect(draw(first, groups), size)
        turns += sum(len(t.turns) for g in played for t in g.trajectories)
        first += groups
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
result = {"ms_per_turn": 1e3 * seconds / turns, "cpu_ms": 1e3 * cpu / turns, "peak_gib": peak, "seconds": seconds}
print(json.dumps(result))
'''

STEP = r"""
import json, sys, tempfile, time
from pathlib import Path
RunFolder = find("RunFolder", "trainer.run.folder", "trainer.run_folder")
read_metrics = find("read_metrics", "trainer.run.folder", "trainer.run_folder")
train = find("train", "trainer.run.loop", "trainer.loop")
Report = find("Report", "trainer.run.report", "trainer.report")
config = load_config(Path("configs/frozenlake_tiny.yaml"))
with tempfile.TemporaryDirectory() as folder:
    config = config.model_copy(update={
        "output": folder, "steps": 6,
        "warm_start": config.warm_start.model_copy(update={"steps": 10}),
        "evaluation": config.evaluation.model_copy(update={"tasks": 1, "every": 0}),
        "checkpoint": config.checkpoint.model_copy(update={"every": 0}),
    })
    with RunFolder.create(config) as run:
        train(config, run, Report.silent())
        steps = [r for r in read_metrics(run.path, "train")][1:]
turns = [r["time/step_s"] for r in steps]
print(json.dumps({"ms_per_turn": 1e3 * sum(turns) / len(turns), "peak_gib": 0.0, "seconds": sum(turns)}))
"""


def measure(checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    """One process in ``checkout``."""
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    program = IMPORTS + (STEP if options.step else MEASURE)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(
        [python, "-c", program, options.mode, str(options.running), str(options.turns)],
        cwd=checkout, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout of the commit to compare with; left out: this one alone")
    parser.add_argument("--mode", choices=["machinery", "engine"], default="machinery", help="who answers")
    parser.add_argument("--running", type=int, default=384, help="episodes that run at the same time")
    parser.add_argument("--turns", type=int, default=8000, help="turns of one measurement, at least")
    parser.add_argument("--step", action="store_true", help="quickstart's whole step instead (ms are of a step)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    checkouts = {"new": Path(__file__).resolve().parents[1]}
    if options.old is not None:
        checkouts["old"] = options.old.resolve()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for i in range(options.rounds):
        for name in list(checkouts)[:: 1 if i % 2 else -1]:
            found[name].append(measure(checkouts[name], options))
    what = "step" if options.step else f"turn, {options.running} running, {options.mode}"
    print(f"| Checkout | ms a {what} (median, range) | Peak GiB |\n| --- | --- | --- |")
    for name, results in found.items():
        ms = [r["ms_per_turn"] for r in results]
        print(
            f"| {name} | {statistics.median(ms):.3f} ({min(ms):.3f}-{max(ms):.3f}) | "
            f"{max(r['peak_gib'] for r in results):.2f} |"
        )
    if "old" in found:
        old, new = (statistics.median(r["ms_per_turn"] for r in found[name]) for name in ("old", "new"))
        print(f"| new / old | {new / old:.3f} | |")


if __name__ == "__main__":
    main()
