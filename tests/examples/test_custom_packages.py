"""The example packages of an environment and of parts, and one of ``roll-envs init``, in one fresh virtual environment.

Each is found, checked or explained, and trained with. Starting a process costs more than what is asked of it here, and
loading PyTorch costs most: so the commands that need no training share one process, and both trainings another.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from fresh_environment import REPOSITORY, install, run

from roll_envs.cli import main

ENV = REPOSITORY / "examples" / "custom_env"
PARTS = REPOSITORY / "examples" / "custom_parts"
ENV_ID = "example/Brackets-v0"
NEW_ID = "my-game/MyGame-v0"


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with contextlib.chdir(tmp_path_factory.mktemp("new")):
        assert main(["init", "my-game"]) == 0
        return Path("my-game").resolve()


@pytest.fixture(scope="module")
def fresh(new: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install([ENV, PARTS, new], tmp_path_factory.mktemp("fresh"))


# -- the environment ---------------------------------------------------------------------------------------------------

COMMANDS = f"""
import contextlib, io, json
import gymnasium
from roll_envs.cli import main

def said(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*arguments, "--json"]) == 0, out.getvalue()
    return json.loads(out.getvalue())

found = {{"list": said("list"), "check": said("check", {ENV_ID!r}, {NEW_ID!r}, "--seeds", "3")}}
env = gymnasium.make("roll_envs:{ENV_ID}", length=4)
env.reset(seed=1)
for answer in env.unwrapped.oracle():
    result = env.step(answer)
found["played"] = [result[2], result[4]["success"]]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def commands(fresh: Path) -> dict[str, Any]:
    """What `roll-envs list`, `roll-envs check` and an episode through gymnasium gave."""
    found: dict[str, Any] = json.loads(run(fresh, "-c", COMMANDS))
    return found


def test_the_environment_is_found(commands: dict[str, Any]) -> None:
    found = {entry["id"]: entry for entry in commands["list"]}
    assert found[ENV_ID]["state"] == "ready"
    assert found[ENV_ID]["source"] == "bracket-envs 0.1.0"
    assert {entry["state"] for entry in found.values()} == {"ready"}


def test_the_environments_pass_the_check(commands: dict[str, Any]) -> None:
    assert [report["id"] for report in commands["check"]] == [ENV_ID, NEW_ID]
    others = [r["rule"] for report in commands["check"] for r in report["results"] if r["status"] != "pass"]
    assert others == ["splits", "splits"], commands["check"]  # neither has any


def test_the_environment_is_played_through_gymnasium(commands: dict[str, Any]) -> None:
    assert commands["played"] == [True, True]


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_the_verifier_judges(fresh: Path) -> None:
    program = (
        "from roll_envs import make_verifier\n"
        "print(make_verifier('keywords', words=['up', 'down'])('Go UP').value)\n"
        "make_verifier('keywords', words=['up'], case=True)\n"
    )
    with pytest.raises(AssertionError, match="no setting of verifier 'keywords': 'case'"):
        run(fresh, "-c", program)


# -- both in training --------------------------------------------------------------------------------------------------

SMALL = [
    "steps=2", "warm_start.steps=2", "warm_start.episodes_per_step=4", "rollout.groups_per_step=2",
    "rollout.group_size=4", "evaluation.tasks=4", "model.hidden_size=16", "model.layers=1", "model.heads=2",
]  # fmt: skip
TRAININGS = f"""
import sys
import matplotlib.figure
from trainer.cli import main
from trainer.config.load import load_config

assert main(["explain", {str(PARTS / "train.yaml")!r}, "loss.width=0.5"]) == 0
print("=== mistakes")
try:
    load_config({str(PARTS / "train.yaml")!r}, ["advantage.spred=2", "loss.width=-1", "engine.log=3"])
except Exception as error:
    print(error)
print("=== trainings")
matplotlib.figure.Figure.savefig = lambda figure, file, **_: file.write(b"a picture")  # drawing takes longer
for folder in sys.argv[1:]:
    assert main([f"{{folder}}/train.yaml", *{SMALL!r}, f"output={{folder.rpartition('/')[2]}}"]) == 0
"""


@pytest.fixture(scope="module")
def trainings(fresh: Path, new: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder where the configurations were trained, and what was printed: settings explained, then mistakes."""
    pytest.importorskip("torch", reason="training needs the optional part 'train'")
    folder = tmp_path_factory.mktemp("trainings")
    return folder, run(fresh, "-c", TRAININGS, *map(str, (ENV, PARTS, new)), cwd=folder, timeout_s=240)


def test_the_settings_of_each_part_are_keys_like_any_other(trainings: tuple[Path, str]) -> None:
    shown, _, others = trainings[1].partition("=== mistakes\n")
    lines = {tuple(line.split()[:2]) for line in shown.splitlines() if line.startswith("  ")}
    assert {("spread", "1.5"), ("width", "0.5"), ("warn_s", "5")} <= lines
    assert "arXiv:2401.16025" in shown
    told = others.partition("=== trainings\n")[0].splitlines()
    assert [line.partition(": ")[2] for line in told] == [
        "unknown key 'advantage.spred'; did you mean 'advantage.spread'?",
        """engine.log is 3; allowed: text; in quotes it is text: "3" (in a shell '"3"')""",
        "loss.width is -1; allowed: a number > 0",
    ]


@pytest.mark.parametrize(("folder", "id"), [(ENV.name, ENV_ID), ("my-game", NEW_ID)])
def test_the_environments_are_trained_on(trainings: tuple[Path, str], folder: str, id: str) -> None:
    (summary,) = (json.loads(path.read_text()) for path in (trainings[0] / folder).rglob("summary.json"))
    assert (summary["env"], summary["steps"]) == (id, 2)
    assert [(phase["tasks"], phase["failed"]) for phase in summary["phases"]] == [(4, 0), (4, 0)]


def test_the_parts_are_trained_with(trainings: tuple[Path, str]) -> None:
    (folder,) = (trainings[0] / PARTS.name).iterdir()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["phase"] == "train"]
    assert len(steps) == 2
    assert all("advantage/rank_spread" in step for step in steps)  # the estimator
    assert any("learner/step_s" in record for record in records)  # the backend
    answers = [json.loads(line) for line in (trainings[0] / "answers.jsonl").read_text().splitlines()]
    assert {answer["version"] for answer in answers} >= {2, 3, 4}  # the engine, with the weights of every update
