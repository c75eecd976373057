"""The catalogue on disk: the same products, hits and goals as in memory, whatever happens while it is built."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webshop_made import COMMON, RARE, build_in_segments, make_data

from envs.webshop import commands
from envs.webshop.disk import CatalogueError, DiskCatalogue, open_index
from envs.webshop.disk import index as index_module
from envs.webshop.disk.format import CatalogueFiles, read_manifest
from envs.webshop.goals import draw_price, human_goals, shuffled, synthetic_goals
from envs.webshop.original import Listing, read_listings
from envs.webshop.search import MemoryIndex, document_text
from roll_envs.errors import RollError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 1500)


@pytest.fixture(scope="module")
def built(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in_segments(data, tmp_path_factory.mktemp("built") / "index", seed=5, segment_products=400)


@pytest.fixture(scope="module")
def opened(built: Path) -> DiskCatalogue:
    return open_index(built, verify=True)


@pytest.fixture(scope="module")
def listings(data: Path) -> list[Listing]:
    return list(read_listings(data))


@pytest.fixture(scope="module")
def memory(listings: list[Listing]) -> MemoryIndex:
    products = [listing.product for listing in listings]
    return MemoryIndex.build(map(document_text, products), [product.asin for product in products])


def test_a_catalogue_that_nobody_holds_is_closed(built: Path) -> None:
    files = CatalogueFiles(built, read_manifest(built))
    database = files._database
    del files
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")


# --- products, goals, search --------------------------------------------------------------------------------------


def test_products_are_those_in_memory(opened: DiskCatalogue, listings: list[Listing]) -> None:
    store = opened.store
    assert len(store) == len(listings) == 1500
    assert [store[doc] for doc in range(len(store))] == [listing.product for listing in listings]
    assert [store.find(listing.product.asin) for listing in listings] == list(range(1500))
    assert [store.find(asin) for asin in ("", "nan", "B", "B9999999", "é", "a" * 99)] == [None] * 6
    for doc in (-1, 1500):
        with pytest.raises(IndexError, match=f"document {doc} is not in 0..1499"):
            store[doc]
        with pytest.raises(IndexError, match=f"document {doc} is not in 0..1499"):
            store.price(doc)


def test_products_of_departments_kinds_and_attributes(opened: DiskCatalogue, listings: list[Listing]) -> None:
    products = [listing.product for listing in listings]
    for operator, wanted, members in (
        ("<c>", "garden", [p.category == "garden" for p in products]),
        ("<q>", "shoes", [p.query == "shoes" for p in products]),
        ("<a>", "common3", ["common3" in p.attributes for p in products]),
        ("<a>", products[1400].attributes[0], [products[1400].attributes[0] in p.attributes for p in products]),
        ("<a>", "no such attribute", []),
        ("<x>", "garden", []),
    ):
        expected = [doc for doc, member in enumerate(members) if member]
        assert opened.listed(operator, wanted) == tuple(expected)
    assert len(opened.listed("<c>", "garden")) > 500


def test_prices_and_goals_are_those_in_memory(opened: DiskCatalogue, listings: list[Listing]) -> None:
    for human in (True, False):
        rng = random.Random(5)
        prices = [draw_price(listing.product.pricing, rng) for listing in listings]
        assert [opened.store.price(doc) for doc in range(1500)] == prices
        goals = shuffled(human_goals(listings, prices, rng) if human else synthetic_goals(listings, prices, rng))
        found = opened.goals(human=human)
        assert len(found) == len(goals) > 500
        assert tuple(found) == goals
        assert found[-1] == goals[-1]
        assert found[3:9:2] == goals[3:9:2]
        with pytest.raises(IndexError, match="goal 100000 is not in"):
            found[100000]
    assert {goal.weight for goal in opened.goals(human=True)} == {1.0}
    assert len({goal.weight for goal in opened.goals(human=False)}) > 10


QUERIES = st.lists(st.sampled_from(COMMON + RARE[:60] + ["café", "nothing", "size"]), max_size=30).map(" ".join)


@pytest.fixture(params=[(2, 100_000, 12), (1, 10, 0), (3, 300, 1000)], ids=["as it is", "ever early", "ever late"])
def tuned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds say which way a search takes, never what it finds; a small shop takes few ways by itself."""
    for name, value in zip(("_LEADERS", "_LOOK_AHEAD", "_LOOKUP_COST"), request.param, strict=True):
        assert hasattr(index_module, name)
        monkeypatch.setattr(index_module, name, value)


@pytest.mark.usefixtures("tuned")
@given(query=QUERIES, k=st.integers(0, 60) | st.just(5000))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_search_is_that_in_memory(opened: DiskCatalogue, memory: MemoryIndex, query: str, k: int) -> None:
    assert opened.index.scores(query, k) == memory.scores(query, k)
    assert list(opened.index.search(query, k)) == memory.search(query, k)


