"""Packages as an installer leaves them, to be found by their entry points."""

from __future__ import annotations

from pathlib import Path

__all__ = ["install"]


def install(site: Path, name: str, code: str, points: str, *, group: str) -> None:
    """A package of one module ``name`` in the folder ``site``, which is to be on ``sys.path``."""
    (site / f"{name}.py").write_text(code, encoding="utf-8")
    meta = site / f"{name}-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (meta / "entry_points.txt").write_text(f"[{group}]\n{points}\n", encoding="utf-8")
