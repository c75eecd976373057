"""Model FLOP utilisation of the learner's optimiser step, with random weights of the shape of known models.

    python benchmarks/learner_mfu.py --peak-tflops 989                  # one H100: dense bfloat16
    python benchmarks/learner_mfu.py --device cpu --shapes tiny --peak-tflops 0.1 --precision float32

A step begins with making its micro-batches. Only what it needs is counted: 2 operations per weight and token forward
and 4 backward, the head for sampled tokens alone, and causal attention. What is computed twice to save memory (logits,
checkpointed layers) counts once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from trainer.config import LossConfig, OptimizerConfig
from trainer.data.batches import denominators_of, make_batches
from trainer.data.table import TokenSequence, tokens_of
from trainer.learner import TorchSettings
from trainer.learner.torch import TorchLearner
from trainer.model.network import LanguageModel


class Shape(NamedTuple):
    """Of a Qwen2 or Qwen2.5 model."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "0.5b": Shape(896, 4864, 24, 14, 2, 151_936),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151_936),
    "tiny": Shape(64, 128, 2, 4, 2, 1_000),
}


HEADING = "| Shape | Parameters | Tokens/s | TFLOP/s | MFU | Peak memory |\n| --- | --- | --- | --- | --- | --- |"
PEAKS = {
    "B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L40": 181, "L4": 121,
    "A10G": 70, "A10": 125, "4090": 165, "3090": 71,
}  # fmt: skip
"""TFLOP/s of dense bfloat16 with float32 sums, by part of the device's name, from the makers' data sheets."""


def known_peak(device: str) -> float | None:
    """Of this device; None where it is not in the list."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else ""
    return next((float(peak) for part, peak in PEAKS.items() if part in name), None)


def flops_of_row(shape: Shape, length: int, sampled: int) -> float:
    """Forward and backward: three times two operations per weight and token, and causal attention."""
    head_width = shape.width // shape.heads
    projections = shape.width * shape.width * 2 + 2 * shape.width * shape.kv_heads * head_width
    layer = projections + 3 * shape.width * shape.inner
    attention = 2 * shape.width * length * (length + 1) / 2  # scores and their sums, for the tokens before
    return 6.0 * (shape.layers * (layer * length + attention) + shape.width * shape.vocabulary * sampled)


def make_rows(vocabulary: int, *, rows: int, tokens: int) -> tuple[list[TokenSequence], list[np.ndarray]]:
    """Rows of random ids of which the last three quarters were sampled, and an advantage for each of those."""
    rng = np.random.default_rng(0)
    mask = tuple(i >= tokens // 4 for i in range(tokens))
    marks = tuple(0 if m else -1 for m in mask)
    made = [
        TokenSequence(
            ids=tuple(rng.integers(0, vocabulary, tokens).tolist()), mask=mask, logprobs=(0.0,) * tokens,
            turns=marks, versions=marks, group=0, member=member,
        )
        for member in range(rows)
    ]  # fmt: skip
    return made, [np.full(sum(mask), a) for a in rng.normal(size=rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peak-tflops", type=float, help="of the device at this precision (default: a known GPU's)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["0.5b", "1.5b"])
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024, help="of each row; three quarters are sampled")
    parser.add_argument("--tokens-per-microbatch", type=int, default=16_384)
    parser.add_argument("--logits-mib", type=float, default=4096.0)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    options.peak_tflops = options.peak_tflops or known_peak(options.device)
    print(HEADING)
    for name in options.shapes:
        print(measure(options, name, SHAPES[name]), flush=True)


def measure(options: argparse.Namespace, name: str, shape: Shape) -> str:
    cuda = options.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with torch.device(options.device):
        network: Any = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.inner,
                num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                max_position_embeddings=32_768, tie_word_embeddings=True,
            )
        )  # fmt: skip
    learner = TorchLearner(
        LanguageModel(network=network, tokenizer=None),
        loss=LossConfig(),
        optimizer=OptimizerConfig(lr=1e-6),
        temperature=1.0,
        settings=TorchSettings(
            precision=options.precision,
            attention=options.attention,
            logits_mib=options.logits_mib,
            gradient_checkpointing=options.gradient_checkpointing,
            compile=options.compile,
        ),
        device="cuda" if cuda else "cpu",
    )
    rows, advantages = make_rows(shape.vocabulary, rows=options.rows, tokens=options.tokens)
    budget = options.tokens_per_microbatch
    times = []
    tokens, used = tokens_of(rows).with_columns(advantage=np.concatenate(advantages)), range(len(rows))
    for _ in range(1 + options.steps):
        started = time.perf_counter()
        batches = make_batches(rows, tokens, used, pack_tokens=budget, tokens_per_microbatch=budget)
        learner.step(batches, denominators_of(tokens, used), lr=1e-6, on_policy=True)
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    seconds = statistics.median(times[1:])
    work = options.rows * flops_of_row(shape, options.tokens, options.tokens - options.tokens // 4) / seconds / 1e12
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if cuda else "not measured"
    count = sum(p.numel() for p in network.parameters()) / 1e6
    speed = options.rows * options.tokens / seconds
    share = f"{100 * work / options.peak_tflops:.1f}%" if options.peak_tflops else "peak not known"
    name += ", compiled" if options.compile else ""
    return f"| {name} | {count:.0f} M | {speed:.0f} | {work:.3g} | {share} | {peak} |"


if __name__ == "__main__":
    main()
