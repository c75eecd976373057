"""The small shops: what they sell, what decides in them, what pages say, and that actions are those of the shop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from envs.webshop import mini
from envs.webshop.goals import split_range
from envs.webshop.mini import ACTIONS, WebShopMiniEnv
from envs.webshop.mini_catalogue import KINDS, NUM_GOALS, mini_catalogue, mini_words
from roll_envs.errors import ConfigError

Player = Callable[[str, list[str], dict[str, Any]], str]
"""Observation, what can be done, notes of the episode -> action. Players see what a policy sees, and nothing else."""


@pytest.fixture(scope="module", autouse=True)
def shops() -> Iterator[None]:
    """Each is made once: most of these tests play the 500 of the test split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini, "mini_catalogue", lru_cache(maxsize=1000)(mini_catalogue.__wrapped__))
        yield


def success(player: Player, seeds: Iterable[int] = range(200), split: str = "test", seed: int = 0) -> float:
    env = WebShopMiniEnv(action_format="word", seed=seed)
    bought = []
    for number in seeds:
        shown, info = env.reset(seed=number, options={"split": split})
        notes: dict[str, Any] = {"draw": random.Random(number)}
        over = False
        while not over:
            shown, _, terminated, truncated, info = env.step(player(shown, info["available_actions"], notes))
            over = terminated or truncated
        bought.append(info["success"])
    return sum(bought) / len(bought)


def shopper(
    *,
    pages: int = 3,
    price: bool = True,
    options: slice = slice(4, 6),
    title: slice = slice(1, 4),
    order: Callable[[int, int], int] = lambda price, cap: 0,
) -> Player:
    """Opens what fits the wish as far as it looks, by falling ``order``, and buys it; a random row of the last page if
    none does."""

    def play(shown: str, legal: list[str], notes: dict[str, Any]) -> str:
        wish, head, *rows = shown.split("\n")
        wanted = wish.split()
        if head == "page":
            return f"search[{wanted[3]}]"
        if head.startswith("page "):
            found = [row.split() for row in rows]
            fit = [row for row in found if row[title] == wanted[title] and "seen" not in row]
            fit = [row for row in fit if not price or int(row[4]) <= int(wanted[7])]
            if fit:
                return f"click[{max(fit, key=lambda row: order(int(row[4]), int(wanted[7])))[0]}]"
            if "click[next]" in legal and int(head.split()[1]) < pages:
                return "click[next]"
            return f"click[{notes['draw'].choice(found)[0]}]"
        offered = " ".join(rows).split()
        if not all(value in offered or f"[{value}]" in offered for value in wanted[options]):
            return "click[back]"
        return next((f"click[{value}]" for value in wanted[4:6] if value in offered), "click[buy]")

    return play


NONE = slice(0, 0)


def dearest(price: int, cap: int) -> int:
    return price


