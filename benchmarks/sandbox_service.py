"""The code-reward service under load: a real server process with the local sandbox, and clients that check each answer.

python benchmarks/sandbox_service.py                    # everything, about four minutes
python benchmarks/sandbox_service.py load --seconds 15  # only the long load with workers that are killed

Every program has one right result, worked out beforehand; an answer that differs, or none, is counted as such. The
client's own repetitions after faults of the infrastructure are part of what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from roll_envs.errors import RollError
from roll_envs.sandbox import Limits, Program, RunResult, make_sandbox
from sandboxes.client import RemoteSandbox

CALL_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program and whether a result is the right one."""

    kind: str
    program: Program
    is_right: Callable[[RunResult], bool]
    limits: Limits = field(default_factory=Limits)


@dataclass(kw_only=True)
class Outcome:
    """What became of a load."""

    clients: int
    seconds: float = 0.0
    sent: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    killed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def numbers(self) -> dict[str, Any]:
        """For the table and for tests."""
        ordered = sorted(self.latencies_s) or [0.0]
        shares = {name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in QUANTILES.items()}
        third = max(1, len(self.resident_mb) // 3)
        return {
            "clients": self.clients,
            "seconds": round(self.seconds, 1),
            "sent": self.sent,
            "answers": len(self.latencies_s),
            "right": self.right,
            "wrong": len(self.wrong),
            "faults": len(self.faults),
            "killed": self.killed,
            "per_s": round(self.right / max(self.seconds, 1e-9), 1),
            **{name: round(1000 * value, 1) for name, value in shares.items()},
            "resident_mb_second_third": round(_median(self.resident_mb[third : 2 * third]), 1),
            "resident_mb_last_third": round(_median(self.resident_mb[-third:]), 1),
            "kinds": dict(sorted(self.kinds.items())),
            "first_wrong": self.wrong[:3],
            "first_faults": self.faults[:3],
        }


QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


def draw_job(random_: random.Random) -> Job:
    """One of the kinds of programs that trainers send."""
    return random_.choices([_prints, _reads, _long, _dies, _runs_on, _writes], weights=[8, 6, 2, 2, 1, 2])[0](random_)


def _prints(random_: random.Random) -> Job:
    a, b = random_.randrange(10**6), random_.randrange(10**6)
    wanted = f"{a * b}\n".encode()
    return Job(
        kind="print", program=Program(source=f"print({a} * {b})"), is_right=lambda r: r.ok and r.stdout == wanted
    )


def _reads(random_: random.Random) -> Job:
    stdin = random_.randbytes(random_.randrange(20_000))
    source = "import sys, hashlib\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    wanted = hashlib.sha256(stdin).hexdigest().encode() + b"\n"
    program = Program(source=source, stdin=stdin)
    return Job(kind="stdin", program=program, is_right=lambda r: r.ok and r.stdout == wanted)


def _long(random_: random.Random) -> Job:
    seed, size = random_.randrange(10**6), random_.randrange(100_000, 300_000)
    source = f"import sys, random\nsys.stdout.buffer.write(random.Random({seed}).randbytes({size}))"
    wanted = random.Random(seed).randbytes(size)
    return Job(kind="output", program=Program(source=source), is_right=lambda r: r.ok and r.stdout == wanted)


def _dies(random_: random.Random) -> Job:
    code = random_.randrange(1, 200)
    program = Program(source=f"print('x')\nraise SystemExit({code})")
    right = ("error", code, b"x\n")
    return Job(kind="exit code", program=program, is_right=lambda r: (r.status, r.exit_code, r.stdout) == right)


def _runs_on(_: random.Random) -> Job:
    program = Program(source="import time\nprint('so far', flush=True)\ntime.sleep(30)")
    limits = Limits(wall_s=0.5)
    return Job(kind="time out", program=program, limits=limits, is_right=lambda r: r.status == "timeout")


def _writes(random_: random.Random) -> Job:
    content = random_.randbytes(2000)
    source = "open('b', 'wb').write(open('a', 'rb').read()[::-1])"
    program = Program(source=source, files={"a": content}, fetch=("b",))
    return Job(kind="files", program=program, is_right=lambda r: r.ok and r.files == {"b": content[::-1]})


async def load(
    url: str,
    *,
    clients: int,
    seconds: float,
    seed: int,
    server: int | None,
    kill_every_s: float,
    only: str | None = None,
) -> Outcome:
    """``clients`` that ask one question after another for ``seconds``, while workers of ``server`` are killed."""
    outcome = Outcome(clients=clients)
    random_ = random.Random(seed)
    sandbox = RemoteSandbox(url, max_connections=clients, timeout_s=CALL_S)
    started = time.monotonic()

    async def ask_on(mine: random.Random) -> None:
        while time.monotonic() - started < seconds:
            job = _prints(mine) if only == "print" else draw_job(mine)
            outcome.sent += 1
            before = time.monotonic()
            try:
                result = await sandbox.arun(job.program, limits=job.limits, timeout_s=CALL_S)
            except RollError as error:
                outcome.faults.append(f"{job.kind}: {error}")
                continue
            outcome.latencies_s.append(time.monotonic() - before)
            outcome.kinds[job.kind] += 1
            if job.is_right(result):
                outcome.right += 1
            else:
                ended = f"{result.status} {result.exit_code} {result.signal}"
                outcome.wrong.append(f"{job.kind}: {ended} {result.stdout[:80]!r} {result.stderr[-300:]!r}")

    watch = asyncio.create_task(_watch(server, kill_every_s, outcome, random.Random(seed + 1)))
    try:
        await asyncio.gather(*(ask_on(random.Random(random_.random())) for _ in range(clients)))
    finally:
        outcome.seconds = time.monotonic() - started
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        sandbox.close()
    return outcome


async def _watch(server: int | None, kill_every_s: float, outcome: Outcome, random_: random.Random) -> None:
    """Samples the server's memory; kills a worker now and then."""
    if server is None:
        return
    pause_s = 0.25
    next_kill = time.monotonic() + kill_every_s
    while True:
        await asyncio.sleep(pause_s)
        outcome.resident_mb.append(_resident_mb(server))
        if kill_every_s and time.monotonic() >= next_kill:
            next_kill = time.monotonic() + kill_every_s * random_.uniform(0.5, 1.5)
            # Jails and the fork-servers in them; what is deeper are programs, whose death is theirs.
            first = _children(server)
            workers = first + [pid for parent in first for pid in _children(parent)]
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random_.choice(workers), signal.SIGKILL)
                    outcome.killed += 1


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, int]]:
    """A server process: its address and its pid. It must stop by itself when it is told to."""
    program = "import sys; from sandboxes.command import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--quiet", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "listens on" not in line:
                raise SystemExit(f"the service did not start: {line!r}")
            print(line.strip(), file=sys.stderr)
            yield line.split()[3], process.pid
            process.terminate()
            if process.wait(timeout=60) != 0:
                raise SystemExit(f"the service ended with {process.returncode}")
        finally:
            process.kill()


