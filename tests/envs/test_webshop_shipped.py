"""The shipped catalogue: the same everywhere, in the original's format, fair goals, things that a shop would sell."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from itertools import product as combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop.catalogue import Catalogue, load_catalogue
from envs.webshop.original import parse_product
from envs.webshop.reward import alike, normalize_colour, purchase_reward
from envs.webshop.shipped import SHIPPED_COUNT, Shipped, generate, nouns_of_title, product
from envs.webshop.shipped.categories import BRANDS, CATEGORIES
from envs.webshop.shipped.generator import ASIN_STEPS, asin_of
from envs.webshop.shipped.product_families import BLOCK
from envs.webshop.shipped.tables import ATTRIBUTES, OPTIONS, TEXTS
from envs.webshop.types import Goal
from roll_envs.errors import ConfigError

FIRST_100 = "1d6eb636677410099031829631c0cbe0c284bb7043ce4167e1d9c4a38669ae64"
WHOLE = "e6a442b6d6ebd7ec9f2c16b72cb21706cacbb44bbfd21ecdb97791385a6759f1"
"""SHA-256 of the products as JSON. A change of either changes every goal number: say so in the change log."""

KEYS = {
    "name",
    "full_description",
    "pricing",
    "images",
    "product_category",
    "average_rating",
    "small_description",
    "customization_options",
    "asin",
    "category",
    "query",
}


@pytest.fixture(scope="module")
def shop() -> list[Shipped]:
    return list(generate(SHIPPED_COUNT))


@pytest.fixture(scope="module", params=[True, False], ids=["human", "synthetic"])
def catalogue(request: pytest.FixtureRequest) -> Catalogue:
    return load_catalogue(human=request.param)


def digest(products: Iterable[Shipped]) -> str:
    text = json.dumps([asdict(p) for p in products], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def text_of(one: Shipped) -> str:
    """What the reward looks through: title, bullet points and description."""
    record = one.record
    return "\n".join([record["name"], *record["small_description"], record["full_description"]]).lower()


# The same everywhere


def test_the_catalogue_is_the_recorded_one(shop: list[Shipped]) -> None:
    assert digest(shop[:100]) == FIRST_100
    assert digest(shop) == WHOLE


def test_the_order_of_hashes_changes_nothing(shop: list[Shipped]) -> None:
    code = (
        "import hashlib, json; from dataclasses import asdict; from envs.webshop.shipped import generate\n"
        "text = json.dumps([asdict(p) for p in generate(100)], sort_keys=True, ensure_ascii=False)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    for hash_seed in ("1", "2024"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == digest(shop[:100])


@given(index=st.integers(0, SHIPPED_COUNT - 1), beyond=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_product_is_the_same_whatever_the_count(shop: list[Shipped], index: int, beyond: int) -> None:
    assert product(index) == shop[index]
    assert list(generate(min(index + beyond, 60)))[: index + 1] == shop[: min(index + 1, index + beyond, 60)]


def test_far_products_and_other_seeds_are_their_own() -> None:
    assert product(4_999_999) == product(4_999_999)
    assert product(7, seed=1) != product(7, seed=0) != product(7, seed=2**70)
    assert list(generate(5, seed=3)) == [product(i, seed=3) for i in range(5)]


def test_products_share_nothing_that_can_be_changed(shop: list[Shipped]) -> None:
    one, again = product(0), product(0)
    one.record["small_description"].append("changed")
    one.ins["attributes"].clear()
    assert again == shop[0] != one


@pytest.mark.parametrize("arguments", [{"count": -1}, {"count": 2.5}, {"count": True}, {"count": 5, "seed": -3}])
def test_unusable_numbers_are_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number of 0 or more"):
        generate(**arguments)
    with pytest.raises(ConfigError, match="index"):
        product(-1)


def test_product_numbers_are_all_different() -> None:
    # Both steps x -> a x + c modulo 30**8 are one to one, because a shares no factor with 30.
    assert [math.gcd(factor, 30) for factor in ASIN_STEPS] == [1, 1]
    numbers = [asin_of(i) for i in (*range(60_000), *range(4_950_000, 5_000_000))]
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch("B0[0-9B-DF-HJ-NP-TV-XZ]{8}", number) for number in numbers)


# The original's format


def test_records_have_the_original_form(shop: list[Shipped]) -> None:
    for one in shop:
        record = one.record
        assert set(record) == KEYS
        assert len(record["asin"]) == 10
        assert re.fullmatch(r"(\$\d+\.\d{1,2}){0,2}", record["pricing"])
        assert record["images"] == [""]
        assert record["product_category"].count(" › ") == 2
        assert 3 <= len(record["small_description"]) <= 6
        assert record["average_rating"] == "" or 1 <= record["average_rating"] <= 5
        assert record["customization_options"] == "" or record["customization_options"]
        assert set(one.ins) == {"attributes", "instruction", "instruction_attributes"}
        assert 2 <= len(one.ins["attributes"]) == len(set(one.ins["attributes"])) <= 8
        assert one.ins["instruction"].startswith("Find me ")
        assert record["query"] in one.ins["instruction"]
        assert all(set(review) == {"title", "score", "review"} for review in one.reviews)
    kinds = Counter(one.record["pricing"].count("$") for one in shop)
    assert kinds[1] > 0.8 * SHIPPED_COUNT
    assert kinds[2] > 50
    assert kinds[0] > 50


def test_the_reader_of_the_original_format_takes_them(shop: list[Shipped]) -> None:
    for one in shop[:300]:
        read = parse_product(one.record, one.ins, {"reviews": one.reviews, "average_rating": 4.0})
        offered = one.record["customization_options"] or {}
        assert read.title == one.record["name"]
        assert read.attributes == tuple(one.ins["attributes"])
        assert {name: [v["value"] for v in values] for name, values in offered.items()} == {
            name: list(read.options[name.lower()]) for name in offered
        }, "values are lower case and without a stroke, so that goals name them as pages do"
        assert [r.body for r in read.reviews] == [r["review"] for r in one.reviews]
        low_to_high = list(read.pricing)
        assert low_to_high == sorted(low_to_high)


def test_a_reviewed_product_has_the_mean_of_its_scores(shop: list[Shipped]) -> None:
    reviewed = [one for one in shop if one.reviews]
    assert 0.5 * len(shop) < len(reviewed) < len(shop)
    for one in shop:
        scores = [float(review["score"]) for review in one.reviews]
        assert one.record["average_rating"] == (round(sum(scores) / len(scores), 1) if scores else "")


# Goals


def test_there_is_enough_of_everything(shop: list[Shipped]) -> None:
    kinds = Counter(one.record["query"] for one in shop)
    assert len(kinds) >= 60
    assert min(kinds.values()) >= 10
    assert len({one.record["category"] for one in shop}) >= 12
    assert sum(len(one.human) for one in shop) >= 3_000
    assert len({*TEXTS["requests"], *TEXTS["requests_with_clause"]}) >= 30
    sentences = Counter(entry["instruction"] for one in shop for entry in one.human)
    assert max(sentences.values()) <= 2
    assert len({one.record["name"] for one in shop}) > 0.97 * len(shop)


def test_goals_ask_for_what_the_product_is(shop: list[Shipped]) -> None:
    for one in shop:
        offered = one.record["customization_options"] or {}
        values = {name: {v["value"] for v in choices} for name, choices in offered.items()}
        assert set(one.ins["instruction_attributes"]) <= set(one.ins["attributes"])
        assert all(phrase in one.ins["instruction"] for phrase in one.ins["instruction_attributes"])
        for entry in one.human:
            assert entry["asin"] == one.record["asin"]
            assert 1 <= len(entry["instruction_attributes"]) <= 3
            assert set(entry["instruction_attributes"]) <= set(one.ins["attributes"]) == set(entry["attributes"])
            pairs = [text.split(": ", 1) for text in entry["options"]]
            by_name = {name.lower(): found for name, found in values.items()}
            assert all(value in by_name[name] for name, value in pairs)
            assert [value for _, value in pairs] == entry["instruction_options"]
            said = entry["instruction"]
            assert said == said.lower()
            assert all(words in said for words in (*entry["instruction_attributes"], *entry["instruction_options"]))


def test_listings_state_their_attributes_and_no_others(shop: list[Shipped]) -> None:
    choices = {category.kind.query: {t.phrase for group in category.choices for t in group} for category in CATEGORIES}
    only_inside = 0
    for one in shop:
        held, text = set(one.ins["attributes"]), text_of(one)
        assert all(phrase in text for phrase in held)
        for phrase in choices[one.record["query"]] - held:
            assert not re.search(rf"\b{re.escape(phrase)}\b", text), (phrase, one.record["name"])
        only_inside += sum(phrase not in one.record["name"].lower() for phrase in held)
    total = sum(len(one.ins["attributes"]) for one in shop)
    assert 0.4 < only_inside / total < 0.9, "looking into the page matters, and so does reading titles"


def test_every_goal_can_be_met(catalogue: Catalogue) -> None:
    store = catalogue.store
    for goal in catalogue.goals:
        doc = store.find(goal.asin)
        assert doc is not None
        best = own_options(catalogue, goal, doc)
        assert purchase_reward(
            store[doc], goal, price=store.price(doc), options=best, nouns_of=catalogue.nouns
        ).reward == pytest.approx(1.0), goal


def own_options(catalogue: Catalogue, goal: Goal, doc: int) -> dict[str, str]:
    """The goal's options on product ``doc``: the same values where it has them, else values that count as the same."""
    wanted = list(goal.options.values() if hasattr(goal.options, "values") else goal.options)
    chosen: dict[str, str] = {}
    for value in wanted:
        for name, values in catalogue.store[doc].options.items():
            like = [v for v in values if v == value] or [v for v in values if alike(v, value)]
            if like and name not in chosen:
                chosen[name] = like[0]
                break
    return chosen


