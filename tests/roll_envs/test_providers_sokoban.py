"""Rooms of GEM's and TextArena's Sokoban: the same to the cell as the packages' own search finds."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import roll_envs
from roll_envs.providers.sokoban_quickly import sokoban_quickly

pytestmark = pytest.mark.slow  # `make test-slow` installs the packages
UTILS = {"gem": "gem.envs.game_env.sokoban.utils", "textarena": "textarena.envs.Sokoban.utils"}


def utils(package: str) -> Any:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: make .venv/providers.stamp")
    return importlib.import_module(UTILS[package])


@pytest.mark.parametrize("package", UTILS)
@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_rooms_are_the_package_s_own(package: str, boxes: int) -> None:
    module = utils(package)
    own = module.reverse_playing
    for seed in range(8):
        room: dict[str, Any] = {"dim": (6, 6), "num_steps": 20, "num_boxes": boxes, "seed": seed}
        structure, start, mapping = module.generate_room(**room)
        with sokoban_quickly("Sokoban-v0", UTILS[package]):
            found = module.generate_room(**room)
        np.testing.assert_array_equal(found[0], structure)
        np.testing.assert_array_equal(found[1], start)
        assert list(found[2].items()) == list(mapping.items())
    assert module.reverse_playing is own


@pytest.mark.parametrize("id", ["gem/Sokoban-hard-v0", "textarena/Sokoban-medium-v0"])
def test_hard_rooms_are_begun_without_the_package_s_search(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise AssertionError("the package's own search was called")

    monkeypatch.setattr(utils(id.partition("/")[0]), "reverse_playing", refused)
    env = roll_envs.make(id)
    assert env.reset(seed=0)[0].count("X") >= 5
    env.close()
