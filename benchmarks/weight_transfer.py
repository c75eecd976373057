"""How long new weights take on their way into vLLM, and how much memory they take beside those of learner and server.

    make vllm
    python benchmarks/weight_transfer.py              # 10, 135 and 360 million parameters, all sources and ways
    python benchmarks/weight_transfer.py --shapes 10m --sources ranks --ways broadcast --updates 20
    python benchmarks/weight_transfer.py --device cuda --dtype bfloat16 --shapes 0.5b --sources trainer --ways ipc

A server is started here for each way, on the CPU or on a GPU that it shares with the weights. The first update from
each source and the median of later ones are given, each with the probe, as a run does them. Sources are the trainer's
own process, two ranks of a learner that send straight to the server, two ranks whose weights come through the trainer,
one tensor at a time, LoRA of rank 8 in the trainer's process, and weights of which 1% of the numbers change
(engine.deltas). "Sent" is what the last update gave the server. Memory is what trainer, ranks and server hold at the
most during an update above what they held before, shared memory counted at the trainer, which makes it: a second copy
of the weights, since the last one is kept until the update has succeeded, and what the way needs for a moment. On a GPU
it is that of the device, trainer and server together, and weights that are sent again after the server slept
(engine.colocated) are timed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import yaml
from gpu import network_of

import roll_envs
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.config import EngineConfig, LossConfig, ModelConfig, OptimizerConfig
from trainer.config.load import parse_config
from trainer.engines import make_engine
from trainer.engines.remote import RemoteEngine
from trainer.engines.transfer import TRANSPORTS
from trainer.learner import TorchSettings
from trainer.learner.gradients import cast_weights
from trainer.learner.torch import TorchLearner
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel, build_model

SHAPES = {
    "0.4m": ModelConfig(hidden_size=96, layers=3, heads=3),
    "10m": ModelConfig(hidden_size=384, layers=4, heads=6, mlp_ratio=4),
    "135m": ModelConfig(hidden_size=576, layers=30, heads=9, mlp_ratio=1536 / 576),
    "360m": ModelConfig(hidden_size=960, layers=32, heads=15, mlp_ratio=2560 / 960),
}
LARGE = ("0.5b", "1.5b")
"""Of Qwen2.5, random."""
SOURCES = {
    "trainer": "trainer",
    "ranks": "2 ranks",
    "through": "2 ranks, through the trainer",
    "adapters": "trainer, adapters",
    "changes": "trainer, changes",
}
RUN = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nplacement: {learner: {ranks: 2}}\n"
Weights = Callable[[], Iterator[tuple[str, torch.Tensor]]]
EVERY_S = 0.005


class Peak:
    """The most memory that is ``held`` while it is open, in MiB, above what was held before."""

    def __init__(self, held: Callable[[], float]) -> None:
        self._held, self._done = held, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._before = self._most = 0.0

    def __enter__(self) -> Peak:
        self._before = self._most = self._held()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def above(self) -> float:
        return self._most - self._before

    def _watch(self) -> None:
        while not self._done.wait(EVERY_S):
            self._most = max(self._most, self._held())


def held_mib(pids: Sequence[int]) -> float:
    """Memory of their own, and the files in memory that the trainer made."""
    total, files = 0.0, {}
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next(float(line.split()[1]) for line in text.splitlines() if line.startswith("Pss_Anon:")) / 1024
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                # A server that maps a file of the trainer has it open too.
                if pid == os.getpid() and os.readlink(file).startswith("/memfd:roll-"):
                    found = file.stat()  # one that is mapped is open twice
                    files[found.st_ino] = found.st_blocks * 512 / 2**20
    return total + sum(files.values())


def device_mib() -> float:
    """Memory of the GPU that is taken, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def server_pids(engine: RemoteEngine) -> list[int]:
    """The processes of the server's group."""
    process = engine._replicas[0].server._process
    assert process is not None
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if entry.name.isdigit() and int(fields[2]) == process.pid:
            found.append(int(entry.name))
    return found


