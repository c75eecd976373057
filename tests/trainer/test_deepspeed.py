"""The DeepSpeed learner: two processes with any ZeRO stage make the numbers of the PyTorch learner in one, and their
state goes on under the other."""

from __future__ import annotations

import copy
import gc
import importlib.util
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted
from forked import Forked, chosen_names
from loop_runs import assert_same_curve, run, without_times
from pydantic import ValidationError
from safetensors.torch import load_file
from test_learner import some_rows
from tiny import tiny_model
from torch import distributed

from roll_envs.errors import CheckpointError, ConfigError, RollError
from trainer.config import CriticConfig, LossConfig, OptimizerConfig
from trainer.learner import DeepSpeedSettings, TorchSettings, zero
from trainer.learner.deepspeed import DeepSpeedLearner
from trainer.learner.gradients import Ranks
from trainer.learner.torch import TorchLearner
from trainer.model.forward import load_weights
from trainer.run.folder import RunFolder
from trainer.run.loop import resume
from trainer.run.report import Report

cluster = [
    pytest.mark.cluster,
    pytest.mark.timeout(660),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="the deepspeed library is not installed: make test-cluster installs it",
    ),
]

SETTINGS: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3, "param_persistence_threshold": 0, "gradient_checkpointing": True},
    "zero3-offload": {
        "stage": 3,
        "param_persistence_threshold": 1000,
        "offload_optimizer": True,
        "offload_param": True,
    },
    "zero1-half": {"stage": 1, "precision": "bfloat16"},
    "zero2-half-offload": {"stage": 2, "precision": "bfloat16", "offload_optimizer": True},
    "zero3-half": {"stage": 3, "precision": "bfloat16", "param_persistence_threshold": 0},
}
DEALS = (([0, 3, 8], [1, 2, 4, 5, 6, 7]), ([*range(9)], []), ([2, 5], [0, 1, 3, 4, 6, 7, 8]))
"""Sequences of each rank, by step; uneven numbers of micro-batches, and none."""
WHOLE = tuple(([*range(9)],) for _ in DEALS)


class Run:
    """A policy, its critic and its reference, trained on the same sequences whoever runs which of them."""

    def __init__(self, kind: Any, settings: Any, ranks: Ranks | None, weights: Mapping[str, Any] | None = None) -> None:
        model = tiny_model()
        if weights is not None:
            load_weights(model.network, weights.items())
        self.ranks = ranks or Ranks()
        self.learner = kind(
            model,
            loss=LossConfig(entropy_coef=0.01, kl_coef=0.1),
            optimizer=OptimizerConfig(lr=5e-3, max_grad_norm=0.5, weight_decay=0.1, skip_norm=50.0),
            temperature=0.7,
            settings=settings,
            ranks=ranks,
        )

    def add_others(self) -> None:
        self.critic = self.learner.critic(CriticConfig(lr=1e-3))
        head = {name: torch.full_like(w, 0.1) if name == "head.weight" else w for name, w in self.critic.weights()}
        self.critic.load_weights((name, w.clone()) for name, w in head.items())  # so that its body has a gradient
        self.reference = self.learner.reference(fixed=False)

    def batches(self, mine: Sequence[int], *, scale: float = 1.0) -> tuple[Any, Any]:
        rows, advantages = some_rows()
        rows = [rows[i] for i in mine]
        given = [np.multiply(advantages[i], scale) for i in mine]
        return batches_of(rows, given, pack_tokens=20, tokens_per_microbatch=40), counted(rows)

    def step(self, mine: Sequence[int], *, scale: float = 1.0) -> dict[str, float]:
        """The policy alone."""
        batches, own = self.batches(mine, scale=scale)
        batches = [replace(b, reference_logp=b.sampler_logp) for b in batches]
        metrics, before = self.learner.step(batches, own, lr=1e-3)
        assert len(before) == len(batches)
        return dict(metrics)

    def full_step(self, mine: Sequence[int]) -> dict[str, float]:
        """Everything that a training step asks of a learner."""
        batches, own = self.batches(mine)
        returns = [0.1 * b.positions.float() for b in batches]
        targets = [
            replace(b, values=v, returns=r[None], return_mask=b.label_mask[None])
            for b, v, r in zip(batches, self.critic.score(batches), returns, strict=True)
        ]
        found = self.critic.step(targets, own, lr=1e-3)
        proximal, reference = self.learner.score(batches), self.reference.score(batches)
        batches = [
            replace(b, old_logp=p, reference_logp=r) for b, p, r in zip(batches, proximal, reference, strict=True)
        ]
        metrics, before = self.learner.step(batches, own, lr=1e-3)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, proximal, strict=True))
        total = self.ranks.sum({"reference": sum(float(r.double().sum()) for r in reference)})
        return {**found, **metrics, **total}

    def weights(self) -> dict[str, torch.Tensor]:
        parts = [self.learner.weights(), *([self.critic.weights()] if hasattr(self, "critic") else [])]
        return {name: weight.clone() for part in parts for name, weight in part}


