"""The shop on a hand-made catalogue: pages, rules, limits, hostile input, oracle and snapshots."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.actions import read_action
from envs.webshop.catalogue import Catalogue, build_catalogue, load_catalogue
from envs.webshop.env import WebShopEnv
from envs.webshop.goals import split_range
from envs.webshop.mini import WebShopMiniEnv
from envs.webshop.original import listings
from roll_envs.errors import ConfigError

RECORDS: list[dict[str, Any]] = [
    {
        "asin": "MUG0000001",
        "name": "Blue Stoneware Mug",
        "full_description": "A heavy mug that is dishwasher safe.",
        "pricing": "$8.50",
        "images": [""],
        "product_category": "Home › Kitchen › Mugs",
        "small_description": ["Holds 300 ml", "Microwave safe"],
        "customization_options": {
            "Color": [{"value": "Blue"}, {"value": "Naïve Grün ✿"}],
            "Size": [{"value": "300 ml"}, {"value": "1/2 pint"}],
        },
        "category": "home",
        "query": "Mugs ",
    },
    {
        "asin": "MUG0000002",
        "name": "Plain Mug",
        "full_description": "",
        "pricing": "$30.00$40.00",
        "images": [],
        "product_category": "Home › Kitchen › Mugs",
        "small_description": "One piece",
        "customization_options": "",
        "category": "home",
        "query": "mugs",
    },
    {
        "asin": "LAMP000001",
        "name": "Desk Lamp",
        "full_description": "Bright.",
        "pricing": "",
        "images": [""],
        "product_category": "Office › Light › Lamps",
        "small_description": [],
        "customization_options": {"Button": [{"value": "Buy Now"}, {"value": "description"}, {"value": "red"}]},
        "category": "office",
        "query": "lamps",
    },
]
INS = {
    "MUG0000001": {
        "attributes": ["dishwasher safe", "microwave safe"],
        "instruction": "Find me mugs that are dishwasher safe",
        "instruction_attributes": ["dishwasher safe"],
    },
    "MUG0000002": {"attributes": []},
    "LAMP000001": {"attributes": ["bright"], "instruction": "Find me lamps", "instruction_attributes": ["bright"]},
}
HUMAN = {
    "MUG0000001": [
        {"instruction": "a blue mug.", "instruction_attributes": ["dishwasher safe"], "instruction_options": ["blue"]},
        {"instruction": "nothing asked", "instruction_attributes": [], "instruction_options": []},
    ]
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return build_catalogue("three", listings(RECORDS, INS, HUMAN, {}, {}, where="test"), human=False)


def shop(catalogue: Catalogue, **kwargs: Any) -> WebShopEnv:
    return WebShopEnv(catalogue=catalogue, **kwargs)


def goal_numbers(catalogue: Catalogue, asin: str, **options: str) -> list[int]:
    return [i for i, g in enumerate(catalogue.goals) if g.asin == asin and dict(g.options) == options]


def play(env: WebShopEnv, *actions: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    result: Any = None
    for action in actions:
        result = env.step(action)
    return result  # type: ignore[no-any-return]


def test_goals_of_the_small_catalogue(catalogue: Catalogue) -> None:
    """Four combinations of the mug's options, and three of the lamp's; the mug without an instruction has none."""
    assert sorted(g.asin for g in catalogue.goals) == ["LAMP000001"] * 3 + ["MUG0000001"] * 4
    mug = catalogue.goals[goal_numbers(catalogue, "MUG0000001", color="blue", size="1 | 2 pint")[0]]
    cap = mug.price_upper
    assert cap in (20.0, 30.0, 40.0)
    wanted = "Find me mugs that are dishwasher safe with color: blue, and size: 1 | 2 pint"
    assert mug.instruction == f"{wanted}, and price lower than {cap:.2f} dollars"
    human = build_catalogue("h", listings(RECORDS, INS, HUMAN, {}, {}, where="test"), human=True).goals
    assert [(g.instruction[:10], g.options) for g in human] == [("a blue mug", ("blue",))]


def test_a_purchase_part_by_part(catalogue: Catalogue) -> None:
    """Wanted: one attribute, two options, a price: whole 4. Bought with one option of two right: 3/4."""
    env = shop(catalogue)
    (number,) = goal_numbers(catalogue, "MUG0000001", color="blue", size="300 ml")
    env.reset(options={"session": number})
    way = ("search[stoneware mug]", "click[mug0000001]", "click[blue]")
    result = play(env, *way, "click[1 | 2 pint]", "click[buy now]")
    _, reward, terminated, truncated, info = result
    assert (reward, terminated, truncated, info["success"]) == (0.75, True, False, False)
    assert info["reward_parts"] == {"attributes": 0.25, "options": 0.25, "price": 0.25, "format": 0.0}
    assert (info["r_type"], info["r_att"], info["r_option"], info["r_price"]) == (1.0, 1.0, 0.5, True)
    env.reset(options={"session": number})
    _, reward, _, _, info = play(env, *way, "click[300 ml]", "click[buy now]")
    assert (reward, info["success"]) == (1.0, True)


def test_a_product_of_another_type_is_worth_nothing(catalogue: Catalogue) -> None:
    """No shared noun in the titles: r_type 0."""
    env = shop(catalogue)
    env.reset(options={"session": goal_numbers(catalogue, "MUG0000001", color="blue", size="300 ml")[0]})
    _, reward, _, _, info = play(env, "search[lamp]", "click[lamp000001]", "click[red]", "click[buy now]")
    assert (reward, info["r_type"], info["title_score"]) == (0.0, 0.0, 0.0)


def test_pages_and_ways_back(catalogue: Catalogue) -> None:
    env = shop(catalogue, show_attrs=True)
    observation, info = env.reset(seed=0)
    goal = env.goal.instruction
    assert observation == f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
    assert (info["available_actions"], info["clickables"]) == (["search[<content>]"], ["search"])
    head = f"Instruction: [SEP] {goal} [SEP] Back to Search"
    shown = play(env, "search[mug]")[0]
    hits = "MUG0000001 [SEP] Blue Stoneware Mug [SEP] $8.5 [SEP] MUG0000002 [SEP] Plain Mug [SEP] $30.0 to $40.0"
    assert shown == f"{head} [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] {hits}"
    item = play(env, "click[MUG0000001]")[0]
    assert item == (
        f"{head} [SEP] < Prev [SEP] color [SEP] blue [SEP] naïve grün ✿ [SEP] size [SEP] 300 ml [SEP] 1 | 2 pint [SEP] "
        "Blue Stoneware Mug [SEP] Price: $8.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] "
        "Attributes [SEP] Buy Now"
    )
    assert play(env, "click[description]")[0].endswith("[SEP] < Prev [SEP] A heavy mug that is dishwasher safe.")
    assert play(env, "click[< prev]")[0] == item
    assert play(env, "click[features]")[0].endswith("[SEP] < Prev [SEP] Holds 300 ml [SEP] Microwave safe")
    assert play(env, "click[< prev]", "click[attributes]")[0].endswith(
        "dishwasher safe [SEP] microwave safe [SEP] home [SEP] mugs [SEP] Home › Kitchen › Mugs"
    )
    assert play(env, "click[< prev]", "click[< prev]")[0] == shown
    assert play(env, "click[back to search]")[0] == observation


def test_chosen_options_are_marked_in_rich_text_until_the_page_is_left(catalogue: Catalogue) -> None:
    env = shop(catalogue, observation_mode="text_rich")
    env.reset(seed=0)
    play(env, "search[mug]", "click[mug0000001]")
    text = play(env, "click[300 ml]")[0]
    assert text.startswith("You have clicked 300 ml.\nInstruction:\n")
    assert "  [clicked button] 300 ml [clicked button_]\n" in text
    back = play(env, "click[< prev]")[0]
    assert "\n[clicked button] MUG0000001 [clicked button_]\n" in back
    assert "clicked" not in play(env, "click[mug0000001]")[0]


def test_a_button_wins_over_an_option_of_the_same_text(catalogue: Catalogue) -> None:
    """The lamp has options called 'buy now' and 'description'."""
    env = shop(catalogue)
    env.reset(seed=0)
    assert play(env, "search[lamp]", "click[lamp000001]", "click[description]")[0].endswith("Bright.")
    assert play(env, "click[< prev]", "click[buy now]")[2]


def test_impossible_actions_change_nothing_and_cost_the_penalty(catalogue: Catalogue) -> None:
    env = shop(catalogue, format_penalty=-0.5)
    first, _ = env.reset(seed=0)
    for said in ("", "buy", "click[search]", "click[mug0000001]", "search[]", "Search[mug]", "click[]", "search mug"):
        observation, reward, terminated, truncated, info = env.step(said)
        assert (observation, reward, terminated, truncated) == (first, -0.5, False, False), said
        assert (info["action_is_valid"], info["action_is_effective"], info["reward_parts"]) == (
            False,
            False,
            {"format": -0.5},
        )
    assert env.step(" search[mug]\n")[4]["action_is_valid"]


@pytest.mark.parametrize("form", ["answer", "think-answer", "action"])
def test_tagged_answers(catalogue: Catalogue, form: str) -> None:
    env = shop(catalogue, action_format=form)
    env.reset(seed=0)
    assert not env.step("search[mug]")[4]["action_is_valid"]
    assert env.step(env.action_format.write("search[mug]", thought="hm [x]"))[4]["action_is_valid"]  # type: ignore[union-attr]
    assert env.action_format.write("click[Buy Now]", thought="...") in env.instructions  # type: ignore[union-attr]


def test_the_turn_limit_truncates(catalogue: Catalogue) -> None:
    env = shop(catalogue, max_turns=2)
    env.reset(seed=0)
    assert play(env, "search[mug]")[2:4] == (False, False)
    assert play(env, "click[mug0000001]")[2:4] == (False, True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("click[buy now]")
    env.reset(seed=0)
    assert play(env, "search[mug]")[3] is False


def test_a_purchase_on_the_last_turn_is_no_truncation(catalogue: Catalogue) -> None:
    env = shop(catalogue, max_turns=3)
    env.reset(seed=0)
    assert play(env, "search[mug]", "click[mug0000001]", "click[buy now]")[2:4] == (True, False)


HOSTILE = (
    "search[" + "a " * 500_000 + "]",
    "search[" + " ".join(map(str, range(100_000))) + "]",
    "search[" + "[" * 100_000 + "]",
    "[" * 200_000 + "]" * 200_000,
    "search[\ud800\udfff \x00]",
    "search[<r>]",
    "search[<c>]",
    "search[<q> mugs]",
    "search[<a> ]",
    "search[../../etc/passwd]",
    "search[{{7*7}} <script>alert(1)</script> %s]",
    "click[__class__]",
    "click[\u202enow buy]",
    "click[BUY NOW\u0130]",
    "click[" + "x" * 1_000_000 + "]",
)


@pytest.mark.parametrize("said", HOSTILE, ids=lambda s: ascii(s[:20]))
def test_hostile_actions_end_quickly_without_reward(catalogue: Catalogue, said: str, cpu_at_most: Any) -> None:
    env = shop(catalogue)
    env.reset(seed=0)
    for opening in ("search[lamp]", "click[lamp000001]"):
        env.step(opening)
        with cpu_at_most(2):
            observation, reward, terminated, _, _ = env.step(said)
        assert (reward, terminated) == (0.0, False)
        observation.encode("utf-8", "surrogatepass")
        env.step("search[lamp]")


@given(st.text(max_size=60))
def test_any_text_is_taken(text: str) -> None:
    env = shop(_THREE)
    env.reset(seed=1)
    for said in (text, f"search[{text}]", f"click[{text}]"):
        reward, terminated = env.step(said)[1:3]
        assert (reward, terminated) == (0.0, False)


_THREE = build_catalogue("three", listings(RECORDS, INS, HUMAN, {}, {}, where="test"), human=False)


@given(st.text(alphabet="a[]\nAb ", max_size=12))
def test_actions_are_read_as_by_the_originals_pattern(text: str) -> None:
    import re

    match = re.match(r"(.+)\[(.+)\]", text)
    expected = (match[1], match[2].lower()) if match else (text, "")
    assert read_action(text) == expected


def test_options_of_any_name_can_be_chosen() -> None:
    values = ["", " ", "a]b", "a[b", "\n", "🙂", "İ", "back to search", "<b>", '28" x 3"', "red", "x" * 5000]
    record = {**RECORDS[0], "customization_options": {"Any": [{"value": v} for v in values], "ANY": [{"value": "red"}]}}
    env = shop(build_catalogue("odd", listings([record], INS, {}, {}, {}, where="test"), human=False))
    for number in range(len(env.catalogue.goals)):
        env.reset(options={"session": number})
        play(env, "search[mug]", "click[mug0000001]")
        for text in list(env.step("nothing")[4]["clickables"]):
            if text not in ("buy now", "back to search", "< prev", "description", "features", "reviews"):
                env.step(f"click[{text}]")
        assert 0.0 <= play(env, "click[buy now]")[1] <= 1.0


def test_splits_are_disjoint_and_complete() -> None:
    parts = [set(split_range(name, 2000)) for name in ("test", "eval", "train")]
    assert [len(p) for p in parts] == [500, 1000, 500]
    assert set.union(*parts) == set(split_range("all", 2000))
    assert [len(split_range(name, 700)) for name in ("test", "eval", "train")] == [500, 200, 0]
    assert WebShopMiniEnv().split_size("test") == 500


def test_unknown_goals_and_splits_are_refused(catalogue: Catalogue) -> None:
    env = shop(catalogue)
    for session in (-1, 7, 10**12, "x", 1.5, True):
        with pytest.raises(ConfigError, match="0 to 6"):
            env.reset(options={"session": session})
    with pytest.raises(ConfigError, match="'train' of catalogue three is empty"):
        env.reset(options={"split": "train"})
    with pytest.raises(ConfigError, match="split must be one of"):
        env.reset(options={"split": "validation"})
    with pytest.raises(ConfigError, match="observation_mode"):
        shop(catalogue, observation_mode="html")


def test_seeds_count_round_the_split(catalogue: Catalogue) -> None:
    env = shop(catalogue)
    texts = [env.reset(seed=s)[0] for s in range(14)]
    assert texts[:7] == texts[7:]
    assert len(set(texts[:7])) == 7
    assert env.reset(options={"session": 3})[0] == texts[3]


def test_oracle_and_snapshots(catalogue: Catalogue) -> None:
    env, other = shop(catalogue), shop(catalogue)
    for number in range(7):
        env.reset(options={"session": number})
        play(env, "search[lamp]", "click[lamp000001]", "click[red]")
        way = env.oracle()
        if way is None:
            assert dict(env.goal.options) != {"button": "red"}
            continue
        while way:
            shown = env.render()
            assert other.restore(json.loads(json.dumps(env.snapshot()))) == shown
            assert other.step(way[0]) == (result := env.step(way[0]))
            way = env.oracle()
        assert (result[1], result[2], result[4]["success"]) == (1.0, True, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"goal": 10_000}, "the snapshot is of goal 10000; this catalogue has"),
        ({"goal": None}, "goal must be a whole number"),
        ({"kind": "cellar"}, "kind must be one of"),
        ({"kind": "results"}, "a snapshot of a page 'results' cannot show the product"),
        ({"asin": "NONE"}, "cannot show the product 'NONE' in this catalogue"),
        ({"chosen": {"button": "mauve"}}, "must be among the product's .* not {'button': 'mauve'}"),
        ({"chosen": {"weight": "red"}}, "must be among the product's"),
        ({"chosen": "red"}, "must be among the product's .* not 'red'"),
        ({"query": 7}, "the query of a snapshot is a text, not 7"),
        ({"page": 0}, "page must be a whole number of 1 or more, not 0"),
        ({"turns": -1}, "turns must be a whole number of 0 or more, not -1"),
        ({"reward": "much"}, "the reward of a snapshot is a number from 0 to 1, not 'much'"),
        ({"seen": 3}, "'seen' of a snapshot is a list of product numbers, not 3"),
        ({"np_random": {"bit_generator": "MT19937"}}, "'np_random' of a snapshot is the state of a generator"),
        ({"np_random": 5}, "'np_random' of a snapshot is the state of a generator, not 5"),
    ],
)
def test_wrong_snapshots_are_refused_and_change_nothing(
    catalogue: Catalogue, change: dict[str, Any], said: str
) -> None:
    env = shop(catalogue)
    env.reset(seed=0)
    play(env, "search[lamp]", "click[lamp000001]", "click[red]")
    before = env.snapshot()
    assert before["chosen"]
    with pytest.raises(ConfigError, match=said):
        env.restore({**before, **change})
    with pytest.raises(ConfigError, match="a snapshot is a mapping, not 7"):
        env.restore(7)  # type: ignore[arg-type]
    assert env.snapshot() == before


@pytest.mark.parametrize("options", [{"sesion": 1}, {"split": "test", "seed": 3}, "train", [("split", "test")]])
def test_unknown_options_of_reset_are_refused(catalogue: Catalogue, options: Any) -> None:
    for env in (shop(catalogue), WebShopMiniEnv()):
        with pytest.raises(ConfigError, match=r"the options of reset.* are 'split' and 'session'"):
            env.reset(seed=0, options=options)


def test_an_environment_survives_pickling() -> None:
    env = WebShopEnv(num_products=60)
    env.reset(seed=3)
    env.step("search[bag]")
    copy = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 100_000
    assert copy.catalogue is env.catalogue
    assert copy.step("click[back to search]") == env.step("click[back to search]")


def test_a_catalogue_is_loaded_once() -> None:
    assert load_catalogue(num_products=60) is load_catalogue(num_products=60)
    assert WebShopEnv(num_products=60).catalogue is WebShopEnv(num_products=60, split="all").catalogue
