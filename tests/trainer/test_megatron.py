"""The Megatron-Core backend with a real Megatron-Core: one process, and several over gloo, take the steps that the
plain PyTorch learner takes."""

from __future__ import annotations

import copy
import sys
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted, scattered
from forked import Forked
from test_learner import some_rows
from test_megatron_mapping import CONFIGS, SHAPE
from torch import distributed
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig
from typing_extensions import override

from roll_envs.errors import CheckpointError, ConfigError
from trainer.config import CriticConfig, LearnerConfig, LossConfig, OptimizerConfig
from trainer.learner import Learner, make_learner, megatron_families
from trainer.learner.gradients import Ranks
from trainer.learner.megatron_mapping import parts_of
from trainer.model.network import LanguageModel

pytestmark = [
    pytest.mark.megatron,
    pytest.mark.timeout(600),  # the first test that needs them waits for all scenes of two processes, or of four
    pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning"),  # Megatron-Core of itself
]
STEPS, TEMPERATURE = 3, 0.7
NO_WINDOW: dict[str, Any] = {**SHAPE, "sliding_window": None}
MODELS = {**CONFIGS, "mistral": MistralConfig(**NO_WINDOW, tie_word_embeddings=False)}
"""Mistral is not in the table of families: Megatron-Bridge knows it."""


