"""No rank ever holds the whole model where its backend cuts it: the memory of tensors while its parts are made."""

from __future__ import annotations

import gc
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

import trainer.cluster.rank
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import make_phase_learner
from trainer.config import CriticConfig
from trainer.learner import zero
from trainer.learner.gradients import Ranks
from trainer.model.forward import weights_of

pytestmark = pytest.mark.timeout(660)

SHAPE: dict[str, Any] = {
    "vocab_size": 63, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "experts": Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        tie_word_embeddings=False,
    ),
}  # fmt: skip
SCENES: dict[str, tuple[str, str, float]] = {
    "fsdp2": ("backend: fsdp2", "tied", 0.5),
    "fsdp2 bfloat16": ("backend: fsdp2, precision: bfloat16", "tied", 0.5),
    "fsdp2 adapters": ("backend: fsdp2, lora_rank: 1", "tied", 0.6),
    "deepspeed": ("backend: deepspeed, stage: 3, param_persistence_threshold: 0", "tied", 2.5),
    "deepspeed bfloat16": ("backend: deepspeed, stage: 3, precision: bfloat16", "tied", 2.5),
    "megatron tensor": ("backend: megatron, tensor_parallel: 2", "tied", 0.5),
    "megatron pipeline": ("backend: megatron, pipeline_parallel: 2", "tied", 0.55),
    "megatron experts": ("backend: megatron, expert_parallel: 2", "experts", 0.6),
    "megatron bfloat16": ("backend: megatron, tensor_parallel: 2, precision: bfloat16", "tied", 0.75),
}
"""Settings, the model, and how many times its bytes in float32 each of two ranks may hold with a learner: DeepSpeed has
weights, gradients, float32 copies and both moments from the start."""
BASE = "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nplacement: {learner: {ranks: 2}}\n"


class Alive(TorchDispatchMode):
    """Watches the CPU's memory of tensors that are made while this lasts, in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self._storages, self.peak = WeakIdKeyDictionary(), 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        found = function(*arguments, **(named or {}))
        tree_map_only(torch.Tensor, self._see, found)
        return found

    def _see(self, tensor: torch.Tensor) -> None:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
            self._storages[tensor.untyped_storage()] = None
            self.peak = max(self.peak, self.bytes())

    def bytes(self) -> int:
        """Of what is alive now."""
        return sum(storage.nbytes() for storage in self._storages)


def test_memory_is_counted_once_and_while_it_is_there() -> None:
    with Alive() as alive:
        kept = torch.zeros(100)
        views = kept.view(10, 10)[1:], kept.detach()
        del views
        assert alive.bytes() == 400
        (torch.zeros(1000) + 1).sum()
        gc.collect()
        assert (alive.bytes(), alive.peak) == (400, 400 + 4000 + 4000)
        torch.zeros(1000, device="meta")
        assert alive.peak == 8400


def stream(config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of a model, one at a time; the same for all who ask."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    random = torch.Generator().manual_seed(0)
    return ((name, torch.randn(weight.shape, generator=random)) for name, weight in weights_of(network))


def make(rank: int, name: str) -> dict[str, Any]:
    """Of each part: the peak while it is made, and the memory that is used then; and its weights. Of the network that
    the learner is given: its memory."""
    settings, model, _ = SCENES[name]
    made, found = Rank(rank, 2), dict[str, Any]()
    made._ranks = Ranks(distributed.group.WORLD)
    with Alive() as alive:

        def measure(part: str) -> None:
            gc.collect()
            found[part], alive.peak = (alive.peak, alive.bytes()), 0

        def make_of(*arguments: Any, **named: Any) -> Any:
            found["given"] = alive.bytes()
            return make_phase_learner(*arguments, **named)

        trainer.cluster.rank.make_phase_learner = make_of  # type: ignore[assignment]
        made.make(f"{BASE}learner: {{{settings}}}\n", False, MODELS[model], 1, stream(MODELS[model]))
        measure("learner")
        made.add_reference(False)
        measure("reference")
        made.add_critic(CriticConfig().model_dump())
        measure("critic")
    for part in ("learner", "reference", "critic"):
        found[f"weights of the {part}"] = {name: w.float().clone() for name, w in made.part(part, "weights")}
    if "lora" not in settings:
        found["masters"] = made._parts["learner"].optimizer_state().get("masters", [])
    return found


def rank_process(rank: int, folder: str, name: str) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Warning: tp_group is None")
    plainly = zero._configuration

    def configured(*arguments: Any, **named: Any) -> dict[str, Any]:
        found = plainly(*arguments, **named)
        found["zero_optimization"]["reduce_bucket_size"] = 1000  # of 500 million numbers otherwise, whatever the model
        return found

    zero._configuration = configured
    torch.cuda.current_device = lambda: torch.device("cpu")  # Megatron-Core's router takes it that there is CUDA
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(make(rank, name), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def marked(name: str) -> Any:
    backend = name.split()[0]
    package = {"deepspeed": "deepspeed", "megatron": "megatron", "fsdp2": "peft" if "adapters" in name else "torch"}
    missing = importlib.util.find_spec(package[backend]) is None
    mark = {"deepspeed": pytest.mark.cluster, "megatron": pytest.mark.megatron, "fsdp2": pytest.mark.slow}[backend]
    skip = pytest.mark.skipif(missing, reason=f"{package[backend]} is not installed")
    return pytest.param(name, marks=[mark, skip], id=name)


@pytest.mark.parametrize("name", [*map(marked, SCENES)])
def test_a_rank_holds_no_more_than_its_share_while_it_is_made(tmp_path: Path, name: str) -> None:
    """Policy, reference and critic: each is filled by a stream, beside which a rank has a few whole weights at most."""
    processes = [Forked(rank_process, rank, str(tmp_path), name, log=tmp_path / f"log-{rank}") for rank in range(2)]
    statuses = [process.wait(600) for process in processes]
    assert statuses == [0, 0], "".join((tmp_path / f"log-{rank}").read_text()[-4000:] for rank in range(2))
    _, model, held = SCENES[name]
    given = dict(stream(MODELS[model]))
    size = sum(weight.nbytes for weight in given.values())
    few = 4 * max(weight.nbytes for weight in given.values())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["given"] < few
        assert found["learner"][1] < held * size + few
        for peak, after in (found[part] for part in ("learner", "reference", "critic")):
            assert peak < after + few
        half = "bfloat16" in name
        expected = {n: w.bfloat16().float() if half else w for n, w in given.items()}
        for part in ("learner", "reference"):
            weights = found[f"weights of the {part}"]
            assert list(weights) == list(expected)
            assert all(torch.equal(w, expected[n]) for n, w in weights.items()), part
        critic = found["weights of the critic"]
        body = {n.replace("body.", "model."): w for n, w in critic.items() if n.startswith("body.")}
        assert body.keys() == {n for n in expected if n.startswith("model.")}
        assert all(torch.equal(w, expected[n]) for n, w in body.items())
        assert not any(w.any() for n, w in critic.items() if n.startswith("head."))
        for master, weight in zip(found.get("masters", []), expected.values(), strict=False):
            assert torch.equal(master, weight)