def train(training: Run, deals: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """What comes out of three steps, and of a fourth with the state of then."""
    rank = training.ranks.rank
    training.add_others()
    metrics = [training.full_step(dealt[rank]) for dealt in deals[:2]]
    training.reference.load_weights((name, w.clone()) for name, w in training.learner.weights())
    metrics.append(training.full_step(deals[2][rank]))
    weights, states = training.weights(), [training.learner.optimizer_state(), training.critic.optimizer_state()]
    states = copy.deepcopy(states)  # those of the PyTorch learner are its own
    again = [training.step(deals[0][rank])]
    return {"metrics": metrics, "weights": weights, "states": states, "again": again, "after": training.weights()}


def from_rank_0(ranks: Ranks, value: Any) -> Any:
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def policy_of(found: Mapping[str, Any], key: str = "weights") -> dict[str, torch.Tensor]:
    return {name: w for name, w in found[key].items() if not name.startswith(("body.", "head."))}


def engine_of(sharded: Any) -> dict[str, Any]:
    """What DeepSpeed itself says that it does."""
    engine, zero = sharded._engine, sharded._zero
    return {
        "stage": engine.zero_optimization_stage(),
        "optimizer on the CPU": bool(getattr(zero, "cpu_offload", False) or getattr(zero, "offload_optimizer", False)),
        "weights on the CPU": bool(getattr(zero, "offload_param", False)),
        "sent in": engine.communication_data_type,
        "added in": getattr(zero, "gradient_accumulation_dtype", None) or getattr(zero, "grad_acc_dtype", None),
    }


def all_scenes(ranks: Ranks, given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What happens with the settings ``given``; ``known`` is what the PyTorch learner found in one process."""
    settings = DeepSpeedSettings(**given)
    training = Run(DeepSpeedLearner, settings, ranks)
    found = train(training, DEALS)
    sharded = training.learner._policy
    found["trained"] = sum(p.numel() for p in tiny_model().network.parameters())
    found["share"] = sum(share.numel() for share in sharded._shares())
    found["held"] = sum(p.numel() for p in sharded._trained)
    found["engine"] = engine_of(sharded)

    # Steps that are refused, for a gradient that is not finite on one rank, and for one that is too large.
    deal = DEALS[0][ranks.rank]
    before, state = training.weights(), training.learner.optimizer_state()
    found["refused"] = [
        training.step(deal, scale=np.nan if ranks.rank else 1.0)["learner/skipped_steps"],
        training.step(deal, scale=1e5)["learner/skipped_steps"],
    ]
    now = training.learner.optimizer_state()
    found["refused"] += [now.get("skipped", 2)]
    assert all(torch.equal(w, before[n]) for n, w in training.weights().items())
    for index, moments in (state or {"parts": [{"state": {}}]})["parts"][0]["state"].items():
        assert all(torch.equal(now["parts"][0]["state"][index][key], value) for key, value in moments.items())
    found["after refusal"] = training.step(deal)["learner/skipped_steps"]

    # Its own state goes on under it, and so does that of the PyTorch learner.
    own = from_rank_0(ranks, {"weights": found["weights"], "states": found["states"]})
    for key, source in (("resumed", own), ("taken over", known)):
        other = Run(DeepSpeedLearner, settings, ranks, policy_of(source))
        other.learner.load_optimizer_state(source["states"][0])
        other.step(deal)
        found[key] = other.weights()
    training.critic.load_optimizer_state(known["states"][1])
    found["critic state"] = training.critic.optimizer_state()

    module = weakref.ref(sharded._named)
    del training, other, sharded
    gc.collect()
    found["freed"] = module() is None
    return found


def rank_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ranks = Ranks(distributed.group.WORLD)
    known = torch.load(Path(folder) / "known.pt")
    found = {
        name: all_scenes(ranks, SETTINGS[name], known[SETTINGS[name].get("precision", "float32")])
        for name in known["names"]
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What the PyTorch learner finds in one process, by its precision."""
    return {
        precision: train(Run(TorchLearner, TorchSettings(precision=precision), None), WHOLE)
        for precision in ("float32", "bfloat16")
    }


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, alone: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each of two processes found, by settings."""
    folder = tmp_path_factory.mktemp("deepspeed")
    torch.save({"names": chosen_names(request, SETTINGS), **alone}, folder / "known.pt")
    processes = [Forked(rank_process, rank, str(folder), log=folder / f"log-{rank}") for rank in range(2)]
    statuses = [process.wait(600) for process in processes]
    assert statuses == [0, 0], "".join((folder / f"log-{rank}").read_text()[-4000:] for rank in range(2))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def assert_near(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], *, half: bool) -> None:
    """Equal but for rounding: in half precision a small gradient may have either sign, and so AdamW's first steps."""
    assert one.keys() == other.keys()
    for name, weight in one.items():
        far = float((other[name] - weight).abs().max()) if half else float((other[name] - weight).norm())
        assert far <= (6e-3 + 2**-8 if half else 1e-6 * float(weight.norm())), name


@pytest.mark.parametrize("name", SETTINGS)
class TestTwoRanks:
    pytestmark = cluster

    def test_steps_are_those_of_one_process(
        self, name: str, together: list[dict[str, Any]], alone: dict[str, Any]
    ) -> None:
        """Policy, critic and reference; batches of uneven number, and a rank without any."""
        precision = SETTINGS[name].get("precision", "float32")
        expected = alone[precision]
        for rank in (found[name] for found in together):
            for step, metrics in enumerate([*expected["metrics"], *expected["again"]]):
                given = [*rank["metrics"], *rank["again"]][step]
                # AdamW's steps, of the gradient over its size, make more of a rounding.
                tolerance = (5e-6 if step else 1e-6) if precision == "float32" else 3e-2
                assert given.keys() == metrics.keys()
                for key, value in metrics.items():
                    assert given[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (step, key)
            for key in ("weights", "after"):
                assert_near(expected[key], rank[key], half=precision != "float32")
            assert all(torch.equal(w, together[0][name]["after"][n]) for n, w in rank["after"].items())
        assert all(metrics["learner/grad_norm"] > 0.5 for metrics in expected["metrics"])  # so that it was cut
        assert expected["metrics"][0]["critic/grad_norm"] > 0

    def test_refused_steps_change_nothing(self, name: str, together: list[dict[str, Any]]) -> None:
        for rank in (found[name] for found in together):
            assert rank["refused"] == [1.0, 1.0, 2]
            assert rank["after refusal"] == 0.0

    def test_state_goes_on_under_either_learner(
        self, name: str, together: list[dict[str, Any]], alone: dict[str, Any]
    ) -> None:
        """Two ranks from their own state and from that of the PyTorch learner, and that one from theirs."""
        precision = SETTINGS[name].get("precision", "float32")
        first = together[0][name]
        for rank in (found[name] for found in together):
            assert all(torch.equal(w, rank["resumed"][n]) for n, w in policy_of(rank, "after").items())
            assert_near(policy_of(alone[precision], "after"), rank["taken over"], half=precision != "float32")
        training = Run(TorchLearner, TorchSettings(precision=precision), None, policy_of(first))
        training.learner.load_optimizer_state(first["states"][0])
        training.step(range(9))
        assert_near(policy_of(first, "after"), training.weights(), half=precision != "float32")
        ours, theirs = first["states"], alone[precision]["states"]
        assert ours[0]["parts"][0]["param_groups"] == theirs[0]["parts"][0]["param_groups"]
        assert ours[0].keys() == theirs[0].keys()
        for index, moments in theirs[1]["state"].items():
            assert all(torch.equal(value, first["critic state"]["state"][index][key]) for key, value in moments.items())
        assert together[1][name]["states"] == [{}, {}]

    def test_ranks_hold_shares(self, name: str, together: list[dict[str, Any]]) -> None:
        """Of weights and moments; with stage 3 the weights are nowhere whole between steps."""
        shares = [found[name]["share"] for found in together]
        trained = together[0][name]["trained"]
        assert sum(shares) >= trained
        assert max(shares) < 0.51 * trained
        whole = SETTINGS[name]["stage"] < 3
        for found in together:
            assert found[name]["held"] == trained if whole else found[name]["held"] < 0.3 * trained
            assert found[name]["freed"] or not whole  # DeepSpeed keeps hold of modules of stage 3

    def test_deepspeed_does_what_the_settings_say(self, name: str, together: list[dict[str, Any]]) -> None:
        """Also what numbers on a CPU do not show: where shares are, and in what precision gradients are added."""
        for found in (rank[name]["engine"] for rank in together):
            assert found["stage"] == SETTINGS[name]["stage"]
            assert found["optimizer on the CPU"] == ("offload_optimizer" in SETTINGS[name])
            assert found["weights on the CPU"] == ("offload_param" in SETTINGS[name])
            if SETTINGS[name].get("precision") == "bfloat16":
                assert (found["sent in"], found["added in"]) == (torch.float32, torch.float32)


class TestOneRank:
    """In the process of who asks for it."""

    pytestmark = cluster

    @pytest.mark.parametrize("stage", [2, 3])
    def test_model_stays_and_is_where_a_state_goes_on_from(self, stage: int) -> None:
        settings = DeepSpeedSettings(stage=stage)
        training = Run(DeepSpeedLearner, settings, None)
        training.step(range(9))
        weights, state = training.weights(), training.learner.optimizer_state()
        model = tiny_model()
        learner = DeepSpeedLearner(model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=1.0)
        load_weights(model.network, weights.items())
        learner.load_optimizer_state(state)
        assert all(torch.equal(w, weights[n]) for n, w in learner.weights())
        changed = OptimizerConfig(weight_decay=0.3, betas=(0.5, 0.6))
        other = DeepSpeedLearner(model, loss=LossConfig(), optimizer=changed, temperature=1.0)
        other.load_optimizer_state(state)
        for groups in (other.optimizer_state()["parts"][0]["param_groups"], other._policy._adamw.param_groups):
            assert [(g["weight_decay"], g["betas"]) for g in groups] == [(0.3, (0.5, 0.6)), (0.0, (0.5, 0.6))]
        learner.load_optimizer_state({**state, "skipped": 2})
        assert learner.optimizer_state()["skipped"] == 2
        with pytest.raises(CheckpointError, match="lora_rank"):
            learner.load_optimizer_state({**state, "lora": {}})
        with pytest.raises(CheckpointError, match="2 optimisers"):
            learner.load_optimizer_state({**state, "parts": [*state["parts"]] * 2})
        with pytest.raises(CheckpointError, match="float32 copies"):
            learner.load_optimizer_state({**state, "masters": list(weights.values())})
        groups = [{**group, "params": []} for group in state["parts"][0]["param_groups"]]
        with pytest.raises(CheckpointError, match=r"groups of \[0, 0\] weights"):
            learner.load_optimizer_state({**state, "parts": [{"state": {}, "param_groups": groups}]})

    def test_too_many_refused_steps_are_an_error(self) -> None:
        training = Run(DeepSpeedLearner, DeepSpeedSettings(), None)
        allowed = OptimizerConfig().max_skipped
        for _ in range(allowed):
            training.step(range(9), scale=1e5)
        with pytest.raises(RollError, match="the step was not taken"):
            training.step(range(9), scale=1e5)

    def test_critic_refuses_what_is_no_number(self) -> None:
        training = Run(DeepSpeedLearner, DeepSpeedSettings(), None)
        training.add_others()
        before = training.weights()
        batches, own = training.batches(range(9))
        targets = [
            replace(b, values=b.advantages, returns=b.advantages[None] * np.nan, return_mask=b.label_mask[None])
            for b in batches
        ]
        with pytest.raises(RollError, match="critic's gradient norm is inf"):
            training.critic.step(targets, own, lr=1e-3)
        assert all(torch.equal(w, before[n]) for n, w in training.critic.weights())
        with pytest.raises(CheckpointError, match=r"head\.bias is missing"):
            training.critic.load_weights((n, w) for n, w in training.critic.weights() if n != "head.bias")

    def test_other_processes_in_the_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
        with pytest.raises(ConfigError, match="all 4 processes"):
            Run(DeepSpeedLearner, DeepSpeedSettings(), None)

    def test_a_run_goes_as_with_torch_and_resumes(self, tmp_path: Path) -> None:
        """A warm start, then steps with critic and reference."""
        changes: dict[str, Any] = {
            "advantage": {"name": "gae"},
            "loss": {"kl_coef": 0.1},
            "steps": 3,
            "evaluation": {"tasks": 4, "every": 0},
            "checkpoint": {"every": 1, "keep": 9},
        }
        plain, _ = run(tmp_path / "torch", **changes)
        learner = {"backend": "deepspeed", "stage": 3, "param_persistence_threshold": 0}
        path, _ = run(tmp_path / "deepspeed", learner=learner, **changes)
        assert_same_curve(plain, path, tolerance=1e-4)
        before = without_times(path)
        saved = load_file(path / "model" / "model.safetensors")
        with RunFolder.open(path) as folder:
            resume(folder, Report.silent(), None, sorted((path / "checkpoints").glob("step-*"))[-3])
        assert without_times(path) == before
        again = load_file(path / "model" / "model.safetensors")
        assert all(torch.equal(again[name], weight) for name, weight in saved.items())


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ValidationError, match="offload_param needs stage 3"):
        DeepSpeedSettings(stage=2, offload_param=True)
    with pytest.raises(ValidationError, match="lora_rank"):
        DeepSpeedSettings(lora_rank=4)  # type: ignore[call-arg]


def test_optimisers_of_whole_matrices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.name 'muon' does not work .* allowed: 'adamw'"):
        DeepSpeedLearner(tiny_model(), loss=LossConfig(), optimizer=OptimizerConfig(name="muon"), temperature=1.0)


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match=r"pip install 'roll-envs\[deepspeed\]'"):
        DeepSpeedLearner(tiny_model(), loss=LossConfig(), optimizer=OptimizerConfig(), temperature=1.0)


@pytest.mark.parametrize(("numbers", "bucket"), [(0, 1), (385_632, 385_632), (7_000_000_000, 500_000_000)])
def test_a_bucket_is_no_larger_than_what_is_trained(numbers: int, bucket: int) -> None:
    found = zero._configuration(DeepSpeedSettings(), OptimizerConfig(), half=False, numbers=numbers)
    assert found["zero_optimization"]["reduce_bucket_size"] == bucket
