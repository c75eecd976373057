"""The catalogue on disk: the same products, hits and goals as in memory, whatever happens while it is built."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.webshop import commands
from envs.webshop.disk import CatalogueError, DiskCatalogue, Progress, build_index, is_index, open_index
from envs.webshop.disk import index as index_module
from envs.webshop.disk import merge as merge_module
from envs.webshop.disk import nouns as nouns_module
from envs.webshop.disk.index import DiskIndex
from envs.webshop.goals import draw_price, human_goals, shuffled, synthetic_goals
from envs.webshop.original import Listing, read_listings
from envs.webshop.search import MemoryIndex, document_text
from roll_envs.errors import ConfigError, RollError

COMMON = [f"common{n}" for n in range(12)]
RARE = [f"rare{n}" for n in range(700)]


def words(rng: random.Random, count: int) -> str:
    """Text in which some words are in most documents and others in few."""
    return " ".join(rng.choice(COMMON if rng.random() < 0.6 else RARE) for _ in range(count))


def make_data(folder: Path, count: int) -> Path:
    """Product files with all that the original's hold: ranges, no prices, repeated and unusable numbers, odd text."""
    rng = random.Random(7)
    records: list[dict[str, Any]] = []
    made: dict[str, Any] = {}
    human: dict[str, Any] = {}
    for number in range(count):
        asin = f"B{number * 7919 % 1_000_003:07d}"  # in another order than the documents
        options = {
            name.title(): [{"value": f"{name} {n}/{words(rng, 1)}"} for n in range(rng.randrange(1, 4))]
            for name in rng.sample(["size", "colour", "fit"], rng.randrange(3))
        }
        records.append(
            {
                "asin": asin,
                "name": words(rng, rng.randrange(3, 9)) + rng.choice(["", " café ★", " \ud800", ' "quoted" [x]']),
                "full_description": words(rng, rng.randrange(30)),
                "small_description": [words(rng, 4)] * rng.randrange(3),
                "pricing": rng.choice(["", "$12.5", "$995.00", f"$3.20${rng.randrange(4, 90)}.99", "$5,000.00"]),
                "category": rng.choice(["garden", "fashion"]),
                "query": rng.choice(["Console tables ", "shoes"]),
                "product_category": "A › B",
                "customization_options": options or "",
                "images": ["a.jpg", "b.jpg"],
            }
        )
        if rng.random() < 0.8:
            made[asin] = {"attributes": [words(rng, 1) for _ in range(3)]}
            if rng.random() < 0.7:
                made[asin] |= {"instruction": f"Find me {words(rng, 2)}", "instruction_attributes": [words(rng, 1)] * 2}
        if rng.random() < 0.3:
            human[asin] = [
                {"instruction": "i need it.", "instruction_attributes": attributes, "instruction_options": ["red"]}
                for attributes in ([], ["soft"], ["a", "b"])
            ]
    records[9] = {"asin": records[9]["asin"]}  # nothing to index
    records.insert(count // 2, {**records[3], "name": "the second of its number"})
    records.insert(count // 3, {**records[0], "asin": "nan"})
    records.insert(5, {**records[0], "asin": "B0000000000"})
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("items_shuffle", records), ("items_ins_v2", made), ("items_human_ins", human)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 1500)


@pytest.fixture(scope="module")
def built(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(data, tmp_path_factory.mktemp("built") / "index", seed=5, segment_records=400)


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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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


def test_first_products_of_departments_kinds_and_attributes(opened: DiskCatalogue, listings: list[Listing]) -> None:
    products = [listing.product for listing in listings]
    for operator, wanted, members in (
        ("<c>", "garden", [p.category == "garden" for p in products]),
        ("<q>", "shoes", [p.query == "shoes" for p in products]),
        ("<a>", "common3", ["common3" in p.attributes for p in products]),
        ("<a>", products[1400].attributes[0], [products[1400].attributes[0] in p.attributes for p in products]),
        ("<a>", "no such attribute", []),
        ("<x>", "garden", []),
    ):
        expected = [doc for doc, member in enumerate(members) if member][:50]
        assert opened.listed.get(operator, wanted) == tuple(expected)
    assert len(opened.listed.get("<c>", "garden")) == 50


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
    assert {goal.weight for goal in opened.human_goals} == {1.0}
    assert len({goal.weight for goal in opened.synthetic_goals}) > 10


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
    parts = DiskIndex._parts

    def count(self: DiskIndex, term: Any) -> Any:
        added.append(term.end - term.start)
        return parts(self, term)

    monkeypatch.setattr(DiskIndex, "_parts", count)
    assert opened.index.search("rare3 common1 common2 common3", 5)
    assert len(added) == 1
    assert added[0] < 100
    added.clear()
    opened.index.search("common1 common2 common3", 5)
    assert sum(added) > 1000


def test_recorded_reference(shared_dir: Path, tmp_path: Path) -> None:
    """The thousand recovered products: goals and prices of the original loader; hits as in memory."""
    folder = shared_dir / "webshop"
    catalogue = open_index(build_index(folder, tmp_path / "index", segment_records=333, workers=0))
    golden = json.loads(gzip.decompress((folder / "goals.json.gz").read_bytes()))
    prices = golden["product_prices"]
    assert {catalogue.store[doc].asin: catalogue.store.price(doc) for doc in range(1000)} == prices
    goals = catalogue.synthetic_goals
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
    assert len(catalogue.human_goals) == 13
    products = [catalogue.store[doc] for doc in range(1000)]
    memory = MemoryIndex.build(map(document_text, products), [product.asin for product in products])
    for search in json.loads(gzip.decompress((folder / "search.json.gz").read_bytes()))["searches"]:
        assert catalogue.index.scores(search["query"], 50) == memory.scores(search["query"], 50)
    nouns = json.loads((folder / "title_nouns.json").read_text())
    for doc in range(0, 1000, 50):
        product = catalogue.store[doc]
        assert catalogue.nouns.get(product.title) == tuple(nouns[product.asin]["name"])
    assert catalogue.nouns.get("no such title") is None


# --- the same bytes, however it was built -------------------------------------------------------------------------


@pytest.mark.parametrize(("segment_records", "workers"), [(1503, 0), (97, 0), (250, 3)])
def test_bytes_do_not_depend_on_how_the_work_was_cut(
    data: Path, built: Path, tmp_path: Path, segment_records: int, workers: int
) -> None:
    again = build_index(data, tmp_path / "i", seed=5, segment_records=segment_records, workers=workers)
    assert contents(again) == contents(built)


def test_postings_are_merged_a_few_at_a_time(
    data: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_index(built).manifest.counts["postings"] > 10_000
    monkeypatch.setattr(merge_module, "_BATCH_POSTINGS", 2000)
    reports: list[Progress] = []
    again = build_index(data, tmp_path / "i", seed=5, segment_records=500, workers=0, progress=reports.append)
    assert sum(report.stage == "postings" for report in reports) > 5
    assert contents(again) == contents(built)


class Stop(BaseException):
    """What a kill is stood in for with: nothing catches it."""


def test_a_build_stopped_at_any_point_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 60)
    whole = contents(build_index(data, tmp_path / "whole", segment_records=20, workers=0))
    reports: list[Progress] = []
    build_index(data, tmp_path / "counted", segment_records=20, workers=0, progress=reports.append)
    assert [report.stage for report in reports[-1:]] == ["done"]
    assert sum(report.stage == "segments" for report in reports) == 5  # 63 records by 20, and the start
    for stop_at in range(len(reports)):
        out = tmp_path / f"stopped{stop_at}"
        heard = 0

        def listen(_: Progress, stop_at: int = stop_at) -> None:
            nonlocal heard
            heard += 1
            if heard == stop_at + 1:
                raise Stop

        with pytest.raises(Stop):
            build_index(data, out, segment_records=20, workers=0, progress=listen)
        assert not out.exists()
        with pytest.raises(CatalogueError, match="is unfinished; run `roll-envs webshop build-index`"):
            open_index(out)
        resumed: list[Progress] = []
        build_index(data, out, segment_records=20, workers=0, progress=resumed.append)
        assert contents(out) == whole
        done = [report for report in reports[: stop_at + 1] if report.stage == "segments"]
        if done:  # finished segments are not made again
            assert sum(r.stage == "segments" for r in resumed) <= 6 - len(done)
        assert sorted(path.name for path in tmp_path.glob("stopped*")) == [
            *sorted(f"stopped{n}" for n in range(stop_at + 1))
        ]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_build_leaves_no_process_and_goes_on(data: Path, built: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    code = "import sys; from envs.webshop.disk import build_index as b; b(*sys.argv[1:3], seed=5, segment_records=100)"
    rng = random.Random(11)
    workers: set[int] = set()
    kills = 0
    while not out.exists():
        process = subprocess.Popen([sys.executable, "-c", code, str(data), str(out)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + rng.uniform(0.4, 1.6) + 0.3 * kills
        while process.poll() is None and time.monotonic() < deadline:
            workers.update(children(process.pid))
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        _, problem = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), problem.decode()
        kills += process.returncode != 0
        assert kills < 30
    assert kills >= 1
    assert workers
    assert contents(out) == contents(built)
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]


def test_a_worker_that_dies_is_an_error_and_the_build_goes_on(data: Path, tmp_path: Path) -> None:
    def kill_workers(progress: Progress) -> None:
        if progress.stage == "segments" and progress.fraction > 0:
            for pid in children(os.getpid()):
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(CatalogueError, match="worker process ended with status -9"):
        build_index(data, tmp_path / "i", seed=5, segment_records=100, progress=kill_workers)
    assert len(open_index(build_index(data, tmp_path / "i", seed=5, segment_records=100)).store) == 1500


def test_one_build_at_a_time(data: Path, tmp_path: Path) -> None:
    def second(_: Progress) -> None:
        build_index(data, tmp_path / "i", workers=0)

    with pytest.raises(CatalogueError, match="another process is building in"):
        build_index(data, tmp_path / "i", workers=0, progress=second)


def test_an_unfinished_build_is_not_gone_on_with_from_other_input(data: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "goals":
            raise Stop

    with pytest.raises(Stop):
        build_index(data, tmp_path / "i", workers=0, num_products=50, progress=stop)
    for change, message in (
        ({"num_products": 51}, "num_products: 50 then, 51 now"),
        ({"num_products": 50, "seed": 1}, "seed: 0 then, 1 now"),
    ):
        with pytest.raises(CatalogueError, match=message):
            build_index(data, tmp_path / "i", workers=0, **change)
    with pytest.raises(CatalogueError, match="is an unfinished catalogue"):
        open_index(tmp_path / "i.unfinished")
    assert is_index(tmp_path / "i.unfinished")
    catalogue = open_index(build_index(data, tmp_path / "i", workers=0, num_products=50))
    assert len(catalogue.store) == 49  # one of the 50 records has a number that is too long
    assert is_index(tmp_path / "i")
    assert not is_index(data)


# --- what can be wrong with the input -----------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "items_shuffle.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_are_no_products(tmp_path: Path, workers: int) -> None:
    good = {"asin": "A1", "name": "a lamp"}
    path = write(tmp_path, json.dumps([good, {"asin": "A2", "name": 7}]))
    with pytest.raises(ConfigError, match=r"items_shuffle.json, record 1 \(A2\): 'name' must be a text, not 7"):
        build_index(path, tmp_path / "i", workers=workers)


def test_what_cannot_be_built(data: Path, built: Path, tmp_path: Path) -> None:
    for source, message in (
        (tmp_path / "nowhere", "there is no file .*nowhere' .for products."),
        (tmp_path, "no items_shuffle.* in"),
        (write(tmp_path / "empty", "[]"), "holds no product"),
        (write(tmp_path / "cut", '[{"asin": "A1"}, {"asin": "A'), "ends in the middle of a record .*byte 17, record 1"),
    ):
        with pytest.raises(CatalogueError, match=message):
            build_index(source, tmp_path / source.parent.name / "i", workers=0)
    with pytest.raises(CatalogueError, match="exists already; choose another name"):
        build_index(data, built)
    with pytest.raises(CatalogueError, match="for attributes"):
        build_index(data, tmp_path / "j", attributes=tmp_path / "none.json")
    for name in ("num_products", "workers", "segment_records"):
        with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
            build_index(data, tmp_path / "j", **{name: -1})
    assert not (tmp_path / "j").exists()


def test_too_many_combinations_are_refused(tmp_path: Path) -> None:
    many = {name: [{"value": str(n)} for n in range(2000)] for name in "abc"}
    path = write(tmp_path, json.dumps([{"asin": "A0"}, {"asin": "A1", "customization_options": many}]))
    (tmp_path / "items_ins_v2.json").write_text(
        json.dumps({"A1": {"attributes": [], "instruction": "Find", "instruction_attributes": ["x"]}})
    )
    with pytest.raises(CatalogueError, match=r"8000000000 synthetic goals, more than .* come from product 1 "):
        build_index(path, tmp_path / "i", workers=0)


# --- what can be wrong with a catalogue ---------------------------------------------------------------------------


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def test_what_cannot_be_opened(copy: Path, data: Path, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "nothing", "there is no catalogue"),
        (data, "is no catalogue .it has no manifest.json"),
        (data / "items_shuffle.json", "is a file, not the folder"),
    ):
        with pytest.raises(CatalogueError, match=message):
            open_index(path)
    manifest = (copy / "manifest.json").read_text()
    for text, message in (
        (manifest.replace('"version": 1', '"version": 99'), "has format version 99, this release reads 1"),
        (manifest[: len(manifest) // 2], "cannot be read"),
        ("[]", "is not the manifest of a"),
        (manifest.replace('"counts"', '"count"'), "is damaged"),
        (manifest.replace('"prices"', '"price"'), "lacks 'prices'"),
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
        with pytest.raises(CatalogueError, match=f"'{path.name}' is missing"):
            open_index(copy)
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(CatalogueError, match=f"'{path.name}' .* does not match its checksum"):
            open_index(copy, verify=True)
        path.write_bytes(whole)
    open_index(copy, verify=True)


def test_a_damaged_product_is_an_error_when_it_is_read(copy: Path) -> None:
    whole = (copy / "products").read_bytes()
    (copy / "products").write_bytes(bytes(100) + whole[100:])
    store = open_index(copy).store
    with pytest.raises(CatalogueError, match=r"product 0 in .* is damaged"):
        store[0]
    assert store[1499].asin


def test_nouns_of_titles_with_the_same_hash(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(shutil.copytree(data, tmp_path / "data"))
    records = json.loads((source / "items_shuffle.json").read_text())[:4]
    nouns = {record["asin"]: {"name": [f"noun{number}"]} for number, record in enumerate(records)}
    (source / "title_nouns.json").write_text(json.dumps(nouns))
    monkeypatch.setattr(nouns_module, "_hash", lambda title: 7)
    found = open_index(build_index(source, tmp_path / "i", num_products=9, workers=0)).nouns
    assert len(found) == 4
    assert [found.get(record["name"]) for record in records] == [(f"noun{number}",) for number in range(4)]
    assert found.get("another") is None


# --- processes ----------------------------------------------------------------------------------------------------


def test_parts_survive_pickling(opened: DiskCatalogue) -> None:
    for part in (opened, opened.store, opened.index, opened.nouns, opened.human_goals):
        assert len(pickle.dumps(part)) < 10_000
    again = pickle.loads(pickle.dumps(opened))
    assert again.store[7] == opened.store[7]
    assert pickle.loads(pickle.dumps(opened.index)).search("rare1 common1", 9) == opened.index.search(
        "rare1 common1", 9
    )
    assert pickle.loads(pickle.dumps(opened.synthetic_goals))[11] == opened.synthetic_goals[11]


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
