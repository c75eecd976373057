"""The example package, installed into a fresh virtual environment: found, checked, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh_environment import REPOSITORY, install, run

EXAMPLE = REPOSITORY / "examples" / "custom_env"
ENV_ID = "example/Brackets-v0"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(EXAMPLE, tmp_path_factory.mktemp("fresh"))


def test_it_is_found(fresh: Path) -> None:
    found = {entry["id"]: entry for entry in json.loads(run(fresh, "-m", "roll_envs", "list", "--json"))}
    assert found[ENV_ID]["state"] == "ready"
    assert found[ENV_ID]["source"] == "bracket-envs 0.1.0"
    assert {entry["state"] for entry in found.values()} == {"ready"}


def test_it_passes_the_check(fresh: Path) -> None:
    (report,) = json.loads(run(fresh, "-m", "roll_envs", "check", ENV_ID, "--seeds", "3", "--json"))
    assert {result["status"] for result in report["results"]} == {"pass"}


def test_it_is_played_through_gymnasium(fresh: Path) -> None:
    program = (
        "import gymnasium\n"
        f"env = gymnasium.make('roll_envs:{ENV_ID}', length=4)\n"
        "env.reset(seed=1)\n"
        "for answer in env.unwrapped.oracle():\n"
        "    result = env.step(answer)\n"
        "print(result[2], result[4]['success'])\n"
    )
    assert run(fresh, "-c", program).split() == ["True", "True"]


def test_it_is_trained_on(fresh: Path, tmp_path: Path) -> None:
    config = EXAMPLE / "train.yaml"
    pytest.importorskip("torch", reason="training needs the optional part 'train'")
    program = "import sys; from trainer.cli import main; sys.exit(main(sys.argv[1:]))"
    short = ["steps=2", "warm_start.steps=4", "evaluation.tasks=16", f"output={tmp_path / 'runs'}"]
    run(fresh, "-c", program, str(config), *short, cwd=tmp_path, timeout_s=240)
    (summary,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("summary.json"))
    assert (summary["env"], summary["steps"]) == (ENV_ID, 2)
    assert [(phase["tasks"], phase["failed"]) for phase in summary["phases"]] == [(16, 0), (16, 0)]