def measure(engine: RemoteEngine, source: Weights, ranks: Sequence[int], updates: int) -> str:
    """Times of updates, then memory in further ones: the cells of one line of the table."""
    times, before = [], ""
    for _ in range(1 + updates):
        before = engine._sent.label
        started = time.monotonic()
        engine.update_weights(source(), engine.version + 1)
        times.append(time.monotonic() - started)
    sent = sum(each.most_bytes for each in engine._sent.since(before)) / 2**20
    peaks = []
    everyone = [partial(held_mib, pids) if pids else None for pids in ([os.getpid()], ranks, server_pids(engine))]
    for held in [*everyone, device_mib if torch.cuda.is_available() else None]:
        with Peak(held or (lambda: 0.0)) as peak:
            engine.update_weights(source(), engine.version + 1)
        peaks.append(f"{peak.above:.0f}" if held else "-")
    return f"{times[0]:.2f} | {statistics.median(times[1:]):.2f} | {sent:.1f} | {' | '.join(peaks)}"


def sleep(engine: RemoteEngine, source: Weights) -> str:
    """What a server that shares the learner's GPU gives back, and how long it takes to go and to come back."""
    awake, started = device_mib(), time.monotonic()
    engine.sleep()
    asleep, slept = device_mib(), time.monotonic()
    engine.update_weights(source(), engine.version + 1)
    back = time.monotonic() - slept
    return (
        f"\nAsleep it gives back {(awake - asleep) / 1024:.1f} of {awake / 1024:.1f} GiB in {slept - started:.2f} s, "
        f"and answers with new weights {back:.2f} s after it is woken.\n"
    )


def rank_pids() -> list[int]:
    """The ranks of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"trainer.cluster.rank" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def changing(model: LanguageModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of ``model`` with 1% of the numbers a little larger than the last time."""
    for name, tensor in weights_of(model.network):
        places = torch.randint(tensor.numel(), (max(1, tensor.numel() // 100),))
        tensor.view(-1)[places] *= 1.02
        yield name, tensor


@contextlib.contextmanager
def weights_from(name: str, model: LanguageModel) -> Iterator[Weights]:
    """The weights of ``model`` where the source ``name`` has them."""
    if name == "trainer":
        yield lambda: weights_of(model.network)
        return
    if name == "changes":
        yield lambda: changing(model)
        return
    if name == "adapters":
        settings = TorchSettings(lora_rank=8)
        learner = TorchLearner(
            model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=1.0, settings=settings,
            device=model.network.device.type,
        )  # fmt: skip
        yield learner.weights
        return
    with LearnerRanks(parse_config(RUN)) as ranks:
        learner = ranks.learner(model, warm_start=False, threads=2)
        yield learner.weights if name == "ranks" else lambda: (item for item in learner.weights())


def measure_way(
    model: LanguageModel, way: str, sources: Sequence[str], options: argparse.Namespace, *, deltas: bool
) -> None:
    """Print the lines of one server."""
    settings = {"name": "vllm", "max_tokens": 256, "dtype": options.dtype, "transfer": way, "deltas": deltas}
    settings |= {"device": options.device} | yaml.safe_load(
        "\n".join(text.replace("=", ": ", 1) for text in options.settings) or "{}"
    )
    engine = make_engine(model, EngineConfig.model_validate(settings))
    assert isinstance(engine, RemoteEngine)
    try:
        for name in sources:
            with weights_from(name, model) as source:
                cells = measure(engine, source, rank_pids(), options.updates)
            print(f"| {SOURCES[name]} | {way} | {cells} |", flush=True)
        if engine.capabilities.sleep:
            print(sleep(engine, lambda: weights_of(model.network)), flush=True)
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, *LARGE], default=["10m", "135m", "360m"])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--ways", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--updates", type=int, default=5, help="after the first")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the server")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of server and weights")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="of the server, as engine.KEY")
    options = parser.parse_args()
    for shape in options.shapes:
        if shape in LARGE:
            model = LanguageModel(network=network_of(shape, options.device), tokenizer=None)
        else:
            model = build_model(SHAPES[shape], roll_envs.make("roll/FrozenLake-v0"), seed=0)
        if options.device == "cuda":  # a learner there computes in what the server computes in
            cast_weights(model.network.to("cuda"), getattr(torch, options.dtype))
        weights = sum(tensor.nbytes for _, tensor in weights_of(model.network)) / 2**20
        print(f"\n{shape} parameters, {weights:.1f} MiB of weights in the learner, server in {options.dtype}\n")
        print(
            "| source | way | first update, s | later ones, s | sent, MiB | trainer, MiB | ranks, MiB | server, MiB | "
            "GPU, MiB |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for way in options.ways:
            for deltas in (False, True):
                sources = [name for name in options.sources if (name == "changes") == deltas]
                if sources:
                    measure_way(model, way, sources, options, deltas=deltas)


if __name__ == "__main__":
    main()
