"""Files in the original's format: what is read, and what is said of files that cannot be read."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envs.webshop.catalogue import load_catalogue
from envs.webshop.disk import build_index
from envs.webshop.goals import draw_cap, draw_price
from envs.webshop.original import find_file, parse_product, read_listings
from roll_envs.errors import ConfigError

RECORD: dict[str, Any] = {
    "asin": "A1",
    "name": "Cup",
    "full_description": "Round.",
    "pricing": "$1,234.50",
    "images": ["cup.jpg", "other.jpg"],
    "product_category": "A › B",
    "small_description": ["One ", "Two"],
    "customization_options": {"Size": [{"value": " S/M ", "image": None}], "None": None},
    "category": "home",
    "query": " Cups ",
}


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def test_one_record() -> None:
    product = parse_product(RECORD, {"attributes": ["nice cup"]}, {"average_rating": "4.5", "reviews": []})
    assert (product.pricing, product.price_tag, product.query) == ((1234.5,), "$1234.5", "cups")
    assert (product.bullet_points, product.options) == (("One ", "Two"), {"size": ("s | m",)})
    assert (product.attributes, product.image, product.rating) == (("nice cup",), "cup.jpg", "4.5")
    assert parse_product(RECORD, None).attributes == ("DUMMY_ATTR",)


@pytest.mark.parametrize(
    ("text", "pricing", "tag"),
    [
        ("$10.52$40.50", (10.52, 40.5), "$10.52 to $40.5"),
        ("$1 to $2 or $3", (1.0, 2.0), "$1.0 to $2.0"),
        ("", (), "$100.0"),
        (None, (), "$100.0"),
        ("free", (), "$100.0"),
        ("$", (), "$100.0"),
        ("$1.2.3", (), "$100.0"),
    ],
)
def test_prices(text: str | None, pricing: tuple[float, ...], tag: str) -> None:
    product = parse_product({**RECORD, "pricing": text}, None)
    assert (product.pricing, product.price_tag) == (pricing, tag)


def test_caps() -> None:
    """The next four tens above 25 are 30 to 60; of two of them the larger. At 970 only 980 and 990 are left."""
    caps = {draw_cap(25.0, random.Random(s))[0] for s in range(200)}
    assert caps == {40.0, 50.0, 60.0}
    assert draw_cap(970.0, random.Random(0)) == (990.0, ", and price lower than 990.00 dollars")
    assert draw_cap(985.0, random.Random(0)) == (1_000_000.0, "")
    assert draw_price((), random.Random(0)) == 100.0
    assert draw_price((5.0,), random.Random(0)) == 5.0
    assert 5.0 <= draw_price((5.0, 6.0), random.Random(0)) <= 6.0


def test_a_folder(tmp_path: Path) -> None:
    """Doubles and numbers that are too long are left out; the entries of the other files are joined by number."""
    write(
        tmp_path,
        items_shuffle=[RECORD, {**RECORD, "name": "again"}, {**RECORD, "asin": "nan"}, {**RECORD, "asin": "X" * 11}],
        items_ins_v2={"A1": {"attributes": ["a"], "instruction": "Find", "instruction_attributes": ["a"]}},
        items_human_ins={"A1": [{"instruction": "i want"}]},
        reviews=[{"asin": "A1", "average_rating": 3, "reviews": [{"title": "T", "stars": "2", "review": "R"}]}],
        title_nouns={"A1": {"name": ["cup"]}},
    )
    (found,) = read_listings(tmp_path)
    assert (found.product.title, found.instruction, found.instruction_attributes) == ("Cup", "Find", ("a",))
    assert (found.human[0]["instruction"], found.nouns, found.product.rating) == ("i want", ("cup",), "3")
    review = found.product.reviews[0]
    assert (review.title, review.score, review.body) == ("T", "2", "R")


def test_which_file_is_meant(tmp_path: Path) -> None:
    write(tmp_path, items_shuffle_100=[], items_shuffle_1000=[])
    found = [find_file(tmp_path, "items_shuffle", n) for n in (100, 7, None)]
    assert [p.name for p in found if p is not None] == ["items_shuffle_100.json", *["items_shuffle_1000.json"] * 2]
    write(tmp_path, items_shuffle=[])
    whole = find_file(tmp_path, "items_shuffle")
    assert whole is not None
    assert whole.name == "items_shuffle.json"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"asin": "A1", "name"', r"items_shuffle.json is not valid JSON.*cut off"),
        ('[{"asin": "A1" "name": 1}, {"asin": "A2"}]', r"items_shuffle.json is not valid JSON.*damaged"),
        ("", "cut off"),
        ("{}", "must hold a JSON array"),
        ([7], r"record 0 is no product.*not 7"),
        ([RECORD, {"asin": "A2", "name": 5}], r"record 1 \(A2\): 'name' must be a text, not 5"),
        ([{**RECORD, "customization_options": [1]}], "'customization_options' must be an object"),
        ([{**RECORD, "customization_options": {"size": [1]}}], "option 'size' must be a list of objects"),
        ([{"name": "no number"}], "record 0 is no product"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: Any, said: str) -> None:
    write(tmp_path, items_shuffle=content)
    with pytest.raises(ConfigError, match=said):
        list(read_listings(tmp_path))


GOOD_INS = {"attributes": ["a"], "instruction": "Find", "instruction_attributes": ["a"]}


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("items_ins_v2", {"A1": ["a"]}, "items_ins_v2: the entry of A1 must be an object, not"),
        ("items_ins_v2", {"A1": {**GOOD_INS, "attributes": "soft"}}, r"\(A1\): 'attributes' must be a list"),
        (
            "items_ins_v2",
            {"A1": {**GOOD_INS, "instruction": ["x"]}},
            "items_ins_v2: 'instruction' of A1 must be a text",
        ),
        (
            "items_ins_v2",
            {"A1": {**GOOD_INS, "instruction_attributes": "ab"}},
            "'instruction_attributes' of A1 must be an",
        ),
        ("items_human_ins", {"A1": {"instruction": "i"}}, "items_human_ins: the entry of A1 must be an array"),
        (
            "items_human_ins",
            {"A1": ["i want"]},
            "items_human_ins: an instruction of A1 must be an object, not 'i want'",
        ),
        ("items_human_ins", {"A1": [None]}, "items_human_ins: an instruction of A1 must be an object"),
        ("items_human_ins", {"A1": [{"instruction": 3}]}, "its 'instruction', must be a text, not 3"),
        (
            "items_human_ins",
            {"A1": [{"instruction_attributes": "soft"}]},
            "its 'instruction_attributes', must be an array",
        ),
        (
            "items_human_ins",
            {"A1": [{"instruction_options": {"a": "b"}}]},
            "its 'instruction_options', must be an array",
        ),
        ("reviews", [{"asin": "A1", "reviews": {"title": "T"}}], "reviews: 'reviews' of A1 must be an array"),
        ("reviews", [{"asin": "A1", "reviews": ["good"]}], "reviews: a review of A1 must be an object, not 'good'"),
        ("title_nouns", {"A1": ["cup"]}, "title_nouns: the entry of A1 must be an object"),
        ("title_nouns", {"A1": {"name": "cup"}}, "title_nouns: 'name' of A1 must be an array, not 'cup'"),
    ],
)
def test_malformed_side_files_are_named(tmp_path: Path, name: str, content: Any, said: str, built: bool) -> None:
    write(tmp_path, items_shuffle=[RECORD], **{name: content})
    read = partial(build_index, out=tmp_path / "index", workers=0) if built else load_catalogue
    with pytest.raises(ConfigError, match=said):
        read(tmp_path)
    assert not (tmp_path / "index").exists()


def test_reviews_that_are_no_objects(tmp_path: Path) -> None:
    write(tmp_path, items_shuffle=[RECORD], reviews=["good"])
    with pytest.raises(ConfigError, match=r"reviews.json: entry 0 must be an object, not 'good'"):
        list(read_listings(tmp_path))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"no items_shuffle\*\.json in .* \(it holds notes.txt\)"):
        list(read_listings(tmp_path))
    with pytest.raises(ConfigError, match="no folder"):
        list(read_listings(tmp_path / "nowhere"))
    write(tmp_path, items_shuffle=[RECORD], items_ins_v2={"A1": {"attributes": "soft"}})
    with pytest.raises(ConfigError, match="'attributes' must be a list"):
        list(read_listings(tmp_path))