def test_the_first_hit_is_often_not_enough(catalogue: Catalogue) -> None:
    plain = right = 0
    goals = catalogue.goals[:400]
    for goal in goals:
        first = catalogue.search(goal.instruction.split(", and price lower")[0].lower())[0]
        plain += bought(catalogue, goal, first, {}) >= 1
        right += bought(catalogue, goal, first, own_options(catalogue, goal, first)) >= 1
    assert plain / len(goals) < 0.2
    assert 0.4 < right / len(goals) < 0.8


def bought(catalogue: Catalogue, goal: Goal, doc: int, options: dict[str, str]) -> float:
    store = catalogue.store
    price = store.price(doc)
    return purchase_reward(store[doc], goal, price=price, options=options, nouns_of=catalogue.nouns).reward


def test_blocks_hold_near_duplicates(shop: list[Shipped]) -> None:
    differing: Counter[str] = Counter()
    for start in range(0, SHIPPED_COUNT, BLOCK):
        kinds = defaultdict(list)
        for one in shop[start : start + BLOCK]:
            kinds[one.record["query"]].append(one)
        assert 2 <= len(kinds) <= 3
        for family in kinds.values():
            for one, other in pairwise(family):
                differing["pairs"] += 1
                differing["attributes"] += set(one.ins["attributes"]) != set(other.ins["attributes"])
                differing["options"] += one.record["customization_options"] != other.record["customization_options"]
                differing["price"] += one.record["pricing"] != other.record["pricing"]
                shared = set(one.ins["attributes"]) & set(other.ins["attributes"])
                assert len(shared) >= min(len(one.ins["attributes"]), len(other.ins["attributes"])) - 2
    assert all(differing[what] > 0.5 * differing["pairs"] for what in ("attributes", "options", "price"))


