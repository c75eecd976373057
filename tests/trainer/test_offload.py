"""A learner that leaves its device between steps takes the same steps, and leaves nothing behind.

The device is the CPU here, and so is what it is left for: a move copies a tensor and fills the original with NaN, so
that whatever still points to it gives other numbers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from episode_builders import batches_of, counted
from loop_runs import configured, run
from test_crew import QueueLinks
from test_learner import some_rows
from test_learner_ranks import SETTINGS, config_of, some_steps
from tiny import tiny_model

from roll_envs.errors import ConfigError
from trainer.cluster.crew import Crew, RankError
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import RankedLearner, make_phase_learner
from trainer.cluster.seats import Machine
from trainer.engines.hf import HFEngine
from trainer.learner import device_memory
from trainer.learner.device_memory import DeviceMemory
from trainer.run import loop
from trainer.run.folder import read_metrics
from trainer.run.preflight import preflight

THERE_AND_BACK = {"offload": "between_steps"}


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each tensor that is moved."""
    found: list[int] = []

    def transferred(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copied = tensor.clone()
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
        found.append(copied.nbytes)
        return copied

    monkeypatch.setattr(device_memory, "transferred", transferred)
    return found


@pytest.mark.parametrize(
    "more",
    [
        "learner: {threads: 1}\n",
        "learner: {precision: bfloat16}\n",
        pytest.param("learner: {lora_rank: 2}\n", id="adapters"),
        "learner: {gradient_checkpointing: true}\n",
    ],
)
def test_steps_are_the_same_to_the_bit(more: str, moves: list[int]) -> None:
    if "lora" in more:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    config = config_of(more=SETTINGS + more)
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=60)
    targets = batches_of(
        rows, pack_tokens=20, tokens_per_microbatch=20,
        value=[advantages[0][:1].repeat(len(r.ids)) for r in rows], returns=advantages,
    )  # fmt: skip

    def steps(*, leaving: bool) -> list[Any]:
        learner: Any = make_phase_learner(config, tiny_model(), warm_start=False, threads=1)
        reference, critic = learner.reference(fixed=False), learner.critic(config.critic)
        found: list[Any] = []
        for _ in range(3):
            parts = (learner, critic, reference) if leaving else ()
            for part in parts:
                part.offload()
            found += [{name: w.clone() for name, w in learner.weights()}, copy.deepcopy(learner.optimizer_state())]
            learner.load_optimizer_state(learner.optimizer_state())
            for part in parts:
                part.reload()
            scored = [logp.clone() for logp in reference.score(batches)]
            mine = [replace(batch, reference_logp=logp) for batch, logp in zip(batches, scored, strict=True)]
            found += [learner.step(mine, counted(rows), lr=1e-3), critic.step(targets, counted(rows), lr=1e-2)]
            found += [critic.score(targets), {name: w.clone() for name, w in learner.weights()}]
        return found

    stayed = steps(leaving=False)
    assert not moves
    torch.testing.assert_close(steps(leaving=True), stayed, rtol=0, atol=0)
    assert moves


def test_everything_is_moved_once_and_ties_hold(moves: list[int]) -> None:
    learner: Any = make_phase_learner(config_of(), tiny_model(), warm_start=False, threads=1)
    rows, advantages = some_rows()
    plain = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=60)
    batches = [replace(b, reference_logp=logp) for b, logp in zip(plain, learner.score(plain), strict=True)]
    learner.step(batches, counted(rows), lr=1e-3)
    learner.offload()
    network = learner._network
    weights = sum(p.nbytes for p in network.parameters())
    assert sum(moves) == 3 * weights + sum(b.nbytes for b in network.buffers()), "weights and two moments"
    assert network.get_output_embeddings().weight is network.get_input_embeddings().weight
    assert all(p.grad is None for p in network.parameters())


def test_another_device_is_used_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def transferred(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        asked.append(device)
        return tensor

    monkeypatch.setattr(device_memory, "transferred", transferred)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    linear = torch.nn.Linear(2, 2)
    memory = DeviceMemory(torch.device("cpu"), [linear])
    memory.move(torch.device("cuda:1"))
    assert memory.device == torch.device("cuda:1")
    assert set(asked) == {torch.device("cuda:1")}


def test_ranks_move_what_they_hold(moves: list[int]) -> None:
    config = config_of()
    crew = Crew(QueueLinks([Rank(0, 1)]), 60)
    learner = RankedLearner(crew, config, tiny_model(), warm_start=False, threads=1)
    critic, reference = learner.critic(config.critic), learner.reference(fixed=False)
    reference.move("cpu")
    critic.move("cpu")
    moves.clear()
    for part in (learner, critic, reference):
        before = len(moves)
        part.offload()
        away = len(moves)
        assert away > before
        part.reload()
        assert len(moves) > away
    some_steps(learner, critic, reference)


def test_a_run_is_the_same_and_devices_change_hands_in_order(
    tmp_path: Path, moves: list[int], monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    changes: dict[str, Any] = {
        "steps": 3, "advantage": {"name": "gae"}, "loss": {"kl_coef": 0.01}, "reference": {"refresh_every": 2},
    }  # fmt: skip
    stayed = run(tmp_path / "a", **changes)[0]
    events: list[str] = []

    def noting(owner: Any, name: str, word: str) -> None:
        original = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            events.append(word)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    monkeypatch.setattr(HFEngine, "capabilities", replace(HFEngine.capabilities, sleep=True))
    monkeypatch.setattr(HFEngine, "sleep", lambda self: events.append("engine sleeps"))
    noting(HFEngine, "update_weights", "engine wakes")
    noting(DeviceMemory, "offload", "offload")
    noting(DeviceMemory, "reload", "reload")
    noting(loop, "update", "learn")
    left = run(tmp_path / "b", **changes, learner=THERE_AND_BACK)[0]
    one, other = (
        [{k: v for k, v in line.items() if not k.startswith("time")} for line in read_metrics(folder, "train")]
        for folder in (stayed, left)
    )
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        # Which requests share a pass of the engine depends on the moment, and with it their rounding.
        numbers = [name for name, value in a.items() if isinstance(value, float)]
        assert {n: b[n] for n in numbers} == pytest.approx({n: a[n] for n in numbers}, rel=1e-3, abs=1e-5)
    text = " ".join(events)
    assert text.count("learn") == 3
    step = "engine sleeps reload reload reload learn offload offload offload"
    assert text.count(step) == 3
    assert "engine wakes" in text.partition(step)[2]
    assert events.index("offload") < events.index("engine wakes")


def test_an_error_of_learning_is_not_hidden_by_parts_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise RankError("first")

    def gone(self: DeviceMemory) -> None:
        raise RankError("second")

    def learn(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(DeviceMemory, "offload", gone)
        lost()

    monkeypatch.setattr(loop, "update", learn)
    with pytest.raises(RankError, match="first"):
        run(tmp_path, steps=1, learner=THERE_AND_BACK, placement={"learner": {"restarts": 0}})


def test_offload_is_a_setting_of_the_torch_backend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.offload"):
        configured(tmp_path, learner={**THERE_AND_BACK, "backend": "fsdp2"})


def test_a_placement_that_cannot_be_met_is_refused_before_a_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.run.preflight.this_machine", lambda: Machine(cpus=(0,)))
    monkeypatch.setattr("trainer.run.preflight.model_config", lambda config: pytest.fail("a model was looked for"))
    config = configured(tmp_path, placement={"rollout": {"devices": [0]}})
    with pytest.raises(ConfigError, match=r"placement\.rollout\.devices \[0\]: this machine has no GPU"):
        preflight(config)
