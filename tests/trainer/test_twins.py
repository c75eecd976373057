"""A small twin of each file of configs/cluster, and of those of configs/gpu that one GPU of 24 GB takes with LoRA: the
same file with a few keys laid over it takes two steps on the CPU.

A twin's policy is a tiny random network of the model's family that keeps to the form of answers and chooses among
actions at random, so that there is something to learn. Its learner is two ranks of the file's backend, on local Ray
where the file says Ray. Servers are two that follow vLLM's contract and compute with the weights that reach them, and
one twin has a real vLLM. What only GPUs have is left out: their memory, NCCL, and CUDA IPC.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVLLM, running_fake
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

import roll_envs
from roll_envs.errors import ConfigError
from trainer import train
from trainer.cluster.ranked import _WeightsOf
from trainer.config import RunConfig
from trainer.config.load import load_config
from trainer.engines.buckets import Delivery, Word
from trainer.engines.vllm import VLLMSettings, check_vllm
from trainer.model.network import END, LanguageModel, build_tokenizer, load_model, save_model, words_of
from trainer.run.folder import read_metrics

CONFIGS = Path(__file__).parents[2] / "configs"

# -- what is laid over the files ---------------------------------------------------------------------------------------

SMALL = (
    "steps=2", "env.kwargs.max_turns=3", "sampling.max_new_tokens=8", "rollout.groups_per_step=2",
    "rollout.group_size=4", "evaluation.tasks=2", "optimizer.lr=0.01", "learner.device=cpu", "engine.device=cpu",
)  # fmt: skip
"""Of every twin; and ``model.path`` and ``output``, which are folders of the test."""
TWO_RANKS = ("placement.learner.ranks=2", "placement.learner.devices=", "placement.rollout.devices=")
IN_PIECES = ("learner.pack_tokens=512", "learner.tokens_per_microbatch=512")
"""So that so few episodes are several micro-batches, and each rank has some."""
ON_RAY = (
    "placement.address=", "placement.learner.ranks=2", "placement.learner.gpus=0", "placement.learner.cpus=1",
    "learner.pipeline_parallel=2",
)  # fmt: skip
SERVED = ("engine.replicas=1",)
"""And ``engine.url``: servers that run already are not replicas to be started."""
SLEEPING = ("engine.colocated=true",)
"""As null comes to where servers are started on the GPUs of the learner."""
LORA = ("learner.lora_rank=32",)
TWINS: Mapping[str, tuple[str, ...]] = {
    "cluster/frozenlake_qwen2.5_0.5b_8gpus": (*SMALL, *TWO_RANKS, *IN_PIECES, *SERVED, *SLEEPING),
    "cluster/sokoban_qwen2.5_0.5b_8gpus": (*SMALL, *TWO_RANKS, *IN_PIECES, *SERVED, *SLEEPING),
    "cluster/webshop_qwen2.5_7b_8gpus": (*SMALL, *TWO_RANKS, *IN_PIECES, *SERVED, *SLEEPING),
    "cluster/sokoban_qwen3_30b_a3b_4nodes": (*SMALL, *ON_RAY, *IN_PIECES, *SERVED),
    "gpu/frozenlake_qwen2.5_0.5b": (*SMALL, *LORA),
    "gpu/sokoban_qwen2.5_0.5b": (*SMALL, *LORA),
    "gpu/webshop_qwen2.5_0.5b": (*SMALL, *LORA),
}
MARKS = {"cluster/sokoban_qwen3_30b_a3b_4nodes": pytest.mark.megatron}
"""Beside slow, the mark of all others."""


def test_each_file_for_a_cluster_has_a_twin() -> None:
    names = {f"cluster/{path.stem}" for path in (CONFIGS / "cluster").glob("*.yaml")}
    assert {name for name in TWINS if name.startswith("cluster/")} == names


@pytest.mark.parametrize("name", TWINS)
def test_all_other_keys_are_those_of_the_file(name: str) -> None:
    path = CONFIGS / f"{name}.yaml"
    given = {override.partition("=")[0] for override in TWINS[name]}
    assert len(given) == len(TWINS[name])
    file, twin = (dict(flat(load_config(path, more).model_dump())) for more in ((), TWINS[name]))
    assert {key for key in file.keys() | twin.keys() if file.get(key) != twin.get(key)} == given


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


# -- a policy that plays, and servers that run it ----------------------------------------------------------------------

SHOPPING = ("search[boots]", "search[shirt]", "click[Next >]", "click[< Prev]", "click[Back to Search]", "click[size]")
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 16_384, "tie_word_embeddings": False, "bos_token_id": None,
}  # fmt: skip
"""Heads are 32 wide, which vLLM takes on a CPU."""
MIXED: dict[str, Any] = {
    "head_dim": 32, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}  # fmt: skip


def save_policy(config: RunConfig, folder: Path) -> Path:
    """``folder`` with a policy whose next token follows from the last one: an answer in the form that the environment
    of ``config`` asks for, with any of its actions."""
    env = roll_envs.make(config.env.id, **config.env.kwargs)
    form = env.unwrapped.action_format  # type: ignore[attr-defined]
    actions = form.actions or SHOPPING
    tokenizer = build_tokenizer([*words_of(env), *actions])
    shape = {**SHAPE, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    shape["eos_token_id"] = tokenizer.eos_token_id
    family = Qwen3MoeConfig(**shape, **MIXED) if "a3b" in config.name else Qwen2Config(**shape)
    order = [("<|assistant|>",), ("<think>",), ("</think>",), (f"<{form.tag}>",), actions, (f"</{form.tag}>",), (END,)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(family, attn_implementation="sdpa")
        # What the layers add is small beside these, so that the last token decides.
        read, say = network.get_input_embeddings().weight.normal_(), network.get_output_embeddings().weight
        for now, then in pairwise(tokenizer.convert_tokens_to_ids(list(words)) for words in order):
            say[then] += 10 / SHAPE["hidden_size"] * read[now].sum(0)
    save_model(LanguageModel(network=network, tokenizer=tokenizer), folder)
    return folder


class Served(FakeVLLM):
    """A server that samples from the model of a folder, with the weights of the last update."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.network = load_model(folder).network.eval()
        self.slept = 0

    async def answer(self, path: str, body: Any) -> tuple[int, Any]:
        answered = await super().answer(path, body)
        if path == "/finish_weight_update" and body is not None:
            self.network.load_state_dict(self.weights)
        self.slept += path.startswith("/sleep")
        return answered

    async def generate(self, body: Any) -> tuple[int, Any]:
        self.requests += 1
        await self.running.wait()
        return 200, {"choices": [self.sample(body["token_ids"], body["sampling_params"])]}

    @torch.inference_mode()
    def sample(self, prompt: Sequence[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        dice = torch.Generator().manual_seed(sampling["seed"] or 0)
        ids: list[int] = []
        logprobs: list[float] = []
        given, cache = list(prompt), None
        while len(ids) < sampling["max_tokens"] and (not ids or ids[-1] not in sampling["stop_token_ids"]):
            said = self.network(torch.tensor([given]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            logp = (said.logits[0, -1].double() / (sampling["temperature"] or 1.0)).log_softmax(-1)
            ids.append(int(torch.multinomial(logp.exp(), 1, generator=dice)))
            logprobs.append(float(logp[ids[-1]]))
            given, cache = ids[-1:], said.past_key_values
        return {
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=True)]},
            "finish_reason": "stop" if ids[-1] in sampling["stop_token_ids"] else "length",
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
        }


# -- two steps ---------------------------------------------------------------------------------------------------------


def two_steps(name: str, folder: Path, *more: str) -> tuple[RunConfig, list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The configuration of a twin whose policy is in ``folder``, its steps, and the weights that it ends with."""
    config = load_config(
        CONFIGS / f"{name}.yaml", [*TWINS[name], f"model.path={folder}", f"output={folder.parent / 'runs'}", *more]
    )
    summary = train(config)
    steps = read_metrics(summary["folder"], "train")
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["rollout/failed_share"] == 0 and step["mismatch/kl"] < 2e-3 for step in steps)
    assert any(step["learner/grad_norm"] > 0 for step in steps)
    last = load_model(Path(summary["folder"]) / "model").network.state_dict()
    assert any(not torch.equal(weight, last[n]) for n, weight in load_model(folder).network.state_dict().items())
    return config, steps, last


def policy_of(name: str, tmp_path: Path) -> Path:
    return save_policy(load_config(CONFIGS / f"{name}.yaml"), tmp_path / "policy")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TWINS if name.startswith("gpu/")])
def test_one_gpu_with_lora(name: str, tmp_path: Path, no_pictures: None) -> None:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    two_steps(name, policy_of(name, tmp_path))


ROUTED_ON_CPU = """
import sys
if any("default_worker" in word for word in sys.orig_argv):
    import torch
    torch.cuda.current_device = lambda: torch.device("cpu")
"""
"""Megatron-Core's router takes it that there is CUDA; nothing else that is used does. For the workers of Ray, as
test_megatron has it for processes."""


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.filterwarnings("ignore")  # of Ray's own sockets, and of Megatron-Core
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=MARKS.get(n, pytest.mark.slow)) for n in TWINS if n.startswith("cluster/")],
)
def test_a_cluster(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    if "30b" in name:
        if importlib.util.find_spec("megatron") is None:
            pytest.skip("megatron-core is not installed")
        (tmp_path / "sitecustomize.py").write_text(ROUTED_ON_CPU)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    folder = policy_of(name, tmp_path)
    with ExitStack() as stack:
        served = [stack.enter_context(running_fake(lambda: Served(folder))) for _ in range(2)]
        urls = ",".join(url for url, _ in served)
        config, steps, last = two_steps(name, folder, f"engine.url=[{urls}]")
    # With a replica of the model on each rank, both have work; the two stages of one model have the same.
    assert all(1 <= step["learner/rank_imbalance"] < 2 for step in steps)
    for _, server in served:
        assert isinstance(server, Served)
        assert server.requests > 0
        assert server.slept >= (2 if SLEEPING[0] in TWINS[name] else 0)
        for key, weight in server.network.state_dict().items():
            assert torch.equal(weight, last[key].bfloat16().float()), key
    assert config.engine.dtype == "bfloat16"


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_cluster_with_a_real_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    try:
        check_vllm(VLLMSettings())
    except ConfigError as error:
        pytest.skip(str(error))
    name, deliveries, deliver = "cluster/frozenlake_qwen2.5_0.5b_8gpus", list[Delivery](), _WeightsOf.deliver

    def counted(weights: _WeightsOf, delivery: Delivery) -> Iterator[Word]:
        deliveries.append(delivery)
        return deliver(weights, delivery)

    monkeypatch.setattr(_WeightsOf, "deliver", counted)
    two_steps(name, policy_of(name, tmp_path))
    assert len(deliveries) >= 2, "straight from the ranks"
    assert all(delivery.writers == (0, 1) for delivery in deliveries)
