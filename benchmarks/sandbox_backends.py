"""How fast the sandboxes of this machine are, and how many hostile programs they contain: a table in Markdown.

    python benchmarks/sandbox_backends.py [--slots 4] [--runs 400] [--rounds 3] [--backends NAME...] [--attacks FOLDER]

| name | what |
|---|---|
| local | the local sandbox, as strong as it gets here; `local:landlock` and so on: a weaker tier of it |
| docker | containers, where an engine answers (tests/sandboxes/docker_engine.sh run ... starts one) |
| remote | the service on this machine, with the local sandbox behind it, over loopback |
| rlimits | a fresh interpreter with resource limits for each program: no isolation |
| plain | a fresh interpreter for each program, and nothing else |
| gem, verl | what these packages run programs with; without isolation (`pip install --no-deps gem-llm verl`) |

Hostile programs are given to the sandboxes only: the others would not survive them, nor would this machine. All that is
asked for is measured in rounds, one after the other in each, and the median of the rounds is told, so that what else
the machine does meanwhile touches all alike. With ``nice -n -10`` as root and ``--boost`` the jails get that much more
of it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from roll_envs.errors import RollError
from roll_envs.sandbox import Limits, Program, RunResult, Sandbox, make_sandbox

SOURCE = "print(1)"
PROGRAM = Program(source=SOURCE)
Backend = Callable[[str, int], contextlib.AbstractContextManager[tuple[Callable[[], bytes], Sandbox | None]]]
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--backends", nargs="+", default=["local", "docker", "remote", "rlimits", "plain", "gem", "verl"]
    )
    parser.add_argument("--attacks", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "attacks")
    parser.add_argument("--boost", action="store_true", help="raise the scheduling groups of the jails, too (root)")
    args = parser.parse_args()
    sys.path.remove(str(Path(__file__).resolve().parent))  # this file has the name of the package
    load = os.getloadavg()[0]
    rows: dict[str, list[Row]] = {}
    for number in range(args.rounds):
        for backend in [b for b in args.backends if number == 0 or b in rows]:
            with contextlib.ExitStack() as open_now:
                try:
                    run, sandbox = open_now.enter_context(BACKENDS.get(backend, hub_backend)(backend, args.slots))
                except (RollError, ImportError) as error:
                    print(f"{backend}: left out ({error})", file=sys.stderr)
                    continue
                attacks = args.attacks if number == 0 else None
                rows.setdefault(backend, []).append(measure(backend, run, sandbox, attacks, args))
    print(
        f"`{SOURCE}`, {args.runs} runs, {args.slots} slots, median of {args.rounds} rounds (in brackets the best rate);"
    )
    print(f"{os.cpu_count()} processors ({processor()}), Linux {platform.release()},")
    loads = f"load before {load:.1f}, after {os.getloadavg()[0]:.1f}"
    print(f"Python {platform.python_version()}, {loads}, nice {os.nice(0)}\n")
    print("| backend | p50 ms, slot at rest | p50 ms | p95 ms | runs/s | hostile programs contained | tier |")
    print("|---|---|---|---|---|---|---|")
    for backend, rounds in rows.items():
        times = [statistics.median(getattr(row, name) for row in rounds) for name in ("ready_ms", "p50_ms", "p95_ms")]
        rates = sorted(row.per_s for row in rounds)
        figures = " | ".join(f"{value:.1f}" for value in times)
        rate = f"{statistics.median(rates):.0f} ({rates[-1]:.0f})"
        print(f"| {backend} | {figures} | {rate} | {rounds[0].contained} | {rounds[0].tier} |")


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def measure(
    backend: str, run: Callable[[], bytes], sandbox: Sandbox | None, attacks: Path | None, args: argparse.Namespace
) -> Row:
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
    contained = "-" if sandbox is None or attacks is None else attack(sandbox, attacks)
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
    options = {"minimum_isolation": "no-cgroup"} if name == "local" else {}
    with make_sandbox(name, slots=slots, **options) as sandbox:
        yield (lambda: sandbox.run(PROGRAM).stdout), sandbox


@contextlib.contextmanager
def local_tier(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """The local sandbox with a weaker tier than this machine could give."""
    from sandboxes.local import sandbox as module

    tier, strongest_first = name.partition(":")[2], vars(module)["candidates"]
    vars(module)["candidates"] = lambda view: [
        candidate for candidate in strongest_first(view) if candidate.isolation.tier == tier
    ]
    try:
        made = make_sandbox("local", slots=slots, minimum_isolation=tier)
    finally:
        vars(module)["candidates"] = strongest_first
    with made as sandbox:
        yield (lambda: sandbox.run(PROGRAM).stdout), sandbox


@contextlib.contextmanager
def remote(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """A service process on a free port of the loopback interface."""
    program = "import sys; from sandboxes.command import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--quiet", "--slots", str(slots)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            url = service.stdout.readline().split()[3]
            with make_sandbox("remote", url=url) as sandbox:
                yield (lambda: sandbox.run(PROGRAM).stdout), sandbox
        finally:
            service.terminate()


@contextlib.contextmanager
def rlimits(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """A fresh interpreter for each program, with resource limits and nothing else."""

    def run() -> bytes:
        with subprocess.Popen([sys.executable, "-c", SOURCE], stdout=subprocess.PIPE, env={}) as child:
            resource.prlimit(child.pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
            resource.prlimit(child.pid, resource.RLIMIT_CPU, (10, 10))
            return child.communicate(timeout=10)[0]

    yield run, None


@contextlib.contextmanager
def plain(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """A fresh interpreter for each program, as any user of this machine would start it."""

    def run() -> bytes:
        return subprocess.run([sys.executable, "-c", SOURCE], stdout=subprocess.PIPE, timeout=10, check=True).stdout

    yield run, None


@contextlib.contextmanager
def gem(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """GEM's Python tool with the sandbox type that is its default: none."""
    run_python = alone("gem.utils.sandbox").run_python
    bin_folder = os.path.dirname(sys.executable)  # it starts the `python` of PATH, which shall be this one
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH'].removeprefix(bin_folder + ':')}"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield (lambda: run_python(SOURCE, "none")[1].encode()), None


@contextlib.contextmanager
def verl(name: str, slots: int) -> Iterator[tuple[Callable[[], bytes], Sandbox | None]]:
    """verl's local code reward, which starts two processes for each program."""
    check = alone("verl.utils.reward_score.prime_code.utils").check_correctness

    def run() -> bytes:
        results, _ = check({"inputs": ["\n"], "outputs": ["1\n"]}, SOURCE, 10, False)
        return b"1\n" if results == [True] else b""

    yield run, None


def alone(module: str) -> ModuleType:
    """A module without the rest of its package, which would want all that a trainer needs."""
    if module in sys.modules:
        return sys.modules[module]
    top, *inner = module.split(".")[:-1]
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{top} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for depth in range(len(inner) + 1):
        package = ModuleType(".".join([top, *inner[:depth]]))
        package.__path__ = [str(folder.joinpath(*inner[:depth]))]
        sys.modules[package.__name__] = package
    return importlib.import_module(module)


BACKENDS: dict[str, Backend] = {
    "remote": remote,
    "rlimits": rlimits,
    "plain": plain,
    "gem": gem,
    "verl": verl,
    "local:no-cgroup": local_tier,
    "local:landlock": local_tier,
}


if __name__ == "__main__":
    main()
