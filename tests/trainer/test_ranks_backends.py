"""A whole run on two ranks, by each backend: the numbers of the plain one in one process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from loop_runs import run

from trainer.run.folder import read_metrics

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("forked_ranks")]

SCENE: dict[str, Any] = {
    "steps": 2,
    "model": {"hidden_size": 32, "layers": 2, "heads": 2, "head_width": 16},
    "warm_start": {"steps": 2},
    "evaluation": {"every": 0},
    "optimizer": {"lr": 1e-3, "name": "adamw"},
    "loss": {"kl_coef": 0.01},
}
WATCHED = ("loss/total", "learner/grad_norm", "loss/kl", "rollout/return_mean")


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The steps of the plain backend in one process."""
    folder, _ = run(tmp_path_factory.mktemp("alone"), **SCENE)
    return read_metrics(folder, "train")


def same(found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    assert len(found) == len(alone)
    for step, whole in zip(found, alone, strict=True):
        for name in WATCHED:
            assert (name in step) == (name in whole)
            if name in whole:
                assert step[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-7), name


BACKENDS = [
    pytest.param({"backend": "torch"}, marks=pytest.mark.slow, id="torch"),
    pytest.param({"backend": "fsdp2"}, marks=pytest.mark.slow, id="fsdp2"),
    pytest.param({"backend": "deepspeed", "stage": 3}, marks=pytest.mark.cluster, id="deepspeed"),
    pytest.param({"backend": "megatron", "tensor_parallel": 2}, marks=pytest.mark.megatron, id="megatron"),
]


@pytest.mark.parametrize("learner", BACKENDS)
def test_two_ranks_are_one_process(tmp_path: Path, alone: list[dict[str, Any]], learner: dict[str, Any]) -> None:
    for package in {"deepspeed", "megatron"} & {learner["backend"]}:
        needs(package)
    folder, _ = run(tmp_path, **SCENE, learner=learner, placement={"learner": {"ranks": 2}})
    same(read_metrics(folder, "train"), alone)