# Words


def test_values_of_an_option_can_be_told_apart() -> None:
    for option in {option for category in CATEGORIES for option in category.kind.options}:
        for one, other in combinations(option.values, repeat=2):
            if one == other:
                # The reward looks for a colour anywhere in a wanted value (tan in standard): it must be a whole word.
                assert normalize_colour(one) == one or normalize_colour(one) in one.split(), one
            elif option is not OPTIONS["letters"]:
                assert not alike(normalize_colour(one), normalize_colour(other)), (option.name, one, other)


def test_attributes_of_a_kind_can_be_told_apart() -> None:
    for category in CATEGORIES:
        phrases = [trait.phrase for group in category.choices for trait in group]
        assert len(phrases) == len(set(phrases)), category.kind.query
        for one, other in combinations(phrases, repeat=2):
            assert one == other or not alike(one, other), (category.kind.query, one, other)


def test_no_sentence_states_another_attribute() -> None:
    reviews = [text for found in TEXTS["reviews"].values() for pair in found for text in pair]
    for category in CATEGORIES:
        phrases = {trait.phrase for group in category.choices for trait in group}
        fixed = [
            *category.kind.facts,
            *category.department.closers,
            *category.openers,
            *category.own_openers,
            *category.kind.uses,
            *reviews,
        ]
        fixed += [
            *category.styles,
            category.kind.noun,
            *(value for option in category.kind.options for value in option.values),
        ]
        for phrase in phrases:
            assert not [text for text in fixed if phrase in text.lower()], (category.kind.query, phrase)
            others = [text for other in phrases - {phrase} for text in ATTRIBUTES[other].stated]
            assert not [text for text in others if phrase in text.lower()], (category.kind.query, phrase)


def test_each_attribute_is_in_use_and_its_sentences_say_it() -> None:
    used = {trait.phrase for category in CATEGORIES for group in category.choices for trait in group}
    assert used == set(ATTRIBUTES)
    for phrase, attribute in ATTRIBUTES.items():
        assert all(phrase in text.lower() and text[-1] == "." for text in attribute.stated), phrase


