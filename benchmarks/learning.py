"""Several methods on the same tasks from the same first policy, several seeds each: a table, and curves with spread.

    python benchmarks/learning.py --envs frozenlake --seeds 0 1 2 --jobs 2 --folder runs/learning
    python benchmarks/learning.py --envs frozenlake --methods sync overlap async --folder runs/learning
    python benchmarks/learning.py --report-only --folder runs/learning --plot docs/images/methods.png

For each environment and seed one policy is warm-started with the committed configuration; every method then learns from
that policy with the same tasks, steps, episodes, optimiser and sampling. Runs that are in the folder already are not
made again, so that an interrupted benchmark goes on. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS: dict[str, list[str]] = {
    "grpo": ["advantage.name=grpo", "advantage.gamma=1.0"],
    "gigpo": ["advantage.name=gigpo"],
    "ppo": ["algorithm=ppo", "critic.lr=0.001", "critic.warmup_steps=3", "critic.minibatches=4"],
    "reinforce_pp": ["advantage.name=reinforce_pp", "advantage.gamma=1.0"],
}
"""Overrides over the committed configuration of the environment."""
MODES: dict[str, list[str]] = {mode: [f"rollout.mode={mode}"] for mode in ("sync", "overlap", "async")}
"""The committed method, with rollouts and updates in turns or side by side."""

CONFIGS = {"frozenlake": "configs/frozenlake_tiny.yaml", "sokoban": "configs/sokoban_tiny.yaml"}
WINDOW = 10
"""Training steps that a point of a curve is the mean of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One method on one environment with one seed."""

    env: str
    method: str
    seed: int
    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "summary.json").read_text(encoding="utf-8")))


def finished(folder: Path, name: str) -> Path | None:
    """The folder of the finished run ``name`` below ``folder``."""
    found = sorted(path.parent for path in folder.glob(f"{name}-seed*/summary.json"))
    return found[-1] if found else None


def train(folder: Path, name: str, config: str, seed: int, overrides: list[str]) -> Path:
    """Run ``roll-train`` unless the run is there; its folder."""
    done = finished(folder, f"{name}-{seed}")
    if done is not None:
        return done
    command = ["roll-train", config, f"seed={seed}", f"name={name}-{seed}", f"output={folder}", "learner.threads=1"]
    command[:1] = [sys.executable, "-c", "import sys; from trainer.cli import main; sys.exit(main(sys.argv[1:]))"]
    say(f"{name}, seed {seed}: begins")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, *overrides], capture_output=True, text=True, env=environment, check=False)
    done = finished(folder, f"{name}-{seed}")
    if ended.returncode or done is None:
        raise SystemExit(f"{name}, seed {seed}: exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    say(f"{name}, seed {seed}: {json.loads((done / 'summary.json').read_text())['phases'][-1]['success']:.3f}")
    return done


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def everything(
    folder: Path, envs: list[str], methods: list[str], seeds: list[int], *, jobs: int, steps: int | None
) -> list[Run]:
    """Every run, ``jobs`` at a time, of the configured number of training steps or of ``steps``."""
    locks = {(env, seed): threading.Lock() for env in envs for seed in seeds}

    def one(work: tuple[str, str, int]) -> Run:
        env, method, seed = work
        with locks[env, seed]:  # the first of them makes the policy that the others begin with
            begun = train(folder, f"{env}-start", CONFIGS[env], seed, ["steps=0"])
        overrides = [f"model.path={begun / 'model'}", "warm_start.steps=0", *(METHODS | MODES)[method]]
        overrides += [] if steps is None else [f"steps={steps}"]
        path = train(folder, f"{env}-{method}", CONFIGS[env], seed, overrides)
        return Run(env=env, method=method, seed=seed, path=path)

    # Seeds change fastest, so that no two of the first jobs wait for the same first policy.
    work = [(env, method, seed) for env in envs for method in methods for seed in seeds]
    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(one, work))


def existing(folder: Path, envs: list[str], methods: list[str], seeds: list[int]) -> list[Run]:
    """The runs that are there."""
    found = []
    for env in envs:
        for method in methods:
            for seed in seeds:
                path = finished(folder, f"{env}-{method}-{seed}")
                if path is not None:
                    found.append(Run(env=env, method=method, seed=seed, path=path))
    return found


def table(runs: list[Run]) -> str:
    """One row per environment and method."""
    head = "Environment|Method|Steps|Seeds|Success before|Success after|Mean after|Turns after|Training s"
    lines = ["| " + " | ".join(head.split("|")) + " |", "|" + "---|" * len(head.split("|"))]
    for env, method in dict.fromkeys((run.env, run.method) for run in runs):
        mine = [run.summary for run in runs if (run.env, run.method) == (env, method)]
        before, after = ([s["phases"][i]["success"] for s in mine] for i in (0, -1))
        cells = [
            env,
            method,
            "/".join(sorted({str(s["steps"]) for s in mine})),
            str(len(mine)),
            " ".join(f"{v:.3f}" for v in before),
            " ".join(f"{v:.3f}" for v in after),
            f"{statistics.mean(after):.3f}" + (f" (sd {statistics.stdev(after):.3f})" if len(after) > 1 else ""),
            f"{statistics.mean(s['phases'][-1]['turns'] for s in mine):.2f}",
            f"{statistics.mean(s['training_seconds'].get('train', 0.0) for s in mine):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curve(run: Run) -> list[float]:
    """Success of the training episodes at each step, as means of the last :data:`WINDOW` steps."""
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    values = [r["rollout/success_rate"] for r in records if r["phase"] == "train" and "rollout/success_rate" in r]
    return [statistics.mean(values[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(values))]


def plot(runs: list[Run], path: Path) -> None:
    """Mean and range over the seeds, one evaluation per environment."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    envs = list(dict.fromkeys(run.env for run in runs))
    figure, axes = plt.subplots(1, len(envs), figsize=(6 * len(envs), 4), squeeze=False, layout="constrained")
    for axis, env in zip(axes[0], envs, strict=True):
        for method in dict.fromkeys(run.method for run in runs if run.env == env):
            curves = [curve(run) for run in runs if (run.env, run.method) == (env, method)]
            steps = range(1, min(map(len, curves)) + 1)
            cut = [c[: len(steps)] for c in curves]
            means = [statistics.mean(values) for values in zip(*cut, strict=True)]
            (line,) = axis.plot(steps, means, label=f"{method} ({len(curves)} seeds)")
            low, high = ([f(values) for values in zip(*cut, strict=True)] for f in (min, max))
            axis.fill_between(steps, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        axis.set(title=env, xlabel="training step", ylabel="success of training episodes", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, print the table, draw the curves when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=sorted(CONFIGS), default=sorted(CONFIGS))
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *MODES], default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="training steps, in place of the configured number")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--plot", type=Path, help="also draw the curves to this PNG")
    parser.add_argument("--report-only", action="store_true", help="start nothing; report the runs that are there")
    options = parser.parse_args()
    if options.report_only:
        runs = existing(options.folder, options.envs, options.methods, options.seeds)
    else:
        runs = everything(
            options.folder, options.envs, options.methods, options.seeds, jobs=options.jobs, steps=options.steps
        )
    print(table(runs))
    if options.plot:
        plot(runs, options.plot)


if __name__ == "__main__":
    main()
