"""How far ``roll-train plan`` is from what a rank takes: two ranks of each backend that cuts something, over gloo.

    .venv-megatron/bin/python benchmarks/memory_plan_ranks.py        # each case in two processes, a table at the end
    .venv/bin/python benchmarks/memory_plan_ranks.py --cases fsdp2 zero3

Measured as by ``memory_plan.py``: the most of a rank's resident set in a phase, less what was taken before the learner
was made (libraries, and a tiny learner of the same backend); of the rank that takes more, in the second step. The C
library writes into all that it gives out (MALLOC_PERTURB_), so that buffers count whole, as on a GPU, of which a CPU
takes the used part alone, and MKL keeps none of its own between calls. ``make test-cluster`` and ``make test-megatron``
install the backends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from memory_plan import peak, taken

RANKS = 2
MIB = 2**20
LIMIT_S = 900.0
"""Of a case."""


class Case(NamedTuple):
    learner: str
    """Keys of the section."""
    tokens: int = 512
    """Of a micro-batch."""
    experts: int = 0
    """In each layer, two of which each token meets; 0: a plain MLP."""
    critic: bool = False
    """Whether a critic steps before the policy, in micro-batches of as many tokens."""


CASES = {
    "torch": Case("backend: torch, threads: 1"),
    "fsdp2": Case("backend: fsdp2"),
    "fsdp2-bfloat16": Case("backend: fsdp2, precision: bfloat16"),
    "fsdp2-checkpointed": Case("backend: fsdp2, gradient_checkpointing: true", tokens=1024),
    "fsdp2-lora": Case("backend: fsdp2, lora_rank: 8"),
    "fsdp2-lora-bfloat16": Case("backend: fsdp2, lora_rank: 8, precision: bfloat16"),
    "fsdp2-context": Case("backend: fsdp2, context_parallel: 2", tokens=1024),
    "zero1": Case("backend: deepspeed, stage: 1"),
    "zero2": Case("backend: deepspeed, stage: 2"),
    "zero2-bfloat16": Case("backend: deepspeed, stage: 2, precision: bfloat16"),
    "zero3": Case("backend: deepspeed, stage: 3"),
    "zero3-bfloat16": Case("backend: deepspeed, stage: 3, precision: bfloat16"),
    "megatron-data": Case("backend: megatron"),
    "megatron-tensor": Case("backend: megatron, tensor_parallel: 2"),
    "megatron-pipeline": Case("backend: megatron, pipeline_parallel: 2"),
    "megatron-tensor-bfloat16": Case("backend: megatron, tensor_parallel: 2, precision: bfloat16"),
    "megatron-experts": Case("backend: megatron, expert_parallel: 2", experts=8),
    "torch-critic": Case("backend: torch, threads: 1", critic=True),
    "fsdp2-critic": Case("backend: fsdp2", critic=True),
    "fsdp2-bfloat16-critic": Case("backend: fsdp2, precision: bfloat16", critic=True),
    "fsdp2-checkpointed-critic": Case("backend: fsdp2, gradient_checkpointing: true", tokens=1024, critic=True),
    "zero2-critic": Case("backend: deepspeed, stage: 2", critic=True),
    "zero2-bfloat16-critic": Case("backend: deepspeed, stage: 2, precision: bfloat16", critic=True),
    "zero2-checkpointed-critic": Case("backend: deepspeed, gradient_checkpointing: true", tokens=1024, critic=True),
    "zero3-critic": Case("backend: deepspeed, stage: 3", critic=True),
    "megatron-data-critic": Case("backend: megatron", critic=True),
    "megatron-tensor-critic": Case("backend: megatron, tensor_parallel: 2", critic=True),
    "megatron-pipeline-critic": Case("backend: megatron, pipeline_parallel: 2", critic=True),
    "megatron-tensor-bfloat16-critic": Case("backend: megatron, tensor_parallel: 2, precision: bfloat16", critic=True),
}
TEXT = """
format: 1
name: memory
steps: 1
env: {{id: roll/FrozenLake-v0}}
engine: {{name: scripted, max_tokens: 256}}
advantage: {{name: {estimator}}}
critic: {{tokens_per_microbatch: {tokens}}}
placement: {{learner: {{ranks: {ranks}}}}}
learner: {{{learner}, pack_tokens: 512, logits_mib: 64, tokens_per_microbatch: {tokens}}}
"""


def text_of(case: Case) -> str:
    return TEXT.format(
        ranks=RANKS, learner=case.learner, tokens=case.tokens, estimator="gae" if case.critic else "grpo"
    )


SHAPE = {
    "vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
"""41 million parameters."""
SMALL = {**SHAPE, "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}


def shape_of(values: dict[str, Any], experts: int = 0) -> Any:
    from transformers import Qwen2Config, Qwen3MoeConfig

    common = {**values, "tie_word_embeddings": True, "max_position_embeddings": 4096}
    if not experts:
        return Qwen2Config(**common)
    inner = values["intermediate_size"] // 2
    return Qwen3MoeConfig(
        **common,
        head_dim=64,
        moe_intermediate_size=inner,
        num_experts=experts,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )


def stream(shape: Any) -> Iterator[tuple[str, Any]]:
    """Weights, one at a time, as ranks are given them."""
    import torch
    from transformers import AutoModelForCausalLM

    from trainer.model.forward import weights_of

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(shape)
    random = torch.Generator().manual_seed(0)
    return ((name, torch.randn(w.shape, generator=random) * 0.02) for name, w in weights_of(network))


def between(phase: Callable[[int], None]) -> None:
    """Have ``phase`` called with 0 at the end of all backward passes of a step, and with 1 of the optimiser's."""
    from trainer.learner import critic, zero
    from trainer.learner import torch as plain

    def split(before: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            phase(0)
            found = before(*arguments, **named)
            phase(1)
            return found

        return step

    plain.take_step = split(plain.take_step)
    critic.take_step = split(critic.take_step)
    zero.ShardedModule.step = split(zero.ShardedModule.step)  # type: ignore[method-assign]
    try:
        from trainer.learner import megatron_learner as megatron
    except ImportError:
        return
    megatron.ShardedAdamW.step = split(megatron.ShardedAdamW.step)  # type: ignore[method-assign]


def measure(case: Case, rank: int, folder: Path) -> None:
    """One rank: write the bytes of each phase into ``folder``."""
    import numpy as np
    import torch
    from learner_mfu import make_rows
    from torch import distributed

    from trainer.cluster.rank import Rank
    from trainer.cluster.ranked import cut, deal
    from trainer.data.batches import denominators_of, make_batches
    from trainer.data.table import tokens_of
    from trainer.learner.gradients import Ranks
    from trainer.run.memory_items import BACKWARD, CRITIC_BACKWARD, CRITIC_STEP, STEP

    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # Megatron-Core's router takes it that there is CUDA
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    before, peaks, steps = 0.0, dict[str, float](), (BACKWARD, STEP)

    def phase(name: str) -> None:
        peaks[name] = peak("cpu") - before

    between(lambda part: phase(steps[part]))

    def learn(shape: Any) -> None:
        nonlocal steps
        made = Rank(rank, RANKS)
        made._ranks = Ranks(distributed.group.WORLD)
        made.make(text_of(case), False, shape, 1, stream(shape))
        if case.critic:
            made.add_critic({})
        # Four micro-batches for each rank, so that none is cut.
        rows, advantages = make_rows(shape.vocab_size, rows=4 * RANKS * case.tokens // 256, tokens=256)
        returns = np.concatenate(advantages)
        tokens = tokens_of(rows).with_columns(advantage=returns, value=np.zeros(len(returns)))
        everything = range(len(rows))
        batches = make_batches(
            rows, tokens, everything, pack_tokens=512, tokens_per_microbatch=case.tokens, returns=returns[None]
        )
        mine = [cut(batches[p.source], p) for p in deal(batches, RANKS).pieces[rank]]
        whole = denominators_of(tokens, everything)
        for share in (mine[:1], mine):  # the first step makes the optimiser's state
            phase("always")
            given = replace(whole, tokens=0, sequences=0) if rank else whole
            if case.critic:
                steps = CRITIC_BACKWARD, CRITIC_STEP
                made.step("critic", share, given, {"lr": 1e-6})
            steps = BACKWARD, STEP
            made.step("learner", share, given, {"lr": 1e-6, "on_policy": True})
            peaks["always"] = taken("cpu") - before

    learn(shape_of(SMALL, case.experts))
    before = taken("cpu")
    learn(shape_of(SHAPE, case.experts))
    (folder / f"{rank}.json").write_text(json.dumps(peaks))


def planned(case: Case) -> dict[str, float]:
    from trainer.config.load import parse_config
    from trainer.run.memory_plan import make_plan

    return make_plan(parse_config(text_of(case)), shape_of(SHAPE, case.experts), devices=("cpu", "cpu"), here=1).phases(
        "cpu"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        name, rank, folder = options.rank
        measure(CASES[name], int(rank), Path(folder))
        return
    print("| Case | Phase | Planned MiB | Measured MiB | Plan over measured |\n| --- | --- | --- | --- | --- |")
    environment = {
        **os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_PERTURB_": "165",
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MKL_DISABLE_FAST_MM": "1",
    }  # fmt: skip
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder) / f"{rank}.log" for rank in range(RANKS)]
            started = []
            for rank, log in enumerate(logs):
                command = [sys.executable, __file__, "--rank", name, str(rank), folder]
                with log.open("wb") as file:
                    started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
            try:
                failed = [process.wait(LIMIT_S) for process in started]
            finally:
                for process in started:  # a rank whose neighbour failed waits for it
                    process.kill()
            if any(failed):
                raise SystemExit(f"{name} failed:\n" + "".join(log.read_text()[-2000:] for log in logs))
            found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
        plan = planned(CASES[name])
        for when in plan:
            most = max(each[when] for each in found)
            more = 100 * (plan[when] / most - 1)
            print(f"| {name} | {when} | {plan[when] / MIB:.0f} | {most / MIB:.0f} | {more:+.0f}% |", flush=True)


if __name__ == "__main__":
    main()
