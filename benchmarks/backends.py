"""Speed and memory of each backend of the learner in one and two processes, beside TRL with accelerate and FSDP2.

    python benchmarks/backends.py
    python benchmarks/backends.py --cases torch-1 fsdp2-2 trl-2 --rounds 5
    python benchmarks/backends.py --device cuda --cases torch-1 fsdp2-1 deepspeed2-1 megatron-1 --width 896 --layers 24

All cases take the same random Qwen2, rows and advantages, and whole optimiser steps (forward, backward, clipping,
AdamW, float32), of which the first is not timed. Each process is a rank with ``--threads`` threads, over gloo, or on a
GPU, over NCCL. Cases take turns, in the reverse order every second round. TRL is ``GRPOTrainer.train()`` on given rows
(see ``learner.py``); accelerate does not offer FSDP on a CPU by itself, so this file tells its state that the processes
may have it.

Columns: *held* is the storage of all tensors that are alive between two steps, *growth* the largest resident set
(VmHWM) less that before the model was made, both of the rank that has most; on a GPU the second is the most that
torch's allocator has given out there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from learner import LR, make_rows, resident_mib, write_model

LEARNERS = {
    "torch": "{backend: torch",
    "fsdp2": "{backend: fsdp2",
    "deepspeed1": "{backend: deepspeed, stage: 1",
    "deepspeed2": "{backend: deepspeed, stage: 2",
    "deepspeed3": "{backend: deepspeed, stage: 3, param_persistence_threshold: 0",
    "megatron": "{backend: megatron",
}
CASES = ["torch-1", *(f"{name}-{n}" for name in ("fsdp2", "deepspeed1", "deepspeed2", "deepspeed3") for n in (1, 2))]
CASES += ["trl-1", "trl-2"]
ALL_CASES = [*CASES, "megatron-1", "megatron-2"]
ROW_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=ALL_CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each process")
    parser.add_argument("--rows", type=int, default=16, help="rows of 256 tokens in a step, of all ranks together")
    parser.add_argument("--rows-per-microbatch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of our cases")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of our cases")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="longest time of a case")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        found = run_trl(options) if options.side == "trl" else run_ours(options)
        (options.folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Run all cases by turns and print the table."""
    parameters = write_model(options, folder)
    print(f"Qwen2 with {parameters / 1e6:.1f} M parameters, {options.rows} rows of {ROW_TOKENS} tokens\n")
    found: dict[str, list[dict[str, float]]] = {case: [] for case in options.cases}
    for number in range(options.rounds):
        for case in options.cases if number % 2 == 0 else reversed(options.cases):
            found[case].append(run_case(case, folder, options))
    print("| Backend | Ranks | Steps/s (median, range) | CPU s per step | Held | Growth | Norm | over TRL |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    middle = {case: statistics.median(r["steps_per_s"] for r in results) for case, results in found.items()}
    for case, results in found.items():
        name, _, ranks = case.partition("-")
        speeds = [r["steps_per_s"] for r in results]
        cpu, held, growth = (statistics.median(r[k] for r in results) for k in ("cpu_s", "held_mib", "growth_mib"))
        peer = middle.get(f"trl-{ranks}")
        ratio = f"{middle[case] / peer:.2f} x" if peer else "-"
        print(
            f"| {name} | {ranks} | {middle[case]:.2f} ({min(speeds):.2f}-{max(speeds):.2f}) | {cpu:.2f} | "
            f"{held:.0f} MiB | {growth:.0f} MiB | {results[0]['grad_norm']:.5f} | {ratio} |"
        )


def run_case(case: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """One run of a case: the slowest rank's speed, the largest memory, the CPU seconds of all."""
    side, _, count = case.partition("-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": (folder / "threads.json").read_text(), "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "DS_ACCELERATOR": options.device,
        "LOCAL_WORLD_SIZE": count,
    }  # fmt: skip
    own = ["--side", side, "--folder", str(folder)]
    arguments = [a for a in sys.argv[1:] if a != "--cases" and a not in ALL_CASES]
    processes = []
    for rank in range(int(count)):
        with (folder / f"rank{rank}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).resolve()), *arguments, *own], stdout=log, stderr=log,
                    env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )  # fmt: skip
    until = time.monotonic() + options.timeout
    try:
        for rank, process in enumerate(processes):
            if process.wait(max(0.1, until - time.monotonic())):
                raise SystemExit(f"{case}: rank {rank} failed:\n{(folder / f'rank{rank}.log').read_text()[-4000:]}")
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{case}: a rank took longer than {options.timeout:g} s (--timeout)") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(int(count))]
    return {
        "steps_per_s": min(1 / r["wall_s"] for r in ranks),
        "cpu_s": sum(r["cpu_s"] for r in ranks),
        "held_mib": max(r["held_mib"] for r in ranks),
        "growth_mib": max(r["growth_mib"] for r in ranks),
        "grad_norm": ranks[0]["grad_norm"],
    }


def held_mib(device: str) -> float:
    """Storage of all tensors of this process, each once; of a sharded one, that of its shard."""
    import torch
    from torch.distributed.tensor import DTensor

    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor):
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            if local is not None and local.device.type == device:
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) / 2**20


def summary(times: list[tuple[float, float]], growth: float, held: float, norm: float) -> dict[str, float]:
    """``times`` are (wall, CPU) seconds of each step; the first is not counted."""
    return {
        "wall_s": statistics.median(wall for wall, _ in times[1:]),
        "cpu_s": statistics.median(cpu for _, cpu in times[1:]),
        "held_mib": held,
        "growth_mib": growth,
        "grad_norm": norm,
    }