def a_model(family: str) -> LanguageModel:
    """Large first weights, so that its distribution is far from even; norms and biases are no constants either.

    They are no larger, since rounding would grow: where every weight of the plain learner is moved by one unit in its
    last place, its own gradient norm moves by 0.8 of what is tolerated below, all else by 0.5 at most (24 draws of the
    directions for each family, on Zen 4). With 0.3 and biases around 1, Qwen2's moments moved by up to 12 times that.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(copy.deepcopy(MODELS[family]), attn_implementation="sdpa")
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.normal_(float(name.endswith("norm.weight")), 7.2 / network.config.hidden_size)
    return LanguageModel(network=network.train(), tokenizer=None)


@pytest.fixture(autouse=True, scope="module")
def bridge_on_cpu() -> None:
    """So that Megatron-Bridge can be imported here: it asks for Python 3.12, and its layers of LoRA, which are not
    used, for Transformer Engine, which is built with CUDA."""
    if not hasattr(typing, "override"):
        typing.override = override  # type: ignore[misc]
    layers: Any = types.ModuleType("megatron.bridge.peft.lora_layers")
    for name in ("LinearAdapter", "LoRALinear", "LoRATopKRouter", "TEFusedLoRALinear"):
        setattr(layers, name, type(name, (), {}))
    sys.modules.setdefault(layers.__name__, layers)


@pytest.fixture(autouse=True)
def experts_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Core's router takes it that there is CUDA; nothing else that is used does."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))


def a_learner(
    model: LanguageModel, ranks: Ranks | None = None, *, backend: str = "megatron", **settings: Any
) -> Learner:
    return make_learner(
        model,
        loss=LossConfig(entropy_coef=0.01, kl_coef=0.1),
        optimizer=OptimizerConfig(lr=1e-3, max_grad_norm=0.5, skip_norm=1e3, weight_decay=0.1, decay_embeddings=False),
        temperature=TEMPERATURE,
        settings=LearnerConfig(backend=backend, **settings),
        ranks=ranks,
    )


def rows_of(mine: Sequence[int]) -> tuple[list[Any], list[np.ndarray]]:
    rows, advantages = some_rows()
    rows = [replace(row, ids=tuple(i % 51 for i in row.ids)) for row in rows]
    assert any(CONFIGS["llama"].pad_token_id in row.ids for row in rows)  # whose embedding is not trained by it
    return [rows[i] for i in mine], [advantages[i] for i in mine]


class Scene(NamedTuple):
    """What is run on how many processes."""

    family: str
    dealt: Sequence[Sequence[int]]
    """Sequences of each rank."""
    settings: Mapping[str, Any] = MappingProxyType({})
    resume: bool = False
    """Whether a new learner goes on from the state of the first after each step."""
    spoil: tuple[int, ...] = ()
    """Sequences whose advantages are not numbers in the second step."""


UNEVEN, EMPTY = ([0, 3, 8], [1, 2, 4, 5, 6, 7]), ([*range(9)], [])
TP, PP = {"tensor_parallel": 2}, {"pipeline_parallel": 2}
CP, EP = {"context_parallel": 2}, {"expert_parallel": 2}
SCENES = {
    "dp": Scene("qwen2", UNEVEN),
    "dp, one rank empty": Scene("llama", EMPTY),
    "dp, skipped": Scene("llama", UNEVEN, spoil=(5,)),
    "dp, resumed": Scene("qwen3", UNEVEN, resume=True),
    "dp, experts": Scene("qwen3_moe", UNEVEN),
    "tp, tied": Scene("llama", UNEVEN, TP),
    "tp, biases": Scene("qwen2", UNEVEN, TP),
    "tp, norms of heads": Scene("qwen3", UNEVEN, TP),
    "tp, one rank empty": Scene("qwen3", EMPTY, TP),
    "tp, skipped": Scene("qwen2", UNEVEN, TP, spoil=(5,)),
    "tp, resumed": Scene("qwen3", UNEVEN, TP, resume=True),
    "tp, logits in pieces": Scene("qwen2", UNEVEN, {**TP, "logits_mib": 0.001}),
    "tp, computed twice": Scene("qwen3", UNEVEN, {**TP, "gradient_checkpointing": True}),
    "pp, tied": Scene("qwen3", UNEVEN, PP),
    "pp, untied": Scene("qwen2", UNEVEN, PP),
    "pp, one rank empty": Scene("llama", EMPTY, PP),
    "pp, skipped": Scene("llama", UNEVEN, PP, spoil=(5,)),
    "pp, resumed": Scene("llama", UNEVEN, PP, resume=True),
    "pp, computed twice": Scene("qwen3", UNEVEN, {**PP, "gradient_checkpointing": True}),
    "cp": Scene("qwen2", UNEVEN, CP),
    "cp, one rank empty": Scene("qwen3", EMPTY, {**CP, "gradient_checkpointing": True}),
    "ep": Scene("qwen3_moe", UNEVEN, EP, resume=True),
    "ep, one rank empty": Scene("qwen3_moe", EMPTY, {**EP, "gradient_checkpointing": True}),
    "cp ep": Scene("qwen3_moe", UNEVEN, {**CP, **EP}),
}
HALF = {
    f"bfloat16, {how}": Scene("qwen2", UNEVEN, {"precision": "bfloat16"}, resume=how == "resumed")
    for how in ("straight", "resumed")
}
QUARTERS = ([0, 3], [8], [1, 2, 4], [5, 6, 7])
SCENES_OF_FOUR = {
    "tp pp": Scene("qwen3", QUARTERS, {**TP, **PP}, resume=True),
    "tp pp, by Megatron-Bridge": Scene("mistral", QUARTERS, {**TP, **PP}),
    "tp dp": Scene("llama", QUARTERS, TP),
    "pp dp": Scene("llama", QUARTERS, PP),
    "tp cp": Scene("llama", QUARTERS, {**TP, **CP}),
    "ep dp, one rank empty": Scene("qwen3_moe", ([0, 3], [8], [1, 2, 4, 5, 6, 7], []), EP, resume=True),
    "pp ep": Scene("qwen3_moe", QUARTERS, {**PP, **EP}),
}


def play(scene: Scene, mine: Sequence[int], ranks: Ranks | None = None, *, backend: str = "megatron") -> dict[str, Any]:
    """Steps of policy and critic on the sequences ``mine``: metrics, log-probs, values, weights and states."""
    model = a_model(scene.family)
    settings = scene.settings if backend == "megatron" else {}
    learner = a_learner(model, ranks, backend=backend, **settings)
    reference = learner.reference()
    critic = learner.critic(CriticConfig(lr=1e-3))
    rows, advantages = rows_of(mine)
    found: dict[str, Any] = {"metrics": []}
    found["before"] = {name: w.clone() for part in (learner, critic) for name, w in part.weights()}
    for step in range(STEPS):
        now = [
            np.full_like(a, np.nan) if i in scene.spoil and step == 1 else a
            for i, a in zip(mine, advantages, strict=True)
        ]
        plain = batches_of(rows, pack_tokens=20, tokens_per_microbatch=40)
        kept = scattered(rows, plain, reference.score(plain))
        values = scattered(rows, plain, critic.score(plain))
        old = scattered(rows, plain, learner.score(plain))
        batches = batches_of(
            rows, now, pack_tokens=20, tokens_per_microbatch=40, reference_logp=kept, proximal_logp=old, value=values,
            returns=[np.linspace(0, 1 + step, len(r.ids)) for r in rows],
        )  # fmt: skip
        metrics, before = learner.step(batches, counted(rows), lr=1e-3)
        assert [b.shape for b in before] == [b.ids.shape for b in batches]
        found["metrics"].append({**metrics, **critic.step(batches, counted(rows), lr=1e-3)})
        found[f"numbers {step}"] = [np.stack([k, v, o]) for k, v, o in zip(kept, values, old, strict=True)]
        if scene.resume:
            parts = [(part, [(n, w.clone()) for n, w in part.weights()]) for part in (learner, critic)]
            states = [part.optimizer_state() for part, _ in parts]
            learner = a_learner(model, ranks, backend=backend, **settings)
            critic = learner.critic(CriticConfig(lr=1e-3))
            with torch.no_grad():
                for name, weight in parts[0][1]:
                    model.network.get_parameter(name).copy_(weight)
            critic.load_weights(parts[1][1])
            learner.load_optimizer_state(states[0])
            critic.load_optimizer_state(states[1])
    found["weights"] = {name: w.clone() for part in (learner, critic) for name, w in part.weights()}
    if backend == "megatron":
        kept = [t for entry in learner._optimizer._adamw.state.values() for t in entry.values() if t.ndim]  # type: ignore[attr-defined]
        found["held"] = sum(t.numel() for t in kept)
    found["states"] = {"policy": learner.optimizer_state(), "critic": critic.optimizer_state()}
    return found


def rank_process(rank: int, count: int, folder: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Warning: tp_group is None")
    torch.cuda.current_device = lambda: torch.device("cpu")  # see experts_on_cpu
    bridge_on_cpu.__wrapped__()
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    ranks, found = Ranks(distributed.group.WORLD), {}
    for name in names:
        from trainer.learner.megatron_grid import core

        scene = {**SCENES, **HALF, **SCENES_OF_FOUR}[name]
        print(name, flush=True)
        found[name] = play(scene, scene.dealt[rank], ranks)
        core().state.destroy_model_parallel()
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def together(folder: Path, count: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """What each of ``count`` processes found, by scene."""
    processes = [
        Forked(rank_process, rank, count, str(folder), names, log=folder / f"log-{rank}") for rank in range(count)
    ]
    try:
        ended = [process.wait(480) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(9)
    assert ended == [0] * count, "\n".join((folder / f"log-{rank}").read_text()[-3000:] for rank in range(count))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(tmp_path_factory.mktemp("pair"), 2, [*SCENES, *HALF])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(tmp_path_factory.mktemp("four"), 4, list(SCENES_OF_FOUR))


def assert_alike(found: dict[str, Any], alone: dict[str, Any], mine: Sequence[int]) -> None:
    """Metrics to 1e-6 in the first step and to 3e-5 later, log-probs and values to 1e-5, weights to 1e-5 of their norm
    and 1e-3 of the way they went. (AdamW's first steps go by signs: a gradient of rounding errors moves its weight.)"""
    for step, (one, other) in enumerate(zip(found["metrics"], alone["metrics"], strict=True)):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == pytest.approx(value, rel=3e-5 if step else 1e-6, abs=3e-6 if step else 1e-8), name
    for step in range(STEPS):
        for i, numbers in zip(mine, found[f"numbers {step}"], strict=True):
            assert np.allclose(numbers, alone[f"numbers {step}"][i], rtol=1e-5, atol=2e-5), step
    assert list(found["weights"]) == list(alone["weights"])
    before = alone["before"]
    for name, weight in alone["weights"].items():
        error, moved = float((found["weights"][name] - weight).norm()), float((weight - before[name]).norm())
        assert moved > 0, name
        assert error < max(1e-5 * float(weight.norm()), 1e-7), (name, error, moved)
        assert error < 1e-3 * moved, (name, error, moved)


def assert_same_state(found: dict[str, Any], alone: dict[str, Any]) -> None:
    (policy,), (expected,) = found["policy"]["parts"], alone["policy"]["parts"]
    assert found["policy"]["skipped"] == alone["policy"]["skipped"]
    for one, other in ((policy, expected), (found["critic"], alone["critic"])):
        assert one["param_groups"] == other["param_groups"]
        assert sorted(one["state"]) == sorted(other["state"])
        for i, entry in other["state"].items():
            assert entry.keys() == one["state"][i].keys()
            assert entry["step"] == one["state"][i]["step"]
            for key in ("exp_avg", "exp_avg_sq"):
                scale = float(entry[key].abs().max())
                assert torch.allclose(one["state"][i][key], entry[key], rtol=1e-4, atol=1e-5 * scale), (i, key)


@pytest.mark.parametrize("family", MODELS)
def test_one_process_is_the_plain_learner(family: str) -> None:
    scene = Scene(family, ())
    alone = play(scene, range(9), backend="torch")
    found = play(scene, range(9))
    assert alone["metrics"][0]["learner/grad_norm"] > 1.0  # it is cut
    assert len({m["critic/loss"] for m in alone["metrics"]}) == STEPS
    assert_alike(found, alone, range(9))
    assert_same_state(found["states"], alone["states"])


@pytest.mark.parametrize("name", SCENES)
def test_two_processes_take_the_steps_of_one(pair: list[dict[str, Any]], name: str) -> None:
    scene = SCENES[name]
    alone = play(scene._replace(resume=False), range(9), backend="torch")
    skipped = [m["learner/skipped_steps"] for m in alone["metrics"]]
    assert skipped == [0.0, float(bool(scene.spoil)), 0.0]
    for rank, mine in enumerate(scene.dealt):
        assert_alike(pair[rank][name], alone, mine)
        weights = pair[rank][name]["weights"]
        assert all(torch.equal(w, pair[0][name]["weights"][n]) for n, w in weights.items())
    assert_same_state(pair[0][name]["states"], alone["states"])
    assert pair[1][name]["states"]["policy"] == {}


def whole_state(found: dict[str, Any]) -> int:
    (policy,) = found["states"]["policy"]["parts"]
    return sum(entry[key].numel() for entry in policy["state"].values() for key in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize("name", ["dp", "cp", "ep", "tp, biases", "bfloat16, resumed"])
def test_no_two_ranks_hold_the_same_of_the_optimisers_state(pair: list[dict[str, Any]], name: str) -> None:
    whole, shares = whole_state(pair[0][name]), [rank[name]["held"] for rank in pair]
    assert max(shares) < 0.55 * whole  # an odd number of rows is divided as well as can be; norms of all tensor shares
    assert whole <= sum(shares) < 1.05 * whole


def test_half_precision_goes_on_to_the_bit_and_near_the_plain_learner(pair: list[dict[str, Any]]) -> None:
    straight, resumed = (pair[0][name] for name in HALF)
    for name, weight in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name
        assert torch.equal(pair[1]["bfloat16, resumed"]["weights"][name], weight), name
    one, two = (found["states"]["policy"]["masters"] for found in (straight, resumed))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    alone = a_learner(a_model("qwen2"), backend="torch", precision="bfloat16")
    first = {name: w.float() for name, w in alone.weights()}
    for name, master in zip(first, one, strict=True):
        assert not torch.equal(master, master.bfloat16().float()), name  # finer than what is run
        assert torch.allclose(master, first[name], rtol=0.02, atol=4e-3), name  # three steps of 1e-3 from there


@pytest.mark.parametrize("name", SCENES_OF_FOUR)
def test_four_processes_take_the_steps_of_one(four: list[dict[str, Any]], name: str) -> None:
    scene = SCENES_OF_FOUR[name]
    alone = play(scene._replace(resume=False), range(9), backend="torch")
    for rank, mine in enumerate(scene.dealt):
        assert_alike(four[rank][name], alone, mine)
    assert_same_state(four[0][name]["states"], alone["states"])


# -- states ------------------------------------------------------------------------------------------------------------


def stepped(learner: Learner, times: int) -> list[dict[str, float]]:
    rows, advantages = rows_of(range(9))
    kept = [np.full(len(r.ids), -4.0) for r in rows]
    batches = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=40, reference_logp=kept)
    return [learner.step(batches, counted(rows), lr=1e-3)[0] for _ in range(times)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("saver", "taker"), [("torch", "megatron"), ("megatron", "torch")])
def test_a_run_goes_on_under_another_backend(saver: str, taker: str, precision: str) -> None:
    model = a_model("qwen2")
    learner = a_learner(model, backend=saver, precision=precision)
    stepped(learner, 2)
    state, weights = learner.optimizer_state(), {name: w.clone() for name, w in learner.weights()}
    other_model = a_model("qwen2")
    other = a_learner(other_model, backend=taker, precision=precision)
    with torch.no_grad():
        for name, weight in weights.items():
            other_model.network.get_parameter(name).copy_(weight)
    other.load_optimizer_state(state)
    assert all(torch.equal(weight, weights[name]) for name, weight in other.weights())
    again = other.optimizer_state()
    assert again.keys() == state.keys()
    assert ("masters" in state) == (precision == "bfloat16")
    (one,), (two,) = state["parts"], again["parts"]
    assert one["param_groups"] == two["param_groups"]
    for i, entry in one["state"].items():
        assert all(torch.equal(value, two["state"][i][key]) for key, value in entry.items())
    assert all(torch.equal(a, b) for a, b in zip(state.get("masters", []), again.get("masters", []), strict=True))
    (expected,), (found,) = stepped(learner, 1), stepped(other, 1)
    if precision == "float32":  # bfloat16 is rounded in other places
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_rounds_no_more_than_elsewhere(family: str) -> None:
    rows, _ = rows_of(range(9))
    batches = batches_of(rows, pack_tokens=20, tokens_per_microbatch=40)

    def scores(backend: str, precision: str) -> torch.Tensor:
        model = a_model(family)
        with torch.no_grad():
            for parameter in model.network.parameters():
                parameter.copy_(parameter.bfloat16())  # so that all have the same weights
        found = a_learner(model, backend=backend, precision=precision).score(batches)
        return torch.cat([x[b.label_mask] for x, b in zip(found, batches, strict=True)])

    exact = scores("torch", "float32")
    assert torch.allclose(scores("megatron", "float32"), exact, rtol=1e-6, atol=1e-5)
    plain, error = ((scores(b, "bfloat16") - exact).abs().mean() for b in ("torch", "megatron"))
    assert 0 < error < 1.5 * plain


def test_with_one_rank_the_given_model_is_trained_in_place() -> None:
    model = a_model("llama")
    learner = a_learner(model)
    stepped(learner, 1)
    trained = dict(learner.weights())
    assert not torch.equal(trained["model.norm.weight"], a_model("llama").network.model.norm.weight)
    assert all(torch.equal(weight, trained[name]) for name, weight in model.network.named_parameters())


def test_states_that_do_not_fit_are_refused() -> None:
    learner = a_learner(a_model("llama"))
    stepped(learner, 1)
    state = learner.optimizer_state()
    (part,) = state["parts"]
    for spoilt, problem in [
        ({**state, "lora": {}}, "has LoRA adapters"),
        ({**state, "parts": [part, part]}, "has 2 optimisers"),
        ({**state, "masters": [torch.zeros(1)]}, "has 1 float32 copies of weights and the learner needs 0"),
        ({**state, "parts": [{**part, "state": {0: part["state"][0]}}]}, "has 1 weights, which are not the model's"),
        (
            {**state, "parts": [{**part, "param_groups": part["param_groups"][:1]}]},
            r"optimizer\.decay_embeddings it was",
        ),
        ({}, "has no state of the optimiser"),
    ]:
        with pytest.raises(CheckpointError, match=problem):
            learner.load_optimizer_state(spoilt)
    groups = [{**group, "betas": (0.1, 0.2), "weight_decay": 9.0} for group in part["param_groups"]]
    learner.load_optimizer_state({**state, "parts": [{**part, "param_groups": groups}]})
    found = learner.optimizer_state()["parts"][0]["param_groups"]
    assert found == part["param_groups"], "settings are the configuration's, not the checkpoint's"


# -- families by Megatron-Bridge ---------------------------------------------------------------------------------------


def test_a_model_of_megatron_bridge_goes_there_and_back_to_the_bit() -> None:
    conversion = pytest.importorskip("megatron.bridge.models.conversion.param_mapping")
    model = a_model("mistral")
    given = {name: weight.detach().clone() for name, weight in model.network.named_parameters()}
    learner = a_learner(model)
    found = dict(learner.weights())
    assert found.keys() == given.keys()
    assert all(torch.equal(weight, given[name]) for name, weight in found.items())
    stage = learner._stage  # type: ignore[attr-defined]
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    qkv = conversion.merge_qkv_weights(stage.network.config, *(given[f"{attention}{n}_proj.weight"] for n in "qkv"))
    assert torch.equal(stage.parameters["decoder.layers.1.self_attention.linear_qkv.weight"], qkv)
    gated = torch.cat([given[f"{mlp}{n}_proj.weight"] for n in ("gate", "up")])
    assert torch.equal(stage.parameters["decoder.layers.1.mlp.linear_fc1.weight"], gated)


@pytest.mark.parametrize("family", [name for name in CONFIGS if name != "qwen3_moe"])
def test_megatron_bridge_says_what_the_table_says(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    table = [part._replace(view=len) for part in parts_of(CONFIGS[family])]
    monkeypatch.setattr(megatron_families, "FAMILIES", {})
    found = megatron_families.family_of(CONFIGS[family])
    assert found.names is not None
    assert [part._replace(view=len) for part in parts_of(CONFIGS[family])] == table


@pytest.mark.parametrize("kind", ["internlm3", "iquestcoder"])
def test_models_of_other_types_with_the_same_layers_are_known(kind: str) -> None:
    config = AutoConfig.for_model(kind, **SHAPE)
    network = AutoModelForCausalLM.from_config(config)
    assert [part.name for part in parts_of(config)] == [name for name, _ in network.named_parameters()]


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("kind", "settings", "problem"),
    [
        ("mistral", {**SHAPE, "sliding_window": 8}, r"a mistral model with window_size \[7, 0\]"),
        ("mistral", {**NO_WINDOW, "hidden_act": "gelu"}, "a mistral model with hidden_act 'gelu'"),
        ("mistral", {**NO_WINDOW, "rope_parameters": YARN}, "models of type 'mistral'; .* unexpected keyword argument"),
        ("gemma", SHAPE, "a gemma model with layernorm_zero_centered_gamma True"),
        ("olmoe", SHAPE, "a olmoe model with num_moe_experts 64"),
        ("exaone4", SHAPE, "a exaone4 model with transformer_layer_spec"),
        ("gemma2", SHAPE, "a gemma2 model without hidden_act"),
        ("falcon_h1", {}, "a falcon_h1 model built by FalconH1ModelProvider"),
        ("hy_v3", {}, "models of type 'hy_v3'; .* no attribute 'first_k_dense_replace'"),
        ("arcee", SHAPE, "models of type 'arcee'; .* 'ArceeForCausalLM' is not yet supported"),
    ],
)
def test_what_megatron_bridge_knows_to_be_otherwise_is_refused(
    kind: str, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parts_of(AutoConfig.for_model(kind, **settings))


@pytest.mark.parametrize(
    ("own", "problem"),
    [({"provide": lambda self: None}, r"built by Other\.provide"), ({"scale_factor": 8.0}, r"with scale_factor 8\.0")],
)
def test_a_provider_with_something_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], problem: str
) -> None:
    mistral = pytest.importorskip("megatron.bridge.models.mistral.mistral_bridge")
    types_of = {name: type(value) for name, value in own.items() if not callable(value)}
    other = type("Other", (mistral.MistralModelProvider,), {**own, "__annotations__": types_of})
    monkeypatch.setattr(mistral, "MistralModelProvider", dataclass(other))
    with pytest.raises(ConfigError, match=f"a mistral model {problem}"):
        parts_of(MODELS["mistral"])


