"""Verifiers of mathematics side by side: pairs right, false positives, time a grade, and hostile inputs.

    python benchmarks/verifiers.py [--pairs FILE] [--hostile FILE] [--write benchmarks/results/verifiers.md]

Each grader runs in a process of its own, which is killed when an input takes longer than ``--kill-s``; math-verify is
called plainly, as its README shows, and other graders where they are installed. Without recorded pairs those of the
tests are used, and no hostile inputs. The code judge is timed on asserts and programs where a sandbox can be had.

``--crowd`` measures only `math` with 256 honest answers at once, each of which needs algebra, alone and with as many
hostile ones. The processor time is that of this process and of its workers that still live, so of the honest answers
alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDED = REPOSITORY.parent / "shared" / "math"
DEADLINE_S = 3.0
FRAME = "Adding it all up, we find that the final answer is $\\boxed{{{}}}$."

Grade = Callable[[str, str], bool]


def ours() -> Grade:
    from roll_envs.verifiers import Score, make_verifier

    verifier = make_verifier("math", deadline_s=DEADLINE_S)

    def grade(gold: str, answer: str) -> bool:
        verdict = verifier(answer, gold)
        if not isinstance(verdict, Score):
            raise RuntimeError(verdict.reason)
        return verdict.passed

    return grade


def math_verify() -> Grade:
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return lambda gold, answer: bool(verify(parse(f"${gold}$"), parse(answer)))


def verl(module: str, name: str) -> Grade:
    function = getattr(importlib.import_module(f"verl.utils.reward_score.{module}"), name)

    def grade(gold: str, answer: str) -> bool:
        found = function(answer, gold)
        found = found.get("score") if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found
        return float(found) > 0.5

    return grade


@dataclass(frozen=True, kw_only=True)
class Grader:
    name: str
    make: str
    arguments: tuple[str, ...] = ()
    needs: str = ""


GRADERS = (
    Grader(name="this package, `math`", make="ours", needs="math_verify"),
    Grader(name="math-verify, called plainly", make="math_verify", needs="math_verify"),
    Grader(name="verl math_verify", make="verl", arguments=("math_verify", "compute_score"), needs="verl"),
    Grader(name="verl prime_math", make="verl", arguments=("prime_math", "compute_score"), needs="verl"),
    Grader(name="verl math_dapo", make="verl", arguments=("math_dapo", "compute_score"), needs="verl"),
)


def serve(grader: Grader, channel: Connection) -> None:
    """In the grader's own process: grade what comes, tell the verdict and the time it took."""
    grade: Grade = globals()[grader.make](*grader.arguments)
    try:
        grade("x+1", "$1+x$")  # warm: imports, caches, workers
    except Exception as error:
        channel.send(("broken", f"{type(error).__name__}: {error}"))
        return
    channel.send(("ready", ""))
    while True:
        gold, answer = channel.recv()
        started = time.perf_counter()
        try:
            verdict: Any = grade(gold, answer)
        except Exception as error:
            verdict = f"{type(error).__name__}: {error}"[:200]
        channel.send((verdict, time.perf_counter() - started))


class Served:
    """A grader in its process, started anew after it was killed."""

    def __init__(self, grader: Grader, kill_s: float) -> None:
        self.grader, self.kill_s = grader, kill_s
        self.process: Any = None

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, other = context.Pipe()
        self.process = context.Process(target=serve, args=(self.grader, other))
        self.process.start()
        other.close()
        said, why = self.channel.recv() if self.channel.poll(120) else ("broken", "not ready in 120 s")
        if said != "ready":
            raise RuntimeError(f"{self.grader.name}: {why}")

    def grade(self, gold: str, answer: str) -> tuple[Any, float]:
        if self.process is None:
            self.start()
        try:
            self.channel.send((gold, answer))
            if self.channel.poll(self.kill_s):
                return self.channel.recv()
            verdict = f"killed after {self.kill_s:g} s"
        except (EOFError, OSError):
            verdict = "died"
        self.stop()
        return verdict, self.kill_s

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def measure(grader: Grader, pairs: Sequence[Any], hostile: Sequence[Any], kill_s: float) -> list[str]:
    served = Served(grader, kill_s)
    try:
        found = [(pair, *served.grade(pair["gold"], FRAME.format(pair["answer"]))) for pair in pairs]
        times = [took * 1000 for _, _, took in found]
        right = sum(verdict is pair["equal"] for pair, verdict, _ in found)
        false_positives = [
            f"{p['gold']} / {p['answer']}" for p, verdict, _ in found if verdict is True and not p["equal"]
        ]
        slow = [served.grade(case["gold"], FRAME.format(case["answer"])) for case in hostile]
    finally:
        served.stop()
    for case in false_positives:
        print(f"  {grader.name}: false positive {case}")
    late = sum(took > DEADLINE_S + 0.25 for _, took in slow)
    lost = sum(not isinstance(verdict, bool) for verdict, _ in slow)
    return [
        grader.name,
        f"{right} of {len(pairs)}",
        str(len(false_positives)),
        f"{statistics.mean(times):.1f}",
        f"{statistics.median(times):.1f}",
        f"{late} of {len(hostile)}" if hostile else "-",
        f"{max(took for _, took in slow):.2f}" if slow else "-",
        str(lost) if hostile else "-",
    ]


