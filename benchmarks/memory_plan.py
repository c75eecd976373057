"""How far the memory plan is from what a process takes: learner and built-in engine, each phase by itself.

    python benchmarks/memory_plan.py                     # each case in a process of its own, a table at the end
    python benchmarks/memory_plan.py --cases small-lora
    python benchmarks/memory_plan.py --device cuda --cases 135m large large-bfloat16 large-lora-bfloat16

Measured is the peak of a phase, whose counter is reset before it, less what was taken before the model was made: of the
resident set on a CPU (Linux only), of what torch's allocator has given out on a GPU. The C library is told to give
large blocks back at once (MALLOC_MMAP_THRESHOLD_), so that what was freed does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

SHAPES: dict[str, dict[str, Any]] = {
    "25m": {
        "vocab_size": 32_000, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 6, "num_key_value_heads": 2,
    },
    "64m": {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 10,
        "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "135m": {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "0.5b": {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2,
    },
}  # fmt: skip


class Case(NamedTuple):
    shape: str
    tokens: int
    """Of a micro-batch."""
    overrides: tuple[str, ...] = ()


CASES = {
    "small": Case("25m", 2048),
    "small-checkpointed": Case("25m", 4096, ("learner.gradient_checkpointing=true",)),
    "small-lora": Case("25m", 2048, ("learner.lora_rank=8",)),
    "small-bfloat16": Case("25m", 1024, ("learner.precision=bfloat16",)),
    "middle": Case("64m", 1024),
    "135m": Case("135m", 512),
    "135m-bfloat16": Case("135m", 512, ("learner.precision=bfloat16",)),
    "135m-lora": Case("135m", 512, ("learner.lora_rank=8",)),
    "135m-lora-bfloat16": Case("135m", 512, ("learner.lora_rank=8", "learner.precision=bfloat16")),
    "large": Case("0.5b", 512),
    "large-bfloat16": Case("0.5b", 4096, ("learner.precision=bfloat16", "learner.logits_mib=1024")),
    "large-lora-bfloat16": Case(
        "0.5b", 4096, ("learner.precision=bfloat16", "learner.logits_mib=1024", "learner.lora_rank=32")
    ),
}
TEXT = """
format: 1
name: memory
steps: 1
env: {id: roll/FrozenLake-v0}
engine: {max_running: 16, max_tokens: 512}
learner: {pack_tokens: 512, threads: 1, logits_mib: 64}
"""


def resident(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def taken(device: str) -> float:
    """Bytes that are taken now."""
    import torch

    return float(torch.cuda.memory_allocated()) if device == "cuda" else resident("VmRSS")


def peak(device: str) -> float:
    """The most bytes that were taken since the last call."""
    import torch

    if device == "cuda":
        most = float(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return most
    most = resident("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")
    return most


def measure(case: Case, device: str) -> None:
    """Print the phases of one case: planned and measured bytes."""
    import numpy as np
    import torch
    from learner_mfu import make_rows
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from roll_envs.types import SamplingParams
    from trainer.config import LossConfig
    from trainer.config.load import parse_config
    from trainer.config.parts import BACKENDS, part_settings
    from trainer.data.batches import denominators_of, make_batches
    from trainer.data.table import tokens_of
    from trainer.engines.hf import HFEngine
    from trainer.learner import torch as module
    from trainer.learner.torch import TorchLearner
    from trainer.model.network import LanguageModel
    from trainer.run.memory_items import ALWAYS, BACKWARD, SAMPLING, STEP
    from trainer.run.memory_plan import make_plan

    torch.set_num_threads(1)
    config = parse_config(TEXT, [*case.overrides, f"learner.tokens_per_microbatch={case.tokens}"])
    shape: Any = Qwen2Config(**SHAPES[case.shape], tie_word_embeddings=True, max_position_embeddings=4096)
    planned = make_plan(config, shape, devices=(device, device)).phases(device)
    settings = part_settings(config.learner, BACKENDS.find("torch"))
    peaks: dict[str, float] = {}
    step = module.take_step

    def phase(name: str) -> None:
        peaks[name] = peak(device) - before

    def split(*arguments: Any) -> None:
        phase(BACKWARD)
        step(*arguments)
        phase(STEP)

    module.take_step = split
    before = 0.0

    def play(shape: Any, rounds: int) -> None:
        """Sample and learn; what the last round takes is in ``peaks``."""
        model = LanguageModel(network=Qwen2ForCausalLM(shape), tokenizer=None)
        learner = TorchLearner(
            model, loss=LossConfig(), optimizer=config.optimizer, temperature=1.0, settings=settings, device=device
        )
        engine = HFEngine(model, max_running=16, max_tokens=512, device=device)
        rows, advantages = make_rows(shape.vocab_size, rows=2 * case.tokens // 256, tokens=256)
        tokens = tokens_of(rows).with_columns(advantage=np.concatenate(advantages))
        batches = make_batches(rows, tokens, range(len(rows)), pack_tokens=512, tokens_per_microbatch=case.tokens)
        prompts = np.random.default_rng(0).integers(0, shape.vocab_size, (16, 496)).tolist()
        sampling = SamplingParams(temperature=1.0, max_new_tokens=16, seed=0)
        for _ in range(rounds):
            futures = [engine.submit(prompt, sampling, timeout_s=3600) for prompt in prompts]
            for future in futures:
                future.result(timeout=3600)
            engine.update_weights(learner.weights(), 1)
            phase(SAMPLING)
            learner.step(batches, denominators_of(tokens, range(len(rows))), lr=1e-6, on_policy=True)
            peaks[ALWAYS] = taken(device) - before
        engine.close()

    # What libraries load at first use is theirs.
    play(Qwen2Config(**{**SHAPES["25m"], "vocab_size": 100, "num_hidden_layers": 1}, tie_word_embeddings=True), 1)
    before = taken(device)
    play(shape, 2)
    for name in (ALWAYS, BACKWARD, STEP, SAMPLING):
        planned_mib, found = planned[name] / 2**20, peaks[name] / 2**20
        print(f"{name} | {planned_mib:.0f} | {found:.0f} | {100 * (planned_mib / found - 1):+.0f}%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        measure(CASES[options.alone], options.device)
        return
    print("| Case | Phase | Planned MiB | Measured MiB | Plan over measured |\n| --- | --- | --- | --- | --- |")
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for name in options.cases:
        command = [sys.executable, __file__, "--device", options.device, "--alone", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for line in done.stdout.strip().splitlines():
            print(f"| {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