def timed(step: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    started = time.perf_counter(), time.process_time()
    result = step()
    return result, (time.perf_counter() - started[0], time.process_time() - started[1])


def run_ours(options: argparse.Namespace) -> dict[str, float]:
    """A rank of ours: it runs the micro-batches that the driver of a run would deal to it."""
    import numpy as np
    import torch
    from torch import distributed
    from transformers import AutoModelForCausalLM

    from trainer.cluster.ranked import cut, deal, make_phase_learner
    from trainer.config.load import parse_config
    from trainer.data.batches import denominators_of, make_batches
    from trainer.data.table import TokenSequence, tokens_of
    from trainer.learner.gradients import Ranks
    from trainer.model.network import LanguageModel

    torch.set_num_threads(options.threads)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if count > 1 or options.side != "torch":
        distributed.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
    config = parse_config(
        f"format: 1\nname: b\nsteps: 1\nenv: {{id: roll/FrozenLake-v0}}\n"
        f"optimizer: {{lr: {LR}, betas: [0.9, 0.999], max_grad_norm: 1.0}}\n"
        f"learner: {LEARNERS[options.side]}, device: {options.device}, precision: {options.precision}, "
        "logits_mib: 64}\n"
        f"placement: {{learner: {{ranks: {count}}}}}\n"
    )
    ranks = Ranks(distributed.group.WORLD) if distributed.is_initialized() else None
    before = resident_mib()
    network = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32, attn_implementation="sdpa")
    model = LanguageModel(network=network, tokenizer=None)
    learner: Any = make_phase_learner(config, model, warm_start=False, threads=options.threads, ranks=ranks)
    del network, model
    rows, advantages = [], []
    for number, (ids, prompt, advantage) in enumerate(make_rows(options, "equal")):
        mask = tuple(i >= prompt for i in range(len(ids)))
        marks = tuple(0 if m else -1 for m in mask)
        rows.append(
            TokenSequence(
                ids=tuple(ids), mask=mask, logprobs=(0.0,) * len(ids), turns=marks, versions=marks, group=0,
                member=number,
            )
        )  # fmt: skip
        advantages.append(np.full(sum(mask), advantage))
    budget, used = options.rows_per_microbatch * ROW_TOKENS, range(len(rows))

    def step() -> Any:
        tokens = tokens_of(rows).with_columns(advantage=np.concatenate(advantages))
        batches = make_batches(rows, tokens, used, pack_tokens=ROW_TOKENS, tokens_per_microbatch=budget)
        if count > 1:
            batches = [cut(batches[piece.source], piece) for piece in deal(batches, count).pieces[rank]]
        whole = denominators_of(tokens, used)  # ranks add theirs up
        mine = replace(whole, tokens=0, sequences=0) if rank else whole
        return learner.step(batches, mine, lr=LR, on_policy=True)[0]

    def whole_step() -> Any:
        metrics = step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return metrics

    times, norms = [], []
    for _ in range(1 + options.steps):
        metrics, spent = timed(whole_step)
        times.append(spent)
        norms.append(metrics["learner/grad_norm"])
    most = torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else resident_mib() - before
    return summary(times, most, held_mib(options.device), norms[0])


def allow_fsdp_on_cpu() -> None:
    """Have accelerate's state choose FSDP, which it keeps from CPUs."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    state = PartialState()
    assert (state.device.type, state.backend) == ("cpu", "gloo")
    state.distributed_type = DistributedType.MULTI_GPU


def run_trl(options: argparse.Namespace) -> dict[str, float]:
    """A rank of TRL's GRPOTrainer on its part of the rows; with several, under accelerate's FSDP2."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    every = make_rows(options, "equal")
    rows, micro = every[rank::count], options.rows_per_microbatch
    accumulation = len(rows) // micro
    batch = {
        "prompt_ids": torch.tensor([ids[:prompt] for ids, prompt, _ in rows]),
        "completion_ids": torch.tensor([ids[prompt:] for ids, prompt, _ in rows]),
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
        "num_items_in_batch": torch.tensor(sum(len(ids) - prompt for ids, prompt, _ in every)),
    }
    for part in ("prompt", "completion"):
        batch[f"{part}_mask"] = torch.ones_like(batch[f"{part}_ids"])
    times: list[tuple[float, float]] = []
    held = []

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return dict(batch)

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append((time.perf_counter(), time.process_time()))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wall, cpu = times.pop()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
            if len(times) == 1 + options.steps:
                held.append(held_mib("cpu"))

    before = resident_mib()
    sharded = {"version": 2, "reshard_after_forward": True, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]}
    if count > 1:
        os.environ |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
            steps_per_generation=accumulation, num_generations=micro, max_steps=1 + options.steps, learning_rate=LR,
            lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0, adam_beta2=0.999, beta=0.0,
            temperature=1.0, logging_steps=1, save_strategy="no", disable_tqdm=True, max_completion_length=ROW_TOKENS,
            **({"ddp_backend": "gloo", "fsdp": "full_shard auto_wrap", "fsdp_config": sharded} if count > 1 else {}),
        )  # fmt: skip
        if count > 1:
            allow_fsdp_on_cpu()
        trainer = Trainer(
            model=AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "w2"}] * len(every)),
            processing_class=AutoTokenizer.from_pretrained(options.folder),
            callbacks=[Clock()],
        )
        if (count > 1) != trainer.is_fsdp_enabled:
            raise SystemExit(f"{count} ranks of TRL, and FSDP is {trainer.is_fsdp_enabled}")
        trainer.train()
    norm = next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry)
    return summary(times, resident_mib() - before, held[0], float(norm))


if __name__ == "__main__":
    main()
