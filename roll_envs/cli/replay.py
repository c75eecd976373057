"""Play recorded episodes again and show the first thing that is not as it was: failed episodes too.

roll-envs replay episode.json
roll-envs replay runs/NAME/episodes/failed.jsonl --index 3
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import asdict
from pathlib import Path

from roll_envs import env_registry as registry
from roll_envs.cli.common import paint, print_json, silent
from roll_envs.errors import ConfigError
from roll_envs.records import Record, Replayed, play_again, read_records

SUMMARY = "play recorded episodes again; exit code 1 when one goes another way"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``FILE [--index N] [--timeout S]``."""
    parser.add_argument(
        "file", metavar="FILE", type=Path,
        help="JSON of `roll-envs play --json`, or JSON lines of a run: episodes/*.jsonl, `roll-train episodes --json`",
    )  # fmt: skip
    parser.add_argument("--index", type=int, metavar="N", help="only episode N of the file, from 0")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each call (default 60)")


def run(options: argparse.Namespace) -> int:
    """Print a line per episode, and where it parts from its record; 1 when any does."""
    records = read_records(options.file)
    if options.index is not None and not 0 <= options.index < len(records):
        raise ConfigError(f"--index must be between 0 and {len(records) - 1}, not {options.index}")
    if not options.timeout > 0:
        raise ConfigError(f"--timeout must be above 0, not {options.timeout:g}")
    chosen = range(len(records)) if options.index is None else [options.index]
    found = []
    for index in chosen:
        record = records[index]
        with silent(True):  # what environments print is no part of the report
            again = play_again(record, functools.partial(registry.build, record.env_id, record.kwargs), options.timeout)
        found.append((index, record, again))
        if not options.json:
            _show(index, record, again)
    if options.json:
        print_json([{"index": i, "id": r.env_id, "seed": r.seed, **asdict(again)} for i, r, again in found])
    return int(any(again.difference for *_, again in found))


def _show(index: int, record: Record, again: Replayed) -> None:
    state = paint("differs", "red") if again.difference else paint("same", "green")
    played = f"{again.turns} of {len(record.turns)} turns, return {again.total:.4g}"
    print(f"{state:8} {index}  {record.env_id} seed {record.seed}: {played}")
    for text in (again.difference, again.fault and f"fails again: {again.fault}"):
        if text:
            print(f"         {text}", flush=True)
