"""The small shop: its catalogue, what its pages say, and that its actions are those of the shop."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from envs.webshop.goals import split_range
from envs.webshop.mini import ACTIONS, WebShopMiniEnv
from envs.webshop.mini_catalogue import KINDS, mini_listings, mini_words


def test_the_catalogue_is_closed_and_its_products_differ() -> None:
    found = [listing.product for listing in mini_listings()]
    assert found == [listing.product for listing in mini_listings()]
    assert Counter(p.query for p in found) == dict.fromkeys(KINDS, 8)
    assert len({p.title for p in found}) == len(found) == 160
    words = {w for p in found for text in (p.title, *p.options["color"], *p.options["size"]) for w in text.split()}
    assert words == set(mini_words())


def test_an_episode_as_it_is_shown() -> None:
    env = WebShopMiniEnv(action_format="word")
    observation, info = env.reset(options={"session": 0})
    goal = env.shop.goal
    color, size = goal.options.values()  # type: ignore[union-attr]
    want = f"want {goal.title} {color} {size} below {goal.price_upper:.0f}"
    assert observation == f"{want}\npage"
    assert info["available_actions"] == [f"search[{kind}]" for kind in KINDS]
    shown = env.step(f"search[{goal.query}]")[0].split("\n")
    assert shown[:2] == [want, "page 1 of 2"]
    assert [line.split()[0] for line in shown[2:]] == ["1", "2", "3", "4"]
    rows = shown[2:]
    if not any(goal.title in row for row in rows):
        rows = env.step("click[next]")[0].split("\n")[2:]
    (row,) = [row for row in rows if f" {goal.title} " in row]
    item = env.step(f"click[{row[0]}]")[0].split("\n")
    assert item[1].startswith(f"item {goal.title} ")
    assert f" {color} " in f"{item[2]} "
    assert f" [{color}]" in env.step(f"click[{color}]")[0].split("\n")[2]
    env.step(f"click[{size}]")
    observation, reward, terminated, _, info = env.step("click[buy]")
    assert (observation, reward, terminated) == (f"{want}\nbought {goal.title}", 1.0, True)
    assert (info["success"], info["available_actions"]) == (True, [])


def test_the_oracle_buys_every_goal_of_the_test_split() -> None:
    env = WebShopMiniEnv()
    lengths: Counter[int] = Counter()
    for number in split_range("test", len(env.shop.catalogue.goals)):
        env.reset(options={"session": number})
        way = env.oracle()
        assert way is not None
        lengths[len(way)] += 1
        *_, last = [env.step(said) for said in way]
        assert (last[1], last[2]) == (1.0, True)
    assert set(lengths) == {5, 6}  # on the first or on the second page of results


def test_the_oracle_from_anywhere() -> None:
    env, draw = WebShopMiniEnv(max_turns=40), random.Random(5)
    for seed in range(60):
        env.reset(seed=seed)
        for _ in range(draw.randrange(12)):
            said = draw.choice([a for a in env.legal_answers() if "buy" not in a])
            env.step(said)
        for said in env.oracle() or ():
            result = env.step(said)
        assert (result[1], result[2]) == (1.0, True)


@pytest.mark.parametrize("said", ["search[sofa]", "click[1]", "click[buy]", "click[red]", "click[next]", "buy", ""])
def test_what_the_search_page_does_not_offer(said: str) -> None:
    env = WebShopMiniEnv(action_format="word", format_penalty=-0.25)
    first, _ = env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(said)
    assert (observation, reward, terminated, info["action_is_valid"]) == (first, -0.25, False, False)


def test_legal_answers_are_legal_and_others_are_not() -> None:
    """But for searching, every action that is not offered is refused (the pages after the last are never offered)."""
    env, draw = WebShopMiniEnv(action_format="word"), random.Random(1)
    for seed in range(30):
        env.reset(seed=seed)
        over = False
        while not over:
            state = env.snapshot()
            legal = env.legal_answers()
            for action in ACTIONS:
                env.restore(state)
                valid = env.step(action)[4]["action_is_valid"]
                assert valid >= (action in legal)
                if action != "click[next]":
                    assert valid == (action in legal), action
            env.restore(state)
            over = any(env.step(draw.choice(legal))[2:4])
