"""What a checkpoint of a learner in several ranks costs: the time that training waits, and the memory of a rank.

    python benchmarks/checkpoints.py --backend fsdp2 --width 768 --layers 14

The model is random, of Llama's form; the defaults have about 100 million weights. One training step gives the optimiser
its state. Memory is the peak of each rank process (``VmHWM``), the libraries included (about 0.5 GB).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.initialization import no_init_weights

from trainer.cluster.learner_ranks import LearnerRanks
from trainer.config.load import parse_config
from trainer.config.schema import CheckpointConfig
from trainer.data.batches import Batch, Denominators
from trainer.model.network import LanguageModel
from trainer.run.checkpoint import CheckpointState, list_checkpoints
from trainer.run.saving import Saver

CONFIG = """
format: 1
name: checkpoints
steps: 1
env: {{id: roll/FrozenLake-v0}}
optimizer: {{lr: 1.0e-4}}
learner: {{backend: {backend}, device: cpu}}
placement: {{learner: {{ranks: {ranks}, timeout_s: 900, start_timeout_s: 900}}}}
"""


def peaks(pids: list[int]) -> list[float]:
    """Peak memory of each process, in GB."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return [round(int(text.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9, 2) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="fsdp2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--start", action="store_true", help="measure the start alone")
    chosen = parser.parse_args()
    form = LlamaConfig(
        vocab_size=8192, hidden_size=chosen.width, intermediate_size=2 * chosen.width * 4 // 3,
        num_hidden_layers=chosen.layers, num_attention_heads=chosen.width // 64, tie_word_embeddings=True,
    )  # fmt: skip
    with no_init_weights():
        network = AutoModelForCausalLM.from_config(form, attn_implementation="sdpa").float()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    network.tie_weights()
    model = LanguageModel(network=network, tokenizer=None)
    print(f"{model.parameters / 1e6:.0f} million weights, {chosen.ranks} ranks, backend {chosen.backend}")
    config = parse_config(CONFIG.format(backend=chosen.backend, ranks=chosen.ranks))
    with LearnerRanks(config) as ranks, tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        learner = ranks.learner(model, warm_start=False, threads=chosen.ranks)
        crew = ranks._crew
        assert crew is not None
        pids = [process.pid for process in crew._links._processes]  # type: ignore[attr-defined]
        print(f"start: {time.monotonic() - started:.1f} s, peak of ranks {peaks(pids)} GB")
        if chosen.start:
            return
        learner.step(
            [some_batch(), some_batch()],
            Denominators(tokens=16, sequences=2, sequence_tokens=torch.tensor([8, 8])),
            lr=1e-4,
        )
        print(f"after a step: peak of ranks {peaks(pids)} GB")
        save_both(Path(folder), ranks, learner, pids)


def some_batch() -> Batch:
    numbers = torch.arange(8)[None] + 5
    none, ones = numbers * 0, torch.ones(1, 8)
    return Batch(
        ids=numbers, positions=numbers - 5, segments=none, labels=numbers, label_mask=ones.bool(), advantages=ones,
        sampler_logp=-ones, old_logp=-ones, sequence=none, turn=none, token=none,
    )  # fmt: skip


def save_both(folder: Path, ranks: LearnerRanks, learner: object, pids: list[int]) -> None:
    """Save while training waits, and beside it."""
    for asynchronous in (False, True):
        place = folder / str(asynchronous)
        state = CheckpointState(step=1, version=1, model=learner.weights, optimizer={}, cursor=0)  # type: ignore[attr-defined]
        started = time.monotonic()
        with Saver(place, CheckpointConfig(asynchronous=asynchronous), ranks) as saver:
            saver.save(state, {"policy": learner})  # type: ignore[dict-item]
            waited = saver.take_seconds()
        size = sum(path.stat().st_size for path in list_checkpoints(place)[0].iterdir())
        print(
            f"asynchronous {asynchronous}: training waits {waited:.2f} s, on the disk after "
            f"{time.monotonic() - started:.2f} s, {size / 1e9:.2f} GB, peak of ranks {peaks(pids)} GB"
        )


if __name__ == "__main__":
    main()
