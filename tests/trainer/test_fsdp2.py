"""Two processes that hold a shard of each weight take the steps that one process with whole weights takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted
from forked import Forked, chosen_names
from loop_runs import run
from safetensors.torch import load_file
from test_learner import some_rows
from tiny import tiny_model
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor

from roll_envs.errors import CheckpointError, ConfigError
from trainer.config import CriticConfig, LearnerConfig, LossConfig, OptimizerConfig
from trainer.config.load import parse_config
from trainer.engines.buckets import Adapted
from trainer.engines.vllm_worker.roll_transfer import Kept
from trainer.learner import Learner, fsdp2, make_learner
from trainer.learner.gradients import Ranks
from trainer.learner.steps import skeleton_of
from trainer.model.context import check_heads
from trainer.model.forward import load_weights
from trainer.run.folder import read_metrics

pytestmark = pytest.mark.slow

DEALT = ([0, 3, 8], [1, 2, 4, 5, 6, 7])
EMPTY = ([*range(9)], [])


class Scene(NamedTuple):
    """A few steps, and how their sequences are dealt to two ranks."""

    settings: Mapping[str, Any] = {}
    dealt: Sequence[Sequence[int]] = DEALT
    spoil: Sequence[int] = ()
    """Sequences whose advantages are not numbers, in the second step."""
    sharded: Mapping[str, Any] = {}
    """Settings that ``torch`` does not have."""
    model: Mapping[str, Any] = {}
    loss: Mapping[str, Any] = {}


CONTEXT = {"context_parallel": 2}
SEQUENCES = {"name": "gspo", "aggregation": "seq-mean-token-mean"}  # asks for whole sequences, lengths included
SCENES = {
    "uneven": Scene(),
    "empty": Scene(dealt=EMPTY),
    "broken": Scene(spoil=(5,)),
    "checkpointed": Scene({"gradient_checkpointing": True, "logits_mib": 0.01}),
    "adapters": Scene({"lora_rank": 2, "lora_alpha": 8.0}),
    "bfloat16": Scene({"precision": "bfloat16"}),
    "bfloat16 adapters": Scene({"precision": "bfloat16", "lora_rank": 2}),
    "context": Scene(sharded=CONTEXT, loss=SEQUENCES),
    "context, one rank empty": Scene(dealt=EMPTY, sharded=CONTEXT, model={"heads": 4, "kv_heads": 2}),
    "context, one key head": Scene(
        {"gradient_checkpointing": True, "logits_mib": 0.01}, sharded=CONTEXT, model={"heads": 4, "kv_heads": 1}
    ),
    "context, broken": Scene({"lora_rank": 2, "lora_alpha": 8.0}, spoil=(5,), sharded=CONTEXT),
    "bfloat16 context": Scene({"precision": "bfloat16"}, sharded=CONTEXT, model={"heads": 4, "kv_heads": 1}),
}


def learner_of(backend: str, scene: Scene, ranks: Ranks, weights: Any = None) -> Learner:
    model = tiny_model(**scene.model)
    settings = {**scene.settings, **(scene.sharded if backend == "fsdp2" else {})}
    if weights is not None:
        load_weights(model.network, weights.items())
    return make_learner(
        model,
        loss=LossConfig(entropy_coef=0.01, kl_coef=0.1, **scene.loss),
        optimizer=OptimizerConfig(lr=1e-3, max_grad_norm=0.5, weight_decay=0.1),
        temperature=0.7,
        settings=LearnerConfig(backend=backend, **settings),
        device="cpu",
        ranks=ranks,
    )


def kept(weights: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in weights}


def two_steps(learner: Learner, critic: Any, mine: Sequence[int], spoil: Sequence[int] = ()) -> list[dict[str, float]]:
    """Metrics of steps of policy and critic on the sequences ``mine``."""
    rows, advantages = some_rows()
    rows = [rows[i] for i in mine]
    found = []
    for step in range(2):
        bad = spoil if step else ()
        given = [np.full_like(advantages[i], np.nan) if i in bad else advantages[i] for i in mine]
        batches = batches_of(
            rows, given, pack_tokens=20, tokens_per_microbatch=40,
            reference_logp=[np.full(len(r.ids), -4.0) for r in rows],
        )  # fmt: skip
        targets = batches_of(
            rows, pack_tokens=20, tokens_per_microbatch=20,
            value=[np.zeros(len(r.ids)) for r in rows],
            returns=[np.linspace(0, 1, len(r.ids)) for r in rows],
        )  # fmt: skip
        metrics, logprobs = learner.step(batches, counted(rows), lr=1e-3)
        assert len(logprobs) == len(batches)
        found.append({**metrics, **critic.step(targets, counted(rows), lr=1e-3)})
    return found


def played(backend: str, scene: Scene, ranks: Ranks, mine: Sequence[int]) -> dict[str, Any]:
    """Two steps; then what they gave, and what a learner that goes on from there gives."""
    learner = learner_of(backend, scene, ranks)
    reference = learner.reference()
    critic = learner.critic(CriticConfig(lr=1e-3))
    critic.load_weights(
        [(n, torch.full_like(w, 0.1) if n == "head.weight" else w) for n, w in kept(critic.weights()).items()]
    )
    widths = widths_of(learner)
    metrics = two_steps(learner, critic, mine, scene.spoil)
    rows = [some_rows()[0][i] for i in mine]
    batches = batches_of(rows, pack_tokens=20, tokens_per_microbatch=40)
    return {
        "metrics": metrics,
        "weights": kept(learner.weights()) | kept(critic.weights()),
        "policy": kept(learner.weights()),
        "merged": merged_apart(learner),
        "critic": kept(critic.weights()),
        "state": learner.optimizer_state(),
        "critic state": critic.optimizer_state(),
        "reference": sum(float(x.sum()) for x in reference.score(batches)),
        "current": sum(float(x.sum()) for x in learner.score(batches)),
        "numbers": held(learner),
        "widths": widths,
        "dtypes": {(p.requires_grad, p.dtype) for p in getattr(learner, "_network").parameters()},  # noqa: B009
    }


def merged_apart(learner: Any) -> dict[str, torch.Tensor]:
    """The weights as an engine merges them that keeps those beside the adapters; none where there are no adapters."""
    weights, parts = learner.weights(), Kept()
    if not isinstance(weights, Adapted):
        return {}
    parts.keep(kept(weights.bases()).items())
    parts.adapt(kept(weights.adapters()).items())
    return dict(parts.merged(torch.device("cpu")))


def resumed(backend: str, scene: Scene, ranks: Ranks, mine: Sequence[int], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Two more steps of a learner that is given what another saved."""
    learner = learner_of(backend, scene, ranks, saved["policy"])
    critic = learner.critic(CriticConfig(lr=1e-3))
    critic.load_weights(saved["critic"].items())
    first = ranks.rank == 0
    learner.load_optimizer_state(saved["state"] if first else {})
    critic.load_optimizer_state(saved["critic state"] if first else {})
    two_steps(learner, critic, mine)
    return kept(learner.weights()) | kept(critic.weights())


