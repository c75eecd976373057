"""benchmarks/gpu.sh goes its whole path on a CPU, with small shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "HOME": str(home)}
    command = [str(ROOT / "benchmarks" / "gpu.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_every_section_runs_and_the_page_says_what_it_is(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    done = run(tmp_path, "--tiny", "--output", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# One GPU (small shapes: a test of the path, no measurement)\n")
    assert f"torch {torch.__version__}" in text
    for heading in ("Learner: one", "Attention where", "Built-in engine", "Log-probabilities beside", "A short run"):
        assert f"## {heading}" in text
    assert "Failed" not in text
    assert "| float32 | sdpa |" in text
    assert "Held-out success" in text


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "parity")
    assert done.returncode == 2
    assert "finds no CUDA device" in done.stderr
