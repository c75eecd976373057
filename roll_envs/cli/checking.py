"""Check environments with every rule of roll_envs.testing.check_env."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from roll_envs import env_registry as registry
from roll_envs.cli.common import add_kwargs, paint, parse_kwargs, print_json, silent
from roll_envs.errors import ConfigError, RollError, UnknownNameError
from roll_envs.testing.check import RULES, TIMEOUT_S, CheckReport, CheckResult, check_env

SUMMARY = "validate environments; exit code 1 when a rule fails"

_COLOURS = {"pass": "green", "fail": "red", "skip": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ID... | --all [--rules ...] [--seeds N] [--timeout S] [--kwargs ...]``."""
    parser.add_argument("ids", metavar="ID", nargs="*")
    parser.add_argument("--all", action="store_true", help="every known environment")
    parser.add_argument("--rules", nargs="+", metavar="RULE", help=f"only these: {', '.join(RULES)}")
    parser.add_argument("--seeds", type=int, default=6, metavar="N", help="how many seeds (default 6)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help=f"seconds for each rule (default {TIMEOUT_S:g})"
    )
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table per environment; 1 when any rule of any environment failed."""
    if bool(options.ids) == options.all:
        raise ConfigError("give environment ids, or --all for every known one")
    if options.seeds < 1:
        raise ConfigError(f"--seeds must be 1 or more, not {options.seeds}")
    for name in options.rules or ():
        if name not in RULES:
            raise UnknownNameError("rule", name, RULES)
    ids = list(dict.fromkeys(r.id for r in registry.environments())) if options.all else options.ids
    with silent(options.json):
        reports = [_check(env_id, options) for env_id in ids]
    if options.json:
        print_json([{"id": r.name, "ok": r.ok, "results": [asdict(x) for x in r.results]} for r in reports])
    return 0 if all(r.ok for r in reports) else 1


def _check(env_id: str, options: argparse.Namespace) -> CheckReport:
    print(paint(env_id, "bold"), flush=True)
    given = {"kwargs": parse_kwargs(options.kwargs), "rules": options.rules, "timeout_s": options.timeout}
    try:
        if options.all and (missing := set(registry.settings_to_give(env_id)) - set(given["kwargs"])):
            asked = ", ".join(sorted(missing))
            skipped = CheckResult(rule="load", status="skip", detail=f"it needs settings of yours (--kwargs): {asked}")
            _show(skipped)
            return CheckReport(name=env_id, results=(skipped,))
        report = check_env(env_id, seeds=range(options.seeds), on_result=_show, **given)
    except RollError as error:
        if not options.all:  # asked for by its id, so that it cannot be checked at all
            raise
        broken = CheckResult(rule="load", status="fail", detail=str(error))
        _show(broken)
        return CheckReport(name=env_id, results=(broken,))
    counts = {s: sum(r.status == s for r in report.results) for s in _COLOURS}
    print(f"  {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return report


def _show(result: CheckResult) -> None:
    print(f"  {paint(result.status, _COLOURS[result.status])}  {result.rule:24} {result.detail}", flush=True)
