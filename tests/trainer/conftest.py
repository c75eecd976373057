"""Fixtures for the tests of the trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

import pytest


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with a stand-in for their learning curve: to draw one takes a third of the time of a tiny run."""

    def save(figure: Any, file: IO[bytes], **_: Any) -> None:
        file.write(b"\x89PNG, but for a picture")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """A run chooses torch's threads by the size of its model; the next test has those of before."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)
