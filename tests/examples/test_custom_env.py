"""The example package, installed into a fresh virtual environment: found, checked, and trained on."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "custom_env"
ENV_ID = "example/Brackets-v0"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the example installed, without any network.

    What is installed here is lent to it by a path file; the example alone is installed into it.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "v", with_pip=False, symlinks=True)
    paths = {"base": str(folder / "v"), "platbase": str(folder / "v")}
    packages = Path(sysconfig.get_path("purelib", "venv" if "venv" in sysconfig.get_scheme_names() else None, paths))
    lent = [*site.getsitepackages(), str(REPOSITORY)]
    (packages / "lent.pth").write_text("\n".join(lent) + "\n")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    bin_dir = Path(sysconfig.get_path("scripts", "venv" if "venv" in sysconfig.get_scheme_names() else None, paths))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    _run(bin_dir, "-m", "pip", "install", *options, str(source))
    return bin_dir


def _run(bin_dir: Path, *arguments: str, cwd: Path | None = None, timeout_s: float = 120) -> str:
    """Run the fresh environment's Python away from the repository; its stdout."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    done = subprocess.run(
        [str(bin_dir / Path(sys.executable).name), *arguments],
        cwd=cwd or bin_dir.parent,
        env=clean,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_it_is_found(fresh: Path) -> None:
    found = {entry["id"]: entry for entry in json.loads(_run(fresh, "-m", "roll_envs", "list", "--json"))}
    assert found[ENV_ID]["state"] == "ready"
    assert found[ENV_ID]["source"] == "bracket-envs 0.1.0"
    assert {entry["state"] for entry in found.values()} == {"ready"}


def test_it_passes_the_check(fresh: Path) -> None:
    (report,) = json.loads(_run(fresh, "-m", "roll_envs", "check", ENV_ID, "--seeds", "3", "--json"))
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
    assert _run(fresh, "-c", program).split() == ["True", "True"]


def test_it_is_trained_on(fresh: Path, tmp_path: Path) -> None:
    config = EXAMPLE / "train.yaml"
    pytest.importorskip("torch", reason="training needs the optional part 'train'")
    program = "import sys; from trainer.cli import main; sys.exit(main(sys.argv[1:]))"
    short = ["steps=2", "warm_start.steps=4", "evaluation.tasks=16", f"output={tmp_path / 'runs'}"]
    _run(fresh, "-c", program, str(config), *short, cwd=tmp_path, timeout_s=240)
    (summary,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("summary.json"))
    assert (summary["env"], summary["steps"]) == (ENV_ID, 2)
    assert [(phase["tasks"], phase["failed"]) for phase in summary["phases"]] == [(16, 0), (16, 0)]
