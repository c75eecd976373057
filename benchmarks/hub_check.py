"""The whole ``roll-envs check`` over every id that the installed packages bring in, as a table of packages.

    python benchmarks/hub_check.py OUT [--like TEXT ...] [--jobs N] [--timeout S] [--limit S] [--failed] [--report]

The result of each id is a file of its own in the folder OUT, so that a run that was cut off goes on where it was; with
--failed those that failed are checked again. Ids that need settings of the user's (an address, a folder) are left out.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roll_envs import env_registry as registry
from roll_envs.errors import RollError
from roll_envs.testing import CheckResult, check_env

Found = dict[str, Any]
"""What is written of an id: ``id``, ``source``, ``ok``, ``seconds``, and ``results``, each with its own ``seconds``."""


class _TooLong(Exception):
    """The limit of one id is over."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check what is left to check and print the tables; returns 1 when some id fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--like", nargs="+", default=[""], metavar="TEXT", help="only ids that hold one of these texts")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="ids that are checked at once (default 1)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each rule (default 60)")
    parser.add_argument("--limit", type=float, default=900.0, metavar="S", help="seconds for each id (default 900)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--failed", action="store_true", help="also those that failed before")
    what.add_argument("--report", action="store_true", help="check nothing, print what was found")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    sources = {
        each.id: each.source
        for each in registry.environments()
        if any(text in each.id for text in options.like) and not registry.settings_to_give(each.id)
    }
    left = [] if options.report else [id for id in sources if _is_left(_file(options.out, id), options.failed)]
    random.Random(0).shuffle(left)  # so that the first results are of every package
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in pool.map(lambda id: _checked(id, sources[id], options), left):
            print(f"{'ok  ' if done['ok'] else 'FAIL'} {done['seconds']:6.1f} s  {done['id']}", flush=True)
    found = [
        json.loads(file.read_text(encoding="utf-8")) for id in sources if (file := _file(options.out, id)).exists()
    ]
    print(_tables(found, len(sources) - len(found)))
    return 0 if all(each["ok"] for each in found) else 1


def _file(out: Path, id: str) -> Path:
    return out / f"{id.replace('/', '.')}.json"


def _is_left(file: Path, failed: bool) -> bool:
    return not file.exists() or (failed and not json.loads(file.read_text(encoding="utf-8"))["ok"])


def _checked(id: str, source: str, options: argparse.Namespace) -> Found:
    """Check one id, and write down what was found."""
    results: list[dict[str, Any]] = []
    started = last = time.monotonic()

    def note(result: CheckResult) -> None:
        nonlocal last
        now = time.monotonic()
        results.append({**asdict(result), "seconds": round(now - last, 2)})
        last = now
        if now - started > options.limit:
            raise _TooLong(f"not done within {options.limit:g} s, after {len(results)} rules")

    try:
        check_env(id, timeout_s=options.timeout, on_result=note)
    except (RollError, _TooLong) as error:
        what = "limit" if isinstance(error, _TooLong) else "load"
        results.append({"rule": what, "status": "fail", "detail": str(error), "seconds": 0.0})
    found = {
        "id": id,
        "source": source,
        "ok": all(result["status"] != "fail" for result in results),
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }
    _file(options.out, id).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


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
        rules = Counter(name for each in ids if not _is_slow(each) for name in _failed(each))
        seconds = [each["seconds"] for each in ids]
        broken = ", ".join(f"{name} {count}" for name, count in rules.most_common()) or "-"
        passed = sum(each["ok"] for each in ids)
        shown = f"{statistics.median(seconds):.0f} | {max(seconds):.0f}"
        lines.append(f"| {source} | {len(ids)} | {passed} ({passed / len(ids):.1%}) | {slow} | {broken} | {shown} |")
    lines += ["", f"{left} ids are not checked yet."] * bool(left)
    lines += ["", "| id | rule | finding |", "|---|---|---|"]
    lines += [f"| `{each['id']}` | {rule} | {said} |" for each in found for rule, said in _failed(each).items()]
    return "\n".join(lines)


def _is_slow(found: Found) -> bool:
    """Nothing but time was missing, of which a busy machine has less."""
    said = _failed(found).values()
    return bool(said) and all(each.startswith("not done within") for each in said)


def _failed(found: Found) -> dict[str, str]:
    """The rules that failed, with the first words of what each says."""
    failed = [result for result in found["results"] if result["status"] == "fail"]
    return {result["rule"]: " ".join(result["detail"].split())[:300].replace("|", "\\|") for result in failed}


if __name__ == "__main__":
    sys.exit(main())
