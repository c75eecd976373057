"""Learner backends beside each other and beside TRL: speed of optimiser steps, memory of a rank, the plan's figure.

    python benchmarks/backends.py speed                  # each side in turn; a table
    python benchmarks/backends.py memory                 # peaks of a rank beside those of the memory plan; a table
    python benchmarks/backends.py speed --trl-python PYTHON --megatron-python .venv-megatron/bin/python

A side is ``--ranks`` processes over gloo on the CPU, with one thread each, which take whole optimiser steps (forward,
backward, clipping, AdamW) on the same random Qwen2 and the same rows. A run makes the learner anew; its first step is
not timed. The norm of that step is shown, so that all sides are known to compute the same thing. Memory is the largest
resident set of a rank less the one before its model was made, for our sides behind a first step of a small model, so
that libraries do not count; the C library is told to give large blocks back at once. Linux only.

TRL's side is ``GRPOTrainer.train()`` on given rows, as in ``learner.py``, under accelerate's data parallelism. On a CPU
accelerate does not take FSDP up (``AcceleratorState`` leaves "multi_cpu" as it is); for what it would do there,
``fully_shard`` of each layer of transformers' model, stands the side ``plain fsdp2``, on the same padded rows.
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

from learner import LR, make_rows, padded_columns, trl_trainer, write_model

ROUNDS, STEPS = 3, 2
OURS: dict[str, dict[str, Any]] = {
    "torch": {},
    "fsdp2": {"backend": "fsdp2"},
    "deepspeed zero1": {"backend": "deepspeed", "stage": 1},
    "deepspeed zero2": {"backend": "deepspeed", "stage": 2},
    "deepspeed zero3": {"backend": "deepspeed", "stage": 3},
    "megatron tensor": {"backend": "megatron", "tensor_parallel": 2},
    "megatron pipeline": {"backend": "megatron", "pipeline_parallel": 2},
}
THEIRS = ("trl", "plain fsdp2")


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
SPEED = Case(128, 4, 4096, 256, ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory"))
    parser.add_argument("--sides", nargs="+", choices=(*OURS, *THEIRS), default=[*OURS, *THEIRS])
    parser.add_argument("--cases", nargs="+", choices=tuple(MEMORY), default=list(MEMORY), help="of memory")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trl-python", default=sys.executable, help="python of an environment that has trl")
    parser.add_argument("--megatron-python", default=sys.executable, help="python of an environment that has megatron")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="for one side")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job = Job(**options.job)
        (run_theirs if job.side in THEIRS else run_ours)(job)
    elif options.what == "speed":
        print_speed(options)
    else:
        print_memory(options)


class Job(NamedTuple):
    """What a rank is told."""

    side: str
    case: list[Any]
    folder: str
    rank: int
    ranks: int
    rounds: int

    @property
    def shape(self) -> Case:
        return Case(*self.case)


# -- tables ------------------------------------------------------------------------------------------------------------


def print_speed(options: argparse.Namespace) -> None:
    print(f"A step: two micro-batches of {SPEED.tokens} tokens on each of {options.ranks} ranks; {ROUNDS} runs\n")
    print("| Side | Steps/s (median, range) | CPU s of a rank per step | Peak of a rank, MiB | Norm |")
    print("| --- | --- | --- | --- | --- |")
    for side in options.sides:
        found = run_side(options, side, SPEED, rounds=ROUNDS)
        if isinstance(found, str):
            print(f"| {side} | {found} | | | |", flush=True)
            continue
        found = [rank[side] for rank in found]
        speeds = [1 / max(one) for one in zip(*(rank["wall_s"] for rank in found), strict=True)]
        cpu, peak = (max(rank[key] for rank in found) for key in ("cpu_s", "peak_mib"))
        print(
            f"| {side} | {statistics.median(speeds):.2f} ({min(speeds):.2f}-{max(speeds):.2f}) | {cpu:.2f} "
            f"| {peak:.0f} | {found[0]['norm']:.5f} |",
            flush=True,
        )


def print_memory(options: argparse.Namespace) -> None:
    """All cases of one python in the same processes, one after the other: starting them costs most."""
    print(
        "| Case | Side | Parameters | Planned MiB | Measured MiB | Plan over measured "
        "| Between steps: planned | Measured |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.cases:
        case = MEMORY[name]
        sides = [side for side in case.sides if side in options.sides]
        found = run_side(options, ",".join(sides), case, rounds=1)
        if isinstance(found, str):
            print(f"| {name} | {', '.join(sides)} | | | {found} | | | |", flush=True)
            continue
        for side in sides:
            parameters, always, peak = planned(case, side, options.ranks)
            measured, between = (max(rank[side][key] for rank in found) for key in ("peak_mib", "between_mib"))
            print(
                f"| {name} | {side} | {parameters / 1e6:.1f} M | {peak:.0f} | {measured:.0f} | "
                f"{100 * (peak / measured - 1):+.0f}% | {always:.0f} | {between:.0f} |",
                flush=True,
            )


def run_side(options: argparse.Namespace, side: str, case: Case, rounds: int) -> list[dict[str, Any]] | str:
    """What each rank says, or why there is nothing."""
    python = (
        options.megatron_python
        if side.startswith("megatron")
        else options.trl_python
        if side in THEIRS
        else sys.executable
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        write_model(argparse.Namespace(**shape_of(case), threads=1), Path(folder))
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(options.ranks),
            "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "TRL_EXPERIMENTAL_SILENCE": "1", "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        processes = []
        for rank in range(options.ranks):
            job = Job(side, [*case[:-1], dict(case.settings)], folder, rank, options.ranks, rounds)
            command = [python, str(Path(__file__).resolve()), options.what, "--job", json.dumps(job._asdict())]
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


def run_ours(job: Job) -> None:
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
        for step in range(1 + (STEPS if job.rounds > 1 else 1)):
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
        for _ in range(job.rounds):
            play(side, AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32), rows_of(case, job), clock)
            gc.collect()
        found[side] = clock.found()
    print("\n" + json.dumps(found), flush=True)
    distributed.destroy_process_group()


def run_theirs(job: Job) -> None:
    (run_trl if job.side == "trl" else run_plain_fsdp2)(job)


def run_trl(job: Job) -> None:
    import torch

    torch.set_num_threads(1)
    clock = Clock()
    for _ in range(job.rounds):
        rows = rows_of(job.shape, job)
        options = argparse.Namespace(
            rows=len(rows), rows_per_microbatch=max(1, job.shape.tokens // 256), steps=STEPS, folder=Path(job.folder)
        )
        trainer = trl_trainer(options, rows, clock, rank=job.rank, ranks=job.ranks)
        trainer.train()
        clock.norm = clock.norm or next(float(e["grad_norm"]) for e in trainer.state.log_history if "grad_norm" in e)
        del trainer
    print("\n" + json.dumps({job.side: clock.found()}), flush=True)


def run_plain_fsdp2(job: Job) -> None:
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (job.ranks,))
    rows, clock = rows_of(job.shape, job), Clock()
    batch = padded_columns(rows)
    micro = max(1, job.shape.tokens // 256)
    mine = torch.arange(job.rank, len(rows), job.ranks).split(micro)
    for _ in range(job.rounds):
        model = AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32)
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh, **({"reshard_after_forward": False} if part is model else {}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.0)
        for step in range(1 + STEPS):
            with clock.step(step > 0):
                for lines in mine:
                    loss = surrogate(model, {key: value[lines] for key, value in batch.items() if value.ndim})
                    (loss * job.ranks / batch["num_items_in_batch"]).backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            clock.norm = clock.norm or float(norm.full_tensor())
        del model, optimizer
    print("\n" + json.dumps({job.side: clock.found()}), flush=True)
    distributed.destroy_process_group()


def surrogate(model: Any, batch: dict[str, Any]) -> Any:
    """The clipped loss at a ratio of 1, summed over tokens: the policy gradient."""
    import torch

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
    logps = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["completion_ids"].flatten(), reduction="none")
    ratio = (-logps + logps.detach()).exp().view(-1, length)
    return -(ratio * batch["advantages"][:, None] * batch["completion_mask"]).sum()


if __name__ == "__main__":
    main()
