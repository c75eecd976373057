"""The house: what README, guides, packaging and public names claim is so."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import envs
from roll_envs import EnvironmentCard
from roll_envs.cli.command import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
GUIDES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def _run(*arguments: str, cwd: Path | None = None, timeout_s: float = 120) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def _python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# -- README and guides -------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    assert len(README.splitlines()) < 150
    commands = re.findall(r"^    (.+?)(?:  +#.*)?$", README, re.MULTILINE)
    assert commands[:2] == ["make quickstart", "make test"]


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    play, teach, judge = _python_blocks(REPOSITORY / "README.md")
    assert max(len(block.splitlines()) for block in (play, teach, judge)) <= 10
    assert _run("-W", "error", "-c", play, cwd=tmp_path).rstrip().endswith("success True")
    small = {
        '"configs/': f'"{REPOSITORY.as_posix()}/configs/',
        "steps=40": f'steps=1, warm_start={{"steps": 1, "episodes_per_step": 4}}, output="{tmp_path.as_posix()}"',
        '"groups_per_step": 16': '"groups_per_step": 2',
        "advantage={": 'evaluation={"tasks": 2}, model={"hidden_size": 32, "layers": 1}, advantage={',
    }
    for whole, part in small.items():
        assert whole in teach
        teach = teach.replace(whole, part)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(teach, {})
    assert str(tmp_path) in said.getvalue().splitlines()[-1]
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    assert _run("-W", "error", "-c", judge, cwd=tmp_path).split() == ["b'42\\n'", "True"]


def test_the_adapted_environment_of_the_guide_speaks(tmp_path: Path) -> None:
    (adapted,) = (b for b in _python_blocks(REPOSITORY / "docs" / "add_an_environment.md") if "adapt(" in b)
    assert _run("-W", "error", "-c", adapted, cwd=tmp_path).startswith("The pole leans ")


def test_the_examples_of_the_guide_register_what_they_say(tmp_path: Path) -> None:
    program = "\n".join(_python_blocks(REPOSITORY / "docs" / "write_a_part.md")) + (
        "\nfrom roll_envs.types import SamplingParams"
        "\nimport numpy as np"
        "\nfrom roll_envs.types import Completion, Group, Outcome, Task, Trajectory, Turn"
        "\nfrom trainer.algorithms.estimators import make_estimator"
        "\nfrom trainer.data.table import make_table, sequences_of"
        "\nfrom trainer.config import AdvantageConfig, EngineConfig"
        "\nfrom trainer.engines import make_engine"
        "\ntask = Task(env_id='a', split='train', index=0, seed=0)"
        "\ndef played(member, reward):"
        "\n    said = Completion(ids=(2, 3), logprobs=(-1.0, -1.0), finish='stop', weight_version=0)"
        "\n    turn = Turn(prompt_ids=(1,), completion=said, prompt_observation='', text='', observation='',"
        " reward=reward, terminated=True, truncated=False, info={}, timings={})"
        "\n    return Trajectory(task=task, member=member, turns=(turn,), outcome=Outcome(kind='completed'))"
        "\ngroups = [Group(task=task, trajectories=(played(0, 1.0), played(1, 0.0)))]"
        "\ntable = make_table(groups, sequences_of(groups))"
        "\nconfig = AdvantageConfig(name='best_of_group', size=2.0)"
        "\nfound = make_estimator(config)(table)[0].tokens.advantage"
        "\nassert found.tolist() == [2.0, 2.0, -2.0, -2.0]"
        "\nengine = make_engine(None, EngineConfig(name='first_token'))"
        "\nengine.update_weights({}.items(), 3)"
        "\nanswer = engine.generate((1,), SamplingParams(stop_ids=(7,)), timeout_s=1)"
        "\nassert (answer.ids, answer.weight_version) == ((7,), 3)"
        "\nassert Keywords(['a', 'z'])('an answer').value == 0.5"
    )
    _run("-W", "error", "-c", program, cwd=tmp_path)


@pytest.mark.parametrize("path", GUIDES, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [t for t in targets if not (path.parent / t).exists()] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda p: p.name)
def test_commands_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^    (.+)$", text, re.MULTILINE)])
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)(?![\w/.-])", code)) <= targets
    assert set(re.findall(r"\broll-envs ([a-z]+(?:-[a-z]+)*)\b", code)) <= set(COMMANDS.names())
    ids = {point.name for point in importlib.metadata.entry_points(group="roll_envs")} | {"roll/Sokobann-v0"}
    assert set(re.findall(r"\broll/\w+-v\d+", code)) <= ids


def test_configurations_that_are_named_exist_and_load() -> None:
    pytest.importorskip("yaml", reason="needs the optional part 'train'")
    from trainer.config.load import load_config

    here = {path.name for path in (REPOSITORY / "configs").glob("*.yaml")}
    if not here:
        pytest.skip("configs/ is empty")
    for path in [REPOSITORY / "Makefile", *GUIDES]:
        assert set(re.findall(r"\bconfigs/(\w+\.yaml)", path.read_text(encoding="utf-8"))) <= here, path.name
    for name in here:
        load_config(REPOSITORY / "configs" / name)


def test_tests_that_the_design_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")))
    assert named
    assert named <= {path.stem for path in (REPOSITORY / "tests").rglob("test_*.py")}


# -- files and names ---------------------------------------------------------------------------------------------------


def _tracked() -> list[Path]:
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


def test_no_file_names_a_place_of_some_machine_or_a_registry() -> None:
    # Put together here, so that this file does not name them either.
    places = [f"/{top}/" for top in ("root", "home", "Users", "work", "opt")]
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"))]
    pattern = re.compile("|".join([rf"(?<![\w.~/-]){p}\w" for p in places] + [re.escape(h) for h in hosts]))
    found = []
    for path in _tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = path.relative_to(REPOSITORY)
        # The working folder inside a cage is a place of the cage, not of the machine.
        caged = "/work/" if "sandboxes" in name.parts else "nothing"
        found += [f"{name}: {m.group()}" for m in pattern.finditer(text) if not m.group().startswith(caged)]
    assert found == []


def _modules() -> list[str]:
    import sandboxes
    import trainer

    packages = ((envs, "envs."), (sandboxes, "sandboxes."), (trainer, "trainer."))
    found = [m.name for package, prefix in packages for m in pkgutil.walk_packages(package.__path__, prefix)]
    foreign = {f"trainer.engines.vllm_worker.roll_{server}" for server in ("vllm", "sglang")}  # whose path is another
    return [name for name in found if name not in foreign]


def test_every_public_name_exists_once() -> None:
    pytest.importorskip("torch", reason="needs the optional part 'train'")
    wrong = []
    for name in _modules():
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [])
        wrong += [f"{name}.{word}" for word in public if not hasattr(module, word)]
        wrong += [f"{name} has doubles"] * (len(set(public)) != len(public))
    assert wrong == []


# -- packaging ---------------------------------------------------------------------------------------------------------


def test_entry_points_load() -> None:
    points = importlib.metadata.distribution("roll-envs").entry_points
    commands = {p.name: p.load() for p in points if p.group == "console_scripts"}
    assert set(commands) == {"roll-envs", "roll-train", "roll-eval", "roll-sandbox"}
    assert all(callable(command) for command in commands.values())
    cards: dict[str, Any] = {p.name: p.load() for p in points if p.group == "roll_envs"}
    assert cards
    assert all(isinstance(card, EnvironmentCard) and card.id == name for name, card in cards.items())


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for name in ("roll_envs", "envs", "sandboxes", "trainer", "tests", "benchmarks", "examples"):
        skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build")
        shutil.copytree(REPOSITORY / name, source / name, ignore=skipped)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    _run("-m", "pip", "wheel", *options, "-w", str(tmp_path), ".", cwd=source)
    (wheel,) = tmp_path.glob("roll_envs-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
    assert {n.partition("/")[0].partition("-")[0] for n in names} == {"roll_envs", "envs", "sandboxes", "trainer"}
    cards = {f"envs/{name}/README.md" for name in ("sokoban", "frozenlake", "webshop")}
    wanted = {"roll_envs/py.typed", "sandboxes/py.typed", "trainer/py.typed", *cards}
    modules = {
        path.relative_to(source).as_posix()
        for package in ("roll_envs", "envs", "sandboxes", "trainer")
        for path in (source / package).rglob("*.py")
    }
    page = {"envs/webshop/serve/templates/layout.html", "envs/webshop/serve/static/style.css"}
    tables = {path.relative_to(source).as_posix() for path in (source / "envs").rglob("*.json")}
    assert len(tables) >= 7
    worker = "trainer/engines/vllm_worker"  # run by another Python, which finds the plugin by its description
    plugin = {f"{worker}/roll_vllm.dist-info/entry_points.txt", f"{worker}/requirements.txt"}
    assert wanted | page | plugin | modules | tables <= set(names)
    assert any(n.endswith("/LICENSE") for n in names)
    assert re.search(r"^License(-Expression)?: Apache-2.0$", metadata, re.MULTILINE)
    assert "Requires-Dist: torch" in metadata
    base = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert base == ["gymnasium", "numpy", "httpx", "pydantic", "rapidfuzz", "jsonschema"]


# -- the verdict on a run ----------------------------------------------------------------------------------------------


def _evaluation(step: int, success: float, tasks: int = 256, failed: int = 0) -> dict[str, Any]:
    low, high = success - 0.05, success + 0.05
    numbers = {"success": success, "interval_low": low, "interval_high": high}
    return {"name": f"step {step}", "step": step, "tasks": tasks, "failed": failed, **numbers}


@pytest.mark.parametrize(
    ("phases", "options", "status"),
    [
        ([_evaluation(0, 0.4), _evaluation(50, 0.1), _evaluation(100, 0.8)], [], 0),
        ([_evaluation(0, 0.41), _evaluation(100, 0.9)], [], 1),
        ([_evaluation(0, 0.3), _evaluation(100, 0.79)], [], 1),
        ([_evaluation(0, 0.3), _evaluation(50, 0.9)], [], 1),
        ([_evaluation(0, 0.3), _evaluation(100, 0.9, tasks=255)], [], 1),
        ([_evaluation(0, 0.3), _evaluation(100, 0.9, failed=1)], [], 1),
        ([_evaluation(0, 0.2), _evaluation(100, 0.6)], ["--before-at-most", "0.25", "--after-at-least", "0.5"], 0),
        ([_evaluation(0, 0.3), _evaluation(100, 0.9)], ["--seconds-at-most", "299"], 1),
    ],
)
def test_the_verdict_on_a_run(tmp_path: Path, phases: list[dict[str, Any]], options: list[str], status: int) -> None:
    summary = {"env": "roll/FrozenLake-v0", "seed": 0, "steps": 100, "total_seconds": 300.0, "phases": phases}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    script = str(REPOSITORY / "benchmarks" / "verdict.py")
    done = subprocess.run(
        [sys.executable, script, str(tmp_path), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout
    assert done.stdout.count("FAIL") == status


def test_there_is_no_verdict_on_a_run_that_has_not_finished(tmp_path: Path) -> None:
    script = str(REPOSITORY / "benchmarks" / "verdict.py")
    done = subprocess.run([sys.executable, script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has not finished" in done.stdout