@pytest.mark.usefixtures("tuned")
def test_search_of_texts_of_products(opened: DiskCatalogue, memory: MemoryIndex, listings: list[Listing]) -> None:
    for listing in listings[::10]:
        query = listing.product.title + " " + listing.product.description
        assert opened.index.scores(query, 50) == memory.scores(query, 50)


def test_common_words_are_looked_up_only_where_they_matter(
    opened: DiskCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rare word and three common ones: the long lists are not added up."""
    added: list[int] = []
    gains = index_module._Term.gains

    def count(term: Any, *places: Any) -> Any:
        if not places:
            added.append(len(term.docs))
        return gains(term, *places)

    monkeypatch.setattr(index_module._Term, "gains", count)
    assert opened.index.search("rare3 common1 common2 common3", 5)
    assert len(added) == 1
    assert added[0] < 100
    added.clear()
    opened.index.search("common1 common2 common3", 5)
    assert sum(added) > 1000


def test_recorded_reference(shared_dir: Path, tmp_path: Path) -> None:
    """The thousand recovered products: goals and prices of the original loader; hits as in memory."""
    folder = shared_dir / "webshop"
    catalogue = open_index(build_in_segments(folder, tmp_path / "index", segment_products=333, workers=0))
    golden = json.loads(gzip.decompress((folder / "goals.json.gz").read_bytes()))
    prices = golden["product_prices"]
    assert {catalogue.store[doc].asin: catalogue.store.price(doc) for doc in range(1000)} == prices
    goals = catalogue.goals(human=False)
    assert len(goals) == golden["num_goals"] == 6910
    for number, expected in enumerate(golden["goals"]):
        goal = goals[number]
        assert (goal.asin, goal.instruction, goal.price_upper) == (
            expected["asin"],
            expected["instruction_text"],
            expected["price_upper"],
        )
        assert goal.options == expected["goal_options"]
        assert goal.weight == pytest.approx(expected["weight"], rel=1e-12)
    assert len(catalogue.goals(human=True)) == 13
    products = [catalogue.store[doc] for doc in range(1000)]
    memory = MemoryIndex.build(map(document_text, products), [product.asin for product in products])
    for search in json.loads(gzip.decompress((folder / "search.json.gz").read_bytes()))["searches"]:
        assert catalogue.index.scores(search["query"], 50) == memory.scores(search["query"], 50)
    nouns = json.loads((folder / "title_nouns.json").read_text())
    for doc in range(0, 1000, 50):
        product = catalogue.store[doc]
        assert catalogue.nouns(product.title) == tuple(nouns[product.asin]["name"])
    assert catalogue.nouns("no such title") is None


# --- what can be wrong with a catalogue ---------------------------------------------------------------------------


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def test_what_cannot_be_opened(copy: Path, data: Path, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "nothing", "there is no catalogue"),
        (data, "there is no catalogue .*, a folder with a manifest.json"),
        (data / "items_shuffle.json", "there is no catalogue .*, a folder with a manifest.json"),
    ):
        with pytest.raises(CatalogueError, match=message):
            open_index(path)
    manifest = (copy / "manifest.json").read_text()
    for text, message in (
        (
            manifest.replace('"version": 4', '"version": 3'),
            "has format version 3, this release reads 4; run .* .again.",
        ),
        (manifest[: len(manifest) // 2], "manifest.json' is damaged .JSONDecodeError"),
        ("[]", "manifest.json' is damaged .TypeError"),
        (manifest.replace('"counts"', '"count"'), "is damaged"),
        (manifest.replace('"prices"', '"price"'), "is damaged .KeyError.'prices'"),
    ):
        assert text != manifest
        (copy / "manifest.json").write_text(text)
        with pytest.raises(CatalogueError, match=message):
            open_index(copy)


def test_files_cut_short_missing_or_changed(copy: Path) -> None:
    for path in sorted(copy.iterdir()):
        if path.name == "manifest.json" or not (whole := path.read_bytes()):
            continue
        path.write_bytes(whole[:-1])
        with pytest.raises(
            CatalogueError, match=rf"'{path.name}' .* has {len(whole) - 1} bytes instead of {len(whole)}"
        ):
            open_index(copy)
        path.unlink()
        with pytest.raises(CatalogueError, match=f"'{path.name}' .* is missing"):
            open_index(copy)
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(CatalogueError, match=f"'{path.name}' .* does not match its checksum"):
            open_index(copy)
        path.write_bytes(whole)
    open_index(copy)


def test_damage_that_was_not_looked_for_is_no_crash(copy: Path) -> None:
    """A large catalogue is opened without its checksums: what is read then is whole, or an error names the place."""
    draw, named = random.Random(3), set()
    for path in sorted(copy.iterdir()):
        if path.name == "manifest.json" or not (whole := path.read_bytes()):
            continue
        for flips in (1, 30, 100, 300, 1000):
            damaged = bytearray(whole)
            for place in draw.choices(range(len(whole)), k=flips):
                damaged[place] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            named |= set(errors_of(copy))
        path.write_bytes(whole)
    assert all(str(copy) in message for message in named)
    for part in ("products", "goal", "words", "product numbers", "products of a word"):
        assert any(part in message for message in named), part


def errors_of(folder: Path) -> Iterator[str]:
    """What using a catalogue says of its damage."""
    try:
        opened = open_index(folder, verify=False)
    except CatalogueError as error:
        yield str(error)
        return
    queries = [f"rare{n} rare{n + 1} rare{n + 2} common1" for n in range(0, 600, 3)]
    calls: list[Callable[[], object]] = [lambda: [opened.index.search(query, 9) for query in queries]]
    calls += [lambda: opened.listed("<c>", "garden"), lambda: opened.nouns("title")]
    for n in range(0, 1500, 50):
        calls += [lambda n=n: opened.store[n], lambda n=n: opened.store.find(f"B{n * 7919 % 1_000_003:07d}")]  # type: ignore[misc]
        calls += [lambda n=n: opened.goals(human=True)[n % 100], lambda n=n: opened.goals(human=False)[n % 100]]  # type: ignore[misc]
    for call in calls:
        try:
            with np.errstate(all="ignore"):
                call()
        except CatalogueError as error:
            yield str(error)


def test_a_damaged_product_is_an_error_when_it_is_read(copy: Path) -> None:
    with closing(sqlite3.connect(copy / "catalogue.db")) as database:
        database.execute("UPDATE products SET packed = substr(packed, 1, 100) || zeroblob(100) WHERE doc = 0")
        database.commit()
    store = open_index(copy, verify=False).store
    with pytest.raises(CatalogueError, match=r"product 0 of the products in .* is damaged"):
        store[0]
    assert store[1499].asin


def test_nouns_of_titles(data: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(data, tmp_path / "data"))
    records = json.loads((source / "items_shuffle.json").read_text())[:4]
    records[3]["name"] = records[1]["name"]  # of equal titles the last counts
    (source / "items_shuffle.json").write_text(json.dumps(records))
    nouns = {record["asin"]: {"name": [f"noun{number}"]} for number, record in enumerate(records)}
    (source / "title_nouns.json").write_text(json.dumps(nouns))
    catalogue = open_index(build_in_segments(source, tmp_path / "i", workers=0, segment_products=3))
    assert [catalogue.nouns(record["name"]) for record in records] == [("noun0",), ("noun3",), ("noun2",), ("noun3",)]
    assert catalogue.nouns("another") is None
    assert pickle.loads(pickle.dumps(catalogue)).nouns(records[2]["name"]) == ("noun2",)


# --- processes ----------------------------------------------------------------------------------------------------


def test_parts_survive_pickling(opened: DiskCatalogue) -> None:
    for part in (opened, opened.store, opened.index, opened.goals(human=True)):
        assert len(pickle.dumps(part)) < 10_000
    again = pickle.loads(pickle.dumps(opened))
    assert again.store[7] == opened.store[7]
    assert pickle.loads(pickle.dumps(opened.index)).search("rare1 common1", 9) == opened.index.search(
        "rare1 common1", 9
    )
    assert pickle.loads(pickle.dumps(opened.goals(human=False)))[11] == opened.goals(human=False)[11]


def test_a_fork_reads_on(opened: DiskCatalogue) -> None:
    hits = opened.index.search("rare1 common1", 50)
    child = os.fork()
    if child == 0:
        same = opened.index.search("rare1 common1", 50) == hits and opened.store[3].asin == "B0023757"
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_search_at_once(opened: DiskCatalogue) -> None:
    queries = [f"rare{n} common{n % 9} common{n % 5}" for n in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda query: opened.index.search(query, 50), queries)) == [
            opened.index.search(query, 50) for query in queries
        ]


# --- the command --------------------------------------------------------------------------------------------------


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    commands.add_arguments(parser)
    return commands.run(parser.parse_args(list(map(str, arguments))))


def test_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("build-index", data, tmp_path / "i", "--workers", "0", "--num-products", "40", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["products"] == 39
    assert "segments: 100%" not in said.out
    assert "segments: " in said.err
    assert command("info", tmp_path / "i", "--verify") == 0
    assert "checksums                      match" in capsys.readouterr().out
    with pytest.raises(RollError, match="there is no catalogue"):
        command("info", tmp_path / "j")