def widths_of(learner: Any) -> list[int]:
    """How many tokens the policy runs in each pass from now on."""
    widths: list[int] = []
    embedding = learner._network.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
    return widths


def held(learner: Any) -> tuple[int, int]:
    """Numbers of weights on this rank, and in all."""
    parameters = list(learner._network.parameters())
    own = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
    return own, sum(p.numel() for p in parameters)


def rank_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    saved = torch.load(Path(folder) / "alone.pt")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ranks = Ranks(distributed.group.WORLD)
    found: dict[str, Any] = {}
    for name in saved:
        scene = SCENES[name]
        found[name] = played("fsdp2", scene, ranks, scene.dealt[rank])
        found[name]["resumed"] = resumed("fsdp2", scene, ranks, scene.dealt[rank], saved[name])
    whole, cut = fsdp2.fully_shard, list[tuple[str, Any]]()

    def noted(module: Any, **named: Any) -> Any:
        cut.append((type(module).__name__, named["mp_policy"]))
        return whole(module, **named)

    fsdp2.fully_shard = noted  # type: ignore[assignment]
    other = learner_of("fsdp2", Scene({"precision": "bfloat16"}), ranks)
    fsdp2.fully_shard, found["cut"] = whole, [(name, policy.param_dtype, policy.reduce_dtype) for name, policy in cut]
    try:
        other.load_optimizer_state(next(iter(saved.values()))["state"] if rank == 0 else {})
    except CheckpointError as error:
        found["refused"] = str(error)
    adapted: Any = learner_of("fsdp2", SCENES["adapters"], ranks)
    found["keys"] = {adapted.weights().key() for _ in range(2)}
    adapted.load_weights(kept(adapted.weights().bases()).items())
    found["keys"].add(adapted.weights().key())
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {name: played("torch", SCENES[name], Ranks(), range(9)) for name in chosen_names(request, SCENES)}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, alone: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two processes found, by scene."""
    folder = tmp_path_factory.mktemp("shards")
    torch.save(alone, folder / "alone.pt")
    processes = [Forked(rank_process, rank, str(folder), log=folder / f"log-{rank}") for rank in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0], "".join(
        (folder / f"log-{r}").read_text() for r in (1, 0)
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def near(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], relative: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        difference = float((found[name].double() - value.double()).norm())
        assert difference <= relative * float(value.double().norm()) + 1e-12, name


EXACT = [name for name in SCENES if "bfloat16" not in name]


@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if scene.settings.get("lora_rank")])
def test_adapters_apart_give_the_merged_weights(
    together: list[dict[str, Any]], alone: dict[str, Any], name: str
) -> None:
    for found in (*together, alone):
        near(found[name]["merged"], found[name]["policy"], 1e-6 if name in EXACT else 5e-3)


@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_take_the_steps_of_one(together: list[dict[str, Any]], alone: dict[str, Any], name: str) -> None:
    for rank in together:
        for number, (one, whole) in enumerate(zip(rank[name]["metrics"], alone[name]["metrics"], strict=True)):
            assert one.keys() == whole.keys()
            for key, value in whole.items():  # AdamW makes rounding of the first step larger
                assert one[key] == pytest.approx(value, rel=5e-6 if number else 1e-6, abs=1e-8), (number, key)
        near(rank[name]["weights"], alone[name]["weights"], 1e-6)
    for key in ("reference", "current"):
        assert sum(rank[name][key] for rank in together) == pytest.approx(alone[name][key], rel=1e-6)
    losses = [one["critic/loss"] for one in together[0][name]["metrics"]]
    assert losses[1] != losses[0]  # of the same targets: it was stepped
    skipped = [one["learner/skipped_steps"] for one in together[0][name]["metrics"]]
    assert skipped == [0.0, float(bool(SCENES[name].spoil))]


@pytest.mark.parametrize("name", [n for n in SCENES if n not in EXACT])
def test_half_precision_is_torchs_within_rounding(
    together: list[dict[str, Any]], alone: dict[str, Any], name: str
) -> None:
    near(together[0][name]["weights"], alone[name]["weights"], 2e-3)
    norms = [found["metrics"][0]["learner/grad_norm"] for found in (together[0][name], alone[name])]
    assert norms[0] == pytest.approx(norms[1], rel=0.03)


@pytest.mark.parametrize("name", SCENES)
def test_no_rank_holds_the_model(together: list[dict[str, Any]], name: str) -> None:
    """Half of the numbers each, but for what does not divide."""
    shares = [rank[name]["numbers"] for rank in together]
    assert shares[0][1] == shares[1][1] == sum(own for own, _ in shares)
    assert max(own for own, _ in shares) < 0.51 * shares[0][1]
    held_as = {(True, torch.float32)}
    if SCENES[name].settings.get("lora_rank"):
        held_as.add((False, torch.float32 if name in EXACT else torch.bfloat16))
    assert together[0][name]["dtypes"] == held_as


def test_context_parallel_ranks_run_a_slice_of_each_micro_batch(
    together: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    name = "context, one rank empty"  # the other's micro-batches are those of one process
    for rank in together:
        assert rank[name]["widths"] == [-(-width // 2) for width in alone[name]["widths"]]


@pytest.mark.parametrize("name", SCENES)
def test_a_checkpoint_goes_on_under_the_other_backend(
    together: list[dict[str, Any]], alone: dict[str, Any], name: str
) -> None:
    """Saved by one process with whole weights and resumed by two with shards, and the other way round."""
    scene = SCENES[name]
    wanted = resumed("torch", scene, Ranks(), range(9), alone[name])
    relative = 1e-6 if name in EXACT else 3e-3
    for rank in together:
        near(rank[name]["resumed"], wanted, relative)
    assert together[1][name]["state"] == together[1][name]["critic state"] == {}
    near(resumed("torch", scene, Ranks(), range(9), together[0][name]), wanted, relative)


def test_layers_are_cut_one_by_one_and_gradients_are_summed_in_float32(together: list[dict[str, Any]]) -> None:
    for rank in together:
        names, computed, summed = zip(*rank["cut"], strict=True)
        assert names == ("LlamaDecoderLayer", "LlamaDecoderLayer", "ScoreModule")
        assert set(computed) == {torch.bfloat16}
        assert set(summed) == {torch.float32}


def test_weights_that_are_loaded_beside_adapters_have_another_key(together: list[dict[str, Any]]) -> None:
    """Engines that kept those of before are sent them."""
    assert [len(rank["keys"]) for rank in together] == [2, 2]


def test_a_state_of_another_precision_is_refused_by_all(together: list[dict[str, Any]]) -> None:
    for rank in together:
        assert "resume with the learner.precision it was saved with" in rank["refused"]


BASE = "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nlearner: {backend: fsdp2}\n"


def test_an_optimizer_of_whole_matrices_is_refused_before_anything_starts() -> None:
    parse_config(BASE)
    for backend in ("fsdp2", "deepspeed", "megatron"):
        text = BASE.replace("fsdp2", backend)
        with pytest.raises(ConfigError, match=rf"{backend} backend cannot step .* with optimizer\.name 'muon'"):
            parse_config(text + "optimizer: {name: muon}\n")
        with pytest.raises(ConfigError, match=rf"{backend} backend cannot step .* with warm_start\.optimizer 'muon'"):
            parse_config(text + "warm_start: {optimizer: muon}\n")


def test_a_critic_in_shards_computes_its_layers_again_where_the_policy_does() -> None:
    weights, calls = [], []
    for name in ("uneven", "checkpointed"):
        learner = learner_of("fsdp2", SCENES[name], Ranks())
        critic: Any = learner.critic(CriticConfig(lr=1e-3))
        critic.load_weights(
            [(n, torch.full_like(w, 0.1) if n == "head.weight" else w) for n, w in kept(critic.weights()).items()]
        )
        seen: list[object] = []
        critic._network["body"].layers[0].mlp.register_forward_pre_hook(lambda *_, seen=seen: seen.append(None))
        two_steps(learner, critic, range(9))
        weights.append(kept(critic.weights()))
        calls.append(len(seen))
    assert calls[1] == 2 * calls[0] > 0
    assert all(torch.equal(w, weights[1][n]) for n, w in weights[0].items())


def test_context_parallel_divides_the_ranks() -> None:
    text = BASE.replace("fsdp2", "fsdp2, context_parallel: 2")
    parse_config(text + "placement: {learner: {ranks: 4}}\n")
    with pytest.raises(ConfigError, match=r"context_parallel 2 does not divide placement\.learner\.ranks, 3"):
        parse_config(text + "placement: {learner: {ranks: 3}}\n")
    with pytest.raises(ConfigError, match=r"context_parallel 2 does not divide the number of ranks, 1"):
        learner_of("fsdp2", Scene(sharded=CONTEXT), Ranks())


def test_context_parallel_divides_the_heads() -> None:
    config = tiny_model(heads=4, kv_heads=1).network.config
    check_heads(config, 4)
    with pytest.raises(ConfigError, match=r"context_parallel 3 does not divide the model's num_attention_heads, 4"):
        check_heads(config, 3)


def test_offload_is_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch is told; nothing is run on the device."""
    given: list[Any] = []

    def told(module: Any, **named: Any) -> Any:
        given.append(named["offload_policy"])
        return SimpleNamespace(
            set_gradient_divide_factor=lambda factor: None, set_force_sum_reduction_for_comms=lambda on: None
        )

    monkeypatch.setattr(fsdp2, "fully_shard", told)
    monkeypatch.setattr(DeviceMesh, "from_group", lambda *_: None)
    for name, value in (("is_initialized", True), ("get_rank", 0), ("new_group", None)):
        monkeypatch.setattr(distributed, name, lambda *_, value=value, **__: value)
    network = skeleton_of(tiny_model().network)
    fsdp2.ShardedRanks(None, torch.device("cuda"), cpu_offload=True).shard(network, torch.float32)
    assert [type(policy) for policy in given] == [CPUOffloadPolicy] * 3
    assert {p.device.type for p in network.parameters()} == {"cpu"}


def test_offload_needs_cuda() -> None:
    with pytest.raises(ConfigError, match=r"learner\.cpu_offload needs CUDA"):
        learner_of("fsdp2", Scene({"cpu_offload": True}), Ranks())


def test_a_run_in_one_process_is_that_of_torch(tmp_path: Path, no_pictures: None) -> None:
    found = []
    for backend in ("torch", "fsdp2"):
        path, _ = run(tmp_path / backend, steps=2, learner={"backend": backend})
        metrics = [(each["loss/total"], each["learner/grad_norm"]) for each in read_metrics(path, "train")]
        found.append((metrics, load_file(path / "model" / "model.safetensors")))
    (plain, weights), (sharded, others) = found
    assert np.allclose(plain, sharded, rtol=1e-4, atol=1e-6)
    assert all(torch.allclose(weight, others[name], atol=1e-5) for name, weight in weights.items())
