"""How fast the sandboxes of this machine are, and how many hostile programs they contain: a table in Markdown.

    python benchmarks/sandbox_backends.py [--slots 4] [--runs 400] [--backends local docker plain] [--attacks FOLDER]

``plain`` is the old way, a fresh interpreter with resource limits for each program; hostile programs are not given to
it, since it would not survive them, nor would this machine. On a machine that others use at the same time, start it
with ``nice -n -10`` as root: the jails then get that much more than the rest, too (``--boost``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from roll_envs.errors import RollError
from roll_envs.sandbox import Limits, Program, RunResult, Sandbox, make_sandbox

SOURCE = "print(1)"
ATTACK_LIMITS = Limits(wall_s=2.0, memory_mb=256, processes=32, files_mb=32)


class Row(NamedTuple):
    backend: str
    ready_ms: float
    p50_ms: float
    p95_ms: float
    per_s: float
    contained: str
    tier: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--backends", nargs="+", default=["local", "docker", "plain"])
    parser.add_argument("--attacks", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "attacks")
    parser.add_argument("--boost", action="store_true", help="raise the scheduling groups of the jails, too (root)")
    args = parser.parse_args()
    sys.path.remove(str(Path(__file__).resolve().parent))  # this file has the name of the package
    load = os.getloadavg()[0]
    rows = []
    for backend in args.backends:
        with contextlib.ExitStack() as open_now:
            try:
                run, sandbox = open_now.enter_context(BACKENDS.get(backend, hub_backend)(backend, args.slots))
            except RollError as error:
                print(f"{backend}: left out ({error})", file=sys.stderr)
                continue
            rows.append(measure(backend, run, sandbox, args))
    print(f"`{SOURCE}`, {args.runs} runs, {args.slots} slots; {os.cpu_count()} processors, Linux {platform.release()},")
    print(f"Python {platform.python_version()}, load before the start {load:.1f}, nice {os.nice(0)}\n")
    print("| backend | p50 ms, slot at rest | p50 ms | p95 ms | runs/s | hostile programs contained | tier |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        figures = f"{row.ready_ms:.1f} | {row.p50_ms:.1f} | {row.p95_ms:.1f} | {row.per_s:.0f}"
        print(f"| {row.backend} | {figures} | {row.contained} | {row.tier} |")


def measure(backend: str, run: Callable[[], bytes], sandbox: Sandbox | None, args: argparse.Namespace) -> Row:
    """One caller after a pause, one caller without pauses, and as many callers as slots."""

    def timed(_: object = None) -> float:
        started = time.perf_counter()
        assert run() == b"1\n"
        return 1000 * (time.perf_counter() - started)

    with ThreadPoolExecutor(args.slots) as threads:
        list(threads.map(timed, range(4 * args.slots)))
        if args.boost:
            boost()
        rested = []
        for _ in range(40):
            time.sleep(0.05)
            rested.append(timed())
        alone = [timed() for _ in range(args.runs)]
        started = time.perf_counter()
        list(threads.map(timed, range(args.runs)))
        per_s = args.runs / (time.perf_counter() - started)
    p95 = statistics.quantiles(alone, n=20)[-1]
    contained = "-" if sandbox is None else attack(sandbox, args.attacks)
    tier = "none" if sandbox is None else sandbox.run(Program(source=SOURCE)).isolation.tier
    return Row(backend, statistics.median(rested), statistics.median(alone), p95, per_s, contained, tier)


def boost() -> None:
    """Give our own scheduling group and those of all our children what ``nice`` gave to us alone."""
    mine = {os.getpid()}
    for _ in range(4):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    if int((entry / "stat").read_text("utf-8").rsplit(")", 1)[1].split()[1]) in mine:
                        mine.add(int(entry.name))
    for pid in mine:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(os.nice(0)), "ascii")


def attack(sandbox: Sandbox, folder: Path) -> str:
    """Whole programs of the collection that showed nothing, ended in time, and left the sandbox working."""
    if not (folder / "manifest.json").is_file():
        return "-"
    attacks = [a for a in json.loads((folder / "manifest.json").read_text("utf-8")) if a["mode"] == "run"]
    attacks = [a for a in attacks if (folder / a["file"]).is_file()]
    good = 0
    for entry in attacks:
        started = time.monotonic()
        with contextlib.suppress(RollError):
            result = sandbox.run(Program(source=(folder / entry["file"]).read_text("utf-8")), limits=ATTACK_LIMITS)
            good += contained(entry, result) and time.monotonic() - started < ATTACK_LIMITS.wall_s + 5
            good -= sandbox.run(Program(source=SOURCE)).stdout != b"1\n"
    return f"{good} of {len(attacks)}"


def contained(entry: dict[str, object], result: RunResult) -> bool:
    """Whether what the manifest says of one program is so, as far as its output and status tell."""
    leaks = entry.get("leak", [])
    assert isinstance(leaks, list)
    if any(leak.encode() in result.stdout + result.stderr for leak in leaks):
        return False
    if entry.get("benign_rc"):
        return result.ok
    if entry["category"] == "time":
        return result.status in ("timeout", "memory")
    if "expect_stdout" in entry:
        return result.stdout.strip() != str(entry["expect_stdout"]).encode()
    return not (entry.get("must_fail") or entry["category"] == "crash") or not result.ok


@contextlib.contextmanager
def hub_backend(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """A backend of the hub."""
    options = {"weakest_tier": "no-cgroup"} if name == "local" else {}
    with make_sandbox(name, slots=slots, **options) as sandbox:
        program = Program(source=SOURCE)
        yield (lambda: sandbox.run(program).stdout), sandbox


@contextlib.contextmanager
def plain(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """A fresh interpreter for each program, with resource limits and nothing else."""

    def run() -> bytes:
        with subprocess.Popen([sys.executable, "-c", SOURCE], stdout=subprocess.PIPE, env={}) as child:
            resource.prlimit(child.pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
            resource.prlimit(child.pid, resource.RLIMIT_CPU, (10, 10))
            return child.communicate(timeout=10)[0]

    yield run, None


BACKENDS = {"plain": plain}


if __name__ == "__main__":
    main()
