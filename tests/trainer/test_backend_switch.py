"""A run that is resumed with other backends on the way: the numbers of the run that stays with one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from loop_runs import configured, run

from trainer.run.checkpoint import CheckpointState, list_checkpoints, load_checkpoint
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import resume, train
from trainer.run.report import Report

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_pictures", "forked_ranks")]

SCENE: dict[str, Any] = {
    "algorithm": "ppo",
    "model": {"hidden_size": 32, "layers": 2, "heads": 2, "head_width": 16},
    "warm_start": {"steps": 2},
    "evaluation": {"tasks": 2, "every": 0},
    "optimizer": {"lr": 1e-3, "name": "adamw", "lr_schedule": "constant"},
    "loss": {"kl_coef": 0.01},
    "critic": {"lr": 1e-3},
    "reference": {"refresh_every": 3},
    "learner": {"pack_tokens": 64, "minibatches": 2},
}
"""Everything that a checkpoint holds of a learner: policy and critic with their optimisers, and a reference."""
WATCHED = ("loss/total", "learner/grad_norm", "loss/kl", "critic/loss", "critic/grad_norm", "rollout/return_mean")

TORCH, FSDP2 = {"backend": "torch"}, {"backend": "fsdp2"}
ZERO2, ZERO3 = ({"backend": "deepspeed", "stage": stage} for stage in (2, 3))
TENSOR, PIPELINE = ({"backend": "megatron", f"{how}_parallel": 2} for how in ("tensor", "pipeline"))
PATHS = [
    pytest.param((TORCH, FSDP2, TORCH, FSDP2), "", marks=pytest.mark.slow, id="fsdp2"),
    pytest.param((TORCH, FSDP2, ZERO3, TORCH, ZERO2), "deepspeed", marks=pytest.mark.cluster, id="deepspeed"),
    pytest.param((TORCH, TENSOR, FSDP2, PIPELINE, TORCH), "megatron", marks=pytest.mark.megatron, id="megatron"),
]
"""The backend of each step; torch is in one process, the others are two ranks."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of torch in one process from its first step to its last."""
    return run(tmp_path_factory.mktemp("alone"), **SCENE, steps=5)[0]


def placed(learner: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that say where a learner is, and what."""
    ranks = 1 if learner["backend"] == "torch" else 2
    return {"learner": {**SCENE["learner"], **learner}, "placement": {"learner": {"ranks": ranks}}}


@pytest.mark.parametrize(("path", "package"), PATHS)
def test_weights_and_states_go_on_with_another_backend(
    tmp_path: Path, alone: Path, path: tuple[dict[str, Any], ...], package: str
) -> None:
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    config = configured(tmp_path, **{**SCENE, **placed(path[0])}, steps=1)
    with RunFolder.create(config) as folder:
        train(folder.config, folder, Report.silent())
    for done, learner in enumerate(path[1:], 2):
        file = folder.path / "config.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **placed(learner)}))
        with RunFolder.open(folder.path) as opened:
            resume(opened, Report.silent(), done)
    steps = read_metrics(folder.path, "train")
    assert [step["step"] for step in steps] == [*range(1, len(path) + 1)]
    for step, whole in zip(steps, read_metrics(alone, "train"), strict=False):
        for name in WATCHED:
            assert (name in step) == (name in whole)
            if name in whole:
                assert step[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), (step["step"], name)
    found = load_checkpoint(folder.path)
    of_step = f"step-{found.step:06d}"  # the last of it, which is -r2 after an evaluation
    expected = load_checkpoint(next(one for one in list_checkpoints(alone) if one.name.startswith(of_step)))
    assert found.others.keys() == expected.others.keys() == {"critic", "reference"}
    for name in ("model", "critic", "reference"):
        close(weights(found, name), weights(expected, name))
    for name in ("policy", "critic"):
        close(*(numbers(state.optimizer[name]) for state in (found, expected)))


def weights(state: CheckpointState, network: str) -> dict[str, torch.Tensor]:
    return dict((state.model if network == "model" else state.others[network])())


def numbers(state: Any, before: str = "") -> dict[str, torch.Tensor]:
    """All tensors of an optimiser's state, moments and counts of steps, by where they are."""
    if isinstance(state, torch.Tensor):
        return {before: state}
    items = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list) else ()
    return {key: tensor for name, value in items for key, tensor in numbers(value, f"{before}/{name}").items()}


def close(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """The same but for rounding: 1e-5 of each tensor's norm."""
    assert found.keys() == expected.keys()
    assert len(found) > 10
    for name, tensor in expected.items():
        error = float((found[name].double() - tensor.double()).norm())
        assert error <= 1e-5 * float(tensor.double().norm()) + 1e-7, (name, error)