def measure_load(options: argparse.Namespace) -> dict[str, Any]:
    """The long load, and what the server says of it."""
    with served("--slots", str(options.slots), "--backend", options.backend) as (url, pid):
        outcome = asyncio.run(
            load(
                url,
                clients=options.clients,
                seconds=options.seconds,
                seed=options.seed,
                server=pid,
                kill_every_s=options.kill_every,
            )
        )
        told = httpx.get(url + "/metrics").text
        restarts = next(line for line in told.splitlines() if line.startswith("roll_sandbox_worker_restarts_total "))
        health = httpx.get(url + "/v1/health").json()
    numbers = outcome.numbers()
    numbers |= {
        "restarts": int(float(restarts.split()[1])),
        "health": health["status"],
        "tier": health["isolation"]["tier"],
    }
    return numbers


def measure_rates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """``print`` programs, without and with the service in between, for several numbers of clients."""
    rows = []
    with make_sandbox(options.backend, slots=options.slots) as sandbox:
        latencies = []
        for _ in range(options.runs):
            before = time.monotonic()
            assert sandbox.run(Program(source="print(1)")).stdout == b"1\n"
            latencies.append(time.monotonic() - before)
        latencies.sort()
        total = sum(latencies)
        rows.append(
            {
                "way": "the sandbox itself, no service",
                "clients": 1,
                "per_s": round(len(latencies) / total, 1),
                **{name: round(1000 * latencies[int(q * len(latencies))], 1) for name, q in QUANTILES.items()},
            }
        )
    with served("--slots", str(options.slots), "--backend", options.backend) as (url, pid):
        for clients in (1, 8, 64):
            outcome = asyncio.run(
                load(url, clients=clients, seconds=8, seed=clients, server=pid, kill_every_s=0, only="print")
            )
            numbers = outcome.numbers()
            assert numbers["right"] == numbers["sent"], numbers
            rows.append({"way": "POST /v1/run, RemoteSandbox", **numbers})
        for kind in HTTP_KINDS:
            for clients in (8, 64):
                rows.append(asyncio.run(_http_rate(url, kind, clients, 8.0)))
    return rows


