"""Memory of a rank of each learner backend beside the memory plan's figure, and seconds of a step.

    python benchmarks/backends.py [--cases small middle] [--sides torch fsdp2 "deepspeed zero3"]

The ranks of a case are ``--ranks`` processes over gloo on the CPU, with one thread each, in which the sides take turns:
each takes two whole optimiser steps (two micro-batches on each rank, clipping, AdamW) on the same random Qwen2 and the
same rows. The norm of the first step is shown, so that all are known to compute the same thing. Memory is the largest
resident set of a rank, less the one before its model was made, behind steps of a small model, so that what libraries
load at first use does not count; the C library is told to give large blocks back at once. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from learner import LR, make_rows, write_model

OURS: dict[str, dict[str, Any]] = {
    "torch": {},
    "fsdp2": {"backend": "fsdp2"},
    "deepspeed zero1": {"backend": "deepspeed", "stage": 1},
    "deepspeed zero2": {"backend": "deepspeed", "stage": 2},
    "deepspeed zero3": {"backend": "deepspeed", "stage": 3},
}


class Case(NamedTuple):
    """A model, and the micro-batches that each rank runs in a step (two)."""

    width: int
    layers: int
    vocabulary: int
    tokens: int
    """Of a micro-batch."""
    sides: tuple[str, ...]
    settings: Mapping[str, Any] = MappingProxyType({})


MOST = ("torch", "fsdp2", "deepspeed zero1", "deepspeed zero2", "deepspeed zero3")
CHECKPOINTED = {"gradient_checkpointing": True}
MEMORY = {
    "small": Case(256, 6, 16_384, 512, MOST),
    "small, checkpointed": Case(256, 6, 16_384, 512, ("torch", "fsdp2", "deepspeed zero3"), CHECKPOINTED),
    "middle": Case(512, 12, 32_768, 256, ("torch", "fsdp2", "deepspeed zero2", "deepspeed zero3")),
    "large": Case(1024, 12, 32_768, 256, ("fsdp2", "deepspeed zero3")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", choices=tuple(OURS), default=list(OURS))
    parser.add_argument("--cases", nargs="+", choices=tuple(MEMORY), default=list(MEMORY))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="for one case")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        run_rank(Job(**options.job))
    else:
        print_table(options)


class Job(NamedTuple):
    """What a rank is told."""

    side: str
    case: list[Any]
    folder: str
    rank: int
    ranks: int

    @property
    def shape(self) -> Case:
        return Case(*self.case)


# -- tables ------------------------------------------------------------------------------------------------------------


def print_table(options: argparse.Namespace) -> None:
    """The sides of a case in the same processes, one after the other: starting them costs most."""
    print(
        "| Case | Side | Parameters | Planned MiB | Measured MiB | Plan over measured "
        "| Between steps: planned | Measured | s per step | Norm |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.cases:
        case = MEMORY[name]
        sides = [side for side in case.sides if side in options.sides]
        found = run_side(options, ",".join(sides), case)
        if isinstance(found, str):
            print(f"| {name} | {', '.join(sides)} | | | {found} | | | | | |", flush=True)
            continue
        for side in sides:
            parameters, always, peak = planned(case, side, options.ranks)
            measured, between = (max(rank[side][key] for rank in found) for key in ("peak_mib", "between_mib"))
            print(
                f"| {name} | {side} | {parameters / 1e6:.1f} M | {peak:.0f} | {measured:.0f} | "
                f"{100 * (peak / measured - 1):+.0f}% | {always:.0f} | {between:.0f} | "
                f"{max(rank[side]['wall_s'][0] for rank in found):.1f} | {found[0][side]['norm']:.5f} |",
                flush=True,
            )


def run_side(options: argparse.Namespace, side: str, case: Case) -> list[dict[str, Any]] | str:
    """What each rank says, or why there is nothing."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        write_model(argparse.Namespace(**shape_of(case), threads=1), Path(folder))
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(options.ranks),
            "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        processes = []
        for rank in range(options.ranks):
            job = Job(side, [*case[:-1], dict(case.settings)], folder, rank, options.ranks)
            command = [sys.executable, str(Path(__file__).resolve()), "--job", json.dumps(job._asdict())]
            log = stack.enter_context(open(Path(folder, f"log-{rank}"), "w"))
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(options.ranks)}
            processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT))
        end = time.monotonic() + options.timeout_s
        try:
            statuses = [process.wait(max(1.0, end - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            return f"took more than {options.timeout_s:.0f} s"
        finally:
            for process in processes:
                process.kill()
                process.wait()
        logs = [Path(folder, f"log-{rank}").read_text() for rank in range(options.ranks)]
        if any(statuses):
            print("\n".join(logs)[-3000:], file=sys.stderr)
            return "failed: " + next(
                (log.strip().splitlines() or ["killed"])[-1][:100] for log, s in zip(logs, statuses, strict=True) if s
            )
        return [json.loads(log.strip().splitlines()[-1]) for log in logs]


def free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def shape_of(case: Case) -> dict[str, int]:
    return {"width": case.width, "layers": case.layers, "vocabulary": case.vocabulary}


def config_of(side: str, case: Case, ranks: int) -> Any:
    from trainer.config.load import parse_config

    settings = {**OURS[side], **case.settings, "tokens_per_microbatch": case.tokens, "pack_tokens": 256}
    text = "format: 1\nname: b\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\noptimizer: {betas: [0.9, 0.999]}\n"
    learner = json.dumps(
        {"threads": 1, "logits_mib": 64.0, **settings}
        if not settings.get("backend")
        else {"logits_mib": 64.0, **settings}
    )
    return parse_config(f"{text}learner: {learner}\nplacement: {{learner: {{ranks: {ranks}}}}}\n")


def planned(case: Case, side: str, ranks: int) -> tuple[int, float, float]:
    """Parameters, and MiB of a rank between steps and at its peak, by the memory plan."""
    from transformers import AutoConfig

    from trainer.run.memory_plan import ALWAYS, make_plan

    with tempfile.TemporaryDirectory() as folder:
        write_model(argparse.Namespace(**shape_of(case), threads=1), Path(folder))
        model = AutoConfig.from_pretrained(folder)
    plan = make_plan(config_of(side, case, ranks), model, devices=("cpu", "cpu"), free={"cpu": 2.0**40}, here=1)
    mine = tuple(item for item in plan.items["cpu"] if item.owner == "learner")
    phases = type(plan)(items={"cpu": mine}, free=plan.free, parameters=plan.parameters).phases("cpu")
    return plan.parameters, phases[ALWAYS] / 2**20, max(phases.values()) / 2**20


# -- a rank ------------------------------------------------------------------------------------------------------------


def rows_of(case: Case, job: Job) -> list[Any]:
    """Rows of 256 tokens for all ranks: two micro-batches each."""
    count = 2 * job.ranks * max(1, case.tokens // 256)
    return make_rows(argparse.Namespace(rows=count, vocabulary=case.vocabulary), "equal")


def resident(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Clock:
    """Seconds of steps, and the resident set."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.base = self.between = resident("VmRSS")
        self.norm = 0.0
        forget_peak()

    @contextlib.contextmanager
    def step(self, timed: bool) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        if timed:
            self.wall.append(time.perf_counter() - wall)
            self.cpu.append(time.process_time() - cpu)
        self.between = resident("VmRSS")

    def found(self) -> dict[str, Any]:
        numbers = {"wall_s": self.wall, "cpu_s": statistics.median(self.cpu), "norm": self.norm}
        return numbers | {"peak_mib": resident("VmHWM") - self.base, "between_mib": self.between - self.base}


def run_rank(job: Job) -> None:
    import gc

    import numpy as np
    import torch
    from torch import distributed
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from trainer.config import LossConfig, OptimizerConfig
    from trainer.data.batches import denominators_of, make_batches
    from trainer.data.table import TokenSequence, tokens_of
    from trainer.learner import make_learner
    from trainer.learner.gradients import Ranks
    from trainer.model.network import LanguageModel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    ranks, case = Ranks(distributed.group.WORLD), job.shape

    def play(side: str, network: Any, rows: list[Any], clock: Clock | None) -> None:
        """Take steps on this rank's share of ``rows``."""
        learner = make_learner(
            LanguageModel(network=network, tokenizer=None), loss=LossConfig(),
            optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999), max_grad_norm=1.0), temperature=1.0,
            settings=config_of(side, case, job.ranks).learner, device="cpu", ranks=ranks,
        )  # fmt: skip
        del network
        mine, advantages = [], []
        for ids, prompt, advantage in rows[job.rank :: job.ranks]:
            mask = tuple(i >= prompt for i in range(len(ids)))
            marks = tuple(0 if m else -1 for m in mask)
            mine.append(
                TokenSequence(
                    ids=tuple(ids),
                    mask=mask,
                    logprobs=(0.0,) * len(ids),
                    turns=marks,
                    versions=marks,
                    group=0,
                    member=len(mine),
                )
            )
            advantages += [advantage] * sum(mask)
        tokens = tokens_of(mine).with_columns(advantage=np.array(advantages))
        used = range(len(mine))
        batches = make_batches(mine, tokens, used, pack_tokens=256, tokens_per_microbatch=case.tokens)
        for step in range(2):
            with clock.step(step > 0) if clock else contextlib.nullcontext():
                metrics, _ = learner.step(batches, denominators_of(tokens, used), lr=LR, on_policy=True)
            if clock is not None and step == 0:
                clock.norm = metrics["learner/grad_norm"]

    tiny = Qwen2Config(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    found = {}
    for side in job.side.split(","):
        small = [([i % 1000 + 2 for i in range(256)], 64, 1.0)] * (2 * job.ranks)
        play(side, Qwen2ForCausalLM(tiny), small, None)  # what libraries load at first use is theirs
        gc.collect()
        clock = Clock()
        play(side, AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32), rows_of(case, job), clock)
        gc.collect()
        found[side] = clock.found()
    print("\n" + json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
