"""Fake installed packages: a folder with a module and its ``dist-info``, to be put on ``sys.path``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CARD = """\
from roll_envs import EnvironmentCard
CARD = EnvironmentCard(
    id={id!r}, entry_point="roll_envs.testing.fakes:CounterEnv", summary="A counter.", tests="-", turns="-",
    reward_range=(-0.6, 0.9), rewards="-", success="-",
)
"""


def install(
    folder: Path,
    package: str,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    *,
    group: str = "roll_envs",
    others: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write a package with modules (name -> source) and entry points of the group into ``folder``; ``others`` are
    entry points of more groups."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for name, points in {group: entry_points, **(others or {})}.items():
        lines += [f"[{name}]", *(f"{point} = {target}" for point, target in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


def run_python(program: str, *path: Path, cwd: Path | None = None, fails: bool = False) -> str:
    """Run a program in a new process with ``path`` first on ``sys.path``, every warning an error; its output."""
    with tempfile.TemporaryDirectory() as empty:  # not the repository, which would come first on sys.path
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "NO_COLOR": "1"},
            cwd=cwd or empty,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


_COMMANDS = """
import contextlib, io, json, sys
from roll_envs.cli import main

found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            status = main(arguments)
        except SystemExit as error:
            status = error.code
    found.append((status or 0, said.getvalue()))
print(json.dumps(found))
"""


def run_commands(*commands: Sequence[str], path: Path) -> list[tuple[int, str]]:
    """``roll-envs ARGUMENTS`` one after the other in one new process, as in :func:`run_python`: each exit status, and
    what was printed to stdout and stderr."""
    program = f"import sys; sys.argv[1:] = [{json.dumps(commands)!r}]\n{_COMMANDS}"
    return [(status, said) for status, said in json.loads(run_python(program, path))]