def likeliest(price: int, cap: int) -> int:
    """How likely the cap makes a price to be the wanted product's."""
    return {20: 1, 30: 2, 40: 3}.get(cap - price // 10 * 10, 0)


def test_a_player_that_reads_everything_buys_what_is_wanted() -> None:
    assert success(shopper(), range(300)) == 1.0
    assert success(shopper(), range(200), "eval") == 1.0
    assert success(shopper(), range(200), "train") == 1.0
    assert success(shopper(), range(200), seed=1) == 1.0


@pytest.mark.parametrize(
    "player",
    [
        pytest.param(shopper(pages=1), id="page 1"),
        pytest.param(shopper(pages=1, order=dearest), id="page 1, dearest first"),
        pytest.param(shopper(pages=1, price=False, options=NONE), id="title on page 1"),
        pytest.param(shopper(pages=1, title=NONE), id="price and options on page 1"),
        pytest.param(shopper(price=False), id="no price"),
        pytest.param(shopper(options=NONE), id="no options"),
        pytest.param(shopper(options=NONE, order=dearest), id="no options, dearest first"),
        pytest.param(shopper(options=NONE, order=likeliest), id="no options, likeliest price first"),
        pytest.param(shopper(options=slice(4, 5)), id="no size"),
        pytest.param(shopper(options=slice(5, 6)), id="no color"),
        pytest.param(shopper(price=False, options=NONE), id="title"),
        pytest.param(shopper(title=slice(1, 2)), id="quality"),
        pytest.param(shopper(title=slice(2, 3)), id="material"),
        pytest.param(shopper(title=slice(2, 3), order=likeliest), id="material, likeliest price first"),
    ],
)
def test_a_player_that_leaves_something_out_fails_more_than_half_the_time(player: Player) -> None:
    assert success(player, range(500)) <= 0.5


@pytest.fixture(scope="module")
def trained() -> list[tuple[list[str], list[str]]]:
    """Wishes of the train split, and the clicks that lead to the place of what was wanted."""
    env, found = WebShopMiniEnv(action_format="word"), []
    for number in range(2_000):
        wish = env.reset(seed=number, options={"split": "train"})[0].split("\n")[0].split()
        found.append((wish, [a for a in env.oracle() or () if a[6:-1] in ("next", *"1234")]))
    return found


@pytest.mark.parametrize("known", [slice(1, 4), slice(1, 6), slice(1, 8), slice(3, 4)])
def test_a_player_that_remembers_the_train_split_is_lost(
    known: slice, trained: list[tuple[list[str], list[str]]]
) -> None:
    """It goes to the place where what was wanted in the same words stood, and does not look at the rows."""
    places = {tuple(wish[known]): way for wish, way in trained}

    def play(shown: str, legal: list[str], notes: dict[str, Any]) -> str:
        wanted = shown.split("\n")[0].split()
        if shown.split("\n")[1] == "page":
            notes["way"] = list(places.get(tuple(wanted[known]), ["click[1]"]))
            return f"search[{wanted[3]}]"
        if notes["way"]:
            return str(notes["way"].pop(0))
        clicks = [f"click[{value}]" for value in wanted[4:6] if f" {value}" in shown.split("\n", 2)[2]]
        return next((click for click in clicks if click in legal), "click[buy]")

    assert success(play, range(500)) <= 0.2


def listings(number: int) -> set[tuple[Any, ...]]:
    store = mini_catalogue(0, number).store
    products = [store[doc] for doc in range(len(store))]
    return {(p.title, p.pricing, *p.options["color"], *p.options["size"]) for p in products}


def test_no_listing_of_a_split_occurs_in_another() -> None:
    found = {name: [listings(n) for n in split_range(name, 3_000)] for name in ("test", "eval", "train")}
    held = {name: set().union(*shops) for name, shops in found.items()}
    assert all(held.values())
    assert not held["test"] & held["eval"] | held["test"] & held["train"] | held["eval"] & held["train"]
    assert len({frozenset(shop) for shops in found.values() for shop in shops}) == 3_000


def test_a_task_is_its_split_index_and_seed() -> None:
    one, other = WebShopMiniEnv(seed=4), WebShopMiniEnv(seed=4)
    for split, first in (("test", 0), ("eval", 500), ("train", 1500), ("all", 0)):
        for index in (0, 7, 499):
            other.reset(options={"session": first + index})
            assert one.reset(seed=index, options={"split": split})[0] == other.render()
            assert one.shop.goal == other.shop.goal
    assert one.reset(seed=0, options={"split": "test"})[0] == one.reset(seed=500, options={"split": "test"})[0]
    assert mini_catalogue(4, 9).goals != mini_catalogue(5, 9).goals


def test_the_wanted_product_stands_anywhere() -> None:
    places: Counter[int] = Counter()
    for number in range(1_200):
        catalogue = mini_catalogue(0, number)
        [goal] = catalogue.goals
        found = catalogue.search(goal.query)
        assert len(found) == 12
        doc = catalogue.store.find(goal.asin)
        assert doc is not None
        places[found.index(doc)] += 1
        titles = [catalogue.store[doc].title for doc in found]
        assert 4 <= titles.count(goal.title) <= 7
        decades = {price // 10 for doc in found if (price := catalogue.store.price(doc)) <= goal.price_upper}
        assert len(decades) == 1
    assert set(places) == set(range(12))
    assert 60 <= min(places.values()) <= max(places.values()) <= 140


def test_the_same_products_in_another_order() -> None:
    def listed(order: int) -> list[tuple[str, float, str]]:
        catalogue = mini_catalogue(0, 7, order)
        store, found = catalogue.store, catalogue.search(catalogue.goals[0].query)
        assert len(found) == 12
        return [(store[doc].title, store.price(doc), str(store[doc].options)) for doc in found]

    orders = [listed(order) for order in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({str(order) for order in orders}) == 3
    first = [WebShopMiniEnv(split="test", order=order).reset(seed=7)[0] for order in range(2)]
    assert first[0] == first[1]  # the wish is the same
    with pytest.raises(ConfigError, match="order"):
        WebShopMiniEnv(order=-1)


def test_the_words_are_closed() -> None:
    env = WebShopMiniEnv(action_format="word")
    known = {word.strip() for word in env.vocabulary}
    assert {*mini_words()} < known
    seen: set[str] = set()
    for number in range(300):
        seen |= set(env.reset(seed=number)[0].split())
        for said in env.oracle() or ():
            seen |= set(env.step(said)[0].split())
    assert {*mini_words()} < seen
    assert seen - {"bought"} <= known


def test_an_episode_as_it_is_shown() -> None:
    env = WebShopMiniEnv(action_format="word")
    for number in range(20):  # the first goal on whose way nothing else is opened
        observation, info = env.reset(options={"session": number})
        if "click[back]" not in (env.oracle() or ["click[back]"]):
            break
    goal = env.shop.goal
    color, size = goal.options.values()  # type: ignore[union-attr]
    want = f"want {goal.title} {color} {size} below {goal.price_upper:.0f}"
    assert observation == f"{want}\npage"
    assert info["available_actions"] == [f"search[{kind}]" for kind in KINDS]
    *_, row = way = env.oracle()[:-3]  # type: ignore[index]  # what follows: two options, and buy
    for said in way[:-1]:
        shown = env.step(said)[0].split("\n")
    assert shown[:2] == [want, f"page {len(way) - 1} of 3"]
    assert [line.split()[0] for line in shown[2:]] == ["1", "2", "3", "4"]
    assert f" {goal.title} " in shown[1 + int(row[6])]
    item = env.step(row)[0].split("\n")
    assert item[1].startswith(f"item {goal.title} ")
    assert f" {color} " in f"{item[2]} "
    back = env.step("click[back]")[0].split("\n")
    assert back == [line + " seen" if line.startswith(row[6]) else line for line in shown]
    env.step(row)
    assert f" [{color}]" in env.step(f"click[{color}]")[0].split("\n")[2]
    env.step(f"click[{size}]")
    observation, reward, terminated, _, info = env.step("click[buy]")
    assert (observation, reward, terminated) == (f"{want}\nbought {goal.title}", 1.0, True)
    assert (info["success"], info["available_actions"]) == (True, [])


def test_the_oracle_buys_every_goal_of_the_test_split() -> None:
    env = WebShopMiniEnv()
    lengths: Counter[int] = Counter()
    for number in split_range("test", NUM_GOALS):
        env.reset(options={"session": number})
        way = env.oracle()
        assert way is not None
        lengths[len(way)] += 1
        *_, last = [env.step(said) for said in way]
        assert (last[1], last[2]) == (1.0, True)
    # A row of one of three pages, two options, buy; before it up to four that are not offered as wanted.
    assert set(lengths) == set(range(5, 16))


def test_the_oracle_shops_as_a_player_that_reads_everything() -> None:
    """What it opens follows from the pages, so that a policy can learn it from them."""
    env = WebShopMiniEnv(action_format="word")
    for number in range(100):
        shown, info = env.reset(seed=number, options={"split": "test"})
        way = env.oracle()
        assert way is not None
        play = shopper()
        for said in way:
            wanted = shown.split("\n")[0].split()[4:6]
            choice = play(shown, info["available_actions"], {})
            assert said == choice or {said, choice} == {f"click[{value}]" for value in wanted}
            shown, *_, info = env.step(said)


def test_the_oracle_knows_no_way_where_turns_are_too_few_for_looking() -> None:
    long, short = WebShopMiniEnv(), WebShopMiniEnv(max_turns=7)
    unknown = 0
    for number in range(50):
        ways = []
        for env in (long, short):
            env.reset(options={"session": number})
            ways.append(env.oracle())
        assert ways[0] is not None
        assert ways[1] == (ways[0] if len(ways[0]) <= 7 else None)
        unknown += ways[1] is None
    assert unknown > 10


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


def test_wrong_snapshots_are_refused_and_change_nothing() -> None:
    env = WebShopMiniEnv(action_format="word")
    env.reset(seed=1)
    before = env.snapshot()
    for wrong, said in (
        (7, "a snapshot is a mapping"),
        ({**before, "goal": NUM_GOALS}, f"the snapshot is of goal {NUM_GOALS}; there are"),
        ({**before, "kind": "item"}, "cannot show the product"),
        ({**before, "np_random": {}}, "'np_random' of a snapshot is the state of a generator"),
    ):
        with pytest.raises(ConfigError, match=said):
            env.restore(wrong)  # type: ignore[arg-type]
        assert env.snapshot() == before


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
