"""The whole ``roll-envs check`` over every id that the installed packages bring in, as a table of packages.

    python benchmarks/hub_check.py [OUT] [--like TEXT ...] [--jobs N] [--timeout S] [--limit S] [--failed] [--report]

The result of each id is a line of the file OUT (default: benchmarks/results/hub_check.jsonl), so that a run which was
cut off goes on where it was; with --failed those that failed are checked again. Ids that need the user's settings (an
address, a folder) are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from roll_envs import env_registry as registry
from roll_envs.errors import RollError
from roll_envs.testing import CheckResult, check_env

Found = dict[str, Any]
"""What is written of an id: ``id``, ``source``, ``date``, ``seconds``, ``rules`` that were tried, and those that
``failed`` with the first words of what each says."""
OUT = Path(__file__).parent / "results" / "hub_check.jsonl"


class _TooLong(Exception):
    """The limit of one id is over."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check what is left to check and print the tables; returns 1 when some id fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", nargs="?", default=OUT)
    parser.add_argument("--like", nargs="+", default=[""], metavar="TEXT", help="only ids that hold one of these texts")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="ids that are checked at once (default 1)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each rule (default 60)")
    parser.add_argument("--limit", type=float, default=900.0, metavar="S", help="seconds for each id (default 900)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--failed", action="store_true", help="also those that failed before")
    what.add_argument("--report", action="store_true", help="check nothing, print what was found")
    options = parser.parse_args(argv)
    sources = {
        each.id: each.source
        for each in registry.environments()
        if any(text in each.id for text in options.like) and not registry.settings_to_give(each.id)
    }
    before = _read(options.out)
    left = [id for id in sources if id not in before or (options.failed and before[id]["failed"])]
    random.Random(0).shuffle(left)  # so that the first results are of every package
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in pool.map(lambda id: _checked(id, sources[id], options), [] if options.report else left):
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done) + "\n")
            print(f"{'FAIL' if done['failed'] else 'ok  '} {done['seconds']:6.1f} s  {done['id']}", flush=True)
    found = [each for id, each in _read(options.out).items() if id in sources]
    print(_tables(found, len(sources) - len(found)))
    return 1 if any(each["failed"] for each in found) else 0


def _read(out: Path) -> dict[str, Found]:
    """The last result of each id."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return {each["id"]: each for each in map(json.loads, lines)}


def _checked(id: str, source: str, options: argparse.Namespace) -> Found:
    failed: dict[str, str] = {}
    started, rules = time.monotonic(), 0

    def note(result: CheckResult) -> None:
        nonlocal rules
        rules += 1
        if result.status == "fail":
            failed[result.rule] = result.detail
        if time.monotonic() - started > options.limit:
            raise _TooLong(f"not done within {options.limit:g} s, after {rules} rules")

    try:
        check_env(id, timeout_s=options.timeout, on_result=note)
    except (RollError, _TooLong) as error:
        failed["limit" if isinstance(error, _TooLong) else "load"] = str(error)
    return {
        "id": id,
        "source": source,
        "date": date.today().isoformat(),
        "seconds": round(time.monotonic() - started, 1),
        "rules": rules,
        "failed": {rule: " ".join(said.split())[:300] for rule, said in failed.items()},
    }


def _tables(found: list[Found], left: int) -> str:
    """A row for each package, and one for each id that fails."""
    of_source: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        of_source[each["source"]].append(each)
    lines = [
        "",
        "| package | ids | pass | not done in time | rules that fail | seconds, median | longest |",
        "|---" * 7 + "|",
    ]
    for source, ids in [*sorted(of_source.items()), *([("all", found)] if found else [])]:
        slow = sum(_is_slow(each) for each in ids)
        rules = Counter(name for each in ids if not _is_slow(each) for name in each["failed"])
        seconds = [each["seconds"] for each in ids]
        broken = ", ".join(f"{name} {count}" for name, count in rules.most_common()) or "-"
        passed = sum(not each["failed"] for each in ids)
        shown = f"{statistics.median(seconds):.0f} | {max(seconds):.0f}"
        lines.append(f"| {source} | {len(ids)} | {passed} ({passed / len(ids):.1%}) | {slow} | {broken} | {shown} |")
    lines += ["", f"{left} ids are not checked yet."] * bool(left)
    lines += ["", "| id | rule | finding |", "|---|---|---|"]
    lines += [
        f"| `{each['id']}` | {rule} | {said.replace('|', '&#124;')} |"
        for each in found
        for rule, said in each["failed"].items()
    ]
    return "\n".join(lines)


def _is_slow(found: Found) -> bool:
    """Nothing but time was missing, of which a busy machine has less."""
    said = found["failed"].values()
    return bool(said) and all(each.startswith("not done within") for each in said)


if __name__ == "__main__":
    sys.exit(main())
