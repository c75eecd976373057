"""The example of an agent that learns to call a calculator: its problems, its environment, and a short training."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roll_envs
from roll_envs.tools import Tool, ToolEnv, ToolResult, ToolSpec, calculate

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "tool_math"
ENV_ID = "example/WordProblems-v0"


@pytest.fixture(scope="module")
def tool_math() -> Iterator[Any]:
    """The example's package, imported from its folder, with its environment registered in this process."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import tool_math
        import tool_math.problems

        roll_envs.register(tool_math.WORD_PROBLEMS)
        yield tool_math
        roll_envs.unregister(ENV_ID)
    finally:
        sys.path.remove(str(EXAMPLE))


def test_the_expression_of_a_problem_gives_its_answer(tool_math: Any) -> None:
    kinds = set()
    for seed in range(200):
        problem = tool_math.problems.draw_problem(np.random.default_rng(seed), 3)
        assert calculate(problem.expression) == str(problem.answer)
        assert problem.answer >= 0
        assert set(problem.numbers) == {int(n) for n in re.findall(r"\d+", problem.text)}
        kinds.add(problem.kind)
    assert kinds == set(tool_math.problems.KINDS)


def test_a_problem_worked_by_hand(tool_math: Any) -> None:
    kinds = tool_math.problems.KINDS
    worked = {"boxes": 12 * 34, "gift": 12 * 34 - 100, "more": 100 + 12 * 34, "two": 12 + 12 * 34, "rest": 100 - 8 * 12}
    assert {name: kind.solve(12, 34, 100) for name, kind in kinds.items()} == worked


def test_the_vocabulary_is_closed(tool_math: Any) -> None:
    words = set(tool_math.problems.vocabulary())
    for seed in range(100):
        text = tool_math.problems.draw_problem(np.random.default_rng(seed), 3).text
        pieces = [text.split(" ")[0], *(f" {word}" for word in text.split(" ")[1:])]
        assert {p for p in pieces if not p.strip().isdigit()} <= words


@pytest.mark.usefixtures("tool_math")
@pytest.mark.parametrize("tool", ["calculator", "python"])
def test_the_plan_calls_and_then_answers(tool: str) -> None:
    tools: list[Any] = [tool] if tool == "calculator" else [PrintTool()]
    env = ToolEnv(env=ENV_ID, tools=tools, max_turns=3)
    for seed in range(20):
        env.reset(seed=seed)
        plan = env.oracle()
        assert plan is not None
        assert len(plan) == 2
        shown, reward, *_ = env.step(plan[0])
        assert reward == 0.0
        assert env.oracle() == plan[1:]
        assert plan[1].removeprefix("<answer>").removesuffix("</answer>") in shown
        assert plan[1] not in env.legal_answers()
        _, reward, terminated, _, info = env.step(plan[1])
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        env.reset(seed=seed)
        assert not env.step(env.legal_answers()[0])[4]["success"]


class PrintTool(Tool):
    """Stands for Python: computes what ``print(...)`` prints."""

    def __init__(self) -> None:
        properties = {"code": {"type": "string"}}
        self.spec = ToolSpec(name="python", description="Runs code.", parameters={"properties": properties})

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        return ToolResult(text=calculate(str(arguments["code"]).removeprefix("print")))


# -- as an installed package -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example alone is installed, without any network."""
    folder = tmp_path_factory.mktemp("tool_math")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    _run("-m", "pip", "install", *options, "--target", str(folder / "packages"), str(source), cwd=folder)
    return folder / "packages"


def _run(*arguments: str, cwd: Path, packages: Path | None = None, timeout_s: float = 120) -> str:
    """Run Python away from the repository, with the installed example; its stdout."""
    path = os.pathsep.join(map(str, [*([packages] if packages else []), REPOSITORY]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_it_passes_the_check_alone_and_with_tools(installed: Path, tmp_path: Path) -> None:
    wrapped = ["roll/ToolEnv-v0", "--kwargs", f"env={ENV_ID}", "--kwargs", "format=fenced"]
    for target in ([ENV_ID], wrapped):
        shown = _run("-m", "roll_envs", "check", *target, "--seeds", "3", "--json", cwd=tmp_path, packages=installed)
        (report,) = json.loads(shown)
        assert {result["status"] for result in report["results"]} <= {"pass", "skip"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_training_learns_to_use_the_tool(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the optional part 'train'")
    program = "import sys; from trainer.cli import main; sys.exit(main(sys.argv[1:]))"
    changes = [
        "warm_start.steps=200", "steps=15", "evaluation.every=0", "evaluation.tasks=128", "checkpoint.every=0",
        "env.kwargs.env_kwargs.digits=2",
    ]  # fmt: skip
    _run(
        "-c",
        program,
        str(EXAMPLE / "train.yaml"),
        *changes,
        f"output={tmp_path / 'runs'}",
        cwd=tmp_path,
        packages=installed,
        timeout_s=880,
    )
    (summary,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("summary.json"))
    first, last = summary["phases"][0], summary["phases"][-1]
    assert first["failed"] == last["failed"] == 0
    assert last["success"] > first["success"] + 0.2