async def _http_rate(url: str, kind: str, clients: int, seconds: float) -> dict[str, Any]:
    path, body_of, is_right = HTTP_KINDS[kind]
    outcome = Outcome(clients=clients)
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=CALL_S) as client:
        started = time.monotonic()

        async def ask_on(number: int) -> None:
            while time.monotonic() - started < seconds:
                outcome.sent += 1
                before = time.monotonic()
                answer = (await client.post(path, json=body_of(number))).json()
                outcome.latencies_s.append(time.monotonic() - before)
                outcome.right += is_right(answer, number)

        await asyncio.gather(*(ask_on(n) for n in range(clients)))
        outcome.seconds = time.monotonic() - started
    assert outcome.right == outcome.sent
    return {"way": kind, **outcome.numbers()}


DOUBLE = "def f(x):\n    return 2 * x"
HTTP_KINDS: dict[str, tuple[str, Callable[[int], dict[str, Any]], Callable[[dict[str, Any], int], bool]]] = {
    "POST /run_code, plain HTTP": (
        "/run_code",
        lambda n: {"code": f"print({n})", "language": "python", "stdin": "", "run_timeout": 10},
        lambda answer, n: answer["run_result"]["stdout"] == f"{n}\n",
    ),
    "POST /judge, 5 asserts": (
        "/judge",
        lambda n: {"code": DOUBLE, "tests": [f"assert f({n + i}) == {2 * (n + i)}" for i in range(5)]},
        lambda answer, _: bool(answer["passed"]) and answer["cases_passed"] == 5,
    ),
    "POST /judge, 5 inputs": (
        "/judge",
        lambda n: {
            "code": "print(2 * int(input()))",
            "tests": {"inputs": [str(n + i) for i in range(5)], "outputs": [str(2 * (n + i)) for i in range(5)]},
        },
        lambda answer, _: bool(answer["passed"]) and answer["cases_passed"] == 5,
    ),
}
"""What is asked over HTTP: the address, the body for a number, and whether an answer is right."""


def table(rates: list[dict[str, Any]], loaded: dict[str, Any], options: argparse.Namespace) -> str:
    """Markdown."""
    cores, busy = os.cpu_count(), os.getloadavg()
    lines = [
        "# The code-reward service, measured",
        "",
        f"`python benchmarks/sandbox_service.py --slots {options.slots}` on {cores} cores, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}; backend `{options.backend}`, isolation "
        f"`{loaded['tier']}`. Clients, service and programs share the cores, and other work ran beside them (load "
        f"average {busy[2]:.1f} over 15 minutes): read the rates as lower bounds.",
        "",
        "`print` programs, and whole judgements:",
        "",
        "| way | clients | per s | p50 ms | p95 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rates:
        shown = " | ".join(str(row[name]) for name in ("way", "clients", "per_s", *QUANTILES))
        lines.append(f"| {shown} |")
    lines += [
        "",
        f"Load: {loaded['clients']} clients for {loaded['seconds']:g} s, six kinds of programs with known results "
        "(output of up to 300 KB, files, exit codes, time outs of 0.5 s), a worker killed with SIGKILL "
        f"every {options.kill_every:g} s or so:",
        "",
        "| sent | answered | right | wrong | faults | killed | replaced | per s | p50 ms | p95 ms | p99 ms | "
        "MB, 2nd third | MB, last third |",
        "|" + "---|" * 13,
    ]
    names = ["sent", "answers", "right", "wrong", "faults", "killed", "restarts", "per_s", *QUANTILES]
    names += ["resident_mb_second_third", "resident_mb_last_third"]
    lines.append("| " + " | ".join(str(loaded[name]) for name in names) + " |")
    lines += ["", "MB: resident memory of the service's process. Faults: requests that ended without an answer.", ""]
    return "\n".join(lines)


def main() -> int:
    """Measure; status 1 when an answer was wrong or missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "load"], default="all")
    parser.add_argument("--backend", default="local")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill-every", type=float, default=1.0, metavar="S", help="0: nobody is killed")
    parser.add_argument("--runs", type=int, default=200, help="runs without the service")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of the load here")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table here")
    options = parser.parse_args()
    rates = measure_rates(options) if options.what == "all" else []
    loaded = measure_load(options)
    if options.json is not None:
        options.json.write_text(json.dumps(loaded, indent=1))
    shown = table(rates, loaded, options)
    print(shown)
    print(json.dumps(loaded, indent=1))
    if options.write is not None:
        options.write.write_text(shown)
    return 0 if loaded["right"] == loaded["sent"] else 1


if __name__ == "__main__":
    sys.exit(main())
