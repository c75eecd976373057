"""Recorded episodes of the original environments, kept beside the repository (not in it)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from envs.sokoban.arguments import SYMBOLS

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared" / "golden"


def load(name: str) -> list[dict[str, Any]]:
    path = GOLDEN / name
    if not path.exists():
        pytest.skip(f"the recorded episodes {name} are not here (looked in ../shared/golden beside the repository)")
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data: list[dict[str, Any]] = json.loads(text)
    return data


def standard_rows(observation: str, symbols: str = SYMBOLS) -> list[str]:
    """A recorded observation as rows in the standard symbols (the form of a snapshot)."""
    bare = observation.replace("\t", "").replace(" ", "")
    return bare.translate(str.maketrans(symbols, SYMBOLS)).split("\n")