def test_nouns_of_titles(shop: list[Shipped]) -> None:
    assert nouns_of_title({"name": "Oakfield Soft Velvet Bench Storage Ottoman with Hinged Lid, Round"}) == [
        *("oakfield", "velvet", "bench", "storage", "ottoman", "lid")
    ]
    assert nouns_of_title({"name": "Women's T-Shirt for Office Wear, Size 10"}) == [
        *("women", "t-shirt", "office", "wear", "size")
    ]
    used = set()
    for one in shop:
        assert one.nouns == nouns_of_title(one.record)
        category = next(s for s in CATEGORIES if s.kind.query == one.record["query"])
        head = re.findall(r"[a-z]+(?:-[a-z]+)*", category.kind.noun)[-1]
        assert head in one.nouns, one.record["name"]
        assert len(one.nouns) <= 14
        used |= set(re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", one.record["name"].lower()))
    others = set(TEXTS["not_nouns"])
    assert len(others - used) < 0.2 * len(others), "words that titles do not hold"


# What a shop would sell

CLOTHES = {"women's fashion", "men's fashion"}
FOOD = {"grocery", "drinks"}
WORN = CLOTHES | {"shoes"}


def test_sizes_fit_the_kind(shop: list[Shipped]) -> None:
    for one in shop:
        department, query = one.record["category"], one.record["query"]
        options = one.record["customization_options"] or {}
        values = {v["value"] for found in options.values() for v in found}
        if values & {"x-small", "x-large", "xx-large", "3x-large"}:
            assert department in CLOTHES
        if values & {str(n) for n in range(5, 14)}:
            assert department == "shoes"
        if "Flavor Name" in options:
            assert department in FOOD or query in ("lip balm", "dog treats")
        if "Scent" in options:
            assert department == "beauty" or query == "scented candles"
        if any(value.endswith((" gb", " mah")) for value in values):
            assert department == "electronics"
        if any(value.endswith(" oz") for value in values):
            assert department in FOOD | {"beauty"} or query in ("water bottles", "scented candles", "dog treats")
        if values & {"twin", "queen", "king"}:
            assert query in ("sheet sets", "bed pillows")
        if query in ("table lamps", "wall clocks", "office chairs", "bookcases", "headphones"):
            assert "Size" not in options or query == "wall clocks"


def test_materials_fit_the_kind(shop: list[Shipped]) -> None:
    for one in shop:
        department, held = one.record["category"], set(one.ins["attributes"])
        eaten = department in FOOD
        metal = held & {"stainless steel", "cast iron", "carbon steel", "metal frame", "solid wood", "tempered glass"}
        assert not (metal and (eaten or department in WORN | {"beauty"})), one.record["name"]
        free = held & {"gluten free", "sugar free", "non gmo", "dairy free", "kosher certified"}
        assert not free or eaten or one.record["query"] in ("dog treats", "lip balm"), one.record["name"]
        if held & {"machine washable", "hand wash"}:
            assert not eaten | (department in {"beauty", "electronics", "furniture", "kitchen", "office"}) or (
                one.record["query"] == "kitchen towels"
            ), one.record["name"]
        if held & {"rechargeable battery", "battery powered", "usb port"}:
            assert not eaten | (department in WORN | {"grocery", "beauty", "bed and bath"}), one.record["name"]


def test_prices_fit_the_kind(shop: list[Shipped]) -> None:
    usual = {category.kind.query: (category.kind.low, category.kind.high) for category in CATEGORIES}
    for one in shop:
        low, high = usual[one.record["query"]]
        prices = [float(text) for text in one.record["pricing"].split("$")[1:]]
        assert all(0.7 * low - 1 <= price <= 3.3 * high + 3 for price in prices), one.record["name"]


def test_no_brand_is_a_known_one_and_no_address_is_in_the_texts(shop: list[Shipped]) -> None:
    known = "amazon apple bosch canon casio dell gap google ikea lego levi nike nivea oakley pella puma sony wendys"
    assert not {brand.lower() for brand in BRANDS} & set(known.split())
    assert len(set(BRANDS)) == len(BRANDS) >= 1_000
    for one in shop:
        record = one.record
        texts = [record["name"], record["full_description"], *record["small_description"], one.ins["instruction"]]
        texts += [*(entry["instruction"] for entry in one.human), *(review["review"] for review in one.reviews)]
        assert not re.search(r"https?:|www\.|\.com\b|[\0\1\2{}%]", "\n".join(texts)), "an address, or a gap not filled"


@pytest.mark.parametrize("query", [category.kind.query for category in CATEGORIES])
def test_each_kind_reads_well(query: str) -> None:
    category = next(s for s in CATEGORIES if s.kind.query == query)
    kind = category.kind
    assert 0 < kind.low < kind.high
    assert len(kind.styles) >= 3
    assert len(kind.uses) >= 3
    assert len(kind.facts) >= 4
    assert len(category.choices) >= 5
    assert all(fact[0].isupper() and fact.endswith(".") for fact in kind.facts)
    assert 1 <= len(kind.options) <= 3
    for option in kind.options:
        assert 2 <= option.low <= option.high <= len(option.values)
        assert len(set(option.values)) == len(option.values)
        assert all("/" not in value and value == value.lower().strip() for value in option.values)
        phrases = option.phrases
        assert all(text.count("%s") == 1 for text in (*phrases.before, *phrases.after, *phrases.clause))