@pytest.mark.parametrize("otherwise", ["order", "name", "kind", "transposed", "unknown"])
def test_weights_that_megatron_bridge_has_elsewhere_are_refused(
    monkeypatch: pytest.MonkeyPatch, otherwise: str
) -> None:
    mistral = pytest.importorskip("megatron.bridge.models.mistral.mistral_bridge")
    gate, up, down, core = ("model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight",
        "model.layers.*.mlp.down_proj.weight", "decoder.layers.*.mlp.linear_fc1.weight")  # fmt: skip
    auto, gated = mistral.AutoMapping, mistral.GatedMLPMapping
    put, problem = {
        "order": (gated(core, gate=up, up=gate), "up_proj.weight and model.layers.0.mlp.gate_proj.weight"),
        "name": (auto("decoder.layers.*.mlp.linear_fc2.weight", up), "Megatron-Bridge of model.layers.0.mlp.up_proj"),
        "kind": (type("Other", (gated,), {})(core, gate=gate, up=up), "Megatron-Bridge of something else"),
        "transposed": (auto("decoder.layers.*.mlp.linear_fc2.weight", down, permute_dims=(1, 0)), "something else"),
        "unknown": (None, "makes embedding.word_embeddings.weight of a mistral model .* something else"),
    }[otherwise]
    known = mistral.MistralBridge().mapping_registry().get_all_mappings()
    mappings = [] if put is None else [put if m.megatron_param == put.megatron_param else m for m in known]
    registry = mistral.MegatronMappingRegistry(*mappings)
    monkeypatch.setattr(mistral.MistralBridge, "mapping_registry", lambda self: registry)
    with pytest.raises(ConfigError, match=problem):
        parts_of(MODELS["mistral"])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_more_parallel_than_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner.tensor_parallel 2 times .* is 2, and there are 1 ranks"):
        a_learner(a_model("llama"), tensor_parallel=2)


def test_experts_that_cannot_be_dealt_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner.expert_parallel 2 is 2, and there are 1 ranks"):
        a_learner(a_model("qwen3_moe"), expert_parallel=2)


def test_an_optimiser_of_whole_matrices_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.name 'muon' may not see whole; allowed: adamw"):
        make_learner(
            a_model("llama"), loss=LossConfig(), optimizer=OptimizerConfig(name="muon"), temperature=1.0,
            settings=LearnerConfig(backend="megatron"),
        )  # fmt: skip
