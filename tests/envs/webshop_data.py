"""The recorded behaviour of the original shop, for the tests that compare with it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.webshop.types import Goal

__all__ = ["as_goal", "recorded", "webshop_folder"]


def webshop_folder(shared_dir: Path) -> Path:
    """The folder of the recorded data; skips the test where it is absent."""
    folder = shared_dir / "webshop"
    if not (folder / "items_shuffle_1000.json").is_file():
        pytest.skip("the recorded WebShop data is not here")
    return folder


def recorded(folder: Path, name: str) -> Any:
    """The content of ``name.json.gz``."""
    return json.loads(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))


def as_goal(record: Mapping[str, Any]) -> Goal:
    """A goal as the original wrote it down."""
    options = record["goal_options"]
    return Goal(
        asin=record["asin"],
        instruction=record.get("instruction_text", ""),
        query=record["query"],
        product_category=record["product_category"],
        title=record["name"],
        attributes=tuple(record["attributes"]),
        options=dict(options) if isinstance(options, dict) else tuple(options),
        price_upper=record["price_upper"],
        weight=record.get("weight", 1.0),
    )