def measure_code(count: int) -> list[list[str]]:
    """Answers judged a second by the code judge, one after the other; nothing where no sandbox can be had."""
    from roll_envs.errors import RollError
    from roll_envs.sandbox import make_sandbox
    from roll_envs.verifiers import Score, make_verifier

    try:
        sandbox = make_sandbox("local")
    except (RollError, ImportError) as error:
        print(f"  the code judge is left out: {error}")
        return []
    asserts = "\n".join(f"assert add({n}, 1) == {n + 1}" for n in range(5))
    runs = {"stdin": [{"input": f"{n}", "output": f"{n + 1}"} for n in range(5)]}
    rows = []
    with sandbox:
        verifier = make_verifier("code", sandbox=sandbox)
        for name, answer, tests in (
            ("5 asserts", "def add(a, b): return a + b", asserts),
            ("5 programs with input", "print(int(input()) + 1)", runs),
        ):
            verifier(answer, tests)
            started = time.perf_counter()
            verdicts = [verifier(answer, tests) for _ in range(count)]
            took = time.perf_counter() - started
            assert all(isinstance(v, Score) and v.passed for v in verdicts)
            rows.append([name, f"{1000 * took / count:.1f}", f"{count / took:.0f}"])
    return rows


def honest_crowd(count: int) -> list[tuple[str, str, str]]:
    """Kind, reference and answer; no two are equal."""
    forms = (
        "x^{{2}}+{s}x+{p}|(x+{a})(x+{b})", "\\frac{{{a}}}{{x+{b}}}|{a}(x+{b})^{{-1}}", "x>{a}|2x+{b}>{d}+{b}",
        "{a}\\sqrt{{2}}+{b}|{b}+\\sqrt{{2\\cdot {a}^2}}", "\\frac{{\\pi}}{{4}}+{a}|{a}+\\arctan 1",
        "({a},{b}]|({a}, {b}]", "e^{{{a}}}\\cdot {b}|{b}e^{{{a}}}", "\\{{{a},{b}\\}}|\\{{{b},{a}\\}}",
    )  # fmt: skip
    written = [
        forms[n % len(forms)].format(a=n + 2, b=n + 5, s=2 * n + 7, p=(n + 2) * (n + 5), d=2 * n + 4)
        for n in range(count)
    ]
    return [("honest", *text.split("|")) for text in written]


def hostile_crowd(count: int) -> list[tuple[str, str, str]]:
    """Answers that computer algebra does not finish in time, of few and of many shapes."""
    pieces = (
        "\\int_0^1 x^{x}dx",
        "\\prod_{k=1}^{10^7}k",
        "(x+y+z+w)^{99}",
        "\\sqrt[10^5]{2^{10^6}}",
        "\\tan(\\tan(\\tan 3))",
    )
    draw = random.Random(0)
    known = ("\\sum_{{n=1}}^{{10^{{12}}+{n}}}\\frac{{1}}{{n^2+n+1}}", "{m}!")
    texts = [
        known[n % 2].format(n=n, m=150_000 + n)
        if n % 3
        else "+".join(draw.choice(pieces) for _ in range(draw.randint(1, 6)))
        for n in range(count)
    ]
    return [("hostile", "5", text) for text in texts]


