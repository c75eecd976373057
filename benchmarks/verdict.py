"""Whether a run learned what it should have: reads summary.json, prints each condition, exits with 1 when one fails.

    python benchmarks/verdict.py RUN [--before-at-most 0.40] [--after-at-least 0.80] [--seconds-at-most N]

"Before" is the held-out evaluation before the first training step, "after" the one at the last; both must be complete.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TASKS = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict on one run; returns the exit status."""
    parser = argparse.ArgumentParser(description="Whether a run learned what it should have.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder of roll-train")
    parser.add_argument("--before-at-most", type=float, default=0.40, metavar="X")
    parser.add_argument("--after-at-least", type=float, default=0.80, metavar="X")
    parser.add_argument("--seconds-at-most", type=float, metavar="N")
    options = parser.parse_args(argv)
    try:
        summary = json.loads((options.run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"no verdict: {options.run / 'summary.json'} cannot be read ({error}); the run has not finished")
        return 2
    print(f"{options.run}: {summary['env']}, seed {summary['seed']}, {summary['total_seconds']:.0f} s")
    held = list(_conditions(summary, options))
    for words, good in held:
        print(f"  {'ok  ' if good else 'FAIL'}  {words}")
    return 0 if all(good for _, good in held) else 1


def _conditions(summary: dict[str, Any], options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    evaluations = {evaluation["step"]: evaluation for evaluation in summary["phases"]}
    before, after = evaluations.get(0), evaluations.get(summary["steps"])
    if before is None or after is None or before is after:
        yield f"an evaluation before the first and one after the last of {summary['steps']} steps", False
        return
    limit, bar = options.before_at_most, options.after_at_least
    yield f"success before {_interval(before)}, at most {limit:.2f}", before["success"] <= limit
    yield f"success after {_interval(after)}, at least {bar:.2f}", after["success"] >= bar
    counted = min(before["tasks"], after["tasks"])
    yield f"{counted} held-out tasks counted, at least {TASKS}", counted >= TASKS
    yield f"{before['failed'] + after['failed']} episodes failed, 0 allowed", before["failed"] + after["failed"] == 0
    if options.seconds_at_most is not None:
        seconds = summary["total_seconds"]
        yield f"{seconds:.0f} s, at most {options.seconds_at_most:.0f} s", seconds <= options.seconds_at_most


def _interval(evaluation: dict[str, Any]) -> str:
    return f"{evaluation['success']:.3f} ({evaluation['interval_low']:.3f}-{evaluation['interval_high']:.3f})"


if __name__ == "__main__":
    sys.exit(main())
