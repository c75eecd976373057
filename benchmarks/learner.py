"""Speed and memory of a learner's optimiser step: this trainer beside TRL's GRPOTrainer, on the same model and rows.

    python benchmarks/learner.py --trl-python /path/to/venv/bin/python     # an environment that has trl
    python benchmarks/learner.py --install build/trl                       # makes that environment first

Each side runs in a process of its own, by turns, several rounds; both take the same random Qwen2 from a folder, the
same rows and advantages, and take whole optimiser steps (forward, backward, clipping, AdamW). The first step of each
process is not timed. Gradient norms of that first step are shown, so that both are known to compute the same thing.

TRL's side is ``GRPOTrainer.train()`` with ``_generate_and_score_completions`` replaced by the given rows, padded as it
pads them: prompts on the left, completions on the right, to the longest of the step. It has no budget of tokens; its
micro-batches are ``--rows-per-microbatch`` rows. Ours are as many tokens as so many rows of equal length have.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CASES = ("equal", "uneven", "groups")
EQUAL_TOKENS, MEAN_TOKENS, MAX_TOKENS, GROUP = 256, 200, 1500, 8
LR = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, help="python of an environment that has trl")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="make that environment in FOLDER with pip")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of each process")
    parser.add_argument("--rows", type=int, default=32, help="rows of a step")
    parser.add_argument("--rows-per-microbatch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on both sides")
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--logits-mib", type=float, default=64.0, help="learner.logits_mib of our side")
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        (case,) = options.cases
        print(json.dumps(SIDES[options.side](options, case)))
        return
    python = options.trl_python
    if options.install is not None:
        python = install(options.install)
    if python is None:
        parser.error("give --trl-python PYTHON of an environment that has trl, or --install FOLDER to make one")
    compare(options, python)


def install(folder: Path) -> Path:
    """A virtual environment with trl and this machine's CPU build of torch; the path of its python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    packages = ["torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def compare(options: argparse.Namespace, trl_python: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_model(options, Path(folder))
        print(f"Qwen2 with {parameters / 1e6:.1f} M parameters, vocabulary {options.vocabulary}, float32, ", end="")
        print(f"{options.threads} thread(s), {options.rounds} rounds of {options.steps} timed steps\n")
        print("| Rows | Side | Tokens/s (median, range) | CPU s per step | Peak memory | of it for steps | Norm |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for case in options.cases:
            lengths = [len(ids) for ids, _, _ in make_rows(options, case)]
            found: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
            for number in range(options.rounds):
                for side in ("ours", "trl") if number % 2 == 0 else ("trl", "ours"):
                    python = sys.executable if side == "ours" else str(trl_python)
                    found[side].append(run_side(python, side, case, Path(folder)))
            name = f"{case}: {len(lengths)} rows, {sum(lengths)} tokens, longest {max(lengths)}"
            for side, results in found.items():
                print_row(name, side, results)
            fast = {s: statistics.median(r["tokens_per_s"] for r in rs) for s, rs in found.items()}
            peaks = {s: statistics.median(r["step_mib"] for r in rs) for s, rs in found.items()}
            cpu = {s: statistics.median(r["cpu_s"] for r in rs) for s, rs in found.items()}
            print(
                f"| {case} | ours / TRL | {fast['ours'] / fast['trl']:.2f} x | {cpu['ours'] / cpu['trl']:.2f} x | | ",
                end="",
            )
            print(f"{peaks['ours'] / peaks['trl']:.2f} x | |", flush=True)


def print_row(name: str, side: str, results: list[dict[str, float]]) -> None:
    speeds = [r["tokens_per_s"] for r in results]
    peak, growth, cpu = (statistics.median(r[k] for r in results) for k in ("peak_mib", "step_mib", "cpu_s"))
    print(
        f"| {name} | {side} | {statistics.median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f}) | {cpu:.1f} | "
        f"{peak:.0f} MiB | {growth:.0f} MiB | {results[0]['grad_norm']:.5f} |",
        flush=True,
    )


def run_side(python: str, side: str, case: str, folder: Path) -> dict[str, float]:
    arguments = [a for a in sys.argv[1:] if a not in ("--cases", *CASES)]
    command = [python, str(Path(__file__).resolve()), *arguments, "--side", side, "--folder", str(folder)]
    threads = {"OMP_NUM_THREADS": str(json.loads((folder / "threads.json").read_text()))}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, "--cases", case], capture_output=True, text=True, env={**os.environ, **threads, **quiet}
    )
    if done.returncode:
        raise SystemExit(f"side {side} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def write_model(options: argparse.Namespace, folder: Path) -> int:
    """A random Qwen2 and a tokenizer of as many words as its vocabulary, for both sides."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    heads = max(2, options.width // 64)
    network = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=8 * options.width // 3,
            num_hidden_layers=options.layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
            max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.05,
        )
    )  # fmt: skip
    network.save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, options.vocabulary)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    (folder / "threads.json").write_text(json.dumps(options.threads))
    return sum(p.numel() for p in network.parameters())


def make_rows(options: argparse.Namespace, case: str) -> list[tuple[list[int], int, float]]:
    """(ids, tokens of the prompt, advantage) of each row; a quarter of a row is prompt, the rest was sampled.

    Uneven lengths are the quantiles of a log-normal distribution (sigma 1) with mean 200, at most 1500, as of episodes.
    In groups, eight rows of equal length have the same prompt, which is three quarters of each, as in turns of agents.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    if case != "uneven":
        lengths = [EQUAL_TOKENS] * options.rows
    else:
        normal = statistics.NormalDist(math.log(MEAN_TOKENS) - 0.5, 1.0)
        spread = [math.exp(normal.inv_cdf((i + 0.5) / options.rows)) for i in range(options.rows)]
        lengths = rng.permutation([min(MAX_TOKENS, max(16, round(n))) for n in spread]).tolist()
    ids = [rng.integers(2, options.vocabulary, n).tolist() for n in lengths]
    advantages = rng.normal(size=options.rows)
    if case == "groups":
        prompt = EQUAL_TOKENS * 3 // 4
        ids = [ids[i - i % GROUP][:prompt] + row[prompt:] for i, row in enumerate(ids)]
        return [(i, prompt, float(a)) for i, a in zip(ids, advantages, strict=True)]
    return [(i, len(i) // 4, float(a)) for i, a in zip(ids, advantages, strict=True)]


def resident_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def summary(options: argparse.Namespace, case: str, times: list[tuple[float, float]], base: float, norm: float) -> Any:
    """``times`` are (wall, CPU) seconds of each step; the first is not counted."""
    tokens = sum(len(ids) for ids, _, _ in make_rows(options, case))
    timed = times[1:]
    return {
        "tokens_per_s": tokens / statistics.median(wall for wall, _ in timed),
        "cpu_s": statistics.median(cpu for _, cpu in timed),
        "peak_mib": resident_mib(),
        "step_mib": resident_mib() - base,
        "grad_norm": norm,
    }


def run_ours(options: argparse.Namespace, case: str) -> Any:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from trainer.config import LossConfig, OptimizerConfig
    from trainer.data.batches import denominators_of, make_batches
    from trainer.data.table import TokenSequence, tokens_of
    from trainer.learner import TorchSettings
    from trainer.learner.torch import TorchLearner
    from trainer.model.network import LanguageModel

    torch.set_num_threads(options.threads)
    network = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    learner = TorchLearner(
        LanguageModel(network=network, tokenizer=None),
        loss=LossConfig(),
        optimizer=OptimizerConfig(lr=LR, betas=(0.9, 0.999), max_grad_norm=1.0),
        temperature=1.0,
        settings=TorchSettings(logits_mib=options.logits_mib),
    )
    rows, advantages = [], []
    for number, (ids, prompt, advantage) in enumerate(make_rows(options, case)):
        mask = tuple(i >= prompt for i in range(len(ids)))
        marks = tuple(0 if m else -1 for m in mask)
        rows.append(
            TokenSequence(
                ids=tuple(ids), mask=mask, logprobs=(0.0,) * len(ids), turns=marks, versions=marks, group=0,
                member=number,
            )
        )  # fmt: skip
        advantages.append(np.where(mask, advantage, 0.0))
    budget = options.rows_per_microbatch * EQUAL_TOKENS
    base, times, norms = resident_mib(), [], []
    for _ in range(1 + options.steps):
        started = time.perf_counter(), time.process_time()
        # From rows to tensors on, as in a training step.
        tokens, used = tokens_of(rows), range(len(rows))
        given = [a[np.array(row.mask)] for a, row in zip(advantages, rows, strict=True)]
        tokens = tokens.with_columns(advantage=np.concatenate(given))
        batches = make_batches(rows, tokens, used, pack_tokens=budget, tokens_per_microbatch=budget)
        metrics, _ = learner.step(batches, denominators_of(tokens, used), lr=LR, on_policy=True)
        times.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        norms.append(metrics["learner/grad_norm"])
    return summary(options, case, times, base, norms[0])


def run_trl(options: argparse.Namespace, case: str) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    rows = make_rows(options, case)
    micro = options.rows_per_microbatch
    accumulation = len(rows) // micro
    longest_prompt = max(prompt for _, prompt, _ in rows)
    longest_completion = max(len(ids) - prompt for ids, prompt, _ in rows)

    def padded(ids: list[int], width: int, left: bool) -> tuple[list[int], list[int]]:
        blank, ones = [0] * (width - len(ids)), [1] * len(ids)
        return (blank + ids, blank + ones) if left else (ids + blank, ones + blank)

    prompts = [padded(ids[:prompt], longest_prompt, True) for ids, prompt, _ in rows]
    completions = [padded(ids[prompt:], longest_completion, False) for ids, prompt, _ in rows]
    batch = {
        "prompt_ids": torch.tensor([ids for ids, _ in prompts]),
        "prompt_mask": torch.tensor([mask for _, mask in prompts]),
        "completion_ids": torch.tensor([ids for ids, _ in completions]),
        "completion_mask": torch.tensor([mask for _, mask in completions]),
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
        "num_items_in_batch": torch.tensor(sum(len(ids) - prompt for ids, prompt, _ in rows)),
    }

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return dict(batch)

    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append((time.perf_counter(), time.process_time()))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wall, cpu = times.pop()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))

    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
            steps_per_generation=accumulation, num_generations=micro, max_steps=1 + options.steps, learning_rate=LR,
            lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0, adam_beta2=0.999, beta=0.0,
            temperature=1.0, logging_steps=1, save_strategy="no", disable_tqdm=True,
            max_completion_length=longest_completion,
        )  # fmt: skip
        trainer = Trainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "w2"}] * len(rows)),
            processing_class=AutoTokenizer.from_pretrained(options.folder),
            callbacks=[Clock()],
        )
        base = resident_mib()
        trainer.train()
    norm = next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry)
    return summary(options, case, times, base, float(norm))


SIDES = {"ours": run_ours, "trl": run_trl}


if __name__ == "__main__":
    main()
