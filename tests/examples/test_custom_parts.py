"""The example package of parts, installed into a fresh virtual environment: each part is found, explained and used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh_environment import REPOSITORY, install, run

EXAMPLE = REPOSITORY / "examples" / "custom_parts"
MAIN = "import sys; from trainer.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="training needs the optional part 'train'")
    return install(EXAMPLE, tmp_path_factory.mktemp("fresh"))


def test_the_settings_of_each_part_are_keys_like_any_other(fresh: Path) -> None:
    shown = run(fresh, "-c", MAIN, "explain", str(EXAMPLE / "train.yaml"), "loss.width=0.5")
    lines = {tuple(line.split()[:2]) for line in shown.splitlines() if line.startswith("  ")}
    assert {("spread", "1.5"), ("width", "0.5"), ("warn_s", "5")} <= lines
    assert "arXiv:2401.16025" in shown
    program = f"""
from trainer.config.load import load_config
try:
    load_config({str(EXAMPLE / "train.yaml")!r}, ["advantage.spred=2", "loss.width=-1", "engine.log=3"])
except Exception as error:
    print(error)
"""
    told = run(fresh, "-c", program).splitlines()
    assert [line.partition(": ")[2] for line in told] == [
        "unknown key 'advantage.spred'; did you mean 'advantage.spread'?",
        "loss.width is -1; allowed: a number > 0",
        "engine.log is 3; allowed: text",
    ]


def test_it_is_trained_with(fresh: Path, tmp_path: Path) -> None:
    small = [
        "steps=2", "warm_start.steps=2", "warm_start.episodes_per_step=4", "rollout.groups_per_step=2",
        "rollout.group_size=4", "evaluation.tasks=4", f"output={tmp_path / 'runs'}",
    ]  # fmt: skip
    run(fresh, "-c", MAIN, str(EXAMPLE / "train.yaml"), *small, cwd=tmp_path, timeout_s=240)
    (folder,) = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["phase"] == "train"]
    assert len(steps) == 2
    assert all("advantage/rank_spread" in step for step in steps)  # the estimator
    assert any("learner/step_s" in record for record in records)  # the backend
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {answer["version"] for answer in answers} >= {2, 3, 4}  # the engine, with the weights of every update


def test_its_verifier_judges(fresh: Path) -> None:
    program = (
        "from roll_envs import make_verifier\n"
        "print(make_verifier('keywords', words=['up', 'down'])('Go UP').value)\n"
        "make_verifier('keywords', words=['up'], case=True)\n"
    )
    with pytest.raises(AssertionError, match="no setting of verifier 'keywords': 'case'"):
        run(fresh, "-c", program)
