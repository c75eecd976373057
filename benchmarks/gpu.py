"""What learner and built-in engine do on one GPU, as a page of Markdown; benchmarks/gpu.sh runs it.

Weights are random and of the shape of known models, so that nothing is downloaded. --tiny runs the same path with small
shapes on any device, to test it; such a page says so and is no measurement.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import learner_mfu
import numpy as np
import torch
import transformers
from learner_mfu import SHAPES
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll_envs.types import SamplingParams
from trainer import train
from trainer.config import LossConfig, OptimizerConfig
from trainer.config.load import load_config
from trainer.data.batches import Batch, denominators_of, make_batches
from trainer.data.table import TokenSequence, tokens_of
from trainer.engines.hf import HFEngine
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model.network import LanguageModel, choose_device

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600.0


def network_of(shape: str, device: torch.device | str, seed: int = 0) -> Any:
    """A random Qwen2 of a shape in ``SHAPES``."""
    own = SHAPES[shape]
    torch.manual_seed(seed)
    with torch.device(device):
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=own.vocabulary, hidden_size=own.width, intermediate_size=own.inner,
                num_hidden_layers=own.layers, num_attention_heads=own.heads, num_key_value_heads=own.kv_heads,
                max_position_embeddings=32_768, tie_word_embeddings=True,
            )
        )  # fmt: skip


def learner_of(shape: str, device: torch.device, **settings: Any) -> TorchLearner:
    return TorchLearner(
        LanguageModel(network=network_of(shape, device), tokenizer=None), loss=LossConfig(),
        optimizer=OptimizerConfig(lr=1e-6), temperature=1.0, settings=TorchSettings(**settings), device=device.type,
    )  # fmt: skip


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# -- sections ----------------------------------------------------------------------------------------------------------


def learner_step(options: Namespace, device: torch.device) -> Iterator[str]:
    """## Learner: one optimiser step

    Bfloat16, AdamW, 64 rows of 1,024 tokens of which three quarters are sampled; micro-batches of 32,768 tokens (0.5b)
    and 16,384 (1.5b). As it is by default, and with learner.compile and learner.logits_mib 32000, so that logits are
    computed once. The bar is 40% of the dense peak.
    """
    yield learner_mfu.HEADING
    given = Namespace(
        device=device.type, precision="bfloat16", attention="auto", rows=64, tokens=1024, gradient_checkpointing=False,
        steps=5, peak_tflops=learner_mfu.known_peak(device.type),
    )  # fmt: skip
    if options.tiny:
        given.rows, given.tokens, given.steps = 4, 64, 1
    cases = (("tiny", 128),) if options.tiny else (("0.5b", 32_768), ("1.5b", 16_384))
    for name, given.tokens_per_microbatch in cases:
        for given.compile, given.logits_mib in ((False, 4096.0), (True, 32_000.0)):
            try:
                yield learner_mfu.measure(given, name, SHAPES[name])
            except torch.OutOfMemoryError as error:
                yield f"| {name}{', compiled' if given.compile else ''} | needs more memory: {error} |"


def grouped_batches(shape: str, groups: int, members: int, prompt: int, answer: int) -> tuple[list[Batch], Any]:
    """One micro-batch of groups whose members share their prompt, and its denominators."""
    rng, vocabulary = np.random.default_rng(0), SHAPES[shape].vocabulary
    rows: list[TokenSequence] = []
    for group in range(groups):
        shared = rng.integers(0, vocabulary, prompt).tolist()
        for member in range(members):
            mask = (False,) * prompt + (True,) * answer
            marks = tuple(0 if m else -1 for m in mask)
            ids = (*shared, *rng.integers(0, vocabulary, answer).tolist())
            rows.append(
                TokenSequence(
                    ids=ids, mask=mask, logprobs=(0.0,) * len(ids), turns=marks, versions=marks, group=group,
                    member=member,
                )
            )  # fmt: skip
    tokens = tokens_of(rows).with_columns(advantage=rng.normal(size=len(rows) * answer))
    size = prompt + answer
    batches = make_batches(rows, tokens, range(len(rows)), pack_tokens=size, tokens_per_microbatch=members * size)
    return batches, denominators_of(tokens, range(len(rows)))


def attention_kernels(options: Namespace, device: torch.device) -> Iterator[str]:
    """## Attention where groups share their prompts

    8 groups of 8 rows, bfloat16, one group a micro-batch. SDPA runs a shared prompt once; flash and flex run it for
    each row.
    """
    shape = "tiny" if options.tiny else "0.5b"
    kinds = ("sdpa", "flash", "flex") if device.type == "cuda" else ("sdpa",)
    cases = ((48, 16),) if options.tiny else ((512, 128), (2048, 256))
    yield "| Prompt | Answer | Attention | Seconds a step (median of 3) |\n| --- | --- | --- | --- |"
    for prompt, answer in cases:
        batches, denominators = grouped_batches(shape, 2 if options.tiny else 8, 8, prompt, answer)
        for kind in kinds:
            learner = learner_of(shape, device, precision="bfloat16", attention=kind, logits_mib=1024.0)
            times = []
            for _ in range(4):
                started = time.perf_counter()
                learner.step(batches, denominators, lr=1e-6, on_policy=True)
                wait_for(device)
                times.append(time.perf_counter() - started)
            yield f"| {prompt} | {answer} | {kind} | {statistics.median(times[1:]):.3f} |"
            del learner


def engine_speed(options: Namespace, device: torch.device) -> Iterator[str]:
    """## Built-in engine

    Bfloat16, prompts of 256 random ids, 64 sampled ids each, all requests at once.
    """
    shape = "tiny" if options.tiny else "0.5b"
    vocabulary, new = SHAPES[shape].vocabulary, 4 if options.tiny else 64
    network = network_of(shape, device).to(torch.bfloat16)
    yield "| Requests | Sampled tokens/s (median of 3) | Seconds |\n| --- | --- | --- |"
    for requests in (4,) if options.tiny else (1, 16, 128):
        model = LanguageModel(network=network, tokenizer=None)
        engine = HFEngine(model, max_running=requests, max_tokens=512, device=device.type)
        rng, times = np.random.default_rng(0), []
        try:
            for seed in range(4):
                prompts = rng.integers(0, vocabulary, (requests, 256)).tolist()
                sampling = SamplingParams(temperature=1.0, max_new_tokens=new, seed=seed)
                started = time.perf_counter()
                futures = [engine.submit(prompt, sampling, timeout_s=TIMEOUT_S) for prompt in prompts]
                for future in futures:
                    future.result(timeout=TIMEOUT_S)
                times.append(time.perf_counter() - started)
        finally:
            engine.close()
        seconds = statistics.median(times[1:])
        yield f"| {requests} | {requests * new / seconds:.0f} | {seconds:.2f} |"


def parity(options: Namespace, device: torch.device) -> Iterator[str]:
    """## Log-probabilities beside those of the CPU

    A random model of 2 layers; the learner's log-probabilities of sampled ids on this device, less those of the CPU in
    float32. bfloat16 has 8 significant bits.
    """
    batches, _ = grouped_batches("tiny", 2, 4, 24, 40)
    exact = torch.cat([x.flatten() for x in learner_of("tiny", torch.device("cpu")).score(batches)])
    mask = torch.cat([batch.label_mask.flatten() for batch in batches])
    kinds = [("float32", "sdpa"), ("bfloat16", "sdpa")]
    if device.type == "cuda":
        kinds += [("float32", "flex"), ("bfloat16", "flash")]
    yield "| Precision | Attention | Mean difference | Largest |\n| --- | --- | --- | --- |"
    for precision, attention in kinds:
        # The same numbers on both: made on the CPU.
        model = LanguageModel(network=network_of("tiny", "cpu"), tokenizer=None)
        learner = TorchLearner(
            model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=1.0, device=device.type,
            settings=TorchSettings(precision=precision, attention=attention),
        )  # fmt: skip
        found = torch.cat([x.cpu().flatten() for x in learner.score(batches)])
        apart = (found - exact)[mask].abs()
        yield f"| {precision} | {attention} | {apart.mean():.2e} | {apart.max():.2e} |"


def frozen_lake(options: Namespace, device: torch.device) -> Iterator[str]:
    """## A short run: FrozenLake

    configs/frozenlake_tiny.yaml on this device, 60 steps of its warm start and 20 of training.
    """
    config = load_config(ROOT / "configs" / "frozenlake_tiny.yaml")
    sizes: dict[str, Any] = {"warm_start": {"steps": 60}, "steps": 20, "evaluation": {"tasks": 256, "every": 0}}
    if options.tiny:
        sizes = {"warm_start": {"steps": 1, "episodes_per_step": 4}, "steps": 1, "evaluation": {"tasks": 4, "every": 0}}
        sizes["rollout"] = {"groups_per_step": 2, "group_size": 2}
    with tempfile.TemporaryDirectory() as folder:
        where = {"learner": {"device": device.type}, "engine": {"device": device.type}}
        found = train(config, output=folder, **where, **sizes)
    seconds = ", ".join(f"{name.replace('_', ' ')} {value:.0f} s" for name, value in found["training_seconds"].items())
    success = " -> ".join(f"{phase['success']:.3f}" for phase in found["phases"])
    yield f"Held-out success {success} ({found['phases'][-1]['tasks']} tasks); {seconds}."


SECTIONS: dict[str, Callable[[Namespace, torch.device], Iterator[str]]] = {
    "learner": learner_step,
    "attention": attention_kernels,
    "engine": engine_speed,
    "parity": parity,
    "frozenlake": frozen_lake,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small shapes on any device: a test of the path")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--output", type=Path, help="default: gpu.md in this folder; with --tiny nothing is written")
    options = parser.parse_args()
    device = choose_device("auto")
    if device.type != "cuda" and not options.tiny:
        parser.error("torch finds no CUDA device here; --tiny runs the same path on a CPU")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU {platform.machine()}"
    lines = [
        "# One GPU" + (" (small shapes: a test of the path, no measurement)" if options.tiny else ""),
        f"{name}, torch {torch.__version__} (CUDA {torch.version.cuda}), transformers {transformers.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}. Made by `benchmarks/gpu.sh`.",
    ]
    print("\n\n".join(lines), flush=True)
    failed = 0
    for section in options.only:
        run = SECTIONS[section]
        heading = "\n".join(line.strip() for line in (run.__doc__ or "").strip().splitlines())
        found = [f"\n{heading}\n"]
        print(found[0], flush=True)
        started = time.monotonic()
        try:
            for line in run(options, device):
                found.append(line)
                print(line, flush=True)
        except Exception as error:  # what the other sections find is kept
            traceback.print_exc()
            failed += 1
            found.append(f"\nFailed: {type(error).__name__}: {error}")
        found.append(f"\n({time.monotonic() - started:.0f} s)")
        lines.append("\n".join(found).strip())
    output = options.output or (None if options.tiny else Path("gpu.md"))
    if output is not None:
        output.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
