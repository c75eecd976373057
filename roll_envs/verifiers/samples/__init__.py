"""Small data sets to try verifiers on, each a file of JSON lines in this package.

    from roll_envs.verifiers import samples
    samples.path("math")            # the file
    samples.load("math")[0]["prompt"]

``math``, ``code``, ``choice`` and ``instructions`` have ``prompt`` and ``reference`` for the verifier of that name, and
answers that pass it and that do not (``right``, ``wrong``). ``judge`` and ``pairs`` have an ``answer`` and people's
``label`` of it, to compare the verdicts of an ``llm_judge`` of kind ``correctness`` or ``pairwise`` with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roll_envs.errors import UnknownNameError

__all__ = ["NAMES", "load", "path"]

NAMES = ("choice", "code", "instructions", "judge", "math", "pairs")


def path(name: str) -> Path:
    """The file of a data set. Raises :class:`UnknownNameError`."""
    if name not in NAMES:
        raise UnknownNameError("sample data set", name, NAMES)
    return Path(__file__).with_name(f"{name}.jsonl")


def load(name: str) -> list[dict[str, Any]]:
    """The rows of a data set, in order. Raises :class:`UnknownNameError`."""
    lines = path(name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]