def measure_crowd(crowd: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    """A row for each kind of answer in the crowd, all of which are asked at once."""
    from roll_envs.verifiers import Failed, Verdict, make_verifier
    from roll_envs.verifiers.workers import WorkerPool, close_shared_pools

    verifier: Any = make_verifier("math", deadline_s=DEADLINE_S)
    verifier("$1+x$", "x+1")  # warm
    pool: WorkerPool = verifier.pool

    def cpu_s() -> float:
        template = pool._template.process.pid if pool._template is not None else 0
        workers = Path(f"/proc/{template}/task/{template}/children").read_text().split()
        fields = (Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split() for worker in workers)
        ticks = sum(int(each[11]) + int(each[12]) for each in fields)
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    started, before = time.monotonic(), cpu_s()

    def ask(one: tuple[str, str, str]) -> tuple[str, Verdict, float]:
        verdict = verifier(f"It is $\\boxed{{{one[2]}}}$.", one[1])
        return one[0], verdict, time.monotonic() - started

    with ThreadPoolExecutor(len(crowd)) as threads:
        found = list(threads.map(ask, crowd))
    used, rows = cpu_s() - before, []
    for kind in dict.fromkeys(one[0] for one in crowd):
        verdicts = [verdict for name, verdict, _ in found if name == kind]
        times = sorted(took for name, _, took in found if name == kind)
        failed = sum(isinstance(verdict, Failed) for verdict in verdicts)
        right = sum(not isinstance(verdict, Failed) and verdict.passed for verdict in verdicts)
        p50, p99 = (f"{times[int(share * len(times))]:.2f}" for share in (0.5, 0.99))
        rows.append([kind, str(len(times)), str(right), str(failed), p50, p99, f"{used:.1f}"])
    close_shared_pools()
    return rows


def crowds() -> None:
    honest, hostile = honest_crowd(256), hostile_crowd(256)
    mixed = [one for pair in zip(hostile, honest, strict=True) for one in pair]
    head = ["answers", "count", "right", "failed", "p50 s", "p99 s", "processor s of all"]
    print(f"{hardware()}\n\n{table(head, measure_crowd(honest))}\n\n{table(head, measure_crowd(mixed))}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def hardware() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}{load}"


def load_pairs(path: Path | None) -> list[Any]:
    if path is not None and path.exists():
        return list(json.loads(path.read_text(encoding="utf-8")))
    lines = (REPOSITORY / "tests" / "roll_envs" / "math_pairs.tsv").read_text(encoding="utf-8").splitlines()
    return [{"equal": w == "same", "gold": g, "answer": a} for w, g, a in (line.split("\t") for line in lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=RECORDED / "pairs.json")
    parser.add_argument("--hostile", type=Path, default=RECORDED / "hostile.json")
    parser.add_argument("--kill-s", type=float, default=12.0, help="when a grader's process is killed")
    parser.add_argument("--answers", type=int, default=50, help="answers for the code judge")
    parser.add_argument("--write", type=Path, help="write the table to this file")
    parser.add_argument("--crowd", action="store_true", help="measure only 512 answers at once, half of them hostile")
    options = parser.parse_args()
    if options.crowd:
        crowds()
        return
    place = hardware()
    hostile = json.loads(options.hostile.read_text(encoding="utf-8")) if options.hostile.exists() else []
    head = [
        "grader",
        "right",
        "false positives",
        "ms a grade",
        "median ms",
        f"over {DEADLINE_S:g} s",
        "worst s",
        "no verdict",
    ]
    parts = ["# Verifiers\n", f"`python benchmarks/verifiers.py` on {place}.\n"]
    for title, pairs, attacks in (
        ("Recorded pairs and hostile inputs", load_pairs(options.pairs), hostile),
        ("Pairs of the tests", load_pairs(None), []),
    ):
        rows = []
        for grader in GRADERS:
            if importlib.util.find_spec(grader.needs) is None:
                print(f"  {grader.name} is not installed")
                continue
            rows.append(measure(grader, pairs, attacks, options.kill_s))
            print("  ".join(rows[-1]), flush=True)
        parts += [f"## {title}\n", table(head, rows) + "\n"]
    judged = measure_code(options.answers)
    if judged:
        parts += [
            "## Code judge, local sandbox, one answer at a time\n",
            table(["tests", "ms an answer", "answers/s"], judged) + "\n",
        ]
    parts.append(NOTES)
    text = "\n".join(parts)
    print(text)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")


NOTES = f"""Every grader is given the same frame of text around the answer and runs in one process of its own, one grade
after the other, warm. "over {DEADLINE_S:g} s": inputs that took {DEADLINE_S:g} s and a quarter or longer
({DEADLINE_S:g} s is the default deadline of `math`). "no verdict": hostile inputs for which the grader
raised, died or had to be killed. The pairs of the tests were written for this package, so its own row there
shows only that nothing has broken.
"""


if __name__ == "__main__":
    main()
