"""A table of several seeds of one configuration, from the summaries of their run folders; and their learning curves.

    python benchmarks/runs_table.py runs/frozenlake-tiny-seed* --plot docs/images/learning_curve.png

Prints Markdown: one row per seed (held-out success with its 95% Wilson interval before and after reinforcement
learning, turns, valid actions, seconds of training), then mean and spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any


def row(summary: dict[str, Any]) -> list[str]:
    """The cells of one run."""
    first, last = summary["phases"][0], summary["phases"][-1]

    def success(phase: dict[str, Any]) -> str:
        return f"{phase['success']:.3f} ({phase['interval_low']:.3f}-{phase['interval_high']:.3f})"

    return [
        str(summary["seed"]),
        success(first),
        success(last),
        f"{first['turns']:.2f} -> {last['turns']:.2f}",
        f"{first['valid_action_rate']:.3f} -> {last['valid_action_rate']:.3f}",
        f"{summary['training_seconds'].get('warm_start', 0):.0f}",
        f"{summary['training_seconds'].get('train', 0):.0f}",
        f"{summary['total_seconds']:.0f}",
    ]


def main() -> None:
    """Print the table; draw the curves when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of one configuration")
    parser.add_argument("--plot", type=Path, help="also draw all learning curves to this PNG")
    options = parser.parse_args()
    summaries = [json.loads((run / "summary.json").read_text()) for run in options.runs]
    summaries.sort(key=lambda s: s["seed"])
    head = "Seed|Success before (95% interval)|Success after|Turns|Valid actions|Warm start s|Training s|Total s"
    print("| " + " | ".join(head.split("|")) + " |")
    print("|" + "---|" * len(head.split("|")))
    for summary in summaries:
        print("| " + " | ".join(row(summary)) + " |")
    for words, index in (("before", 0), ("after", -1)):
        values = [s["phases"][index]["success"] for s in summaries]
        print(
            f"\nSuccess {words}: mean {statistics.mean(values):.3f}, from {min(values):.3f} to {max(values):.3f}",
            end="",
        )
        print(f", {summaries[0]['phases'][index]['tasks']} held-out tasks each.", end="")
    print()
    if options.plot:
        from trainer.run.plot import plot_runs

        plot_runs(options.runs, options.plot)


if __name__ == "__main__":
    main()
