"""List every known environment; one that cannot be used is shown with the reason."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from roll_envs import env_registry as registry
from roll_envs.cli.common import paint, print_json, table
from roll_envs.registry import Registration

SUMMARY = "known environments and their state"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(options: argparse.Namespace) -> int:
    """Print the table or JSON; broken packages are part of the answer, not an error."""
    found = registry.environments(load=True)
    # Of two packages with the same id one row is usable at most; only that one has a card.
    summaries = {r: registry.card(r.id).summary if r.state == "ready" else "" for r in found}
    if options.json:
        print_json([{**asdict(r), "summary": summaries[r]} for r in found])
        return 0
    if not found:
        print("no environments are installed")
        return 0
    broken = sum(bool(r.reason) for r in found)
    print(table([(_name(r), r.source, f"broken: {r.reason}" if r.reason else summaries[r]) for r in found]))
    if broken:
        print(paint(f"{broken} of {len(found)} cannot be used", "red"))
    return 0


def _name(found: Registration) -> str:
    return paint(found.id, "red" if found.reason else "bold")
