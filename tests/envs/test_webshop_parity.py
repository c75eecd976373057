"""The shop behaves as the original did, to the letter, on everything that was recorded of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from webshop_data import as_goal, recorded, webshop_folder

from envs.webshop.catalogue import load_catalogue
from envs.webshop.env import WebShopEnv
from envs.webshop.goals import draw_price, synthetic_goals
from envs.webshop.original import read_listings
from envs.webshop.reward import purchase_reward


@pytest.fixture(scope="module")
def folder(shared_dir: Path) -> Path:
    return webshop_folder(shared_dir)


def test_every_product_and_its_price(folder: Path) -> None:
    catalogue = load_catalogue(folder, human=False)
    prices = recorded(folder, "goals")["product_prices"]
    assert len(catalogue.store) == len(prices) == 1000
    assert {catalogue.store[d].asin: catalogue.store.price(d) for d in range(1000)} == prices


def test_the_first_1500_goals_in_their_order(folder: Path) -> None:
    catalogue = load_catalogue(folder, human=False)
    expected = recorded(folder, "goals")
    assert len(catalogue.goals) == expected["num_goals"] == 6910
    assert list(catalogue.goals[:1500]) == [as_goal(g) for g in expected["goals"]]


def test_the_human_goals(folder: Path) -> None:
    expected = [as_goal(g) for g in recorded(folder, "episodes")["human_goals"]]
    found = load_catalogue(folder, human=True).goals
    assert list(found) == expected
    assert len(found) == 13


def test_another_seed_gives_other_prices(folder: Path) -> None:
    """The comparison above would not notice a generator that is never used."""
    listings = list(read_listings(folder))
    draws = []
    for seed in (0, 0, 1):
        rng = random.Random(seed)
        prices = [draw_price(found.product.pricing, rng) for found in listings]
        draws.append([g.instruction for g in synthetic_goals(listings, prices, rng)])
    assert draws[0] == draws[1] != draws[2]


def test_500_rewards_with_their_parts(folder: Path) -> None:
    catalogue = load_catalogue(folder, human=False)
    cases = recorded(folder, "rewards")
    for case in cases:
        doc = catalogue.store.find(case["asin"])
        assert doc is not None
        purchase = purchase_reward(
            catalogue.store[doc],
            as_goal(case["goal"]),
            price=case["price"],
            options=case["options"],
            nouns_of=catalogue.nouns,
        )
        assert (purchase.reward, purchase.as_info()) == (case["reward"], case["info"])
    assert len(cases) == 500


def test_lists_are_whole(folder: Path) -> None:
    """The original asks its search engine for 50 products, but lists all of a department, kind or attribute."""
    env = WebShopEnv(data_dir=folder, human_goals=False)
    env.reset(seed=0)
    assert "Page 1 (Total results: 238)" in env.step("search[<c> beauty]")[0]
    products = [env.catalogue.store[doc] for doc in range(1000)]
    beauty = [doc for doc, product in enumerate(products) if product.category == "beauty"]
    assert list(env.catalogue.search("<c> beauty")) == beauty
    assert env.page.products == tuple(products[doc] for doc in beauty[:10])


def _episodes(folder: Path, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = recorded(folder, "episodes")[kind]
    return found


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_every_step_of_every_episode(folder: Path, kind: str, mode: str) -> None:
    env = WebShopEnv(data_dir=folder, human_goals=kind == "human", observation_mode=mode)
    steps = 0
    for episode in _episodes(folder, kind):
        first, *rest = episode["steps"]
        observation, info = env.reset(options={"session": episode["goal_idx"]})
        reward, terminated = 0.0, False
        for step in (first, *rest):
            if step is not first:
                observation, reward, terminated, truncated, info = env.step(step["action"])
                assert not truncated
            assert observation == step["obs_text" if mode == "text" else "obs_text_rich"]
            assert info["clickables"] == step["clickables"]
            assert info["available_actions"] == step["ragen_actions"]
            assert info["has_search_bar"] == step["has_search_bar"]
            assert (reward, terminated) == (step["reward"], step["done"])
            steps += 1
            if step["info"] is not None:
                assert {name: info[name] for name in step["info"]} == step["info"]
        assert terminated
        assert info["success"] == (reward == 1.0)
    assert steps == sum(len(e["steps"]) for e in _episodes(folder, kind))
