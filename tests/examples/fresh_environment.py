"""A fresh virtual environment with packages of examples/ installed into it, without any network."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["REPOSITORY", "install", "run"]

REPOSITORY = Path(__file__).resolve().parents[2]


def install(examples: Sequence[Path], folder: Path) -> Path:
    """The bin folder of an environment below ``folder`` with ``examples`` installed.

    What is installed here is lent to it by a path file; the examples alone are installed into it.
    """
    venv.create(folder / "v", with_pip=False, symlinks=True)
    paths = {"base": str(folder / "v"), "platbase": str(folder / "v")}
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else None
    packages = Path(sysconfig.get_path("purelib", scheme, paths))
    (packages / "lent.pth").write_text("\n".join([*site.getsitepackages(), str(REPOSITORY)]) + "\n")
    ignored = shutil.ignore_patterns("build", "*.egg-info")
    sources = [shutil.copytree(example, folder / example.name, ignore=ignored) for example in examples]
    bin_dir = Path(sysconfig.get_path("scripts", scheme, paths))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run(bin_dir, "-m", "pip", "install", *options, *map(str, sources))
    return bin_dir


def run(bin_dir: Path, *arguments: str, cwd: Path | None = None, timeout_s: float = 120) -> str:
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
