"""Fixtures for the tests of the trainer."""

from __future__ import annotations

from typing import IO, Any

import pytest


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with a stand-in for their learning curve: to draw one takes a third of the time of a tiny run."""

    def save(figure: Any, file: IO[bytes], **_: Any) -> None:
        file.write(b"\x89PNG, but for a picture")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
