"""A shop over a built index plays, to the letter, like one over the files that the index was built from."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import pytest

from envs.webshop.disk import build_index
from envs.webshop.env import WebShopEnv
from envs.webshop.shipped import generate
from roll_envs.errors import ConfigError


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("shop")
    made = list(generate(150))
    files = {
        "items_shuffle": [one.record for one in made],
        "items_ins_v2": {one.record["asin"]: one.ins for one in made},
        "items_human_ins": {one.record["asin"]: one.human for one in made if one.human},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    build_index(folder, folder / "index", workers=0)
    return folder, folder / "index"


@pytest.mark.parametrize("human", [True, False])
def test_the_same_episodes(places: tuple[Path, Path], human: bool) -> None:
    one, other = (WebShopEnv(data_dir=place, human_goals=human) for place in places)
    assert len(one.catalogue.goals) == len(other.catalogue.goals) > 100
    draw = random.Random(1)
    for seed in range(40):
        assert one.reset(seed=seed) == other.reset(seed=seed)
        over = False
        while not over:
            said = draw.choice([*one.legal_answers(), "search[<q> shampoo]"])
            result = one.step(said)
            assert other.step(said) == result
            over = result[2] or result[3]


def test_an_environment_over_an_index_survives_pickling(places: tuple[Path, Path]) -> None:
    env = WebShopEnv(data_dir=places[1])
    env.reset(seed=4)
    assert pickle.loads(pickle.dumps(env)).step("search[soft]") == env.step("search[soft]")


def test_what_an_index_has_fixed_cannot_be_asked_for_otherwise(places: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="built with seed 0, not 1; pass seed=0"):
        WebShopEnv(data_dir=places[1], seed=1)
    with pytest.raises(ConfigError, match="has 150 products and is used whole: num_products cannot be 9"):
        WebShopEnv(data_dir=places[1], num_products=9)
    assert len(WebShopEnv(data_dir=places[1], num_products=150).catalogue.store) == 150
