"""Build the catalogue of the shop's full data once (build-index DATA OUT), and look at one that was built (info OUT).

It is then opened in milliseconds, by any number of processes that share its memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from envs.webshop.disk import Progress, build_index, open_index
from envs.webshop.disk.format import VERSION

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "build the catalogue of the shop from the full data, or look at one"

_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``build-index DATA OUT [...]`` and ``info PATH [--verify]``."""
    commands = parser.add_subparsers(dest="webshop_command", required=True, metavar="COMMAND")
    build = commands.add_parser("build-index", help="build a catalogue; the same command goes on after an interruption")
    build.add_argument("data", type=Path, metavar="DATA", help="folder of the original's files, or items_shuffle*.json")
    build.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    build.add_argument(
        "--attributes", type=Path, metavar="FILE", help="default: items_ins_v2*.json beside the products"
    )
    build.add_argument(
        "--human-instructions", type=Path, metavar="FILE", help="default: items_human_ins.json beside the products"
    )
    build.add_argument("--num-products", type=int, metavar="N", help="only the first N records")
    build.add_argument("--seed", type=int, default=0, help="of prices and price caps (default: 0)")
    build.add_argument("--workers", type=int, default=2, metavar="N", help="processes (default: 2; 0: this one only)")
    info = commands.add_parser("info", help="what a catalogue holds")
    info.add_argument("path", type=Path, metavar="PATH")
    info.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    for sub in (build, info):
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON on stdout")


def run(options: argparse.Namespace) -> int:
    """Build or describe a catalogue; returns the exit code. Raises :class:`RollError`."""
    as_json = bool(getattr(options, "json", False))
    if options.webshop_command == "build-index":
        path = build_index(
            options.data,
            options.out,
            attributes=options.attributes,
            human_instructions=options.human_instructions,
            num_products=options.num_products,
            seed=options.seed,
            workers=options.workers,
            progress=_Printer(),
        )
        _print(_describe(path, verify=False), as_json)
    else:
        _print(_describe(options.path, verify=options.verify), as_json)
    return 0


class _Printer:
    """Progress on stderr: a line per stage, and every few seconds."""

    def __init__(self) -> None:
        self.stage, self.printed_s = "", 0.0

    def __call__(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.stage == self.stage and now_s - self.printed_s < _EVERY_S and progress.fraction < 1.0:
            return
        self.stage, self.printed_s = progress.stage, now_s
        parts = [f"{progress.stage}: {progress.fraction:.0%}"]
        if progress.products_per_s:
            parts.append(f"{progress.products} products, {progress.products_per_s:.0f}/s")
        if progress.eta_s is not None:
            minutes, seconds = divmod(round(progress.eta_s), 60)
            parts.append(f"{minutes}:{seconds:02d} left")
        print(", ".join(parts), file=sys.stderr, flush=True)


def _describe(path: Path, *, verify: bool) -> dict[str, Any]:
    catalogue = open_index(path, verify=verify)
    manifest = catalogue.manifest
    return {
        "path": str(catalogue.path),
        "version": VERSION,
        "seed": manifest.seed,
        **manifest.counts,
        "bytes": sum((catalogue.path / name).stat().st_size for name in manifest.files),
        "sources": dict(manifest.sources),
        "checksums": "match" if verify else "not compared (--verify does)",
    }


def _print(description: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(description, indent=1, ensure_ascii=False))
        return
    for name, value in description.items():
        if isinstance(value, dict):
            for role, source in value.items():
                print(f"{name + ' ' + role:30} {source}")
        else:
            print(f"{name:30} {value}")
