"""Check a data set before training: each reference is judged as if it were the answer."""

from __future__ import annotations

import argparse
from typing import Any

from roll_envs.cli.common import add_kwargs, parse_kwargs, print_json
from roll_envs.errors import ConfigError

SUMMARY = "check that each reference of a data set can be graded; exit code 1 when one cannot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``check FILE... --verifier NAME [--limit N] [--kwargs reference_field=...]``."""
    parser.add_argument("action", choices=["check"])
    parser.add_argument("files", metavar="FILE", nargs="+", help="JSON lines, JSON, CSV, Parquet or Arrow")
    parser.add_argument("--verifier", metavar="NAME", help="math, choice, em, f1, exact or normalized, for all rows")
    parser.add_argument("--limit", type=int, metavar="N", help="judge N rows, spread evenly (default all)")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Print every reference that is not right by itself, with its row; 1 when there is one."""
    from roll_envs.datasets.audit import AUDITED, audit
    from roll_envs.datasets.env import DatasetEnv, DatasetSettings

    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit must be 1 or more, not {options.limit}")
    kwargs: dict[str, Any] = {"path": options.files, **parse_kwargs(options.kwargs)}
    if options.verifier is not None:
        kwargs["verifier"] = options.verifier
    env = DatasetEnv(DatasetSettings(**kwargs))
    try:
        found = audit(env, most=options.limit)
    finally:
        env.close()
    if not found.judged:
        raise ConfigError(f"no row has a verifier whose references are answers; these are {', '.join(AUDITED)}")
    if options.json:
        findings = [finding._asdict() for finding in found.findings]
        print_json({"judged": found.judged, "skipped": found.skipped, "share": found.share, "findings": findings})
    else:
        for finding in found.findings:
            print(f"row {finding.row}: {finding.reference!r}: {finding.why}")
        right = found.judged - len(found.findings)
        print(f"{right} of {found.judged} references are right by themselves; {found.skipped} rows are not audited")
    return 1 if found.findings else 0
